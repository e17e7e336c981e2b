"""Evaluations of retrieval: by a corpus's own pairs, Crisscrossed Captions, and ECCV Caption."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from polypool.infra.errors import InputError
from polypool.tasks.adapter import Evaluation, Metric, Score
from polypool.tasks.datasets.coco_judgments import Extended, Ratings
from polypool.tasks.datasets.corpus import Corpus, pictured
from polypool.tasks.inputs.pairs import Pairs
from polypool.tasks.models.dual_encoder import SplitEmbeddings
from polypool.tasks.run import Data
from polypool.tasks.scoring.crisscrossed import evaluate_crisscrossed, right_answers
from polypool.tasks.scoring.evaluation import evaluate_protocol
from polypool.tasks.scoring.examples import RankedQueries, ranked_queries, retrieval_examples
from polypool.tasks.scoring.extended import evaluate_extended, false_negatives, queries_of
from polypool.tasks.scoring.metric_specs import (
    extended_queries,
    extended_records,
    retrieval_arrays,
    retrieval_queries,
    retrieval_records,
)
from polypool.tasks.scoring.metrics import Positives
from polypool.tasks.scoring.protocols import ScoringProtocol


@dataclass(frozen=True, kw_only=True)
class RetrievalSplit:
    """A split to be scored.

    Attributes:
        name: of the split.
        modality: of its items: `image` or `video`; its first letter is used in metric names, such as `i2t/R1`.
        corpus: of the items.
        pairs: the items with their captions.
        data: settings of the data.
    """

    name: str
    modality: str
    corpus: Corpus
    pairs: Pairs
    data: Data

    @property
    def directions(self) -> tuple[str, str]:
        letter = self.modality[0]
        return f"{letter}2t", f"t2{letter}"

    def caption_ids(self, protocol: ScoringProtocol) -> list[str]:
        """Return the ids of the captions, to match ratings.

        Raises:
            InputError: the corpus has none, or an id twice.
        """
        ids = [id for item in self.corpus.items(self.name) for id in self.data.used(item.caption_ids)]
        if len({*ids}) != len(self.pairs.owner_T):
            raise InputError(
                f"{self.corpus.folder}: its captions have no ids, or an id twice, and {protocol.name} finds right "
                "answers by them; ingest the corpus again, from Karpathy's JSON"
            )
        return ids

    def evaluation(
        self,
        score: Score,
        protocol: ScoringProtocol,
        queries: RankedQueries,
        records: Sequence[Metric],
        **found: Any,
    ) -> Evaluation:
        """Return an evaluation with pages of some queries; the first metric is the primary one.

        Pages show results by unmodified scores, so a protocol with rescoring has none.
        """
        primary, *others = records
        items = cache(partial(self.corpus.items, self.name))
        examples = partial(
            retrieval_examples,
            score,
            queries,
            texts=self.pairs.texts,
            pictured=lambda number: pictured(self.corpus, items()[number]),
            split=self.name,
            modality=self.modality,
            protocol=protocol,
        )
        return Evaluation(
            protocol=protocol.name,
            protocol_version=protocol.version,
            primary=primary,
            others=tuple(others),
            pictures=() if protocol.rescore else (examples,),
            **found,
        )


def own_evaluation(split: RetrievalSplit, score: Score, protocol: ScoringProtocol) -> Evaluation:
    """Rank a split by its own pairs."""
    pairs, directions, modality = split.pairs, split.directions, split.modality
    result = evaluate_protocol(
        protocol, score, pairs.owner_T, len(pairs.item_ids), texts=pairs.texts, directions=directions
    )
    item, caption, caption_G = f"{modality}_id", f"caption_{modality}_id", result.caption_G
    ranks = dict(zip(directions, (result.ranks_i2t, result.ranks_t2i), strict=True))
    per_query = {
        item: pairs.item_ids[: len(result.ranks_i2t)],
        "caption": caption_G,
        caption: pairs.item_ids[pairs.owner_T[caption_G]],
        **retrieval_arrays(ranks, result.recalls),
    }
    sums = score.uncertainty() if isinstance(score, SplitEmbeddings) else None
    if sums is not None:
        visual_V, text_T = (sum_B.cpu().numpy() for sum_B in sums)
        per_query[f"{modality}_uncertainty"] = visual_V[: len(result.ranks_i2t)]
        per_query["caption_uncertainty"] = text_T[caption_G]
    return split.evaluation(
        score,
        protocol,
        ranked_queries(pairs, protocol, result),
        retrieval_records(directions, result.chance),
        metrics=result.metrics | {"ties": float(result.ties)},
        per_query=per_query,
        query_metrics=retrieval_queries(
            dict(zip(directions, (item, caption), strict=True)), modality=modality
        ),
    )


def crisscrossed_evaluation(
    split: RetrievalSplit, score: Score, protocol: ScoringProtocol, ratings: Ratings
) -> Evaluation:
    """Rank a split of images between and within modalities, by the ratings of Crisscrossed Captions."""
    pairs, caption_ids = split.pairs, split.caption_ids(protocol)
    answers = right_answers(
        ratings, image_ids=pairs.item_ids.tolist(), caption_ids=caption_ids, owner_T=pairs.owner_T
    )
    result = evaluate_crisscrossed(score, answers)
    units = dict.fromkeys(("i2t", "i2i"), "image_id") | dict.fromkeys(("t2i", "t2t"), "caption_image_id")
    return split.evaluation(
        score,
        protocol,
        _ranked_queries(answers.of, result.rank_Q),
        retrieval_records([*answers.of], result.chance, aside=("t2t", "i2i")),
        metrics=result.metrics,
        per_query={
            "image_id": pairs.item_ids,
            "caption_image_id": pairs.item_ids[pairs.owner_T],
            **retrieval_arrays(result.rank_Q, result.recalls),
        },
        query_metrics=retrieval_queries(
            {direction: units[direction] for direction in answers.of}, modality=split.modality
        ),
    )


def extended_evaluation(
    split: RetrievalSplit, score: Score, protocol: ScoringProtocol, released: Extended
) -> Evaluation:
    """Rank a split of images by the right answers of ECCV Caption to its queries, and list false negatives."""
    pairs, caption_ids = split.pairs, split.caption_ids(protocol)
    of = queries_of(
        released, image_ids=pairs.item_ids.tolist(), caption_ids=caption_ids, owner_T=pairs.owner_T
    )
    result = evaluate_extended(score, of)
    answers = {direction: queries.in_split for direction, queries in of.items()}
    units = {"i2t": "image_id", "t2i": "caption_image_id"}
    wrong = false_negatives(
        result, image_ids=pairs.item_ids.tolist(), caption_ids=caption_ids, texts=pairs.texts
    )
    return split.evaluation(
        score,
        protocol,
        _ranked_queries(answers, result.rank_Q),
        extended_records([*units], result.chance),
        metrics=result.metrics,
        per_query={
            "image_id": pairs.item_ids,
            "caption_id": np.array(caption_ids),
            "caption_image_id": pairs.item_ids[pairs.owner_T],
            **result.of_query,
            **{f"{direction}_rank": rank_Q for direction, rank_Q in result.rank_Q.items()},
            **{f"{direction}_false_negative": x_Q for direction, x_Q in result.false_negative_Q.items()},
        },
        query_metrics=extended_queries(units, modality=split.modality),
        files={f"{protocol.name}-false-negatives.csv": wrong},
    )


def _ranked_queries(answers: Mapping[str, Positives], rank_Q: Mapping[str, np.ndarray]) -> RankedQueries:
    """Return the queries of a whole split; ranks of queries without right answers are NaN."""
    of_items, of_captions = answers["i2t"], answers["t2i"]
    return RankedQueries(
        caption_G=np.arange(len(of_captions)),
        of_items=of_items,
        of_captions=of_captions,
        item_Q=np.arange(len(of_items)),
        item_rank_Q=rank_Q["i2t"],
        caption_Q=np.arange(len(of_captions)),
        caption_rank_Q=rank_Q["t2i"],
    )
