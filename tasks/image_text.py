"""Image-text retrieval: COCO, Flickr30K, and corpora like them."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from infra.errors import InputError
from infra.paths import resolve
from infra.registry import TASKS
from tasks.base import Evaluation, Score
from tasks.datasets.images.cxc import cxc_files, read_cxc
from tasks.run import Run
from tasks.scoring.crisscrossed import evaluate_crisscrossed, right_answers
from tasks.scoring.described import retrieval_arrays, retrieval_queries, retrieval_records
from tasks.scoring.examples import RankedQueries
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
        chunk: int = 256,
    ) -> None:
        self.cxc = resolve(cxc)
        super().__init__(run, assets, dev_protocol=dev_protocol, chunk=chunk)

    def evaluate_scores(self, score: Score, split: str, protocol: str) -> Evaluation:
        """Rank a split under a protocol, by any function that scores its images against its captions."""
        named = protocol_named(protocol)
        if named.crisscrossed:
            return self._evaluate_crisscrossed(score, split, named)
        return super().evaluate_scores(score, split, protocol)

    def _evaluate_crisscrossed(self, score: Score, split: str, protocol: ScoringProtocol) -> Evaluation:
        pairs = self.data(split)
        protocol.check(len(pairs.item_ids), len(pairs.owner_T))
        caption_ids = [
            id for item in self.corpus.items(split) for id in item.caption_ids[: self.run.data.captions]
        ]
        if len(caption_ids) != len(pairs.owner_T):
            raise InputError(
                f"{self.corpus.folder}: its captions have no ids, by which {protocol.name} finds their ratings; "
                "ingest the corpus again, from Karpathy's JSON"
            )
        answers = right_answers(
            read_cxc(self.cxc, split),
            image_ids=pairs.item_ids,
            caption_ids=caption_ids,
            owner_T=pairs.owner_T,
        )
        result = evaluate_crisscrossed(score, answers)
        queries = RankedQueries(
            caption_G=np.arange(len(caption_ids)),
            of_items=answers.of["i2t"],
            of_captions=answers.of["t2i"],
            item_Q=np.arange(len(pairs.item_ids)),
            item_rank_Q=result.rank_Q["i2t"],
            caption_Q=np.arange(len(caption_ids)),
            caption_rank_Q=result.rank_Q["t2i"],
        )
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

    def _check(self, protocol: str, split: str) -> None:
        """Refuse a protocol that does not fit, or whose files are missing."""
        super()._check(protocol, split)
        if protocol_named(protocol).crisscrossed:
            cxc_files(self.cxc, split)
