"""The base class of tasks of images or videos and texts: corpus, features or pixels, encoders and their inputs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, make_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from encoders.backbones.base import Backbone
from encoders.base import Encoder, Tokenizer, as_written
from infra.data import Batch, Order
from infra.errors import InputError
from infra.fields import from_plain
from infra.paths import resolve_place
from infra.registry import AUGMENTATIONS, ENCODERS, Spec
from infra.store import FeatureStore
from infra.tracking.record import Source
from tasks.abilities import CountsWords, Scores, Searchable
from tasks.augmentations.sets import Drop
from tasks.augmentations.words import MaskReplaceDelete
from tasks.base import TaskAdapter
from tasks.datasets.corpus import Corpus, Item
from tasks.datasets.media import pictured
from tasks.datasets.questions import Image, Question, QuestionCorpus
from tasks.inputs.pairs import StoredSets, TextAugmentation, TextInputs, VisualInputs
from tasks.inputs.pixels import Pixels
from tasks.inputs.presence import CorpusT, left_out, present
from tasks.inputs.source import FEATURES, FeatureSource
from tasks.inputs.texts import NewTexts, StoredTexts, TextSource
from tasks.inputs.unseen import unseen_inputs
from tasks.models.build import Parts, check_reads_features, text_inputs
from tasks.run import Run
from tasks.scoring.attended import Pair, attended
from tasks.scoring.attention import (
    AttentionExamples,
    NearestCaption,
    attention_examples,
    backbone_of,
)
from tasks.scoring.records import LEFT_OUT

PIXEL_CHUNK = 32  # images of 512 pixels encoded at once in evaluation: a few GB of feature maps


class VisualLanguageTask(TaskAdapter, CountsWords, Scores, Searchable):
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
        self.left_out: dict[str, int] = {}
        self._visual, self._text = Spec.parse(run.visual), Spec.parse(run.text)
        self._reads_store = ENCODERS.get(self._visual.name).reads == "features"
        self._reads_words = ENCODERS.get(self._text.name).reads == "tokens"
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
        if not self._reads_words:
            kinds["texts"] = TextSource
        if isinstance(assets, dict) and FEATURES in assets:  # those of older checkpoints do not say
            kinds[FEATURES] = FeatureSource
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

    def present(self, corpus: CorpusT) -> CorpusT:
        """Return a corpus as the run wants it: as it is, or without what is missing, which is counted."""
        if self.run.data.missing == "error":
            return corpus
        kept = present(corpus, self.store)
        self.left_out = left_out(corpus, kept)
        return kept

    @cached_property
    def store(self) -> FeatureStore | None:
        """The features; None where the visual encoder reads pixels."""
        return FeatureStore.open(resolve_place(self.run.data.features)) if self._reads_store else None

    @cached_property
    def text_store(self) -> FeatureStore | None:
        """The features of texts; None where the text encoder reads their words.

        Raises:
            InputError: the run names none, or it cannot be read.
        """
        if self._reads_words:
            return None
        data = self.run.data
        if not data.texts:
            raise InputError(
                f"the text encoder {self._text.name!r} reads stored features of texts; name a store by --data.texts "
                f"(python -m pipelines.extract --texts --corpus {data.corpus} makes one)"
            )
        return FeatureStore.open(resolve_place(data.texts))

    def encoder_assets(self, texts: Iterable[str]) -> dict[str, Any]:
        """Return the assets of new encoders: `visual`, and `text`, made from the texts whose words are counted.

        Where features are stored, `feature_source` is a `FeatureSource`, and where texts are, `texts` a `TextSource`:
        they describe new ones.
        """
        if self.store:
            made = FeatureSource.of(self.store, called=self.run.data.features)
            visual = {"dim": self.store.dim, "statistics": self.store.manifest.statistics}
            kept = {"visual": visual, FEATURES: asdict(made)}
        else:
            kept = {"visual": ENCODERS.get(self._visual.name).prepare(**self._visual.params)}
        if self.text_store is None:
            return kept | {"text": ENCODERS.get(self._text.name).prepare(texts, **self._text.params)}
        source = TextSource.of(self.text_store, called=self.run.data.texts)
        text = {"dim": self.text_store.dim, "statistics": self.text_store.manifest.statistics}
        return kept | {"text": text, "texts": asdict(source)}

    def describe(self) -> Mapping[str, str]:
        """Return the digests of what the run reads, and the sizes of the splits."""
        return {
            "corpus": self.corpus.digest,
            **({"features": self.store.digest} if self.store else {}),
            **({"texts": self.text_store.digest} if self.text_store else {}),
            **{f"{self.samples}_{split}": str(count) for split, count in self.corpus.splits.items()},
            **{f"{LEFT_OUT}{split}": str(count) for split, count in self.left_out.items()},
        }

    def sources(self) -> list[Source]:
        """Return each split of the corpus that has samples, and the stores."""
        data, corpus = self.run.data, self.corpus
        read = [
            (split, corpus.digest, data.corpus, {self.samples: corpus.splits[split]})
            for split in ("train", "val", "test")
            if split in corpus.splits
        ]
        stores = (("features", data.features, self.store), ("texts", data.texts, self.text_store))
        read += [(name, of.digest, place, {"sets": len(of)}) for name, place, of in stores if of is not None]
        return [
            Source(name=f"{data.dataset}/{name}", digest=digest, place=place, context=name, profile=count)
            for name, digest, place, count in read
        ]

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

    def counted_texts(self) -> Iterator[str]:
        """Return the texts whose words a new text encoder knows."""
        return (text for split in self.run.data.vocabulary for text in self.texts(split))

    def assets_for(self, texts: Sequence[str]) -> dict[str, Any]:
        """Return the assets with those of a text encoder that is made for other texts."""
        return self.assets | {"text": self.encoder_assets(texts)["text"]}

    @abstractmethod
    def texts(self, split: str) -> list[str]:
        """Return the texts of a split, in order."""

    def check_texts(self) -> None:
        """Refuse, before a run starts, texts that are not in its store, and what can be done with words alone.

        Raises:
            InputError: such a text or setting.
        """
        self.text_augmentation()
        if self.text_store is None:
            return
        data = self.run.data
        if data.max_words:
            raise InputError(
                f"--data.max-words {data.max_words} cuts words, and {data.texts} has features of whole texts; make it 0"
            )
        check_reads_features(self.run)
        for split in ("train", "val", "test"):  # what is missing is found out now, and not after training
            self.corpus_texts(self.texts(split))

    def corpus_texts(self, texts: Sequence[str]) -> TextInputs:
        """Return what the model reads of texts of the corpus: sets of the store, or their words.

        Raises:
            InputError: one of them has no features.
        """
        if self.text_store is None:
            return self.text_inputs(texts)
        return StoredTexts(self.text_store, texts, corpus=self.run.data.corpus)

    @cached_property
    def _text_source(self) -> TextSource:
        return from_plain(TextSource, self.assets["texts"], where="assets.json: texts")

    @cached_property
    def _text_backbone(self) -> Backbone:
        return self._text_source.backbone()

    def text_inputs(self, texts: Sequence[str]) -> TextInputs:
        """Return what the model reads of any texts: their words, or features that the store's backbone makes of them.

        Raises:
            InputError: that backbone cannot be had, or cannot read one of them.
        """
        if self._reads_words:
            return text_inputs(self.run, texts, self._tokenizer)
        return NewTexts(texts, self._text_backbone, dtype=self._text_source.dtype)

    @property
    def _tokenizer(self) -> Tokenizer:
        return ENCODERS.get(self._text.name).tokenizer(self.assets["text"])

    def text_augmentation(self) -> TextAugmentation | None:
        """Return what changes texts in training, their words or their stored features; None where nothing does.

        Raises:
            InputError: it is of the one where the other is read.
        """
        if not (spec := self.run.data.text_augment):
            return None
        augment = AUGMENTATIONS.build(spec)
        if isinstance(augment, Drop if self._reads_words else MaskReplaceDelete):
            reads, other = (
                ("words", "mask_replace_delete") if self._reads_words else ("stored features", "drop")
            )
            raise InputError(
                f"--data.text-augment {spec!r} does not change {reads}, which the text encoder {self._text.name!r} "
                f"reads; choose one that does, such as '{other}(p=0.2)', or none"
            )
        return augment

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
            subwords=self._subwords(),
            nearest=nearest or (lambda item: ()),
            backbone=backbone_of(self.store, self._visual),
            store=self.store,
        )

    def _subwords(self) -> Callable[[str, Batch], Sequence[str]]:
        """Return what names the elements of a text in a batch of it alone."""
        if not self._reads_words:
            return lambda text, batch: self._text_source.pieces(text, count=int(batch["text_mask"].sum()))
        tokenizer = self._tokenizer
        return lambda text, batch: as_written(tokenizer, text, batch["text"][batch["text_mask"]].tolist())

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
