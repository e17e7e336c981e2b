"""Rendered pictures and videos with captions and questions, for the demo."""
