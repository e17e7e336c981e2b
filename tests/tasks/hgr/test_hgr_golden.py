"""HGR against numbers recorded from its authors' code."""

import numpy as np
import pytest
import torch
from score_batches import pairs
from toy import toy_run

from polypool.encoders.text.bigru import BiGRU
from polypool.encoders.visual.stored import Frames
from polypool.infra.registry import OBJECTIVES
from polypool.tasks.hgr.hgr import HGR
from polypool.tasks.models.parts import Parts
from polypool.tasks.similarities.vectors import l2_normalise

TEXT = {
    "embedding.we.": "text.encoder.embed.",
    "rnn.": "text.encoder.rnn.",
    "ft_attn.": "text.aggregator.score.",
    "role_embedding.": "text.graph.role.",
    "gcn.layers.0.ctx_layer.": "text.graph.layers.0.context.",
    "gcn.layers.0.layernorm.": "text.graph.layers.0.norm.",
    "gcn.layers.0.edge_attn_query.": "text.graph.layers.0.query.",
    "gcn.layers.0.edge_attn_key.": "text.graph.layers.0.key.",
}
VIDEO = {f"level_embeds.{i}.": f"visual.{name}.fc." for i, name in enumerate(("sentence", "verb", "noun"))}
VIDEO["ft_attn."] = "visual.aggregator.score."
NO_PLACE = {"text.aggregator.score.bias", "visual.aggregator.score.bias", "text.graph.layers.0.key.bias"}


def named(z, group: str, names: dict[str, str]) -> dict[str, torch.Tensor]:
    """Return the recorded arrays of a group under our names."""
    found = {}
    for key in z.files:
        if key.startswith(f"{group}/"):
            theirs = key.removeprefix(f"{group}/")
            start = next(start for start in names if theirs.startswith(start))
            found[names[start] + theirs.removeprefix(start)] = torch.from_numpy(z[key])
    return found


@pytest.fixture(scope="module")
def z(golden):
    return np.load(golden / "hgr_matching.npz", allow_pickle=False)


@pytest.fixture(scope="module")
def model(z) -> HGR:
    run = toy_run(aggregator="attention", objective="triplet(margin=0.2, reduction=mean, warmup_epochs=0)")
    words = {"words": [str(number) for number in range(35)]}
    parts = Parts(
        run,
        visual=lambda: Frames({"dim": 20}, width=16, dropout=0.0),
        text=lambda: BiGRU(words, width=16, embedding=12),
    )
    model = HGR(parts, dropout=0.0)
    weights = named(z, "params_attn_text", TEXT) | named(z, "params_attn_video", VIDEO)
    missing, extra = model.load_state_dict(weights, strict=False)
    assert (missing, set(extra)) == ([], NO_PLACE)
    return model


@pytest.fixture(scope="module")
def batch(z) -> dict[str, torch.Tensor]:
    longest = int(z["texts/sent_lens"].max())
    spans = np.concatenate([z["texts/verb_masks"], z["texts/noun_masks"]], axis=1)
    arrays = {
        "visual": z["videos/frames"],
        "visual_mask": np.arange(9) < z["videos/lengths"][:, None],
        "text": z["texts/sent_ids"][:, :longest].astype(np.int64),
        "text_mask": np.arange(longest) < z["texts/sent_lens"][:, None],
        "text_spans": spans[..., :longest] > 0,
        "text_roles": z["texts/node_roles"].astype(np.int64),
        "text_edges": z["texts/rel_edges"] != 0,
        "item": np.arange(6),
        "row": np.arange(6),
    }
    return {name: torch.from_numpy(x) for name, x in arrays.items()}


def test_embeddings_match_recorded_outputs(model, batch, z):
    with torch.no_grad():
        video, text = model.encode_visual(batch), model.encode_text(batch)
    close = {"rtol": 1e-5, "atol": 1e-5}
    recorded = (l2_normalise(torch.from_numpy(z[f"attn/{name}sent_embeds"])) for name in ("vid_", ""))
    for ours, theirs in zip((video.vectors, text.vectors), recorded, strict=True):
        np.testing.assert_allclose(ours, theirs, **close)
    for name, sets in (("verb", video.verb), ("noun", video.noun)):
        mask_BN = batch["visual_mask"].numpy()
        np.testing.assert_allclose(sets.x_BND[mask_BN], z[f"attn/vid_{name}_embeds"][mask_BN], **close)
    for name, slots in (("verb", slice(0, 4)), ("noun", slice(4, 10))):
        np.testing.assert_allclose(text.phrase_BPD[:, slots], z[f"attn/{name}_embeds"], **close)
        assert text.used_BP[:, slots].sum(dim=1).tolist() == z[f"texts/{name}_count"].tolist()


@pytest.mark.parametrize(("case", "rows", "width"), [("attn", slice(None), 9), ("subset", slice(1, 4), 7)])
def test_level_scores_match_recorded_outputs(model, batch, z, case, rows, width):
    videos = {name: batch[name][rows, :width] for name in ("visual", "visual_mask")}
    with torch.no_grad():
        levels = model.level_scores(model.encode_visual(videos), model.encode_text(batch))
    for name, sim_VT in zip(("sent", "verb", "noun"), levels, strict=True):
        np.testing.assert_allclose(sim_VT, z[f"{case}/{name}_scores"], rtol=1e-5, atol=1e-5, err_msg=name)


def test_loss_and_gradients_match_recorded_outputs(model, batch, z):
    sim_VT = model.score_batch(batch).sim_VT
    np.testing.assert_allclose(sim_VT.detach(), z["attn/fused_scores"], rtol=1e-5, atol=1e-5)
    loss = model(batch, epoch=0.0)["loss"]
    np.testing.assert_allclose(loss.item(), z["attn/loss"], atol=1e-5)
    model.zero_grad()
    loss.backward()
    expected = named(z, "attn/grad_text", TEXT) | named(z, "attn/grad_video", VIDEO)
    for name in NO_PLACE:  # softmax cancels these biases
        assert expected.pop(name).abs().max() < 1e-6
    ours = dict(model.named_parameters())
    assert set(ours) == set(expected)
    for name, x in ours.items():
        np.testing.assert_allclose(x.grad, expected[name], rtol=1e-4, atol=2e-5, err_msg=name)


def test_mean_triplet_matches_recorded_two_way_loss(golden):
    criterion = np.load(golden / "hgr_criterion.npz", allow_pickle=False)
    sim = torch.from_numpy(criterion["c0/scores"]).requires_grad_()
    objective = OBJECTIVES.build("triplet(margin=0.2, reduction=mean, warmup_epochs=0)")
    loss = objective(sim, *pairs(6), epoch=0.0)["loss"]
    loss.backward()
    np.testing.assert_allclose(loss.item(), criterion["c0/loss"], atol=1e-6)
    np.testing.assert_allclose(sim.grad, criterion["c0/grad"], atol=1e-7)
