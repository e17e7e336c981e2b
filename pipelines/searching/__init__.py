"""What `search` is made of: galleries, indices and the page."""
