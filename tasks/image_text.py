"""Image-text retrieval: COCO, Flickr30K, and corpora like them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from infra.errors import InputError
from infra.paths import resolve
from infra.registry import TASKS
from tasks.base import Evaluation, Score
from tasks.datasets.images.cxc import cxc_files, read_cxc
from tasks.datasets.images.eccv import eccv_files, read_eccv
from tasks.run import Run
from tasks.scoring.crisscrossed import evaluate_crisscrossed, right_answers
from tasks.scoring.described import (
    extended_queries,
    extended_records,
    retrieval_arrays,
    retrieval_queries,
    retrieval_records,
)
from tasks.scoring.examples import RankedQueries
from tasks.scoring.extended import asked, evaluate_extended, false_negatives
from tasks.scoring.metrics import Positives
from tasks.scoring.protocols import ScoringProtocol, protocol_named
from tasks.visual_text import VisualText


@TASKS.register("image_text")
class ImageText(VisualText):
    """The adapter of image-text retrieval.

    Args:
        run: its complete description.
        assets: of a checkpoint; made from the training split where there are none.
        dev_protocol: the protocol that chooses the best epoch.
        cxc: folder of the official files of Crisscrossed Captions, which one protocol reads.
        eccv: folder of the JSON files of ECCV Caption, which another one reads; those of its package where empty.
        chunk: how many images or captions are encoded at once in evaluation.
    """

    modality = "image"

    def __init__(
        self,
        run: Run,
        assets: dict[str, Any] | None = None,
        *,
        dev_protocol: str = "val-1k",
        cxc: str = "data/cxc",
        eccv: str = "",
        chunk: int = 256,
    ) -> None:
        self.cxc, self.eccv = resolve(cxc), resolve(eccv) if eccv else None
        super().__init__(run, assets, dev_protocol=dev_protocol, chunk=chunk)

    def evaluate_scores(self, score: Score, split: str, protocol: str) -> Evaluation:
        """Rank a split under a protocol, by any function that scores its images against its captions."""
        named = protocol_named(protocol)
        if named.right == "own":
            return super().evaluate_scores(score, split, protocol)
        pairs = self.data(split)
        named.check(len(pairs.item_ids), len(pairs.owner_T))
        judged = {"cxc": self._evaluate_crisscrossed, "eccv": self._evaluate_extended}[named.right]
        return judged(score, split, named)

    def _caption_ids(self, split: str, protocol: ScoringProtocol) -> list[str]:
        items, limit = self.corpus.items(split), self.run.data.captions
        caption_ids = [id for item in items for id in item.caption_ids[:limit]]
        if len(caption_ids) != len(self.data(split).owner_T):
            raise InputError(
                f"{self.corpus.folder}: its captions have no ids, by which {protocol.name} finds what is right; "
                "ingest the corpus again, from Karpathy's JSON"
            )
        return caption_ids

    def _evaluate_crisscrossed(self, score: Score, split: str, protocol: ScoringProtocol) -> Evaluation:
        pairs, caption_ids = self.data(split), self._caption_ids(split, protocol)
        answers = right_answers(
            read_cxc(self.cxc, split),
            image_ids=pairs.item_ids,
            caption_ids=caption_ids,
            owner_T=pairs.owner_T,
        )
        result = evaluate_crisscrossed(score, answers)
        queries = _ranked_queries(answers.of, result.rank_Q)
        units = dict.fromkeys(("i2t", "i2i"), "image_id") | dict.fromkeys(("t2i", "t2t"), "caption_image_id")
        primary, *others = retrieval_records([*answers.of], result.chance, aside=("t2t", "i2i"))
        return Evaluation(
            protocol=protocol.name,
            protocol_version=protocol.version,
            metrics=result.metrics,
            primary=primary,
            others=tuple(others),
            per_query={
                "image_id": pairs.item_ids,
                "caption_image_id": pairs.item_ids[pairs.owner_T],
                **retrieval_arrays(result.rank_Q, result.recalls),
            },
            query_metrics=retrieval_queries(
                {direction: units[direction] for direction in answers.of}, modality=self.modality
            ),
            pictures=(partial(self._examples, score, queries, split, protocol),),
        )

    def _evaluate_extended(self, score: Score, split: str, protocol: ScoringProtocol) -> Evaluation:
        pairs, caption_ids = self.data(split), self._caption_ids(split, protocol)
        of = asked(
            read_eccv(self.eccv),
            image_ids=pairs.item_ids,
            caption_ids=caption_ids,
            owner_T=pairs.owner_T,
        )
        result = evaluate_extended(score, of)
        answers = {direction: asks.in_split for direction, asks in of.items()}
        queries = _ranked_queries(answers, result.rank_Q)
        units = {"i2t": "image_id", "t2i": "caption_image_id"}
        primary, *others = extended_records([*units], result.chance)
        return Evaluation(
            protocol=protocol.name,
            protocol_version=protocol.version,
            metrics=result.metrics,
            primary=primary,
            others=tuple(others),
            per_query={
                "image_id": pairs.item_ids,
                "caption_id": np.array(caption_ids),
                "caption_image_id": pairs.item_ids[pairs.owner_T],
                **result.of_query,
                **{f"{direction}_rank": rank_Q for direction, rank_Q in result.rank_Q.items()},
                **{f"{direction}_false_negative": x_Q for direction, x_Q in result.false_negative_Q.items()},
            },
            query_metrics=extended_queries(units, modality=self.modality),
            files={
                f"{protocol.name}-false-negatives.csv": false_negatives(
                    result, image_ids=pairs.item_ids, caption_ids=caption_ids, texts=pairs.texts
                )
            },
            pictures=(partial(self._examples, score, queries, split, protocol),),
        )

    def check_protocol(self, protocol: str, split: str) -> None:
        """Refuse a protocol that does not fit, or whose files are missing."""
        super().check_protocol(protocol, split)
        right = protocol_named(protocol).right
        if right == "cxc":
            cxc_files(self.cxc, split)
        if right == "eccv":
            eccv_files(self.eccv)


def _ranked_queries(answers: Mapping[str, Positives], rank_Q: Mapping[str, np.ndarray]) -> RankedQueries:
    """Return the queries of a whole split, by right answers and ranks of both directions; NaN where none was asked."""
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
