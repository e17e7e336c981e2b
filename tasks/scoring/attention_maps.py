"""Weights that aggregators give the elements of pairs, as a record that `polypool.pipelines.figures.pages` draws.

Kim et al., "Improving cross-modal retrieval with set of diverse embeddings" (DivE), CVPR 2023, figure 4, has the slots
of an image and the caption nearest to each.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from polypool.aggregators.aggregator import Aggregator
from polypool.aggregators.observe import Watched, observe
from polypool.infra.batches import Batch
from polypool.infra.compute.device import device_of, on_device
from polypool.infra.compute.dist import rank
from polypool.infra.errors import InputError
from polypool.infra.pictures import BOXES
from polypool.infra.registry import Spec
from polypool.infra.store import FeatureStore
from polypool.infra.video import SECONDS
from polypool.tasks.adapter import PictureRecord, Score
from polypool.tasks.datasets.corpus import Item, PicturedItem, Question, pictured
from polypool.tasks.inputs.corpus_inputs import CorpusInputs
from polypool.tasks.inputs.pairs import Pairs, QuestionData, visual_batch
from polypool.tasks.models.dual_encoder import SplitEmbeddings
from polypool.tasks.models.retrieval_model import RetrievalModel
from polypool.tasks.similarities.vectors import at_least_float32, l2_normalise

CHOSEN = 12  # pairs
# The two sides of a model; the aggregator of each is its module `<side>.aggregator`.
SIDES = ("visual", "text")


@dataclass(frozen=True, kw_only=True)
class Pair:
    """An image or video and a text.

    Attributes:
        item: the number of the image or video, or of the question, in its split.
        text: the number of the caption or question in its split.
        batch: the two alone, as the model reads them.
        weights: found by `attended`: by side, `(K, N)`, the N elements' weights in each of an aggregator's K vectors. A
            side whose aggregator has no weights of elements is not there.
    """

    item: int
    text: int
    batch: Batch
    weights: dict[str, np.ndarray] = field(default_factory=dict)


def caption_pairs(pairs: Pairs, *, count: int = CHOSEN) -> Iterator[Pair]:
    """Yield images or videos with one of their captions; always the same ones of a split."""
    random = np.random.default_rng(0)
    for item in random.permutation(np.flatnonzero(pairs.count_N))[:count].tolist():
        caption = int(random.choice(np.flatnonzero(pairs.owner_T == item)))
        batch = {
            **visual_batch(pairs.visual, np.array([item])),
            **pairs.captions.batch(np.array([caption])),
            "item": torch.tensor([item]),
            "row": torch.tensor([0]),
        }
        yield Pair(item=item, text=caption, batch=batch)


def question_pairs(data: QuestionData, *, count: int = CHOSEN) -> Iterator[Pair]:
    """Yield questions with their images; always the same ones of a split."""
    for number in np.random.default_rng(0).permutation(len(data))[:count].tolist():
        yield Pair(item=number, text=number, batch=data.evaluation_batch(np.array([number])))


def attended(model: nn.Module, pairs: Iterable[Pair]) -> list[Pair]:
    """Run a model on pairs, one by one, and return them with the weights of their elements.

    Every worker calls this with the same pairs, since a model may gather; those but the first return nothing, and so
    do all where no aggregator has weights of elements. Weights of a channel each are averaged. An aggregator whose
    weights cannot be had is logged and left out, and so is one that weighs all elements alike.

    Args:
        model: any that has an aggregator in one of the `SIDES`; it is as before afterwards.
        pairs: read only if they are needed.
    """
    sides = [side for side in SIDES if _weighs_elements(model, side)]
    if not sides:
        return []
    device, seen_pairs = device_of(model), []
    compute = model.score_batch if isinstance(model, RetrievalModel) else model
    with _evaluating(model), torch.no_grad():
        for pair in pairs:
            with observe(model, most=1) as watched:
                compute(on_device(pair.batch, device))
            seen = {it.name.removesuffix(".aggregator"): it for it in watched if it.seen}
            weights = {}
            for side in [side for side in sides if side in seen and rank() == 0]:
                weight_KN = _weights(seen[side])
                if weight_KN is None:
                    sides.remove(side)
                else:
                    weights[side] = weight_KN
            seen_pairs.append(replace(pair, weights=weights))
    informative = {
        side for side in sides for pair in seen_pairs if side in pair.weights and _differ(pair.weights[side])
    }
    kept = [
        replace(pair, weights={side: w for side, w in pair.weights.items() if side in informative})
        for pair in seen_pairs
    ]
    return [pair for pair in kept if pair.weights]


def _weighs_elements(model: nn.Module, side: str) -> bool:
    module = dict(model.named_modules()).get(f"{side}.aggregator")
    return isinstance(module, Aggregator) and module.weights_over != "ranks"


def _weights(watched: Watched) -> np.ndarray | None:
    """Return the weights `(K, N)` of the one set that was seen, or None where there are none."""
    try:
        weight_1KND = watched.weights(watched.seen[0])
        return None if weight_1KND is None else weight_1KND[0].mean(dim=-1).numpy()
    except InputError as error:  # a plug-in's may have any shape
        kind = type(watched.aggregator).__name__
        logging.getLogger(__name__).warning(
            "the weights of %s (%s) cannot be shown: %s", watched.name, kind, error
        )
        return None


def _differ(weight_KN: np.ndarray) -> bool:
    return bool(np.ptp(weight_KN, axis=1).max() > 1e-4 * np.abs(weight_KN).max())


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


_CAPTIONS = 4096  # compared at once


@dataclass(frozen=True, kw_only=True)
class NearestCaption:
    """The caption of a split that is nearest to a vector.

    Attributes:
        text: the caption.
        cosine: of the vector and the caption's nearest one.
        own: whether it is a caption of the same image or video.
    """

    text: str
    cosine: float
    own: bool


@dataclass(frozen=True, kw_only=True)
class AttentionExample:
    """An image or video and a text, and the weights of their elements.

    Attributes:
        item: the image or video.
        text: the caption or question.
        visual: `(K, N)`: the weights of the N elements of the image or video in each of an aggregator's K vectors;
            None where the aggregator has no weights of elements.
        words: `(K, L)`: those of the text's elements, likewise.
        subwords: what the model reads of the text.
        nearest: for each of the K vectors of the image or video; empty where they are in no space with captions.
        boxes: `(N, 4)` of elements that are regions: left, top, right and bottom as fractions of the picture's sides;
            None where they are not known.
        seconds: `(N, 1)` of elements that are of frames: when those are shown, after the first; None likewise.
    """

    item: PicturedItem
    text: str
    visual: np.ndarray | None
    words: np.ndarray | None
    subwords: tuple[str, ...]
    nearest: tuple[NearestCaption, ...] = ()
    boxes: np.ndarray | None = None
    seconds: np.ndarray | None = None


@dataclass(frozen=True, kw_only=True)
class AttentionExamples(PictureRecord):
    """Where the aggregators of a model look.

    Attributes:
        split: its name.
        modality: what its items are: `image` or `video`.
        text_kind: what its texts are: `captions` or `questions`.
        texts: how many there are.
        examples: at least one.
        backbone: what the feature store says of the backbone that made cells of the images, empty where that is not
            known; None where elements are no cells, but regions or the like.
    """

    split: str
    modality: str
    text_kind: str
    texts: int
    examples: tuple[AttentionExample, ...]
    backbone: Mapping[str, Any] | None


def attention_examples(
    inputs: CorpusInputs,
    model: nn.Module,
    pairs: Iterable[Pair],
    split: str,
    *,
    items: Sequence[Item | Question],
    nearest: Callable[[int], Sequence[NearestCaption]] = lambda item: (),
) -> AttentionExamples | None:
    """Return the weights of a model's aggregators; None if they have none, and on workers but the first.

    Args:
        inputs: of the model.
        model: a trained one.
        pairs: whose elements' weights are computed, the same on every worker.
        split: its name.
        items: its images or videos, or its questions, by the pairs' numbers.
        nearest: the nearest captions of an item's vectors, by its number; see `nearest_captions`.
    """
    boxes, seconds = column_of(inputs.store, BOXES), column_of(inputs.store, SECONDS)
    texts, examples = inputs.texts(split), []
    for pair in attended(model, pairs):
        item = pictured(inputs.corpus, items[pair.item])
        elements = pair.weights["visual"].shape[1] if "visual" in pair.weights else -1
        example = AttentionExample(
            item=item,
            text=texts[pair.text],
            visual=pair.weights.get("visual"),
            words=pair.weights.get("text"),
            subwords=tuple(inputs.subwords(texts[pair.text], pair.batch)),
            nearest=tuple(nearest(pair.item)) if "visual" in pair.weights else (),
            boxes=_of_all(boxes(item.id), elements),
            seconds=_of_all(seconds(item.id), elements),
        )
        examples.append(example)
    if not examples:
        return None
    return AttentionExamples(
        split=split,
        modality=inputs.modality,
        text_kind=inputs.corpus.texts,
        texts=len(texts),
        examples=tuple(examples),
        backbone=backbone_of(inputs.store, inputs.visual_spec),
    )


def caption_attention(task: Any, model: RetrievalModel, split: str, score: Score) -> AttentionExamples | None:
    """Return `attention_examples` of captions, with the nearest caption of each vector of a set."""
    pairs, items, nearest = task.data(split), task.corpus.items(split), {}
    vectors = isinstance(score, SplitEmbeddings) and not score.similarity.of_distributions
    if vectors and score.visual.dim() == 3:
        nearest = {"nearest": partial(nearest_captions, score, pairs)}
    return attention_examples(task, model, caption_pairs(pairs), split, items=items, **nearest)


def _of_all(column_NC: np.ndarray | None, elements: int) -> np.ndarray | None:
    """Return a column where it is of just these elements: a model may have read fewer than are stored."""
    return column_NC if column_NC is not None and len(column_NC) == elements else None


def backbone_of(store: FeatureStore | None, visual: Spec) -> Mapping[str, Any] | None:
    """Return what is known of what made cells of the images; see `AttentionExamples.backbone`.

    Args:
        store: the features; None where the model reads the whole image itself.
        visual: the visual encoder.
    """
    if store is None:
        return {}
    unknown = None if "regions" in visual.name else {}
    return store.manifest.source.get("extractor", unknown)


def column_of(store: FeatureStore | None, name: str) -> Callable[[str], np.ndarray | None]:
    """Return what finds a column `(N, C)` of an image or video by its id; None where the store does not hold it."""
    if store is None or name not in store.columns:
        return lambda id: None
    column = store.column(name)

    def found(id: str) -> np.ndarray | None:
        (row,) = column.find([id]).tolist()
        return None if row < 0 else np.array(column[row])

    return found


@torch.inference_mode()
def nearest_captions(embeddings: SplitEmbeddings, pairs: Pairs, item: int) -> list[NearestCaption]:
    """Return the nearest caption of each vector of an image or video; of equally near ones the first.

    Args:
        embeddings: of a split, those of its images or videos `(V, K, D)`.
        pairs: the split.
        item: number of the image or video.
    """
    embedding_KD = l2_normalise(at_least_float32(embeddings.visual[item]))
    best_K = embedding_KD.new_full((len(embedding_KD),), -torch.inf)
    caption_K = torch.zeros(len(embedding_KD), dtype=torch.long, device=embedding_KD.device)
    for first in range(0, len(embeddings.text), _CAPTIONS):
        text = l2_normalise(at_least_float32(embeddings.text[first : first + _CAPTIONS]))
        cosine_TK = text @ embedding_KD.T if text.dim() == 2 else (text @ embedding_KD.T).amax(dim=1)
        most_K, at_K = cosine_TK.max(dim=0)
        better_K = most_K > best_K
        best_K = most_K.where(better_K, best_K)
        caption_K = (first + at_K).where(better_K, caption_K)
    return [
        NearestCaption(text=pairs.texts[caption], cosine=cosine, own=bool(pairs.owner_T[caption] == item))
        for caption, cosine in zip(caption_K.tolist(), best_K.tolist(), strict=True)
    ]
