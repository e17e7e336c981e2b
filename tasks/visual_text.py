"""What the adapters of image-text and video-text retrieval share: items, their captions, a model that scores both."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor, nn

from encoders.base import Encoder
from infra.errors import InputError
from infra.paths import resolve
from infra.registry import AUGMENTATIONS, ENCODERS, OBJECTIVES, REGULARISERS, Spec
from infra.store import FeatureStore
from pipelines.pages.attention import attention_to_captions
from pipelines.pages.retrieval import ranked_queries, retrieval_pictures
from pipelines.pages.retrieval_examples import RankedQueries
from tasks.base import Evaluation, Metric
from tasks.datasets.corpus import Corpus, Item
from tasks.inputs.pairs import Pairs, StoredSets, TextInputs, VisualInputs
from tasks.inputs.pixels import Pixels
from tasks.inputs.unseen import given_inputs
from tasks.models.build import Parts, retrieval_model, text_inputs
from tasks.models.dual_encoder import retrieval_loss
from tasks.models.split_embeddings import Batch
from tasks.scoring.protocols import Protocol, evaluate_protocol, protocol_named
from tasks.scoring.scores import Score

if TYPE_CHECKING:
    from tasks.run import Run


PIXEL_CHUNK = 32  # images of 512 pixels encoded at once in evaluation: a few GB of feature maps


class VisualText:
    """An adapter of retrieval between a visual modality and text.

    Args:
        run: its complete description.
        assets: of a checkpoint; made from the training split where there are none.
        dev_protocol: the protocol that chooses the best epoch.
        chunk: how many items or captions are encoded at once in evaluation.
    """

    primary = Metric(name="rsum")
    modality: str
    """What the items are: `image`, `video`; its first letter stands in the names of metrics."""

    def __init__(self, run: Run, assets: dict[str, Any] | None, *, dev_protocol: str, chunk: int) -> None:
        self.dev_protocol = protocol_named(dev_protocol).name
        protocol_named(run.protocol)
        self.run, self.chunk = run, chunk
        self._visual, self._text = Spec.parse(run.visual), Spec.parse(run.text)
        self._stored = ENCODERS.get(self._visual.name).reads == "features"
        self.assets = assets or self._prepare()
        self.objective = OBJECTIVES.build(run.objective)
        self.regularisers = [REGULARISERS.build(spec) for spec in run.regularisers]
        self._splits: dict[str, Pairs] = {}

    @cached_property
    def corpus(self) -> Corpus:
        """The items and their captions; opened when it is asked for, since a trained model is of use without it."""
        return Corpus.open(resolve(self.run.data.corpus))

    @cached_property
    def store(self) -> FeatureStore | None:
        """The features, likewise; None where the visual encoder reads pixels."""
        return FeatureStore.open(resolve(self.run.data.features)) if self._stored else None

    def _prepare(self) -> dict[str, Any]:
        self._check(self.run.protocol, "test")
        captions = (
            text for item in self.corpus.items("train") for text in item.captions[: self.run.data.captions]
        )
        if self.store:
            visual = {"dim": self.store.dim, "statistics": self.store.manifest.statistics}
        else:
            visual = ENCODERS.get(self._visual.name).prepare(**self._visual.params)
        return {
            "visual": visual,
            "text": ENCODERS.get(self._text.name).prepare(captions, **self._text.params),
        }

    def describe(self) -> Mapping[str, str]:
        """Return the digests of what the run reads, and the sizes of the splits."""
        return {
            "corpus": self.corpus.digest,
            **({"features": self.store.digest} if self.store else {}),
            **{f"{self.modality}s_{split}": str(count) for split, count in self.corpus.splits.items()},
        }

    def data(self, split: str) -> Pairs:
        """Return a split's pairs."""
        if split not in self._splits:
            data, items = self.run.data, self.corpus.items(split)
            texts = [item.captions[: data.captions] for item in items]
            self._splits[split] = Pairs(
                [item.id for item in items],
                texts,
                visual=self._inputs(items),
                captions=self.text_inputs([text for lines in texts for text in lines]),
                augment=AUGMENTATIONS.build(data.text_augment) if data.text_augment else None,
                by_item=data.sample == "image",
            )
        return self._splits[split]

    def _inputs(self, items: list[Item]) -> VisualInputs:
        """Return what the visual encoder reads: sets of the store, or the images themselves."""
        data = self.run.data
        augment = AUGMENTATIONS.build(data.visual_augment) if data.visual_augment else None
        if self.store:
            ids = [item.id for item in items]
            return StoredSets(self.store, ids, augment=augment, limit=data.max_frames)
        encoder = ENCODERS.get(self._visual.name)
        transform = encoder.transform(self.assets["visual"], **self._visual.params)
        paths = [self.corpus.image_path(item) for item in items]
        return Pixels(paths, transform=transform, augment=augment)

    def text_inputs(self, captions: Sequence[str]) -> TextInputs:
        """Return what the model reads of captions, whether or not they are those of a corpus."""
        return text_inputs(self.run, captions, ENCODERS.get(self._text.name).tokenizer(self.assets["text"]))

    def visual_inputs(self, given: Sequence[np.ndarray | str | Path]) -> VisualInputs:
        """Return what the model reads of features in memory, or of image files; see `given_inputs`."""
        return given_inputs(
            given, spec=self._visual, assets=self.assets["visual"], limit=self.run.data.max_frames
        )

    def model(self, *, pretrained: bool = True) -> nn.Module:
        """Return a new model."""

        def encoder(spec: str, assets: dict[str, Any]) -> Encoder:
            made = ENCODERS.build(spec, assets)
            if pretrained:
                made.load_pretrained()
            return made

        return retrieval_model(
            self.run,
            Parts(
                self.run,
                visual=lambda: encoder(self.run.visual, self.assets["visual"]),
                text=lambda: encoder(self.run.text, self.assets["text"]),
            ),
        )

    def loss(self, model: nn.Module, batch: Batch, *, epoch: float) -> dict[str, Tensor]:
        """Return the objective on the global batch, its parts, and the mean similarity of pairs and of others."""
        return retrieval_loss(
            model, batch, objective=self.objective, regularisers=self.regularisers, epoch=epoch
        )

    def scorer(self, model: nn.Module, split: str) -> Score:
        """Encode a split and return `score(items, captions)`, which computes any block of the score matrix."""
        pairs = self.data(split)
        model.eval()
        items = self.chunk if self._stored else min(self.chunk, PIXEL_CHUNK)
        return model.scorer(pairs.items(items), pairs.sentences(self.chunk))

    def check_same_data(self, other: VisualText, split: str) -> None:
        """Refuse another adapter as a member of an ensemble if its items or captions differ."""
        ours, theirs = self.data(split), other.data(split)
        if not np.array_equal(ours.item_ids, theirs.item_ids) or ours.texts != theirs.texts:
            raise InputError(
                f"runs on {self.run.data.corpus} and {other.run.data.corpus} cannot be one ensemble: the "
                f"{self.modality}s or captions of their {split} splits differ"
            )

    def evaluate_scores(self, score: Score, split: str, protocol: str) -> Evaluation:
        """Rank a split under a protocol, by any function that scores its items against its captions."""
        pairs, letter, named = self.data(split), self.modality[0], protocol_named(protocol)
        directions = f"{letter}2t", f"t2{letter}"
        result = evaluate_protocol(
            named,
            score,
            pairs.owner_G,
            len(pairs.item_ids),
            texts=pairs.texts,
            directions=directions,
        )
        return Evaluation(
            protocol=protocol,
            metrics=result.metrics | {"chance_rsum": result.chance, "ties": float(result.ties)},
            per_query={
                f"{self.modality}_id": pairs.item_ids[: len(result.ranks_i2t)],
                "caption": result.caption_G,
                f"caption_{self.modality}": pairs.owner_G[result.caption_G],
                f"{directions[0]}_rank": result.ranks_i2t,
                f"{directions[1]}_rank": result.ranks_t2i,
            },
            pictures=(partial(self._examples, score, ranked_queries(pairs, named, result), split, named),),
        )

    def _examples(
        self, score: Score, queries: RankedQueries, split: str, protocol: Protocol
    ) -> dict[str, bytes]:
        """Return a page of examples; see `retrieval_pictures`."""
        return retrieval_pictures(
            score,
            queries,
            pairs=self.data(split),
            corpus=self.corpus,
            split=split,
            modality=self.modality,
            protocol=protocol,
        )

    def evaluate(self, model: nn.Module, split: str, protocol: str) -> Evaluation:
        """Score a split under a protocol."""
        self._check(protocol, split)
        started = time.perf_counter()
        score = self.scorer(model, split)
        milliseconds = 1e3 * (time.perf_counter() - started)
        found = self.evaluate_scores(score, split, protocol)
        attention = partial(attention_to_captions, self, model, split, score)
        return replace(
            found,
            embed_ms=milliseconds / len(self.data(split).item_ids),
            pictures=(*found.pictures, attention),
        )

    def _check(self, protocol: str, split: str) -> None:
        """Refuse a protocol that cannot be had before time is spent on its scores."""
