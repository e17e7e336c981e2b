"""How the features that a model reads were made, as a run's assets keep it: new images and videos are described so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from infra.fields import at_least
from infra.store import FeatureStore

FEATURES = "feature_source"
"""What assets call it."""
_MAKING = ("reader", "extractor", "video", "batch")


@dataclass(frozen=True, kw_only=True)
class FeatureSource:
    """Enough to make features of a file that is in no store, where the store itself is not at hand.

    Attributes:
        store: the folder, for messages.
        dim: width of its vectors.
        dtype: what its numbers are stored as.
        source: what its manifest says of its making: the `reader` of another program's files, or the `extractor`, how
            it read `video`, and in a `batch` of how many.
    """

    store: str
    dim: Annotated[int, at_least(1)]
    dtype: Literal["float16", "float32"]
    source: dict[str, Any]

    @classmethod
    def of(cls, store: FeatureStore, *, called: str = "") -> FeatureSource:
        """Return what a store says.

        Args:
            store: the features that a model is trained on.
            called: its folder as messages are to name it; where it is, if empty.
        """
        said = store.manifest.source
        return cls(
            store=called or str(store.folder),
            dim=store.dim,
            dtype=store.dtype,
            source={name: said[name] for name in _MAKING if name in said},
        )
