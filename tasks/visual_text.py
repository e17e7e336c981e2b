"""The base class of image-text and video-text retrieval: items, their captions, a model that scores both."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from torch import Tensor

from infra.compute.cost import CostMeter
from infra.compute.device import device_of
from infra.data import Batch
from infra.errors import InputError
from infra.paths import resolve_place
from tasks.abilities import Chunked, Collapse, Pass, Watchful
from tasks.base import Evaluation, Score
from tasks.datasets.corpus import Corpus
from tasks.datasets.media import pictured
from tasks.inputs.pairs import Pairs
from tasks.inputs.presence import check_features
from tasks.models.base import RetrievalModel
from tasks.models.build import retrieval_model
from tasks.models.chunks import cached_passes
from tasks.models.collapse import collapse
from tasks.models.embeddings import SplitEmbeddings
from tasks.run import Run
from tasks.scoring.attended import caption_pairs
from tasks.scoring.attention import AttentionExamples, nearest_captions
from tasks.scoring.described import RSUM, retrieval_arrays, retrieval_queries, retrieval_records
from tasks.scoring.evaluation import evaluate_protocol
from tasks.scoring.examples import RankedQueries, RetrievalExamples, ranked_queries, retrieval_examples
from tasks.scoring.protocols import ScoringProtocol, check_rerank, protocol_named
from tasks.scoring.scores import PairsScore
from tasks.visual_language import VisualLanguageTask


class VisualText(VisualLanguageTask, Chunked, Watchful):
    """An adapter of retrieval between a visual modality and text.

    The first letter of the modality stands in the names of metrics: `i2t/R1`, `t2v/R1`.

    Args:
        run: its complete description.
        assets: of a checkpoint; made from the training split where there are none.
        dev_protocol: the protocol that chooses the best epoch.
        chunk: how many items or captions are encoded at once in evaluation.
    """

    primary = RSUM
    unused = ("fusion",)

    def __init__(self, run: Run, assets: dict[str, Any] | None, *, dev_protocol: str, chunk: int) -> None:
        super().__init__(run, chunk=chunk)
        self.dev_protocol = protocol_named(dev_protocol).name
        protocol_named(run.protocol)
        self.assets = self._prepare() if assets is None else self.held(assets)
        self._splits: dict[str, Pairs] = {}

    @property
    def samples(self) -> str:
        """What the sizes of the splits count: `images` or `videos`."""
        return f"{self.modality}s"

    @cached_property
    def corpus(self) -> Corpus:
        """The items and their captions."""
        return self.present(Corpus.open(resolve_place(self.run.data.corpus)))

    def _prepare(self) -> dict[str, Any]:
        self.check_protocol(self.dev_protocol, "val")
        self.check_protocol(self.run.protocol, "test")
        if self.store:
            check_features(self.corpus, self.store, modality=self.modality)
        self.check_texts()
        return self.encoder_assets(self.counted_texts())

    def texts(self, split: str) -> list[str]:
        """Return the captions of a split that are used, in order."""
        limit = self.run.data.captions
        return [text for item in self.corpus.items(split) for text in item.captions[:limit]]

    def check_training(self) -> None:
        """Refuse a batch, or a training split, in which nothing can be told from anything else."""
        data, optim = self.run.data, self.run.optim
        texts = [item.captions[: data.captions] for item in self.corpus.items("train")]
        if optim.batch < 2 or len(texts) < 2:
            raise InputError(
                f"retrieval is learnt by telling {self.samples} of a batch apart, which takes two: the training split "
                f"has {len(texts)}, and --optim.batch is {optim.batch}"
            )
        self.check_batches(len(texts) if data.sample == "image" else sum(map(len, texts)))

    def data(self, split: str) -> Pairs:
        """Return a split's pairs."""
        if split not in self._splits:
            data, items = self.run.data, self.corpus.items(split)
            texts = [item.captions[: data.captions] for item in items]
            self._splits[split] = Pairs(
                [item.id for item in items],
                texts,
                visual=self.corpus_inputs(items),
                captions=self.corpus_texts([text for lines in texts for text in lines]),
                augment=self.text_augmentation(),
                by_item=data.sample == "image",
            )
        return self._splits[split]

    def model(self, *, pretrained: bool = True) -> RetrievalModel:
        """Return a new model.

        Raises:
            InputError: it does not fit the protocols by which it is to be scored.
        """
        model = retrieval_model(self.run, self.parts(pretrained=pretrained))
        for protocol in (self.dev_protocol, self.run.protocol):
            check_rerank(protocol_named(protocol), looks_at_pairs=model.looks_at_pairs)
        return model

    def loss(self, model: RetrievalModel, batch: Batch, *, epoch: float) -> dict[str, Tensor]:
        """Return the objective on the global batch, its parts, and the mean similarity of pairs and of others."""
        return model(batch, epoch=epoch)

    def passes(self, model: RetrievalModel, batch: Batch, *, epoch: float, chunk: int) -> Iterator[Pass]:
        """Yield passes of a batch in chunks, by the embeddings of the whole; see `cached_passes`."""
        return cached_passes(model, batch, epoch=epoch, chunk=chunk)

    def collapse(
        self, model: RetrievalModel, means: Mapping[str, float], *, first: Mapping[str, float], epoch: float
    ) -> Collapse | None:
        """Return what is wrong where some steps told nothing apart, and the loss is that of equal scores."""
        terms = sum(each.weight * means[each.name] for each in model.regularisers)
        data = self.run.data
        return collapse(
            model.objective,
            means,
            loss=means["loss"] - terms,
            first=first,
            items=self.run.optim.batch,
            texts_each=data.captions if data.sample == "image" else 1,
            epoch=epoch,
            modality=self.modality,
        )

    @property
    def _directions(self) -> tuple[str, str]:
        letter = self.modality[0]
        return f"{letter}2t", f"t2{letter}"

    def collapse_of(self, evaluation: Evaluation) -> Collapse | None:
        """Return what is wrong where every query's right answers have the score of a wrong one."""
        names = [f"{direction}_rank" for direction in self._directions]
        queries = sum(len(evaluation.per_query[name]) for name in names if name in evaluation.per_query)
        if not queries or evaluation.metrics["ties"] < queries:
            return None
        return Collapse(symptoms=(f"all ranks under {evaluation.protocol} are tied",))

    def scorer(self, model: RetrievalModel, split: str) -> Score:
        """Encode a split and return `score(items, captions)`, which computes any block of the score matrix."""
        pairs = self.data(split)
        model.eval()
        return model.scorer(pairs.items(self.visual_chunk), pairs.sentences(self.chunk))

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
        pairs, directions, named = self.data(split), self._directions, protocol_named(protocol)
        check_rerank(named, looks_at_pairs=isinstance(score, PairsScore))
        result = evaluate_protocol(
            named,
            score,
            pairs.owner_T,
            len(pairs.item_ids),
            texts=pairs.texts,
            directions=directions,
        )
        primary, *others = retrieval_records(directions, result.chance)
        item, caption = f"{self.modality}_id", f"caption_{self.modality}_id"
        ranks = dict(zip(directions, (result.ranks_i2t, result.ranks_t2i), strict=True))
        return Evaluation(
            protocol=protocol,
            protocol_version=named.version,
            metrics=result.metrics | {"ties": float(result.ties)},
            primary=primary,
            others=tuple(others),
            per_query={
                item: pairs.item_ids[: len(result.ranks_i2t)],
                "caption": result.caption_G,
                caption: pairs.item_ids[pairs.owner_T[result.caption_G]],
                **retrieval_arrays(ranks, result.recalls),
                **self._uncertainty(score, len(result.ranks_i2t), result.caption_G),
            },
            query_metrics=retrieval_queries(
                dict(zip(directions, (item, caption), strict=True)), modality=self.modality
            ),
            pictures=(partial(self._examples, score, ranked_queries(pairs, named, result), split, named),),
        )

    def _uncertainty(self, score: Score, items: int, caption_G: np.ndarray) -> dict[str, np.ndarray]:
        """Return how unsure a model of distributions is of each item and caption; empty of any other model."""
        sums = score.uncertainty() if isinstance(score, SplitEmbeddings) else None
        if sums is None:
            return {}
        visual_V, text_T = (sum_B.cpu().numpy() for sum_B in sums)
        return {f"{self.modality}_uncertainty": visual_V[:items], "caption_uncertainty": text_T[caption_G]}

    def _examples(
        self, score: Score, queries: RankedQueries, split: str, protocol: ScoringProtocol
    ) -> RetrievalExamples:
        """Return queries of a split with what was found for them; every worker calls this."""
        items = self.corpus.items(split)
        return retrieval_examples(
            score,
            queries,
            texts=self.data(split).texts,
            pictured=lambda number: pictured(self.corpus, items[number]),
            split=split,
            modality=self.modality,
            protocol=protocol,
        )

    def _attention(self, model: RetrievalModel, split: str, score: Score) -> AttentionExamples | None:
        pairs = self.data(split)
        sets = (
            isinstance(score, SplitEmbeddings)
            and score.visual.dim() == 3
            and not score.similarity.of_distributions
        )
        return self.attention(
            model,
            caption_pairs(pairs),
            split,
            items=self.corpus.items(split),
            texts=pairs.texts,
            nearest=partial(nearest_captions, score, pairs) if sets else None,
        )

    def evaluate(self, model: RetrievalModel, split: str, protocol: str) -> Evaluation:
        """Score a split under a protocol."""
        self.check_protocol(protocol, split)
        check_rerank(protocol_named(protocol), looks_at_pairs=model.looks_at_pairs)
        meter = CostMeter(device_of(model))
        score = self.scorer(model, split)
        encoded, pairs = meter.lap(), self.data(split)
        evaluation = self.evaluate_scores(score, split, protocol)
        ranked = meter.lap()
        attention = partial(self._attention, model, split, score)
        return replace(
            evaluation,
            embed_cost=encoded / len(pairs.item_ids),
            query_cost=ranked / (len(pairs.item_ids) + len(pairs.texts)),
            item_bytes=score.item_bytes() if isinstance(score, SplitEmbeddings) else math.nan,
            pictures=(*evaluation.pictures, attention),
        )

    def check_protocol(self, protocol: str, split: str) -> None:
        """Refuse a protocol that cannot be had before time is spent on its scores."""
        limit = self.run.data.captions
        captions = [len(item.captions[:limit]) for item in self.corpus.items(split)]
        protocol_named(protocol).check_split(split, captions)
