"""Infrastructure that is independent of tasks and pipelines: registry, store, video, tracking, Ray, checkpoints."""
