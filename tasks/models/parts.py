"""Builder of a run's model: matching encoders, aggregators and similarity."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from polypool.aggregators.aggregator import Aggregator
from polypool.encoders.adaptations import Adaptation, adapt
from polypool.encoders.encoder import Encoder
from polypool.infra.errors import InputError
from polypool.infra.registry import (
    ADAPTATIONS,
    AGGREGATORS,
    CROSS_ENCODERS,
    ENCODERS,
    MODELS,
    OBJECTIVES,
    REGULARISERS,
    SIMILARITIES,
    Spec,
)
from polypool.tasks.models.branch import Branch, look_at_each_other
from polypool.tasks.models.dual_encoder import DualEncoder
from polypool.tasks.models.pair_encoder import PairEncoder
from polypool.tasks.models.retrieval_model import RetrievalModel
from polypool.tasks.objectives.objective import Objective
from polypool.tasks.objectives.regularisers import Regulariser
from polypool.tasks.run import Run, named_encoder
from polypool.tasks.similarities.similarity import Similarity


def is_adapted(run: Run) -> bool:
    """Whether the run's model has published weights that its checkpoints omit."""
    return any(each.adapt for each in (run, *run.members.values()))


def without_adaptation(run: Run) -> Run:
    """Return the run of the model after merging its adaptations."""
    members = {name: replace(each, adapt="") for name, each in run.members.items()}
    return replace(run, adapt="", members=members)


def _adaptation(run: Run) -> Adaptation | None:
    """Return the adaptation of a run's encoders, if any.

    Raises:
        InputError: the run has no encoder with published weights.
    """
    if not run.adapt:
        return None
    adaptation = ADAPTATIONS.build(run.adapt)
    specs = [getattr(run, side) for side in adaptation.sides]
    if not any(spec and ENCODERS.get(Spec.parse(spec).name).published for spec in specs):
        raise InputError(
            f"--adapt {run.adapt!r} is for encoders with published weights, such as `patches` and `bert`, and "
            f"{' and '.join(map(repr, specs))} have none"
        )
    return adaptation


class Parts:
    """Builds the parts of a run's model; every call creates a new part with separate weights.

    Args:
        run: names the aggregators, the cross-modal encoder, the similarity, the objective and the regularisers.
        visual: creates the visual encoder.
        text: creates the text encoder.
    """

    def __init__(self, run: Run, *, visual: Callable[[], Encoder], text: Callable[[], Encoder]) -> None:
        self.run, self.visual, self.text = run, visual, text

    @classmethod
    def of(cls, run: Run, assets: Mapping[str, Any], *, pretrained: bool) -> Parts:
        """Return the parts of a run with its encoders' assets and adaptation, and published weights if `pretrained`."""

        def encoder(spec: str, side: str) -> Encoder:
            built = ENCODERS.build(named_encoder(spec, side), assets[side])
            if pretrained:
                built.load_pretrained()
            if adaptation and built.published and side in adaptation.sides:
                adapt(built, adaptation)
            return built

        adaptation = _adaptation(run)

        return cls(run, visual=lambda: encoder(run.visual, "visual"), text=lambda: encoder(run.text, "text"))

    def objective(self) -> Objective:
        return OBJECTIVES.build(self.run.objective)

    def regularisers(self) -> list[Regulariser]:
        return [REGULARISERS.build(spec) for spec in self.run.regularisers]

    def visual_aggregator(self, width: int) -> Aggregator:
        return AGGREGATORS.build(self.run.aggregator, width)

    def text_aggregator(self, width: int) -> Aggregator:
        return AGGREGATORS.build(self.run.text_aggregator or self.run.aggregator, width)

    def branches(self) -> tuple[Branch, Branch]:
        """Return encoder and aggregator of each side."""
        visual, text = self.visual(), self.text()
        return (
            Branch(visual, self.visual_aggregator(visual.width)),
            Branch(text, self.text_aggregator(text.width)),
        )

    def both_sides(self) -> tuple[Branch, Branch, Similarity]:
        """Return encoder and aggregator of each side, with embeddings in a common space, and their similarity.

        Raises:
            InputError: the widths of the embeddings differ, or the similarity or regularisers do not support them.
        """
        run, (visual, text) = self.run, self.branches()
        if visual.width != text.width:
            raise InputError(
                f"{run.visual!r} with {run.aggregator!r} gives embeddings of width {visual.width}, and {run.text!r} "
                f"with {run.text_aggregator or run.aggregator!r} of {text.width}; give both the same width"
            )
        similarity = self.similarity(visual.aggregator, text.aggregator, width=visual.width)
        if run.regularisers and None in {side.aggregator.num_embeddings for side in (visual, text)}:
            raise InputError(
                f"the regularisers {', '.join(run.regularisers)} need sets of one size, and {run.aggregator!r} or "
                f"{run.text_aggregator or run.aggregator!r} returns sets of any size; remove the regularisers"
            )
        return visual, text, similarity

    def cross(self, width: int) -> nn.Module | None:
        """Return the cross-modal encoder for elements of a width; None if the run names none."""
        return CROSS_ENCODERS.build(self.run.cross, width) if self.run.cross else None

    def similarity(self, visual: Aggregator, text: Aggregator, *, width: int | None = None) -> Similarity:
        """Return the run's similarity, or the default for the outputs of two aggregators.

        Args:
            visual: the aggregator of images or videos.
            text: the aggregator of captions.
            width: of the embeddings, for a similarity that needs it.

        Raises:
            InputError: only one returns distributions, or the similarity does not support their outputs.
        """
        run, counts = self.run, {visual.num_embeddings, text.num_embeddings}
        distributions = _makes_distributions(run, visual, text)
        spec = run.similarity or _usual_similarity(visual, text)
        similarity = Similarity.build(spec, width)
        kinds = SIMILARITIES.usable()
        if distributions != similarity.of_distributions:
            compares = "distributions" if similarity.of_distributions else "vectors"
            makes = "distributions" if distributions else "vectors"
            makes += f"; similarities of {makes}"
            fitting = [name for name, kind in kinds if kind.of_distributions == distributions]
        elif distributions:
            return similarity
        elif counts != {1} and not similarity.of_sets:
            compares, makes = "single vectors", "several for each image or caption; similarities of sets"
            fitting = [name for name, kind in kinds if kind.of_sets]
        elif None in counts and not similarity.of_any_size:
            compares, makes = "sets of one size", "sets of any; similarities of these"
            fitting = [name for name, kind in kinds if kind.of_any_size]
        else:
            return similarity
        makers = dict.fromkeys(Spec.parse(s).name for s in (run.aggregator, run.text_aggregator) if s)
        raise InputError(
            f"the similarity {spec!r} compares {compares}, and {' or '.join(makers)} makes {makes}: "
            f"{', '.join(fitting)}"
        )


def _makes_distributions(run: Run, visual: Aggregator, text: Aggregator) -> bool:
    made = {visual.makes: run.aggregator, text.makes: run.text_aggregator or run.aggregator}
    if len(made) == 2:
        raise InputError(
            f"{made['distribution']!r} returns distributions and {made['vectors']!r} vectors, which cannot be "
            "compared; choose an aggregator of distributions for both sides (--aggregator, --text-aggregator), such as "
            "'probabilistic(mean=mean)'"
        )
    return "distribution" in made


def _usual_similarity(visual: Aggregator, text: Aggregator) -> str:
    if visual.makes == "distribution":
        return "csd"
    counts = {visual.num_embeddings, text.num_embeddings}
    if counts == {1}:
        return "cosine"
    if None in counts:
        return "maxsim"
    return "smooth_chamfer" if visual.context == text.context == "none" else "aligned_mean"


def retrieval_model(run: Run, parts: Parts) -> RetrievalModel:
    """Return a new model of a run: the named one, a dual encoder, or a cross-encoder for pair embeddings.

    Raises:
        InputError: an unknown name or parameter, embeddings of different widths, embeddings that the similarity or
            regularisers do not support, or regularisers with a cross-encoder.
    """
    if run.model:
        if run.cross:
            raise InputError(
                f"the model {run.model!r} takes no cross-modal encoder; remove --cross {run.cross!r}"
            )
        return MODELS.build(run.model, parts)
    *branches, similarity = parts.both_sides()
    if not look_at_each_other(*branches) and not run.cross:
        return DualEncoder(*branches, similarity, parts.objective(), parts.regularisers())
    cross = parts.cross(branches[0].encoder.width)
    return PairEncoder(*branches, similarity, parts.objective(), parts.regularisers(), cross=cross)
