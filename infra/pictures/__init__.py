"""Pictures: the one door by which their files are opened, and the way from any of them to RGB."""
