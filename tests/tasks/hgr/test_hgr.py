"""HGR: padding, sets of vectors, gradients, and the scores of frames and phrases."""

import pytest
import torch
from role_batches import captions_of, role_batch, role_model, videos_of
from torch import Tensor

from polypool.tasks.hgr import hgr
from polypool.tasks.hgr.hgr import phrase_scores
from polypool.tasks.models.pair_encoder import PaddedSets

CLOSE = {"rtol": 1e-9, "atol": 1e-9}


@pytest.mark.parametrize("aggregator", ["attention", "pie(k=2)"])
def test_scores_ignore_padding_and_batch_mates(aggregator):
    model, numbers = role_model(aggregator=aggregator), [0, 1, 4, 6, 11]
    together = model.score_batch(role_batch(numbers)).sim_VT
    for row, number in enumerate(numbers):
        video, text = model.encode_visual(videos_of([number])), model.encode_text(captions_of(numbers))
        torch.testing.assert_close(model.score(video, text)[0], together[row], **CLOSE)
        video, text = model.encode_visual(videos_of(numbers)), model.encode_text(captions_of([number]))
        torch.testing.assert_close(model.score(video, text)[:, 0], together[:, row], **CLOSE)
    wide = role_batch(numbers)
    wide["visual"] = torch.nn.functional.pad(wide["visual"], (0, 0, 0, 3), value=float("nan"))
    wide["visual_mask"] = torch.nn.functional.pad(wide["visual_mask"], (0, 3))
    for name, fill in (("text", 3), ("text_mask", False), ("text_spans", True)):
        wide[name] = torch.nn.functional.pad(wide[name], (0, 2), value=fill)
    torch.testing.assert_close(model.score_batch(wide).sim_VT, together, **CLOSE)


def test_mean_of_k_sentence_vectors_is_the_graph_root():
    model, batch = role_model(aggregator="pie(k=2)"), role_batch([0, 3, 8])
    word_BLD, mask_BL = model.text.encoder(batch["text"], batch["text_mask"])
    vector_BKD = model.text.aggregator(word_BLD, mask_BL).vectors
    spans = batch["text_spans"] & mask_BL[:, None]
    given = word_BLD, spans, batch["text_roles"], batch["text_edges"]
    text = model.encode_text(batch)
    _, of_mean = model.text.graph(vector_BKD.mean(dim=1, keepdim=True), *given)
    assert text.vectors.shape == (3, 2, 8)
    torch.testing.assert_close(text.phrase_BPD, of_mean)
    sim_VT = model.level_scores(model.encode_visual(batch), text)[0]
    torch.testing.assert_close(sim_VT, model.similarity(model.encode_visual(batch).vectors, text.vectors))


def test_batch_without_verbs_gives_every_weight_a_gradient():
    """DDP waits for a gradient of each weight, even a zero one."""
    model, batch = role_model(aggregator="gpo").train(), role_batch([0, 1, 2, 5])
    batch["text_spans"][:, :2] = False
    video, text = model.encode_visual(batch), model.encode_text(batch)
    assert (model.level_scores(video, text)[1] == 0).all()
    model.score_batch(batch).sim_VT.square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
    assert (model.visual.verb.fc.weight.grad == 0).all()
    assert model.visual.noun.fc.weight.grad.any()


def made_up(dtype: torch.dtype = torch.float64) -> tuple[PaddedSets, Tensor, Tensor]:
    """Return videos of 1 to 5 frames and texts of 0 to 4 phrases, with zeros, opposites and noisy padding."""
    generator = torch.Generator().manual_seed(0)
    x_VFD = torch.randn(6, 5, 7, generator=generator, dtype=torch.float64)
    phrase_TPD = torch.randn(5, 4, 7, generator=generator, dtype=torch.float64)
    size_V = torch.tensor([5, 1, 3, 4, 2, 2])
    used_TP = torch.tensor([[1, 1, 1, 1], [0, 0, 0, 0], [0, 1, 0, 1], [1, 0, 0, 0], [1, 1, 0, 0]]).bool()
    x_VFD[2, 1] = 0  # a frame of zeros among others
    x_VFD[4, :2] = 0  # a video of zeros only
    x_VFD[3, :4] = -phrase_TPD[3, 0].abs() - 0.1  # all cosines with this phrase are negative
    phrase_TPD[3, 0] = phrase_TPD[3, 0].abs()
    phrase_TPD[4, 1] = 0
    mask_VF = torch.arange(5) < size_V[:, None]
    x_VFD[~mask_VF] = 1e3
    phrase_TPD[~used_TP] = float("nan")
    return PaddedSets(x_VFD.to(dtype), mask_VF), phrase_TPD.to(dtype), used_TP


def test_blocks_and_recomputation_preserve_phrase_scores(monkeypatch):
    frames, phrase_TPD, used_TP = made_up()
    sources = frames.x_BND.requires_grad_(), phrase_TPD.requires_grad_()
    found = []
    for block, kept in (((1000, 1000), 1000), ((10, 3), 1000), ((10, 3), 0), ((1, 1), 0)):
        monkeypatch.setattr(hgr, "BLOCK", {"cpu": block})
        monkeypatch.setattr(hgr, "STORED", kept)
        sim_VT = phrase_scores(frames, phrase_TPD, used_TP, sharpness=4.0)
        found.append((sim_VT, *torch.autograd.grad(sim_VT.sin().sum(), sources)))
    for first, *rest in zip(*found, strict=True):
        for x in rest:
            torch.testing.assert_close(x, first, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("block", "aggregator"), [(64, "attention"), (5, "attention"), (5, "pie(k=2)")])
def test_scorer_blocks_match_full_score_matrix(monkeypatch, block, aggregator):
    monkeypatch.setattr(hgr, "VIDEOS", block)
    model = role_model(aggregator=aggregator)
    video, text = model.encode_visual(videos_of(range(23))), model.encode_text(captions_of(range(41)))
    expected = model.score(video, text).float()
    video_batches, caption_batches = (
        [(number_B, make(number_B.tolist())) for number_B in torch.arange(count).split(size)]
        for make, count, size in ((videos_of, 23, 4), (captions_of, 41, 5))
    )
    score = model.scorer(video_batches, caption_batches)
    for images, captions in (
        (slice(None), slice(None)),
        (slice(3, 9), slice(4, 17)),
        (slice(0, 23), slice(14, 15)),
        (slice(22, 23), slice(21, 41)),
        (slice(5, 100), slice(35, 100)),
    ):
        sim_VT = score(images, captions)
        assert sim_VT.dtype == torch.float32
        torch.testing.assert_close(sim_VT, expected[images, captions], rtol=0, atol=1e-6)
