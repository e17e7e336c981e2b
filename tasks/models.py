"""The model of a retrieval run: encoders, aggregators and a similarity that fit together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from encoders.base import Encoder
from infra.errors import InputError
from infra.registry import AGGREGATORS, CROSS_ENCODERS, SIMILARITIES, Spec
from tasks.pair_encoder import PairEncoder
from tasks.retrieval import Branch, DualEncoder
from tasks.similarities.base import Similarity

if TYPE_CHECKING:
    from pipelines.config import Run


def retrieval_model(run: Run, visual: Encoder, text: Encoder) -> DualEncoder | PairEncoder:
    """Return a new model of a run with the given encoders: of pairs where both sides of one must be seen together.

    Raises:
        InputError: a name or a parameter that does not exist, codes of two widths, sets of codes with a similarity
            of single vectors, or regularisers with a model of pairs.
    """
    branches = (
        Branch(visual, AGGREGATORS.build(run.aggregator, visual.width)),
        Branch(text, AGGREGATORS.build(run.text_aggregator or run.aggregator, text.width)),
    )
    if branches[0].width != branches[1].width:
        raise InputError(
            f"{run.visual!r} with {run.aggregator!r} makes codes of width {branches[0].width}, and {run.text!r} with "
            f"{run.text_aggregator or run.aggregator!r} of {branches[1].width}; they meet in one space: give both the "
            "same width"
        )
    similarity = _similarity(run, branches)
    if not run.cross and not any(branch.aggregator.needs_context for branch in branches):
        return DualEncoder(*branches, similarity)
    if run.regularisers:
        raise InputError(
            f"the regularisers {', '.join(run.regularisers)} look at codes of images and of captions, and "
            f"{run.cross or run.aggregator} makes codes of pairs; leave the regularisers out (--regularisers)"
        )
    cross = CROSS_ENCODERS.build(run.cross, visual.width) if run.cross else None
    return PairEncoder(*branches, similarity, cross=cross)


def _similarity(run: Run, branches: tuple[Branch, Branch]) -> Similarity:
    """Return the similarity that the run names, or else the usual one for its codes."""
    makes_sets = any(branch.aggregator.set_size > 1 for branch in branches)
    of_pairs = any(branch.aggregator.needs_context for branch in branches)
    usual_of_sets = "aligned_mean" if of_pairs else "smooth_chamfer"
    spec = run.similarity or (usual_of_sets if makes_sets else "cosine")
    similarity = SIMILARITIES.build(spec)
    if makes_sets and not similarity.of_sets:
        fitting = [name for name in SIMILARITIES.names() if SIMILARITIES.get(name).of_sets]
        makers = [Spec.parse(s).name for s in dict.fromkeys((run.aggregator, run.text_aggregator)) if s]
        raise InputError(
            f"the similarity {spec!r} compares single vectors, and {' or '.join(makers)} makes several for each image "
            f"or caption; similarities of sets: {', '.join(fitting)}"
        )
    return similarity
