"""Search of a split by a trained model: queries, galleries and their indices."""

from typing import Literal

Method = Literal["auto", "exact", "two-pass", "int8", "binary", "faiss"]
"""How a gallery is searched; `polypool.pipelines.models.search.galleries.make_gallery` says what fits which model."""
