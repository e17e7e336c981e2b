"""Image-text retrieval: COCO, Flickr30K, and corpora like them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor, nn

from infra.errors import InputError
from infra.paths import resolve
from infra.registry import AUGMENTATIONS, ENCODERS, OBJECTIVES, REGULARISERS, TASKS, Spec
from infra.store import FeatureStore
from tasks.base import Evaluation, Metric
from tasks.captions import Captions
from tasks.codes import Batch
from tasks.crisscrossed import evaluate_crisscrossed, right_answers
from tasks.datasets.corpus import Corpus, Item
from tasks.datasets.cxc import cxc_files, read_cxc
from tasks.models import retrieval_model
from tasks.pairs import Pairs, StoredSets, VisualInputs
from tasks.pixels import Pixels
from tasks.protocols import Protocol, evaluate_protocol, protocol_named
from tasks.retrieval import DualEncoder, retrieval_loss
from tasks.scores import Score

if TYPE_CHECKING:
    from pipelines.config import Run


PIXEL_CHUNK = 32  # images of 512 pixels encoded at once in evaluation: a few GB of feature maps


@TASKS.register("image_text")
class ImageText:
    """The adapter of image-text retrieval.

    Args:
        run: its complete description.
        assets: of a checkpoint; made from the training split where there are none.
        dev_protocol: the protocol that chooses the best epoch.
        cxc: folder of the official files of Crisscrossed Captions, which one protocol reads.
        chunk: how many images or captions are encoded at once in evaluation.
    """

    primary = Metric(name="rsum")

    def __init__(
        self,
        run: Run,
        assets: dict[str, Any] | None = None,
        *,
        dev_protocol: str = "val-1k",
        cxc: str = "data/cxc",
        chunk: int = 256,
    ) -> None:
        self.dev_protocol = protocol_named(dev_protocol).name
        protocol_named(run.protocol)
        self.run, self.chunk, self.cxc = run, chunk, resolve(cxc)
        self.corpus = Corpus.open(resolve(run.data.corpus))
        self._visual, self._text = Spec.parse(run.visual), Spec.parse(run.text)
        self.store = None
        if ENCODERS.get(self._visual.name).reads == "features":
            self.store = FeatureStore.open(resolve(run.data.features))
        self.assets = assets or self._prepare()
        self.objective = OBJECTIVES.build(run.objective)
        self.regularisers = [REGULARISERS.build(spec) for spec in run.regularisers]
        self._splits: dict[str, Pairs] = {}

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
            **{f"images_{split}": str(count) for split, count in self.corpus.splits.items()},
        }

    def data(self, split: str) -> Pairs:
        """Return a split's pairs."""
        if split not in self._splits:
            data, items = self.run.data, self.corpus.items(split)
            texts = [item.captions[: data.captions] for item in items]
            tokenizer = ENCODERS.get(self._text.name).tokenizer(self.assets["text"])
            self._splits[split] = Pairs(
                [item.id for item in items],
                texts,
                visual=self._inputs(items),
                captions=Captions([text for lines in texts for text in lines], tokenizer),
                augment=AUGMENTATIONS.build(data.text_augment) if data.text_augment else None,
                by_image=data.sample == "image",
            )
        return self._splits[split]

    def _inputs(self, items: list[Item]) -> VisualInputs:
        """Return what the visual encoder reads: sets of the store, or the images themselves."""
        spec = self.run.data.visual_augment
        augment = AUGMENTATIONS.build(spec) if spec else None
        if self.store:
            return StoredSets(self.store, [item.id for item in items], augment=augment)
        encoder = ENCODERS.get(self._visual.name)
        transform = encoder.transform(self.assets["visual"], **self._visual.params)
        paths = [self.corpus.image_path(item) for item in items]
        return Pixels(paths, transform=transform, augment=augment)

    def model(self, *, pretrained: bool = True) -> DualEncoder:
        """Return a new dual encoder."""
        visual = ENCODERS.build(self.run.visual, self.assets["visual"])
        text = ENCODERS.build(self.run.text, self.assets["text"])
        if pretrained:
            visual.load_pretrained()
            text.load_pretrained()
        return retrieval_model(self.run, visual, text)

    def loss(self, model: nn.Module, batch: Batch, *, epoch: float) -> dict[str, Tensor]:
        """Return the objective on the global batch, its parts, and the mean similarity of pairs and of others."""
        return retrieval_loss(
            model, batch, objective=self.objective, regularisers=self.regularisers, epoch=epoch
        )

    def scorer(self, model: DualEncoder, split: str) -> Score:
        """Encode a split and return `score(images, captions)`, which computes any block of the score matrix."""
        pairs = self.data(split)
        model.eval()
        images = self.chunk if self.store else min(self.chunk, PIXEL_CHUNK)
        return model.scorer(pairs.images(images), pairs.sentences(self.chunk))

    def check_same_data(self, other: ImageText, split: str) -> None:
        """Refuse another adapter as a member of an ensemble if its images or captions differ."""
        ours, theirs = self.data(split), other.data(split)
        if not np.array_equal(ours.image_ids, theirs.image_ids) or ours.texts != theirs.texts:
            raise InputError(
                f"runs on {self.run.data.corpus} and {other.run.data.corpus} cannot be one ensemble: the images or "
                f"captions of their {split} splits differ"
            )

    def judge(self, score: Score, split: str, protocol: str) -> Evaluation:
        """Rank a split under a protocol, by any function that scores its images against its captions."""
        pairs, named = self.data(split), protocol_named(protocol)
        if named.crisscrossed:
            return self._judge_crisscrossed(score, split, named)
        result = evaluate_protocol(named, score, pairs.owner_G, len(pairs.image_ids))
        images, captions = len(result.ranks_i2t), len(result.ranks_t2i)
        return Evaluation(
            protocol=protocol,
            metrics=result.metrics | {"chance_rsum": result.chance, "ties": float(result.ties)},
            per_query={
                "image_id": pairs.image_ids[:images],
                "caption_image": pairs.owner_G[:captions],
                "i2t_rank": result.ranks_i2t,
                "t2i_rank": result.ranks_t2i,
            },
        )

    def _judge_crisscrossed(self, score: Score, split: str, protocol: Protocol) -> Evaluation:
        pairs = self.data(split)
        protocol.check(len(pairs.image_ids), len(pairs.owner_G))
        caption_ids = [
            id for item in self.corpus.items(split) for id in item.caption_ids[: self.run.data.captions]
        ]
        if len(caption_ids) != len(pairs.owner_G):
            raise InputError(
                f"{self.corpus.folder}: its captions have no ids, by which {protocol.name} finds their ratings; "
                "ingest the corpus again, from Karpathy's JSON"
            )
        answers = right_answers(
            read_cxc(self.cxc, split),
            image_ids=pairs.image_ids,
            caption_ids=caption_ids,
            owner_G=pairs.owner_G,
        )
        result = evaluate_crisscrossed(score, answers)
        return Evaluation(
            protocol=protocol.name,
            metrics=result.metrics,
            per_query={
                "image_id": pairs.image_ids,
                "caption_image": pairs.owner_G,
                **{f"{direction}_rank": rank_Q for direction, rank_Q in result.rank_Q.items()},
            },
        )

    def evaluate(self, model: DualEncoder, split: str, protocol: str) -> Evaluation:
        """Score a split under a protocol."""
        self._check(protocol, split)
        return self.judge(self.scorer(model, split), split, protocol)

    def _check(self, protocol: str, split: str) -> None:
        """Refuse a protocol whose files are missing before time is spent on its scores."""
        if protocol_named(protocol).crisscrossed:
            cxc_files(self.cxc, split)
