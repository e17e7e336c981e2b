"""Weights that a model's aggregators give the elements of an image or video and of a text, one pair at a time."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from aggregators.base import Aggregator
from aggregators.observe import Watched, observe
from infra.compute.device import device_of, on_device
from infra.compute.dist import rank
from infra.data import Batch
from infra.errors import InputError
from tasks.inputs.pairs import Pairs
from tasks.inputs.questions import QuestionData
from tasks.models.base import RetrievalModel

CHOSEN = 12  # pairs
SIDES = ("visual", "text")
"""The two sides of a model; the aggregator of each is its module `<side>.aggregator`."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """An image or video and a text.

    Attributes:
        item: the number of the image or video, or of the question, in its split.
        text: the number of the caption or question in its split.
        batch: the two alone, as the model reads them.
    """

    item: int
    text: int
    batch: Batch


@dataclass(frozen=True, kw_only=True)
class Attended:
    """The weights of a pair's elements.

    Attributes:
        pair: which.
        weights: by side, `(K, N)`: the N elements' weights in each of an aggregator's K vectors. A side whose
            aggregator has no weights of elements is not there.
    """

    pair: Pair
    weights: dict[str, np.ndarray]


def caption_pairs(pairs: Pairs, *, count: int = CHOSEN) -> Iterator[Pair]:
    """Yield images or videos with one of their captions; always the same ones of a split."""
    random = np.random.default_rng(0)
    for item in random.permutation(np.flatnonzero(pairs.count_N))[:count].tolist():
        caption = int(random.choice(np.flatnonzero(pairs.owner_T == item)))
        visual, mask_1N = pairs.visual.batch(np.array([item]), sample_B=np.array([item]), draw=None)
        batch = {
            "visual": visual,
            "visual_mask": mask_1N,
            **pairs.captions.batch(np.array([caption])),
            "item": torch.tensor([item]),
            "row": torch.tensor([0]),
        }
        yield Pair(item=item, text=caption, batch=batch)


def question_pairs(data: QuestionData, *, count: int = CHOSEN) -> Iterator[Pair]:
    """Yield questions with their images; always the same ones of a split."""
    for number in np.random.default_rng(0).permutation(len(data))[:count].tolist():
        yield Pair(item=number, text=number, batch=data.evaluation_batch(np.array([number])))


def attended(model: nn.Module, pairs: Iterable[Pair]) -> list[Attended]:
    """Run a model on pairs, one by one, and return the weights of their elements.

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
            seen_pairs.append(Attended(pair=pair, weights=weights))
    informative_sides = [
        side for side in sides if any(side in it.weights and _differ(it.weights[side]) for it in seen_pairs)
    ]
    informative = [
        Attended(
            pair=it.pair, weights={side: w for side, w in it.weights.items() if side in informative_sides}
        )
        for it in seen_pairs
    ]
    return [it for it in informative if it.weights]


def _weighs_elements(model: nn.Module, side: str) -> bool:
    module = dict(model.named_modules()).get(f"{side}.aggregator")
    return isinstance(module, Aggregator) and module.weights_over != "ranks"


def _weights(watched: Watched) -> np.ndarray | None:
    """Return the weights `(K, N)` of the one set that was seen, or None where there are none."""
    try:
        weight_1KND = watched.weights(watched.seen[0])
        return None if weight_1KND is None else weight_1KND[0].mean(dim=-1).numpy()
    except InputError as error:  # a plug-in's may have any shape
        logging.getLogger(__name__).warning(
            "the weights of %s (%s) cannot be shown: %s",
            watched.name,
            type(watched.aggregator).__name__,
            error,
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
