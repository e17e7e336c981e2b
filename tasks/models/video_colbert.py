"""Separate losses for the two levels of a video: Video-ColBERT (Reddy et al., CVPR 2025)."""

from __future__ import annotations

from torch import Tensor

from polypool.infra.errors import InputError
from polypool.infra.fields import at_least, require
from polypool.infra.registry import MODELS
from polypool.tasks.models.dual_encoder import DualEncoder
from polypool.tasks.models.parts import Parts
from polypool.tasks.models.retrieval_model import Scored
from polypool.tasks.similarities.late_interaction import MeanMaxSim
from polypool.tasks.similarities.vectors import at_least_float32


@MODELS.register("video_colbert")
class VideoColBERT(DualEncoder):
    """A dual encoder whose loss is the weighted sum of the objective on the scores of frames and of encoded frames.

    The paper's objective is the sigmoid loss with SigLIP's final scale and bias, `siglip(scale=117.9, bias=-12.93)`,
    both shared by the levels. Deviations from the public implementation: each level's loss is divided by the number of
    texts, as in SigLIP, there by the number of pairs of a video and a text; the bias is added to the scores, there
    subtracted.

    Args:
        parts: builds encoders, aggregators, similarity and objective.
        frames: weight of the loss on frames.
        video: weight of the loss on encoded frames.

    Raises:
        InputError: a similarity other than `mms`.
    """

    def __init__(self, parts: Parts, *, frames: float = 1.0, video: float = 1.0) -> None:
        require(at_least(0), frames=frames, video=video)
        visual, text, similarity = parts.both_sides()
        if not isinstance(similarity, MeanMaxSim):
            raise InputError(
                "the model 'video_colbert' compares texts with two levels of a video; give --aggregator video_colbert "
                "--text-aggregator late --similarity mms"
            )
        super().__init__(visual, text, similarity, parts.objective(), parts.regularisers())
        self.frames, self.video = frames, video

    def objective_terms(
        self, scored: Scored, sim_VT: Tensor, positive_VT: Tensor, *, epoch: float
    ) -> dict[str, Tensor]:
        """Return the terms for encoded frames, with `loss` the weighted sum, and the loss of each level."""
        similarity = self.similarity
        sides = [side for side in (scored.visual, scored.text) if side is not None]
        assert isinstance(similarity, MeanMaxSim)
        frame_VT = similarity.level(*(at_least_float32(side.vectors) for side in sides), 0)
        frames = super().objective_terms(scored, frame_VT, positive_VT, epoch=epoch)["loss"]
        terms = super().objective_terms(scored, sim_VT - frame_VT, positive_VT, epoch=epoch)
        levels = {"loss_frames": frames.detach(), "loss_video": terms["loss"].detach()}
        return terms | levels | {"loss": self.frames * frames + self.video * terms["loss"]}
