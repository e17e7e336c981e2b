"""Registry, store, video, tracking, Ray, checkpoints: all that knows no task and no pipeline."""
