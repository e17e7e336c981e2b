"""The base class of tasks of images or videos and texts: corpus, features or pixels, encoders and their inputs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import make_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from encoders.base import Encoder
from infra.data import Order
from infra.errors import InputError
from infra.fields import from_plain
from infra.paths import resolve_place
from infra.registry import AUGMENTATIONS, ENCODERS, Spec
from infra.store import FeatureStore
from tasks.base import Scores, Searchable, TaskAdapter
from tasks.datasets.corpus import Corpus, Item
from tasks.datasets.media import pictured
from tasks.datasets.questions import Image, Question, QuestionCorpus
from tasks.inputs.pairs import StoredSets, TextInputs, VisualInputs
from tasks.inputs.pixels import Pixels
from tasks.inputs.unseen import unseen_inputs
from tasks.models.build import Parts, text_inputs
from tasks.run import Run
from tasks.scoring.attended import Pair, attended
from tasks.scoring.attention import AttentionExamples, NearestCaption, attention_examples, backbone_of

PIXEL_CHUNK = 32  # images of 512 pixels encoded at once in evaluation: a few GB of feature maps


class VisualLanguageTask(TaskAdapter, Scores, Searchable):
    """The part of an adapter that says what a model reads; derived classes say what is learnt of it and scored.

    The corpus and the feature store are opened when they are first asked for, since a trained model is of use without
    them.

    Args:
        run: its complete description.
        chunk: how many samples go through the model at once in evaluation; fewer where it reads pixels.
    """

    modality: str = "image"
    """What the visual side is: `image` or `video`."""
    samples: str
    """What the sizes of the splits count, such as `images`."""

    def __init__(self, run: Run, *, chunk: int) -> None:
        if chunk < 1:
            raise InputError(f"chunk must be at least 1, not {chunk}")
        self.run, self.chunk = run, chunk
        self._visual, self._text = Spec.parse(run.visual), Spec.parse(run.text)
        self._reads_store = ENCODERS.get(self._visual.name).reads == "features"
        self.visual_chunk = chunk if self._reads_store else min(chunk, PIXEL_CHUNK)

    def held(self, assets: Any) -> dict[str, Any]:
        """Return the assets of a checkpoint, whose encoders say what theirs hold.

        Raises:
            InputError: a field that is missing or does not fit.
        """
        kinds = {
            name: ENCODERS.get(spec.name).assets_kind
            for name, spec in (("visual", self._visual), ("text", self._text))
        }
        known = (
            assets if not isinstance(assets, dict) else {key: assets[key] for key in kinds if key in assets}
        )
        from_plain(make_dataclass("Assets", kinds.items(), kw_only=True), known, where="assets.json")
        return assets

    def check_batches(self, samples: int) -> None:
        """Refuse a training split that makes no batch.

        Args:
            samples: how many there are, captions, images or questions.

        Raises:
            InputError: they are fewer than a batch.
        """
        run = self.run
        Order(size=samples, batch=run.optim.batch, unit=run.epoch_unit, seed=run.seed)

    @property
    @abstractmethod
    def corpus(self) -> Corpus | QuestionCorpus:
        """The samples of all splits."""

    @cached_property
    def store(self) -> FeatureStore | None:
        """The features; None where the visual encoder reads pixels."""
        return FeatureStore.open(resolve_place(self.run.data.features)) if self._reads_store else None

    def encoder_assets(self, texts: Iterable[str]) -> dict[str, Any]:
        """Return the assets of new encoders: `visual`, and `text`, made from the texts whose words are counted."""
        if self.store:
            visual = {"dim": self.store.dim, "statistics": self.store.manifest.statistics}
        else:
            visual = ENCODERS.get(self._visual.name).prepare(**self._visual.params)
        return {
            "visual": visual,
            "text": ENCODERS.get(self._text.name).prepare(texts, **self._text.params),
        }

    def describe(self) -> Mapping[str, str]:
        """Return the digests of what the run reads, and the sizes of the splits."""
        return {
            "corpus": self.corpus.digest,
            **({"features": self.store.digest} if self.store else {}),
            **{f"{self.samples}_{split}": str(count) for split, count in self.corpus.splits.items()},
        }

    def corpus_inputs(self, items: Sequence[Item | Image]) -> VisualInputs:
        """Return what the visual encoder reads of items of the corpus: sets of the store, or the images themselves.

        Raises:
            InputError: one of them has no features, or no image.
        """
        data = self.run.data
        augment = AUGMENTATIONS.build(data.visual_augment) if data.visual_augment else None
        if self.store:
            ids = [item.id for item in items]
            return StoredSets(self.store, ids, augment=augment, limit=data.max_frames)
        encoder = ENCODERS.get(self._visual.name)
        transform = encoder.transform(self.assets["visual"], **self._visual.params)
        paths = [self.corpus.image_path(item) for item in items]
        return Pixels(paths, transform=transform, augment=augment)

    @property
    def visual_dim(self) -> int:
        """Width F of the features that an image or video is given as; 0 where the model reads pixels."""
        return self.assets["visual"]["dim"] if self._reads_store else 0

    def visual_inputs(self, visuals: Sequence[np.ndarray | str | Path]) -> VisualInputs:
        """Return what the model reads of features in memory, or of image files; see `unseen_inputs`."""
        return unseen_inputs(
            visuals, spec=self._visual, assets=self.assets["visual"], limit=self.run.data.max_frames
        )

    def text_inputs(self, texts: Sequence[str]) -> TextInputs:
        """Return what the model reads of texts, whether or not they are those of a corpus."""
        return text_inputs(self.run, texts, ENCODERS.get(self._text.name).tokenizer(self.assets["text"]))

    def text_augmentation(self) -> Any:
        """Return what changes the words of texts in training; None where nothing does."""
        spec = self.run.data.text_augment
        return AUGMENTATIONS.build(spec) if spec else None

    def attention(
        self,
        model: nn.Module,
        pairs: Iterable[Pair],
        split: str,
        *,
        items: Sequence[Item | Question],
        texts: Sequence[str],
        nearest: Callable[[int], Sequence[NearestCaption]] | None = None,
    ) -> AttentionExamples | None:
        """Return where a model's aggregators look; None where they tell nothing, and on workers but the first.

        Args:
            model: a trained one.
            pairs: those to look at; every worker has the same.
            split: its name.
            items: its images or videos, or its questions, by the pairs' numbers.
            texts: its captions or questions, likewise.
            nearest: the nearest captions of an item's vectors, by its number; None where there are no such.
        """
        return attention_examples(
            attended(model, pairs),
            split=split,
            modality=self.modality,
            text_kind=self.corpus.texts,
            texts=texts,
            pictured=lambda number: pictured(self.corpus, items[number]),
            tokenizer=ENCODERS.get(self._text.name).tokenizer(self.assets["text"]),
            nearest=nearest or (lambda item: ()),
            backbone=backbone_of(self.store, self._visual),
        )

    def parts(self, *, pretrained: bool) -> Parts:
        """Return what a new model is made of, with published weights in the encoders that have them if asked for."""

        def encoder(spec: str, assets: dict[str, Any]) -> Encoder:
            built = ENCODERS.build(spec, assets)
            if pretrained:
                built.load_pretrained()
            return built

        return Parts(
            self.run,
            visual=lambda: encoder(self.run.visual, self.assets["visual"]),
            text=lambda: encoder(self.run.text, self.assets["text"]),
        )
