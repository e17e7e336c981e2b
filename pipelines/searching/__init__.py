"""What `search` is made of: galleries, indices and the page."""

from typing import Literal

Method = Literal["auto", "exact", "two-pass", "faiss"]
"""How a gallery is searched; `pipelines.searching.galleries.make_gallery` says what fits which model."""
