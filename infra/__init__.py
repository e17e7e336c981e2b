"""Infrastructure that is independent of tasks and pipelines: registry, storage, feature store, video, tracking, Ray."""
