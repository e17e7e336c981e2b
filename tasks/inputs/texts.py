"""Texts as the text encoder reads them: token numbers, or sets of features from a store or its backbone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast

import numpy as np
from torch import Tensor

from polypool.encoders.backbones import Backbone, recorded_backbone, recorded_spec
from polypool.encoders.backbones.text_models import TextBackbone
from polypool.encoders.text.tokenizers import Tokenizer, pad_tokens, unknown_words
from polypool.infra.batches import Batch
from polypool.infra.errors import InputError
from polypool.infra.process.progress import Progress
from polypool.infra.ragged import ragged
from polypool.infra.registry import BACKBONES, MODELS, Spec
from polypool.infra.store import FeatureStore
from polypool.infra.store.feature_store import text_id
from polypool.infra.store.resident import StoreRows
from polypool.tasks.inputs.augmentations import Draw, Drop, MaskReplaceDelete
from polypool.tasks.inputs.visuals import MemorySets
from polypool.tasks.run import Run

TextAugmentation = MaskReplaceDelete | Drop  # of words, or of stored features


class TextInputs(Protocol):
    """The text encoder's inputs of a split's captions or questions."""

    def sizes(self) -> np.ndarray:
        """Return how many tokens or elements each text has."""

    def batch(self, index_B: np.ndarray, *, augment: Any = None, draw: Draw | None = None) -> Batch:
        """Return the inputs of the texts `index_B`.

        `text` is `(B, L)` of token numbers or `(B, L, F)` of features; `text_mask` is `(B, L)`.

        Args:
            index_B: numbers of the texts in their split.
            augment: a `TextAugmentation` that the inputs take; None for none.
            draw: source of the augmentation's random numbers.
        """


class Captions:
    """Token numbers of many texts in three flat arrays, so that millions fit in memory.

    Args:
        captions: the texts.
        tokenizer: splits them.
        limit: maximum words of a text; 0 for no limit. The model's number of positions is another limit.

    Attributes:
        notes: sentences on truncated texts and on the share of unknown words.
    """

    def __init__(self, captions: Sequence[str], tokenizer: Tokenizer, *, limit: int = 0) -> None:
        subwords: list[int] = []
        words: list[int] = []
        ends = np.zeros(len(captions) + 1, np.int64)
        longest, cut, too_long = tokenizer.longest, 0, 0
        encoded = Progress(tokenizer.encode(captions), desc="tokenising", total=len(captions), leave=False)
        for i, line in enumerate(encoded):
            cut += 0 < limit < len(line)
            start = len(subwords)
            for number, word in enumerate(line[: limit or None]):
                subwords.extend(word)
                words.extend([number] * len(word))
            if 0 < longest < len(subwords) - start:
                too_long += 1
                del subwords[start + longest :], words[start + longest :]
            ends[i + 1] = len(subwords)
        self.tokenizer = tokenizer
        self._subword_P = np.array(subwords, np.int32)
        self._word_P = np.array(words, np.int32)
        self._ends = ends
        self.notes = list[str]()
        if cut:
            self.notes.append(f"{cut:,} of {len(captions):,} texts are cut after {limit} words")
        if too_long:
            texts = f"{too_long:,} of {len(captions):,} texts"
            self.notes.append(f"{texts} are cut to the {longest} tokens that the model reads")
        self.notes += self._unknown(captions)

    def _unknown(self, captions: Sequence[str]) -> Iterator[str]:
        """Yield a sentence on the share of unknown words, with three examples, if it is above 0."""
        unknown_P = self._subword_P == self.tokenizer.unknown
        if not unknown_P.any():
            return
        at = np.unique(np.searchsorted(self._ends, np.flatnonzero(unknown_P)[:32], side="right") - 1)
        words = [word for text in at.tolist() for word in unknown_words(self.tokenizer, captions[text])]
        such = ", ".join(map(repr, list(dict.fromkeys(words))[:3]))
        yield (
            f"{100 * unknown_P.mean():.1f} % of {len(unknown_P):,} {'words' if words else 'tokens'} are unknown to the "
            f"text encoder{f', such as {such}' if such else ''}"
        )

    def sizes(self) -> np.ndarray:
        return np.diff(self._ends) + self.tokenizer.starts + self.tokenizer.ends

    def batch(
        self, index_B: np.ndarray, *, augment: MaskReplaceDelete | None = None, draw: Draw | None = None
    ) -> dict[str, Tensor]:
        """Return `text` `(B, L)`, the token numbers (int64, 0 in the pads), and `text_mask` `(B, L)`."""
        start_B, size_B = self._ends[index_B], self._ends[index_B + 1] - self._ends[index_B]
        row_P, from_P = ragged(start_B, size_B)
        subword_P = self._subword_P[from_P]
        if augment is not None and draw is not None:
            subword_P, stay_P = augment(
                subword_P,
                self._word_P[from_P],
                index_B[row_P],
                draw,
                mask_subword=self.tokenizer.mask,
                vocabulary=self.tokenizer.size,
            )
            subword_P, row_P = subword_P[stay_P], row_P[stay_P]
            size_B = np.bincount(row_P, minlength=len(index_B))
        token_BL, mask_BL = pad_tokens(subword_P, size_B, self.tokenizer)
        return {"text": token_BL, "text_mask": mask_BL}


class StoredTexts(StoreRows):
    """Texts as features of a store that `extract --texts` made.

    Args:
        store: the features, by the ids of texts.
        texts: of a split, in order.
        corpus: its folder, for the message.

    Raises:
        InputError: texts that are not in the store.
    """

    def __init__(self, store: FeatureStore, texts: Sequence[str], *, corpus: str) -> None:
        super().__init__(store, store.find([text_id(text) for text in texts]))
        if missing := np.flatnonzero(self.rows < 0).tolist():
            extractor = store.manifest.source.get("extractor")
            backbone = recorded_spec(extractor, where=str(store.folder)) if extractor else "SPEC"
            raise InputError(
                f"{store.folder}: {len(missing):,} of {len(texts):,} texts have no features, such as "
                f"{texts[missing[0]]!r}; it was made of another corpus, or skipped them (skipped.jsonl). Make one of "
                f'this corpus: polypool extract --texts --corpus {corpus} --backbone "{backbone}" --out DIR'
            )

    def sizes(self) -> np.ndarray:
        return self.store.sizes(self.rows)

    def batch(self, index_B: np.ndarray, *, augment: Drop | None = None, draw: Draw | None = None) -> Batch:
        """Return the stored features `text` `(B, L, F)`, and `text_mask` `(B, L)`."""
        rows_B = self.rows[index_B]
        stay = augment(self.store.sizes(rows_B), index_B, draw) if augment and draw else None
        x_BLF, mask_BL = self.sets.padded(rows_B, keep=stay)
        return {"text": x_BLF, "text_mask": mask_BL}


@dataclass(frozen=True, kw_only=True)
class TextSource:
    """Origin of the stored features of texts, as a run's assets keep it.

    Attributes:
        store: the folder, for messages.
        dtype: of the stored numbers.
        extractor: the description of its backbone; None if `extract` did not make the store.
    """

    store: str
    dtype: Literal["float16", "float32"]
    extractor: dict[str, Any] | None = None

    @classmethod
    def of(cls, store: FeatureStore, *, called: str) -> TextSource:
        return cls(
            store=called, dtype=cast("Any", store.dtype), extractor=store.manifest.source.get("extractor")
        )

    def backbone(self) -> Backbone:
        """Return the backbone that makes features of new texts.

        Raises:
            InputError: it is not known or cannot be loaded.
        """
        if self.extractor is None:
            raise InputError(
                f"{self.store}: its features of texts do not come from `polypool extract --texts`, so no "
                "backbone here makes them of a new text; search with a file, or with --id, an id of the corpus"
            )
        return recorded_backbone(self.extractor, where=f"{self.store}: extractor", store=self.store)

    def pieces(self, text: str, *, count: int) -> list[str]:
        """Return names of the `count` elements of a text: its tokens, or numbers from 1 if the tokens are unknown."""
        pieces = []
        if self.extractor:
            kind = BACKBONES.part(recorded_spec(self.extractor, where=self.store))
            if isinstance(kind, type) and issubclass(kind, TextBackbone):
                pieces = kind.pieces(self.extractor, text)
        return pieces if len(pieces) == count else [str(number + 1) for number in range(count)]


class NewTexts:
    """Features that a backbone makes of any texts on demand, rounded as a store rounds them.

    Args:
        texts: any.
        backbone: makes the features.
        dtype: of the store that the model was trained on.
    """

    def __init__(self, texts: Sequence[str], backbone: Backbone, *, dtype: str) -> None:
        self._texts, self._backbone, self._dtype = texts, backbone, dtype

    def sizes(self) -> np.ndarray:
        return np.array([len(self._features([text])[0]) for text in self._texts], np.int64)

    def batch(self, index_B: np.ndarray, *, augment: None = None, draw: Draw | None = None) -> Batch:
        """Return `text` `(B, L, F)` and `text_mask` `(B, L)`, never augmented.

        Raises:
            InputError: the backbone cannot read one of the texts.
        """
        sets = MemorySets(self._features([self._texts[n] for n in index_B.tolist()]), dim=self._backbone.dim)
        x_BLF, mask_BL = sets.batch(np.arange(len(index_B)), sample_B=index_B, draw=draw)
        return {"text": x_BLF, "text_mask": mask_BL}

    def _features(self, texts: list[str]) -> list[np.ndarray]:
        features = []
        for text, x_LF in zip(texts, self._backbone(texts), strict=True):
            if not isinstance(x_LF, np.ndarray):
                raise InputError(f"the text {text[:80]!r} cannot be read: {x_LF}")
            features.append(x_LF.astype(self._dtype))
        return features


def caption_inputs(run: Run, captions: Sequence[str], tokenizer: Tokenizer) -> TextInputs:
    """Return the text inputs of a run's model: `Captions`, or the result of its class's `text_inputs`."""
    spec, limit = Spec.parse(run.model or "none"), run.data.max_words
    if run.model and (of_model := MODELS.get(spec.name).text_inputs):
        return of_model(captions, tokenizer, limit=limit, **spec.params)
    return Captions(captions, tokenizer, limit=limit)
