import numpy as np
import pytest
import torch

from polypool.aggregators.positions import encode_grid, encode_line
from polypool.aggregators.random_sets import random_sets
from polypool.aggregators.sets.slots import Slots

NAMES = {
    "slots": "latents",
    "element_norm": "layers.0.0.norm_context",
    "slot_norm": "layers.0.0.norm",
    "query": "layers.0.0.fn.to_q",
    "key": "layers.0.0.fn.to_k",
    "value": "layers.0.0.fn.to_v",
    "out": "layers.0.0.fn.to_out",
    "feed.0": "layers.0.2.norm",
    "feed.1": "layers.0.2.fn.net.0",
    "feed.4": "layers.0.2.fn.net.3",
    "residual_norm": "last_layer.0",
}
RECORDED = {"k": 4, "heads": 2, "head_width": 8, "width": 16, "positions": True}


def theirs_of(ours: str) -> str | None:
    prefix = next((p for p in NAMES if ours == p or ours.startswith(p + ".")), None)
    return prefix and NAMES[prefix] + ours.removeprefix(prefix)


@pytest.mark.parametrize(("case", "padding"), [("txt_nopad", 0), ("txt_nopad", 3), ("txt_alone1", 3)])
def test_slots_match_recorded_outputs(golden, case, padding):
    z = np.load(golden / "dive_aggregation.npz", allow_pickle=False)
    module = Slots(12, **RECORDED).eval()
    names = {ours: theirs_of(ours) for ours in module.state_dict() if theirs_of(ours)}
    state = {ours: torch.from_numpy(z[f"params_txt_heads2x8/{theirs}"]) for ours, theirs in names.items()}
    assert set(module.state_dict()) - set(state) == {"global_norm.weight", "global_norm.bias"}
    module.load_state_dict(state, strict=False)
    x = torch.from_numpy(z[f"{case}/features"]).requires_grad_()
    wide = torch.nn.functional.pad(x, (0, 0, 0, padding), value=5.0)
    mask = (torch.arange(wide.shape[1]) < x.shape[1]).expand(wide.shape[:2])
    out, residual, weight_BKN, _ = module(wide, mask, global_feature_BS=torch.zeros(len(x), 16))
    np.testing.assert_allclose(residual.detach(), z[f"{case}/slots"], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(out, residual, msg="the norm of a zero global_feature is its bias, zero")
    recorded = z[f"{case}/attn_layer3"].mean(axis=1).astype("f4")
    np.testing.assert_allclose(weight_BKN.detach()[..., : x.shape[1]], recorded, atol=1e-6)
    if f"{case}/cot" not in z:
        return
    (residual * torch.from_numpy(z[f"{case}/cot"])).sum().backward()
    np.testing.assert_allclose(x.grad, z[f"{case}/grad_features"], atol=5e-5, rtol=1e-4)
    parameters = dict(module.named_parameters())
    for ours, theirs in names.items():
        recorded = z[f"{case}/grad_param/{theirs}"]
        np.testing.assert_allclose(parameters[ours].grad, recorded, atol=5e-5, rtol=1e-4)


def test_position_codes_match_recorded_outputs(golden):
    z = np.load(golden / "posenc.npz", allow_pickle=False)
    line = encode_line(torch.ones(1, 9, dtype=torch.bool), 12)
    np.testing.assert_allclose(line[0], z["dive1d_d12_n9"], atol=2e-6)
    grid = encode_grid(torch.ones(1, 12, dtype=torch.bool), 16, grid=(3, 4))
    np.testing.assert_allclose(grid[0], z["dive2d_d16_h3_w4"], atol=2e-6)


def test_mask_holes_do_not_shift_grid_positions():
    torch.manual_seed(0)
    module = Slots(8, head_width=4, positions=(2, 2)).eval()
    x_BNC, mask_BN = random_sets([4, 4], 8)
    hole_mask_BN = torch.tensor([[False, True, True, False, True, False, True]] * 2)
    holes_BNC = torch.full((2, 7, 8), 3.0).masked_scatter(hole_mask_BN[..., None], x_BNC)
    torch.testing.assert_close(module(holes_BNC, hole_mask_BN).vectors, module(x_BNC, mask_BN).vectors)
