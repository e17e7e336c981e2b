"""Texts as sets of stored features, as an encoder such as `stored_text` reads them: those of a corpus from a store, new
ones from the backbone that the store names.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from encoders.backbones.again import backbone_again, spec_again
from encoders.backbones.base import Backbone
from encoders.backbones.texts import TextBackbone
from infra.data import Batch
from infra.errors import InputError
from infra.registry import BACKBONES, Spec
from infra.store import FeatureStore
from infra.store.ids import text_id
from tasks.augmentations.sets import Draw, Drop
from tasks.inputs.unseen import MemorySets


@dataclass(frozen=True, kw_only=True)
class TextSource:
    """Where the stored features of texts come from, as a run's assets keep it.

    Attributes:
        store: the folder, for messages.
        dtype: what its numbers are stored as.
        extractor: what its backbone said of itself; None where the store is not one of `extract`.
    """

    store: str
    dtype: Literal["float16", "float32"]
    extractor: dict[str, Any] | None = None

    @classmethod
    def of(cls, store: FeatureStore, *, called: str) -> TextSource:
        """Return what a store says, whose folder messages are to call so."""
        return cls(store=called, dtype=store.dtype, extractor=store.manifest.source.get("extractor"))

    def backbone(self) -> Backbone:
        """Return what makes the features of new texts.

        Raises:
            InputError: it cannot be had.
        """
        if self.extractor is None:
            raise InputError(
                f"{self.store}: its features of texts do not come from `python -m pipelines.extract --texts`, so no "
                "backbone here makes them of a new text; search with a file, or with --id, an id of the corpus"
            )
        return backbone_again(self.extractor, where=f"{self.store}: extractor", store=self.store)

    def pieces(self, text: str, *, count: int) -> list[str]:
        """Return what the `count` elements of a text are called: the tokens, or numbers where those are not known."""
        kind = (
            BACKBONES.get(Spec.parse(spec_again(self.extractor, where=self.store)).name)
            if self.extractor
            else None
        )
        known = isinstance(kind, type) and issubclass(kind, TextBackbone)
        pieces = kind.pieces(self.extractor, text) if known else []
        return pieces if len(pieces) == count else [str(number + 1) for number in range(count)]


class StoredTexts:
    """Texts as a store of `extract --texts` has them.

    Args:
        store: the features, by the ids of texts.
        texts: those of a split, in order.
        corpus: its folder, for the message.

    Raises:
        InputError: texts that are not in the store.
    """

    def __init__(self, store: FeatureStore, texts: Sequence[str], *, corpus: str) -> None:
        self.store = store
        self.rows = store.find([text_id(text) for text in texts])
        if missing := np.flatnonzero(self.rows < 0).tolist():
            extractor = store.manifest.source.get("extractor")
            backbone = spec_again(extractor, where=str(store.folder)) if extractor else "SPEC"
            raise InputError(
                f"{store.folder}: {len(missing):,} of {len(texts):,} texts have no features, such as "
                f"{texts[missing[0]]!r}; it was made of another corpus, or skipped them (skipped.jsonl). Make one of "
                f'this corpus: python -m pipelines.extract --texts --corpus {corpus} --backbone "{backbone}" --out DIR'
            )

    def __len__(self) -> int:
        return len(self.rows)

    def sizes(self) -> np.ndarray:
        """Return how many elements each text has."""
        return self.store.sizes(self.rows)

    def fetch_ahead(self, index_B: np.ndarray) -> Sequence[Future]:
        """Begin to fetch the sets of texts that will be asked for; see `infra.data.FetchesAhead`."""
        return self.store.fetch_ahead(self.rows[index_B])

    def batch(self, index_B: np.ndarray, *, augment: Drop | None = None, draw: Draw | None = None) -> Batch:
        """Return `text` `(B, L, F)`, as it is stored, and `text_mask` `(B, L)`.

        Args:
            index_B: which texts.
            augment: which elements stay; all where None.
            draw: source of the augmentation's random numbers.
        """
        rows_B = self.rows[index_B]
        stay = None if augment is None else augment(self.store.sizes(rows_B), index_B, draw)
        x_BLF, mask_BL = self.store.padded(rows_B, keep=stay)
        return {"text": x_BLF, "text_mask": mask_BL}


class NewTexts:
    """Texts that are described when they are asked for, and rounded as the store rounds them.

    Args:
        texts: any.
        backbone: what describes them.
        dtype: of the store that the model was trained on.
    """

    def __init__(self, texts: Sequence[str], backbone: Backbone, *, dtype: str) -> None:
        self._texts, self._backbone, self._dtype = texts, backbone, dtype

    def __len__(self) -> int:
        return len(self._texts)

    def sizes(self) -> np.ndarray:
        """Return how many elements each text has."""
        return np.array([len(self._described([text])[0]) for text in self._texts], np.int64)

    def batch(self, index_B: np.ndarray, *, augment: None = None, draw: Draw | None = None) -> Batch:
        """Return `text` `(B, L, F)` and `text_mask` `(B, L)`; new texts are not learnt from.

        Raises:
            InputError: the backbone cannot read one of them.
        """
        sets = MemorySets(self._described([self._texts[n] for n in index_B.tolist()]), dim=self._backbone.dim)
        x_BLF, mask_BL = sets.batch(np.arange(len(index_B)), sample_B=index_B, draw=draw)
        return {"text": x_BLF, "text_mask": mask_BL}

    def _described(self, texts: list[str]) -> list[np.ndarray]:
        described = self._backbone(texts)
        for text, x_LF in zip(texts, described, strict=True):
            if isinstance(x_LF, str):
                raise InputError(f"the text {text[:80]!r} cannot be read: {x_LF}")
        return [x_LF.astype(self._dtype) for x_LF in described]
