"""From image and video files to features, by a backbone."""
