"""Frames of video files, decoded in a process that may be killed."""
