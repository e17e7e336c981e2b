"""What knows no task and no pipeline: registry, store, video, tracking, Ray, checkpoints."""
