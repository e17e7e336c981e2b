"""Image-text retrieval: COCO, Flickr30K, and other image corpora."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from polypool.infra.paths import FilePath, home
from polypool.infra.registry import TASKS
from polypool.tasks.adapter import Evaluation, Score
from polypool.tasks.datasets.coco_judgments import cxc_files, eccv_files, read_cxc, read_eccv
from polypool.tasks.retrieval import Retrieval
from polypool.tasks.run import Run
from polypool.tasks.scoring.protocols import protocol_named
from polypool.tasks.scoring.retrieval_metrics import crisscrossed_evaluation, extended_evaluation
from polypool.tasks.scoring.scores import first_vectors


@TASKS.register("image_text")
class ImageText(Retrieval):
    """The adapter of image-text retrieval.

    Args:
        run: its complete description.
        assets: of a checkpoint; computed from the corpus if None.
        dev_protocol: protocol that selects the best epoch.
        cxc: folder of the official files of Crisscrossed Captions, for the protocol `coco-5k-cxc`; `data/cxc` in the
            project's home if empty.
        eccv: folder of the JSON files of ECCV Caption, for `coco-eccv`; if empty, that of the package `eccv-caption`.
        chunk: images or captions per forward pass in evaluation.
    """

    def __init__(
        self,
        run: Run,
        assets: dict[str, Any] | None = None,
        *,
        dev_protocol: str = "val-1k",
        cxc: FilePath = "",
        eccv: FilePath = "",
        chunk: int = 256,
    ) -> None:
        self.cxc = Path(cxc) if cxc else home() / "data/cxc"
        self.eccv = Path(eccv) if eccv else None
        super().__init__(run, assets, dev_protocol=dev_protocol, chunk=chunk)

    def evaluate_scores(self, score: Score, split: str, protocol: str) -> Evaluation:
        named = protocol_named(protocol)
        if named.right == "own":
            return super().evaluate_scores(score, split, protocol)
        scored = self.scored(split)
        named.check(len(scored.pairs.item_ids), len(scored.pairs.owner_T))
        score = first_vectors(score, named.vectors)
        if named.right == "cxc":
            return crisscrossed_evaluation(scored, score, named, read_cxc(self.cxc, split))
        return extended_evaluation(scored, score, named, read_eccv(self.eccv))

    def check_protocol(self, protocol: str, split: str) -> None:
        super().check_protocol(protocol, split)
        right = protocol_named(protocol).right
        if right == "cxc":
            cxc_files(self.cxc, split)
        if right == "eccv":
            eccv_files(self.eccv)
