"""Element weights of aggregators for image-text pairs, as records that `polypool.pipelines.figures.pages` draws.

Kim et al., "Improving cross-modal retrieval with set of diverse embeddings" (DivE), CVPR 2023, figure 4, shows the
slots of an image and the caption nearest to each.
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
        item: index of the image or video, or of the question, in its split.
        text: index of the caption or question in its split.
        batch: the pair as model input.
        weights: from `attended`: by side, `(K, N)`, the N elements' weights in each of an aggregator's K vectors. Sides
            without element weights are missing.
    """

    item: int
    text: int
    batch: Batch
    weights: dict[str, np.ndarray] = field(default_factory=dict)


def caption_pairs(pairs: Pairs, *, count: int = CHOSEN) -> Iterator[Pair]:
    """Yield images or videos with one of their captions; the same ones for a split each time."""
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
    """Yield questions with their images; the same ones for a split each time."""
    for number in np.random.default_rng(0).permutation(len(data))[:count].tolist():
        yield Pair(item=number, text=number, batch=data.evaluation_batch(np.array([number])))


def attended(model: nn.Module, pairs: Iterable[Pair]) -> list[Pair]:
    """Run a model on pairs, one by one, and return them with their element weights.

    Every worker calls this with the same pairs, because a model may gather; all but the first return nothing, and so
    does the first if no aggregator has element weights. Per-channel weights are averaged. Aggregators with unusable
    weights are logged and skipped; aggregators with uniform weights are skipped.

    Args:
        model: any with an aggregator in one of the `SIDES`; its mode is restored.
        pairs: read only if needed.
    """
    modules = dict(model.named_modules())
    aggregators = {side: modules.get(f"{side}.aggregator") for side in SIDES}
    sides = [
        side
        for side, module in aggregators.items()
        if isinstance(module, Aggregator) and module.weights_over != "ranks"
    ]
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
        side
        for pair in seen_pairs
        for side, weight_KN in pair.weights.items()
        if side in sides and np.ptp(weight_KN, axis=1).max() > 1e-4 * np.abs(weight_KN).max()
    }
    found = [
        replace(pair, weights={side: w for side, w in pair.weights.items() if side in informative})
        for pair in seen_pairs
    ]
    return [pair for pair in found if pair.weights]


def _weights(watched: Watched) -> np.ndarray | None:
    """Return the weights `(K, N)` of the recorded set, or None."""
    try:
        weight_1KND = watched.weights(watched.seen[0])
        return None if weight_1KND is None else weight_1KND[0].mean(dim=-1).numpy()
    except InputError as error:  # a plug-in's may have any shape
        kind = type(watched.aggregator).__name__
        logging.getLogger(__name__).warning(
            "the weights of %s (%s) cannot be shown: %s", watched.name, kind, error
        )
        return None


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
    """The caption of a split nearest to a vector.

    Attributes:
        text: the caption.
        cosine: between the vector and the caption's nearest vector.
        own: whether the caption belongs to the same image or video.
    """

    text: str
    cosine: float
    own: bool


@dataclass(frozen=True, kw_only=True)
class AttentionExample:
    """An image or video and a text, with their element weights.

    Attributes:
        item: the image or video.
        text: the caption or question.
        visual: `(K, N)`: the weights of the image's or video's N elements in each of an aggregator's K vectors; None if
            the aggregator has no element weights.
        words: `(K, L)`: the weights of the text's elements, or None.
        subwords: the text's tokens.
        nearest: the nearest caption of each of the K visual vectors; empty if captions are in another space.
        boxes: `(N, 4)` of region elements: left, top, right and bottom as fractions of the picture's sides; None if
            unknown.
        seconds: `(N, 1)` of frame elements: their time in the video; None if unknown.
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
    """Element weights of a model's aggregators for some pairs of a split.

    Attributes:
        split: its name.
        modality: of its items: `image` or `video`.
        text_kind: of its texts: `captions` or `questions`.
        texts: their number.
        examples: at least one.
        backbone: the feature store's description of the backbone, if elements are cells of an image; empty if unknown;
            None if elements are not cells, such as regions.
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
        items: the split's images or videos, or its questions; `Pair.item` is an index into them.
        nearest: returns the nearest captions of an item's vectors, by its index; see `nearest_captions`.
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
            boxes=boxes(item.id, elements),
            seconds=seconds(item.id, elements),
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


def backbone_of(store: FeatureStore | None, visual: Spec) -> Mapping[str, Any] | None:
    """Return the description of the backbone of image cells; see `AttentionExamples.backbone`.

    Args:
        store: the features; None if the model reads the whole image.
        visual: the visual encoder.
    """
    if store is None:
        return {}
    unknown = None if "regions" in visual.name else {}
    return store.manifest.source.get("extractor", unknown)


def column_of(store: FeatureStore | None, name: str) -> Callable[[str, int], np.ndarray | None]:
    """Return a function from the id of an image or video, and its number of elements N, to its column `(N, C)`.

    It returns None without the column, and for another number of elements: a model may read fewer than are stored.
    """
    column = None if store is None or name not in store.columns else store.column(name)

    def found(id: str, elements: int) -> np.ndarray | None:
        row = -1 if column is None else int(column.find([id])[0])
        column_NC = None if column is None or row < 0 else np.array(column[row])
        return column_NC if column_NC is not None and len(column_NC) == elements else None

    return found


@torch.inference_mode()
def nearest_captions(embeddings: SplitEmbeddings, pairs: Pairs, item: int) -> list[NearestCaption]:
    """Return the nearest caption of each vector of an image or video; ties go to the first.

    Args:
        embeddings: of a split, with visual sets `(V, K, D)`.
        pairs: the split.
        item: index of the image or video.
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
