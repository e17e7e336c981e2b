"""Networks that `extract` runs once over image and video files."""
