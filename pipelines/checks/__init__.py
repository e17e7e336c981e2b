"""What `check` holds each kind of part to."""
