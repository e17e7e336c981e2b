"""Training steps: of images, videos and questions, their parts, and the same by two workers."""
