"""Checks of parts and plug-ins, to run before any long training."""
