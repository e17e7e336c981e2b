"""One application that serves a trained model: a page for people and an HTTP API, here or on Ray Serve."""
