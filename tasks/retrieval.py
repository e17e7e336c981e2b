"""Base adapter of image-text and video-text retrieval."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from polypool.infra.batches import Batch
from polypool.infra.compute.cost import CostMeter
from polypool.infra.compute.device import device_of
from polypool.infra.compute.dist import rank
from polypool.infra.errors import InputError
from polypool.tasks.abilities import Chunked, CollapseCheck, PartialLoss, UsesQueryBank
from polypool.tasks.adapter import Evaluation, Score
from polypool.tasks.corpus_task import CorpusTask
from polypool.tasks.inputs.pairs import Pairs
from polypool.tasks.models.dual_encoder import SplitEmbeddings
from polypool.tasks.models.grad_cache import cached_passes
from polypool.tasks.models.parts import Parts, retrieval_model
from polypool.tasks.models.retrieval_model import DEVIATION, TEXT_VARIANCE, VISUAL_VARIANCE, RetrievalModel
from polypool.tasks.run import Run
from polypool.tasks.scoring.attention_maps import caption_attention
from polypool.tasks.scoring.metric_specs import RSUM
from polypool.tasks.scoring.protocols import check_model, protocol_named
from polypool.tasks.scoring.retrieval_metrics import RetrievalSplit, own_evaluation
from polypool.tasks.scoring.scores import QueryBank, ScoreWithBank, first_vectors

# A model has collapsed if pairs score at most APART standard deviations above negatives, and either the standard
# deviation of scores is below the share FLAT of the objective's `target_gap`, or the variance of embeddings is below
# the share SHRUNK of its first value.
APART, FLAT, SHRUNK = 0.2, 0.05, 0.15


class Retrieval(CorpusTask, Chunked, CollapseCheck, UsesQueryBank):
    """Retrieval between items of a visual modality and their captions.

    Args:
        run: its complete description.
        assets: of a checkpoint; computed from the corpus if None.
        dev_protocol: protocol that selects the best epoch.
        chunk: items or captions per forward pass in evaluation.
    """

    primary = RSUM
    unused = ("fusion",)

    def __init__(self, run: Run, assets: dict[str, Any] | None, *, dev_protocol: str, chunk: int) -> None:
        self.dev_protocol = protocol_named(dev_protocol).name
        protocol_named(run.protocol)
        super().__init__(run, assets, chunk=chunk)

    def new_assets(self) -> dict[str, Any]:
        self.check_protocol(self.dev_protocol, "val")
        if self.run.test:
            self.check_protocol(self.run.protocol, "test")
        return super().new_assets()

    def _caption_counts(self, split: str) -> list[int]:
        """Return the number of used captions of each item."""
        return [len(self.run.data.used(range(count))) for count in self.corpus.caption_counts(split)]

    def check_training(self) -> None:
        data, optim, counts = self.run.data, self.run.optim, self._caption_counts("train")
        if optim.batch < 2 or len(counts) < 2:
            raise InputError(
                f"retrieval trains on batches of at least two {self.samples}: the training split "
                f"has {len(counts)}, and --optim.batch is {optim.batch}"
            )
        self.check_batches(len(counts) if data.sample == "image" else sum(counts))

    def read(self, split: str) -> Pairs:
        items = self.corpus.items(split)
        captions = [self.run.data.used(item.captions) for item in items]
        used, every = sum(map(len, captions)), sum(len(item.captions) for item in items)
        if used < every and rank() == 0:
            print(
                f"{split}: {every - used:,} of {every:,} captions are not used, those after the first "
                f"{self.run.data.captions} of their {self.modality} (--data.captions 0 uses all)"
            )
        return Pairs(
            [item.id for item in items],
            captions,
            visual=self.item_inputs(items),
            captions=self.corpus_texts(split),
            augment=self.text_augmentation(),
            by_item=self.run.data.sample == "image",
        )

    def model(self, *, pretrained: bool = True) -> RetrievalModel:
        model = retrieval_model(self.run, Parts.of(self.run, self.assets, pretrained=pretrained))
        for protocol in (self.dev_protocol, self.run.protocol):
            check_model(protocol_named(protocol), model)
        return model

    def loss(self, model: RetrievalModel, batch: Batch, *, epoch: float) -> dict[str, Tensor]:
        return model(batch, epoch=epoch)

    def passes(
        self, model: RetrievalModel, batch: Batch, *, epoch: float, chunk: int
    ) -> Iterator[PartialLoss]:
        return cached_passes(model, batch, epoch=epoch, chunk=chunk)

    def collapse(
        self, model: RetrievalModel, means: Mapping[str, float], *, first: Mapping[str, float]
    ) -> str:
        """Return the symptoms if pairs score hardly above others and scores are flat or embeddings have shrunk."""
        aim, deviation = model.objective.target_gap, means[DEVIATION]
        gap = means["positive_similarity"] - means["negative_similarity"]
        sides = (VISUAL_VARIANCE, TEXT_VARIANCE)
        shrunk = any(side in first and means[side] < SHRUNK * first[side] for side in sides)
        if not aim or gap > APART * deviation or not (shrunk or deviation < FLAT * aim):
            return ""
        return (
            f"pairs score {gap:.2g} more than others, scores deviate by {deviation:.2g}, and the objective aims at "
            f"differences of {aim:.3g}"
        )

    def scorer(self, model: RetrievalModel, split: str) -> Score:
        pairs = self.data(split)
        model.eval()
        return model.scorer(pairs.items(self.visual_chunk), pairs.sentences(self.chunk))

    def needs_bank(self, protocol: str) -> bool:
        return protocol_named(protocol).by_bank

    def bank(self, model: RetrievalModel, split: str, *, protocol: str) -> QueryBank:
        ours, training = self.data(split), self.data("train")
        model.eval()
        return QueryBank(
            items=model.scorer(training.items(self.visual_chunk), ours.sentences(self.chunk)),
            captions=model.scorer(ours.items(self.visual_chunk), training.sentences(self.chunk)),
            sizes=(len(training.item_ids), len(training.texts)),
        )

    def rows_and_columns(self, split: str) -> tuple[Sequence[str], Sequence[str]]:
        return self.data(split).item_ids.tolist(), self.data(split).texts

    def scored(self, split: str) -> RetrievalSplit:
        """Return a split in the form that evaluations take."""
        return RetrievalSplit(
            name=split,
            modality=self.modality,
            corpus=self.corpus,
            pairs=self.data(split),
            data=self.run.data,
        )

    def evaluate_scores(self, score: Score, split: str, protocol: str) -> Evaluation:
        named = protocol_named(protocol)
        return own_evaluation(self.scored(split), first_vectors(score, named.vectors), named)

    def evaluate(self, model: RetrievalModel, split: str, protocol: str) -> Evaluation:
        self.check_protocol(protocol, split)
        named = protocol_named(protocol)
        check_model(named, model)
        bank = self.bank(model, split, protocol=protocol) if self.needs_bank(protocol) else None
        pairs, meter = self.data(split), CostMeter(device_of(model))
        score = self.scorer(model, split)
        encoded = meter.lap()
        ranked = ScoreWithBank(score=score, bank=bank) if bank else score
        evaluation = self.evaluate_scores(ranked, split, protocol)
        compared = first_vectors(score, named.vectors)
        return replace(
            evaluation,
            embed_cost=encoded / len(pairs.item_ids),
            query_cost=meter.lap() / (len(pairs.item_ids) + len(pairs.texts)),
            item_bytes=compared.item_bytes() if isinstance(compared, SplitEmbeddings) else math.nan,
            pictures=(*evaluation.pictures, partial(caption_attention, self, model, split, score)),
        )

    def check_protocol(self, protocol: str, split: str) -> None:
        protocol_named(protocol).check_split(split, self._caption_counts(split))
