"""Inputs of a run's encoders: a corpus with stored features or files, its texts, and new files and texts."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, make_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from polypool.encoders.backbones import Backbone
from polypool.encoders.text.tokenizers import Tokenizer, as_written, unknown_words
from polypool.infra.batches import Batch
from polypool.infra.compute.dist import rank
from polypool.infra.errors import LACKING, InputError
from polypool.infra.fields import from_plain
from polypool.infra.paths import absolute, home
from polypool.infra.process.progress import Progress
from polypool.infra.registry import AUGMENTATIONS, ENCODERS, MODELS, Spec
from polypool.infra.store import FeatureStore
from polypool.infra.tracking import Source
from polypool.tasks.datasets.corpus import Corpus, Item, QuestionCorpus
from polypool.tasks.datasets.readers.folders import Listing
from polypool.tasks.datasets.splits import SPLITS
from polypool.tasks.inputs.augmentations import Drop, MaskReplaceDelete
from polypool.tasks.inputs.texts import (
    NewTexts,
    StoredTexts,
    TextAugmentation,
    TextInputs,
    TextSource,
    caption_inputs,
)
from polypool.tasks.inputs.visuals import (
    FEATURES,
    FeatureSource,
    Modality,
    StoredSets,
    VisualInputs,
    check_frames,
    unseen_inputs,
    visual_files,
)
from polypool.tasks.run import Run, named_encoder
from polypool.tasks.scoring.records import LEFT_OUT, ORIGIN

OTHER_EXTRACTOR = "other_extractor"
"""Name of the tag of runs on features from another backbone than their recipe's."""


def present(corpus: Corpus | QuestionCorpus, store: FeatureStore | None) -> Corpus | QuestionCorpus:
    """Return the corpus with only the items that have features, or, without a store, a file."""
    if store is not None:
        return corpus.only(store.ids)
    listing = Listing(corpus.image_folder)
    paths = (row for split in corpus.splits for row in corpus.paths(split))
    return corpus.only(pa.array([id for id, path, _ in paths if path and listing.has(path)], pa.string()))


def _base_name(value: Any) -> Any:
    """Return the last part of a model's name or path; other values are returned unchanged."""
    return value.rpartition("/")[2] if isinstance(value, str) else value


class CorpusInputs:
    """The inputs of a run's encoders.

    Corpus and stores are opened on first use: a trained model can be used without them.

    An adapter derives from this class, or has an instance as a part.

    Args:
        run: its complete description.

    Attributes:
        assets: of the encoders, from `encoder_assets`; set them before making inputs.
        left_out: number of samples without features or file, for each split with any.
    """

    modality: Modality = "image"
    """Of the visual side."""
    samples: str = "images"
    """Unit of the sizes of the splits."""
    corpus_kind: type[Corpus] | type[QuestionCorpus] = Corpus

    def __init__(self, run: Run) -> None:
        self.run = run
        self.visual_spec = Spec.parse(run.visual)
        self.reads_store = ENCODERS.get(self.visual_spec.name).reads == "features"
        self.reads_words = not run.text or ENCODERS.get(self.text_spec.name).reads == "tokens"
        self.assets: dict[str, Any] = {}
        self.left_out: dict[str, int] = {}

    @property
    def text_spec(self) -> Spec:
        """The text encoder.

        Raises:
            InputError: the run names none.
        """
        return Spec.parse(named_encoder(self.run.text, "text"))

    def texts(self, split: str) -> list[str]:
        """Return the texts of a split, in order."""
        return [text for captions in self.corpus.captions(split) for text in self.run.data.used(captions)]

    @cached_property
    def corpus(self) -> Any:
        """The samples of all splits; with `--data.missing skip`, only samples with features or a file."""
        corpus = self.corpus_kind.open(absolute(self.run.data.corpus, home))
        if self.run.data.missing == "error":
            return corpus
        whole, corpus = corpus.splits, present(corpus, self.store)
        lacking = {split: count - corpus.splits.get(split, 0) for split, count in whole.items()}
        self.left_out = {split: count for split, count in lacking.items() if count}
        return corpus

    @cached_property
    def store(self) -> FeatureStore | None:
        """The features; None if the visual encoder reads pixels.

        Raises:
            InputError: the run names no store, or an invalid one.
        """
        return (
            self._open("features", self.visual_spec, what="features", verb="extract")
            if self.reads_store
            else None
        )

    @cached_property
    def text_store(self) -> FeatureStore | None:
        """The features of texts; None if the text encoder reads their words.

        Raises:
            InputError: the run names no store, or an invalid one.
        """
        if self.reads_words:
            return None
        return self._open("texts", self.text_spec, what="features of texts", verb="extract --texts")

    def _open(self, field: str, encoder: Spec, *, what: str, verb: str) -> FeatureStore:
        """Open the store that a field of `Data` names."""
        if not (folder := getattr(self.run.data, field)):
            raise InputError(
                f"the encoder {encoder.name!r} reads stored {what}; name a store by --{field} (polypool {verb} "
                f"--corpus {self.run.data.corpus} makes one)"
            )
        return FeatureStore.open(absolute(folder, home))

    def _remedy(self, store: FeatureStore, lacking: Sequence[str], ids: Sequence[str]) -> str:
        """Return advice on items without features."""
        if len(lacking) < len(ids):
            return "extract or ingest them, or leave them out by --data.missing skip"
        if (store.find(self.corpus.ids.to_pylist()) >= 0).any():
            return (
                "it has features of other splits only: extract these splits too, or ingest features of all splits "
                "together"
            )
        return (
            f"its ids are {', '.join(store.ids.slice(0, 3).to_pylist())}, ...: ingest the features with --corpus "
            f"{self.run.data.corpus}, which matches the ids"
        )

    @cached_property
    def other_extractor(self) -> str:
        """Backbone and parameters of features by `extract`, if they differ from the recipe's; otherwise empty."""
        made = (self.store.manifest.source.get("extractor") if self.store else None) or {}
        if not made or not self.run.data.extractor:
            return ""
        wanted = Spec.parse(self.run.data.extractor)
        expected = {"backbone": wanted.name, **wanted.params}
        if all(_base_name(made.get(name)) == _base_name(value) for name, value in expected.items()):
            return ""
        return ", ".join(f"{name} {made.get(name)}" for name in expected)

    def check_inputs(self) -> None:
        """Check a run before it starts, and print notes on its features.

        Raises:
            InputError: images, videos or texts without features, or settings that do not fit together.
        """
        if self.store is not None:
            self._check_features(self.store)
        elif self.modality == "video":
            check_frames(self.run.data.max_frames)
        self.visual_augmentation()
        self.text_augmentation()
        if self.text_store is None:
            return
        data = self.run.data
        if data.max_words:
            raise InputError(
                f"--data.max-words {data.max_words} cuts words, and {data.texts} has features of whole texts; make it 0"
            )
        if self.run.model and MODELS.part(self.run.model).text_inputs:
            raise InputError(
                f"the model {self.run.model!r} reads the words of captions, and {self.run.text!r} stored features of "
                "them; choose a text encoder of words, such as --text bigru, or leave --model empty"
            )
        for split in self.splits_read:
            self.corpus_texts(split)

    def _check_features(self, store: FeatureStore) -> None:
        for split in self.splits_read:
            ids = [id for id, *_ in self.corpus.paths(split)]
            if lacking := [id for id, row in zip(ids, store.find(ids), strict=True) if row < 0]:
                raise InputError(
                    f"{store.folder}: {len(lacking):,} of {len(ids):,} {self.modality}s of the split {split!r} "
                    f"have no features, such as {', '.join(lacking[:5])}; {self._remedy(store, lacking, ids)}"
                )
        if self.other_extractor:
            print(
                f"note: {store.folder}: features of {self.other_extractor}, where the recipe has "
                f"{self.run.data.extractor}: the scores do not reproduce the recipe (tag data.{OTHER_EXTRACTOR})",
                file=sys.stderr,
            )
        if not store.manifest.statistics and self.visual_spec.params.get("standardise") == "auto":
            print(
                f"note: {store.folder}: features are not standardised, as their store has no statistics: {LACKING}",
                file=sys.stderr,
            )

    @property
    def splits_read(self) -> tuple[str, ...]:
        """The splits that the run reads."""
        return SPLITS if self.run.test else SPLITS[:2]

    def encoder_assets(self) -> dict[str, Any]:
        """Return the assets of new encoders, `visual` and `text`, and the source of stored features."""
        return self.visual_assets() | self.text_assets(self.counted_texts())

    def visual_assets(self) -> dict[str, Any]:
        """Return `visual`, and for stored features `feature_source`, a `FeatureSource`."""
        if not self.store:
            return {"visual": ENCODERS.get(self.visual_spec.name).prepare(**self.visual_spec.params)}
        source = FeatureSource.of(self.store, called=self.run.data.features)
        visual = {"dim": self.store.dim, "statistics": self.store.manifest.statistics}
        return {"visual": visual, FEATURES: asdict(source)}

    def text_assets(self, texts: Iterable[str]) -> dict[str, Any]:
        """Return `text`, from the words of the texts, or for stored texts also `texts`, a `TextSource`."""
        if self.text_store is None:
            return {"text": ENCODERS.get(self.text_spec.name).prepare(texts, **self.text_spec.params)}
        source = TextSource.of(self.text_store, called=self.run.data.texts)
        text = {"dim": self.text_store.dim, "statistics": self.text_store.manifest.statistics}
        return {"text": text, "texts": asdict(source)}

    def check_assets(self, assets: Any) -> None:
        """Check the assets of a checkpoint against the types that its encoders declare.

        Raises:
            InputError: a missing or mistyped field.
        """
        kinds = {"visual": ENCODERS.get(self.visual_spec.name).assets_kind}
        if self.run.text:
            kinds["text"] = ENCODERS.get(self.text_spec.name).assets_kind
        if not self.reads_words:
            kinds["texts"] = TextSource
        if self.reads_store:
            kinds[FEATURES] = FeatureSource
        if isinstance(assets, dict):
            assets = {key: assets[key] for key in kinds if key in assets}
        from_plain(make_dataclass("Assets", kinds.items(), kw_only=True), assets, where="assets.json")

    def counted_texts(self) -> Iterable[str]:
        """Return the texts whose words a new text encoder knows."""
        texts = [text for split in self.run.data.vocabulary for text in self.texts(split)]
        return Progress(texts, desc="counting words", unit="text", leave=False)

    def assets_for(self, texts: Sequence[str]) -> dict[str, Any]:
        """Return the assets with a text encoder for other texts."""
        return self.assets | {"text": self.text_assets(texts)["text"]}

    def describe(self) -> Mapping[str, str]:
        """Return digests of corpus and stores, origins of the stores, and sizes of the splits, as text by name.

        Also the numbers of samples that were left out, and an extractor that differs from the recipe's.
        """
        stores = {"features": self.store, "texts": self.text_store}
        return {
            "corpus": self.corpus.digest,
            **{name: store.digest for name, store in stores.items() if store},
            **{name + ORIGIN: store.origin for name, store in stores.items() if store and store.origin},
            **{f"{self.samples}_{split}": str(count) for split, count in self.corpus.splits.items()},
            **{f"{LEFT_OUT}{split}": str(count) for split, count in self.left_out.items()},
            **({OTHER_EXTRACTOR: self.other_extractor} if self.other_extractor else {}),
        }

    def sources(self) -> list[Source]:
        """Return the splits of the corpus and the stores as MLflow's data sets."""
        data, corpus = self.run.data, self.corpus
        read = [
            (split, corpus.digest, data.corpus, {self.samples: corpus.splits[split]})
            for split in SPLITS
            if split in corpus.splits
        ]
        stores = (("features", data.features, self.store), ("texts", data.texts, self.text_store))
        read += [(name, of.digest, place, {"sets": len(of)}) for name, place, of in stores if of is not None]
        return [
            Source(name=f"{data.dataset}/{name}", digest=digest, location=place, context=name, profile=count)
            for name, digest, place, count in read
        ]

    def item_inputs(self, items: Sequence[Item]) -> VisualInputs:
        """Return the visual encoder's inputs of items of the corpus.

        Raises:
            InputError: one of them has no features, or no file.
        """
        data = self.run.data
        augment = self.visual_augmentation()
        if self.store:
            ids = [item.id for item in items]
            return StoredSets(self.store, ids, augment=augment, limit=data.max_frames)
        encoder = ENCODERS.get(self.visual_spec.name)
        transform = encoder.transform(self.assets["visual"], **self.visual_spec.params)
        paths, digests = [self.corpus.image_path(item) for item in items], [item.sha256 for item in items]
        return visual_files(
            paths,
            modality=self.modality,
            frames=data.max_frames,
            transform=transform,
            augment=augment,
            digests=digests,
        )

    @property
    def visual_dim(self) -> int:
        """Width F of the features of an image or video; 0 if the model reads pixels."""
        return self.assets["visual"]["dim"] if self.reads_store else 0

    def visual_inputs(self, visuals: Sequence[np.ndarray | str | Path]) -> VisualInputs:
        """Return the inputs of features in memory, or of image or video files; see `unseen_inputs`."""
        return unseen_inputs(
            visuals,
            spec=self.visual_spec,
            assets=self.assets["visual"],
            limit=self.run.data.max_frames,
            modality=self.modality,
        )

    def corpus_texts(self, split: str) -> TextInputs:
        """Return the text encoder's inputs of a split's texts; print notes on truncated texts and unknown words.

        Raises:
            InputError: a text without features.
        """
        texts = self.texts(split)
        if self.text_store is not None:
            return StoredTexts(self.text_store, texts, corpus=self.run.data.corpus)
        inputs = self.text_inputs(texts)
        if rank() == 0:
            for note in getattr(inputs, "notes", ()):  # the inputs of a model may have none
                print(f"{split}: {note}")
        return inputs

    def text_inputs(self, texts: Sequence[str]) -> TextInputs:
        """Return the inputs of any texts: their words, or features that the store's backbone makes of them.

        Raises:
            InputError: the backbone cannot be loaded, or cannot read one of them.
        """
        if self.reads_words:
            return caption_inputs(self.run, texts, self._tokenizer)
        return NewTexts(texts, self._text_backbone, dtype=self._text_source.dtype)

    @cached_property
    def _text_source(self) -> TextSource:
        return from_plain(TextSource, self.assets["texts"], where="assets.json: texts")

    @cached_property
    def _text_backbone(self) -> Backbone:
        return self._text_source.backbone()

    @property
    def _tokenizer(self) -> Tokenizer:
        return ENCODERS.get(self.text_spec.name).tokenizer(self.assets["text"])

    def subwords(self, text: str, batch: Batch) -> Sequence[str]:
        """Return names of the elements of a text; `batch` has this text only."""
        if not self.reads_words:
            return self._text_source.pieces(text, count=int(batch["text_mask"].sum()))
        return as_written(self._tokenizer, text, batch["text"][batch["text_mask"]].tolist())

    def unknown_words(self, text: str) -> list[str]:
        """Return the unknown words of a text; empty for a text encoder of subwords or features."""
        return unknown_words(self._tokenizer, text) if self.reads_words else []

    def visual_augmentation(self) -> Drop | None:
        """Return the augmentation of images or videos in training; None if the run has none.

        Raises:
            InputError: an augmentation of words.
        """
        if not (spec := self.run.data.visual_augment):
            return None
        augment = AUGMENTATIONS.build(spec)
        if isinstance(augment, MaskReplaceDelete):
            raise InputError(
                f"--data.visual-augment {spec!r} changes words, and not {self.modality}s; choose one that does, such "
                "as 'drop(p=0.2)', or none"
            )
        return augment

    def text_augmentation(self) -> TextAugmentation | None:
        """Return the augmentation of texts in training; None if the run has none.

        Raises:
            InputError: an augmentation of words for an encoder of features, or vice versa.
        """
        if not (spec := self.run.data.text_augment):
            return None
        augment = AUGMENTATIONS.build(spec)
        if isinstance(augment, Drop if self.reads_words else MaskReplaceDelete):
            reads, other = (
                ("words", "mask_replace_delete") if self.reads_words else ("stored features", "drop")
            )
            raise InputError(
                f"--data.text-augment {spec!r} does not change {reads}, which the text encoder {self.text_spec.name!r} "
                f"reads; choose one that does, such as '{other}(p=0.2)', or none"
            )
        return augment
