"""HGR's scores of frames and phrases, and of whole splits."""

import math
import weakref

import pytest
import torch
from role_batches import captions_of, dealt, model_of, videos_of
from torch import Tensor

from polypool.tasks.hgr import hgr
from polypool.tasks.hgr import hgr as module
from polypool.tasks.hgr.hgr import phrase_scores
from polypool.tasks.models.pair_encoder import PaddedSets


def cosine(a_D: Tensor, b_D: Tensor) -> Tensor:
    """The cosine; 0 without a gradient where one of them is zero."""
    if not a_D.any() or not b_D.any():
        return torch.zeros((), dtype=a_D.dtype)
    return (a_D * b_D).sum() / (a_D.square().sum().sqrt() * b_D.square().sum().sqrt())


def explicit(frame_FD: Tensor, phrases: list[Tensor], sharpness: float) -> Tensor:
    """One video and one text, one phrase and one frame after the other, by section 3.3 of the paper."""
    scores = [torch.zeros((), dtype=frame_FD.dtype)]
    for phrase_D in phrases:
        fits = [cosine(frame_D, phrase_D) for frame_D in frame_FD]
        fits = [fit if fit > 0 else torch.zeros_like(fit) for fit in fits]
        norm = torch.stack(fits).square().sum()
        powers = [(sharpness * (fit / norm.sqrt() if norm > 0 else 0.0 * fit)).exp() for fit in fits]
        weighed = [power * frame_D for power, frame_D in zip(powers, frame_FD, strict=True)]
        attended_D = sum(weighed) / sum(powers)
        scores.append(cosine(attended_D, phrase_D))
    return sum(scores) / max(1, len(phrases))


def made_up(dtype: torch.dtype = torch.float64) -> tuple[PaddedSets, Tensor, Tensor]:
    """Videos of 1 to 5 frames and texts of 0 to 4 phrases; zeros, opposites, repeats, and noise under the masks."""
    generator = torch.Generator().manual_seed(0)
    x_VFD = torch.randn(6, 5, 7, generator=generator, dtype=torch.float64)
    phrase_TPD = torch.randn(5, 4, 7, generator=generator, dtype=torch.float64)
    size_V = torch.tensor([5, 1, 3, 4, 2, 2])
    used_TP = torch.tensor([[1, 1, 1, 1], [0, 0, 0, 0], [0, 1, 0, 1], [1, 0, 0, 0], [1, 1, 0, 0]]).bool()
    x_VFD[2, 1] = 0  # a frame of zeros among others
    x_VFD[4, :2] = 0  # a video of nothing else
    x_VFD[3, :4] = -phrase_TPD[3, 0].abs() - 0.1  # all cosines with this phrase are negative
    phrase_TPD[3, 0] = phrase_TPD[3, 0].abs()
    phrase_TPD[4, 1] = 0
    mask_VF = torch.arange(5) < size_V[:, None]
    x_VFD[~mask_VF] = 1e3
    phrase_TPD[~used_TP] = float("nan")
    return PaddedSets(x_VFD.to(dtype), mask_VF), phrase_TPD.to(dtype), used_TP


def expected_of(frames: PaddedSets, phrase_TPD: Tensor, used_TP: Tensor, sharpness: float) -> Tensor:
    return torch.stack([
        torch.stack([explicit(x[m], list(p[u]), sharpness) for p, u in zip(phrase_TPD, used_TP, strict=True)])
        for x, m in zip(*frames, strict=True)
    ])  # fmt: skip


@pytest.mark.parametrize("sharpness", [4.0, 0.5, 400.0])
def test_values_and_gradients_are_those_of_the_definition(sharpness):
    frames, phrase_TPD, used_TP = made_up()
    sources = frames.x_BND.requires_grad_(), phrase_TPD.requires_grad_()
    ours, expected = (
        f(frames, phrase_TPD, used_TP, sharpness)
        for f in (lambda *a: phrase_scores(*a[:3], sharpness=a[3]), expected_of)
    )
    assert (expected[:, 1] == 0).all()
    assert expected[3, 3] < 0
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-12)
    weight_VT = torch.randn(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found, wanted = (torch.autograd.grad((y * weight_VT).sum(), sources) for y in (ours, expected))
    for ours_x, expected_x in zip(found, wanted, strict=True):
        assert ours_x.isfinite().all()
        torch.testing.assert_close(ours_x, expected_x, rtol=1e-9, atol=1e-10)
    assert (found[0][~frames.mask_BN] == 0).all()
    assert (found[1][~used_TP] == 0).all()


def test_blocks_and_what_is_computed_twice_change_nothing(monkeypatch):
    frames, phrase_TPD, used_TP = made_up()
    sources = frames.x_BND.requires_grad_(), phrase_TPD.requires_grad_()
    found = []
    for block, kept in (((1000, 1000), 1000), ((10, 3), 1000), ((10, 3), 0), ((1, 1), 0)):
        monkeypatch.setattr(module, "BLOCK", {"cpu": block})
        monkeypatch.setattr(module, "STORED", kept)
        sim_VT = phrase_scores(frames, phrase_TPD, used_TP, sharpness=4.0)
        found.append((sim_VT, *torch.autograd.grad(sim_VT.sin().sum(), sources)))
    for first, *rest in zip(*found, strict=True):
        for x in rest:
            torch.testing.assert_close(x, first, rtol=0, atol=1e-12)


def test_no_text_has_a_phrase():
    frames, phrase_TPD, used_TP = made_up()
    sources = frames.x_BND.requires_grad_(), phrase_TPD.requires_grad_()
    sim_VT = phrase_scores(frames, phrase_TPD, used_TP & False, sharpness=4.0)
    assert (sim_VT == 0).all()
    for gradient in torch.autograd.grad(sim_VT.sum(), sources):  # there are some, as DDP needs
        assert (gradient == 0).all()


def test_frames_that_cancel_each_other_do_not_score_by_their_rounding_errors():
    """Weighed by e^4 and 1, v and -e^4 v leave nothing but errors; a quotient of those could be anything."""
    torch.manual_seed(0)
    phrase_D, frame_VD = torch.randn(64), torch.randn(3000, 64)
    frame_VD *= (frame_VD @ phrase_D).sign()[:, None]
    frames = torch.stack([frame_VD, -(math.e**4) * frame_VD], dim=1).requires_grad_()
    sets = PaddedSets(frames, torch.ones(3000, 2, dtype=torch.bool))
    used_TP = torch.ones(1, 1, dtype=torch.bool)
    score_VT = phrase_scores(sets, phrase_D[None, None], used_TP, sharpness=4.0)
    assert score_VT.abs().max() < 1e-2
    assert torch.autograd.grad(score_VT.sum(), frames)[0].isfinite().all()


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float16, 5e-3), (torch.bfloat16, 3e-2)]
)
def test_scores_are_float32_at_least(dtype, tolerance):
    frames, phrase_TPD, used_TP = made_up(dtype)
    frames = PaddedSets(frames.x_BND.requires_grad_(), frames.mask_BN)
    sim_VT = phrase_scores(frames, phrase_TPD, used_TP, sharpness=4.0)
    exact_VT = expected_of(*made_up(), 4.0)
    assert sim_VT.dtype == torch.float32
    torch.testing.assert_close(sim_VT.double(), exact_VT, rtol=0, atol=tolerance)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(phrase_scores(frames, phrase_TPD, used_TP, sharpness=4.0), sim_VT)
    sim_VT.sum().backward()
    assert frames.x_BND.grad.isfinite().all()


def test_nothing_of_four_axes_with_the_width_is_made():
    """The largest tensor that autograd keeps: one number for each video, frame, text and phrase, or the inputs."""
    frames = PaddedSets(torch.randn(8, 3, 500), torch.ones(8, 3, dtype=torch.bool))
    phrase_TPD = torch.randn(10, 4, 500, requires_grad=True)
    sizes: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: sizes.append(x.numel()) or x, lambda x: x):
        phrase_scores(frames, phrase_TPD, torch.ones(10, 4, dtype=torch.bool), sharpness=4.0)
    assert max(sizes) <= max(8 * 3 * 500, 10 * 4 * 500)
    assert math.prod((8, 10, 4, 500)) > 5 * max(sizes)


@pytest.mark.parametrize(("videos", "aggregator"), [(64, "attention"), (5, "attention"), (5, "pie(k=2)")])
def test_blocks_of_a_split_are_those_of_the_whole(monkeypatch, videos, aggregator):
    monkeypatch.setattr(hgr, "VIDEOS", videos)
    model = model_of(aggregator=aggregator)
    video, text = model.encode_visual(videos_of(range(23))), model.encode_text(captions_of(range(41)))
    expected = model.score(video, text).float()
    score = model.scorer(dealt(videos_of, 23, 4), dealt(captions_of, 41, 5))
    for images, captions in (
        (slice(None), slice(None)),
        (slice(3, 9), slice(4, 17)),
        (slice(0, 23), slice(14, 15)),
        (slice(22, 23), slice(21, 41)),
        (slice(5, 100), slice(35, 100)),
    ):
        block = score(images, captions)
        assert block.dtype == torch.float32
        torch.testing.assert_close(block, expected[images, captions], rtol=0, atol=1e-6)


def test_captions_may_come_in_any_order_and_twice():
    model = model_of()
    batches = [(part, captions_of(part.tolist())) for part in torch.randperm(30).split(7)]
    score = model.scorer(dealt(videos_of, 6, 4), [*batches, batches[0]])
    ordered = model.scorer(dealt(videos_of, 6, 4), dealt(captions_of, 30, 30))
    torch.testing.assert_close(score(slice(None), slice(None)), ordered(slice(None), slice(None)))


def test_captions_are_forgotten_once_they_are_scored():
    """What is held while a split is scored: the embeddings of one part of the captions, however many there are."""
    model, alive, most = model_of(), weakref.WeakSet(), []
    encode = model.encode_text

    def watched(batch: dict[str, Tensor]):
        most.append(len(alive))
        text = encode(batch)
        for x in (*text, *batch.values()):
            alive.add(x)
        return text

    model.encode_text = watched
    model.scorer(dealt(videos_of, 6, 4), dealt(captions_of, 40, 2))
    assert len(most) == 20
    assert max(most) <= 3 + 5, "three embeddings and five inputs of the part before"
    assert len(alive) == 0
