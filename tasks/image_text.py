"""Image-text retrieval on stored features: COCO, Flickr30K, and corpora like them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from encoders.base import Tokenizer
from infra.errors import InputError
from infra.paths import resolve
from infra.randomness import uniform
from infra.registry import AGGREGATORS, AUGMENTATIONS, ENCODERS, OBJECTIVES, TASKS, Spec
from infra.store import FeatureStore
from tasks.base import Evaluation, Metric
from tasks.captions import Captions
from tasks.datasets.corpus import Corpus
from tasks.protocols import Score, evaluate_protocol, protocol_named
from tasks.retrieval import Batch, Branch, DualEncoder, encode, retrieval_loss
from tasks.similarity import cosine

if TYPE_CHECKING:
    from pipelines.config import Run


class Pairs:
    """The images of a split with their captions; a sample is one caption with its image.

    Args:
        corpus: the annotations.
        store: the images' features.
        tokenizer: what splits captions.
        run: how samples are made and augmented.
        split: `train`, `val` or `test`.
    """

    def __init__(
        self, corpus: Corpus, store: FeatureStore, *, tokenizer: Tokenizer, run: Run, split: str
    ) -> None:
        items = corpus.items(split)
        captions = [item.captions[: run.data.captions] for item in items]
        self.image_ids = np.array([item.id for item in items])
        self.owner_G = np.repeat(np.arange(len(items)), [len(texts) for texts in captions])
        self.store = store
        self.rows = store.rows([item.id for item in items])
        self.texts = [text for texts in captions for text in texts]
        self.captions = Captions(self.texts, tokenizer)
        self._visual_augment = (
            AUGMENTATIONS.build(run.data.visual_augment) if run.data.visual_augment else None
        )
        self._text_augment = AUGMENTATIONS.build(run.data.text_augment) if run.data.text_augment else None

    def __len__(self) -> int:
        return len(self.texts)

    def batch(self, index_B: np.ndarray, *, seed: int, epoch: int) -> Batch:
        """Return `visual`, `visual_mask`, `text`, `text_mask` and `item`, the number of each pair's image."""
        item_B = self.owner_G[index_B]
        rows_B, keep = self.rows[item_B], None
        if self._visual_augment:
            draw = partial(_draw, seed, epoch, 0)
            keep = self._visual_augment(self.store.sizes(rows_B), index_B, draw)
        visual_BNF, visual_mask_BN = self.store.padded(rows_B, keep=keep)
        text_BL, text_mask_BL = self.captions.batch(
            index_B, augment=self._text_augment, draw=partial(_draw, seed, epoch, 1)
        )
        return {
            "visual": visual_BNF,
            "visual_mask": visual_mask_BN,
            "text": text_BL,
            "text_mask": text_mask_BL,
            "item": torch.from_numpy(item_B),
        }

    def images(self, size: int) -> Iterator[Batch]:
        """Yield every image once, in order."""
        for start in tqdm(range(0, len(self.rows), size), desc="encoding images", leave=False, delay=2):
            visual_BNF, mask_BN = self.store.padded(self.rows[start : start + size])
            yield {"visual": visual_BNF, "visual_mask": mask_BN}

    def sentences(self, size: int, order_G: np.ndarray) -> Iterator[Batch]:
        """Yield every caption once, in the given order."""
        for start in tqdm(range(0, len(order_G), size), desc="encoding captions", leave=False, delay=2):
            text_BL, mask_BL = self.captions.batch(order_G[start : start + size])
            yield {"text": text_BL, "text_mask": mask_BL}


def _draw(
    seed: int, epoch: int, modality: int, sample: np.ndarray, element: np.ndarray, stream: int
) -> np.ndarray:
    return uniform(seed, epoch, modality, stream, sample, element)


@TASKS.register("image_text")
class ImageText:
    """The adapter of image-text retrieval.

    Args:
        run: its complete description.
        assets: of a checkpoint; made from the training split where there are none.
        dev_protocol: the protocol that chooses the best epoch.
        chunk: how many images or captions are encoded at once in evaluation.
    """

    primary = Metric(name="rsum")

    def __init__(
        self,
        run: Run,
        assets: dict[str, Any] | None = None,
        *,
        dev_protocol: str = "val-1k",
        chunk: int = 256,
    ) -> None:
        protocol_named(run.protocol)
        self.dev_protocol = protocol_named(dev_protocol).name
        self.run, self.chunk = run, chunk
        self.corpus = Corpus.open(resolve(run.data.corpus))
        self.store = FeatureStore.open(resolve(run.data.features))
        self.assets = assets or self._prepare()
        self.objective = OBJECTIVES.build(run.objective)
        self._splits: dict[str, Pairs] = {}

    def _prepare(self) -> dict[str, Any]:
        spec = Spec.parse(self.run.text)
        captions = (
            text for item in self.corpus.items("train") for text in item.captions[: self.run.data.captions]
        )
        return {
            "visual": {"dim": self.store.dim, "statistics": self.store.manifest.statistics},
            "text": ENCODERS.get(spec.name).prepare(captions, **spec.params),
        }

    def describe(self) -> Mapping[str, str]:
        """Return the digests of what the run reads, and the sizes of the splits."""
        return {
            "corpus": self.corpus.digest,
            "features": self.store.digest,
            **{f"images_{split}": str(count) for split, count in self.corpus.splits.items()},
        }

    def data(self, split: str) -> Pairs:
        """Return a split's pairs."""
        if split not in self._splits:
            tokenizer = ENCODERS.get(Spec.parse(self.run.text).name).tokenizer(self.assets["text"])
            self._splits[split] = Pairs(
                self.corpus, self.store, tokenizer=tokenizer, run=self.run, split=split
            )
        return self._splits[split]

    def model(self, *, pretrained: bool = True) -> DualEncoder:
        """Return a new dual encoder."""
        run = self.run
        visual = ENCODERS.build(run.visual, self.assets["visual"])
        text = ENCODERS.build(run.text, self.assets["text"])
        if visual.width != text.width:
            raise InputError(
                f"{run.visual!r} makes elements of width {visual.width} and {run.text!r} of {text.width}; they meet in "
                "one space: give both the same width"
            )
        if pretrained:
            text.load_pretrained()
        return DualEncoder(
            Branch(visual, AGGREGATORS.build(run.aggregator, visual.width)),
            Branch(text, AGGREGATORS.build(run.text_aggregator or run.aggregator, text.width)),
        )

    def loss(self, model: nn.Module, batch: Batch, *, epoch: float) -> dict[str, Tensor]:
        """Return the objective on the global batch, and the mean similarity of pairs and of others."""
        return retrieval_loss(model, batch, objective=self.objective, similarity=cosine, epoch=epoch)

    def scorer(self, model: DualEncoder, split: str) -> Score:
        """Encode a split and return `score(images, captions)`, which computes any block of the score matrix."""
        pairs, device = self.data(split), next(model.parameters()).device
        model.eval()
        order_G = np.argsort(pairs.captions.sizes(), kind="stable")
        visual_QD = encode(model.encode_visual, pairs.images(self.chunk), device=device)
        sorted_GD = encode(model.encode_text, pairs.sentences(self.chunk, order_G), device=device)
        text_GD = torch.empty_like(sorted_GD)
        text_GD[torch.from_numpy(order_G).to(device)] = sorted_GD
        return lambda rows, columns: model.similarity(visual_QD[rows], text_GD[columns]).float()

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
        pairs = self.data(split)
        result = evaluate_protocol(protocol_named(protocol), score, pairs.owner_G, len(pairs.image_ids))
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

    def evaluate(self, model: DualEncoder, split: str, protocol: str) -> Evaluation:
        """Score a split under a protocol."""
        return self.judge(self.scorer(model, split), split, protocol)
