"""Object storage: what a URL names, a cache of it on this machine, and how files get there."""
