"""Video-ColBERT: two levels of a video, their similarities with texts, and a loss for each."""

import pytest
import torch
from recorded import Row, hold, hold_to_recorded
from small_models import batch_of, small_model
from torch import Tensor, nn
from torch.nn.functional import normalize, pad

from polypool.infra.errors import InputError
from polypool.infra.registry import SIMILARITIES
from polypool.tasks.models.retrieval_model import Scored
from polypool.tasks.similarities.vectors import Embeddings

VIDEO_COLBERT = {
    "aggregator": "video_colbert(layers=1, heads=2)",
    "text_aggregator": "late",
    "similarity": "mms",
    "model": "video_colbert(frames=0.7, video=1.2)",
    "objective": "siglip(scale=3.0, bias=1.5)",
}


def in_turn(frames: Tensor, video: Tensor) -> Tensor:
    more = video.shape[1] - frames.shape[1]
    both = [normalize(x, dim=-1) for x in (pad(frames, (0, 0, 0, more)), video)]
    return torch.stack(both, dim=2).flatten(1, 2)


def test_video_colbert_levels_match_recorded_outputs(golden):
    weights = [f"layers.{n}.{name}" for n in (0, 1) for name in nn.TransformerEncoderLayer(8, 2).state_dict()]
    row = Row(
        case="video_colbert/levels",
        spec="video_colbert(layers=2, heads=2, hidden=2)",
        names={"expansion_ED": "visual_expansion_tokens"} | {name: f"transformer.{name}" for name in weights},
        of_ours=lambda vectors: torch.cat((vectors[:, :10:2], vectors[:, 1::2]), dim=1),
    )
    hold_to_recorded(golden / "interactions", row)


def test_mms_matches_recorded_outputs(golden):
    similarity = SIMILARITIES.build("mms")

    def call(text: Tensor, frames: Tensor, video: Tensor) -> Tensor:
        return similarity(in_turn(frames, video), normalize(text, dim=-1))

    hold(golden / "interactions", "mms/sum", similarity, call, {})


def test_video_colbert_loss_matches_recorded_outputs(golden):
    model = small_model(**VIDEO_COLBERT)

    def call(text: Tensor, frames: Tensor, video: Tensor) -> Tensor:
        sides = Embeddings(in_turn(frames, video)), Embeddings(normalize(text, dim=-1))
        pairs = torch.arange(len(text))
        scored = Scored(model.score(*sides), pairs, pairs, *sides)
        return model.terms(scored, epoch=0.0)["loss"] / len(
            text
        )  # theirs: the mean over all pairs, with the bias subtracted

    hold(golden / "interactions", "mms/loss", nn.Identity(), call, {})


def test_loss_terms_are_logged_and_weights_get_gradients():
    model = small_model(**VIDEO_COLBERT)
    terms = model(batch_of(0, 7, 20, 3, 30, 12), epoch=2.0)
    expected = 0.7 * terms["loss_frames"] + 1.2 * terms["loss_video"]
    torch.testing.assert_close(terms["loss"], expected)
    terms["loss"].backward()
    assert all(parameter.grad.any() for parameter in model.visual.aggregator.parameters())


def test_mms_compares_same_modality_level_by_level():
    mms, maxsim = SIMILARITIES.build("mms"), SIMILARITIES.build("maxsim")
    x, y = (normalize(torch.randn(3, k, 6), dim=-1) for k in (6, 4))
    levels = maxsim(x[:, 0::2], y[:, 0::2]) + maxsim(x[:, 1::2], y[:, 1::2])
    torch.testing.assert_close(mms.between("visual", "visual")(x, y), levels)
    torch.testing.assert_close(mms.between("text", "text")(x, y), 2 * maxsim(x, y))
    torch.testing.assert_close(mms.between("text", "visual")(y, x), mms(x, y).T)


def test_video_colbert_refuses_other_similarities():
    with pytest.raises(InputError, match="--similarity mms"):
        small_model(**VIDEO_COLBERT | {"similarity": "maxsim"})
