import numpy as np
import pytest
import torch
from explicit import trained
from formulas import score_attention_of

from polypool.aggregators.aggregator import Context
from polypool.aggregators.relations.score_attention import ScoreAttention

LINEAR = {"query.weight": "fc_q.weight", "query.bias": "fc_q.bias", "key.weight": "fc_k.weight"}
NAMES = {**LINEAR, "value.weight": "fc_v.weight", "score": "fc_o.weight"}
SHIFTS = ("fc_k.bias", "fc_v.bias", "fc_o.bias")


def recorded_names(ours: str, k: int) -> list[str]:
    return [f"aggregating_layers.{i}.{NAMES[ours]}" for i in range(k)]


def load_recorded(z, group: str, k: int) -> ScoreAttention:
    module = ScoreAttention(16, k=k, heads=2)
    state = {
        ours: torch.from_numpy(np.concatenate([z[f"{group}/{name}"] for name in recorded_names(ours, k)]))
        for ours in NAMES
    }
    module.load_state_dict(state)
    return module


def recorded_inputs(z, case: str) -> list[torch.Tensor]:
    group = "nopad" if case.endswith("nopad") else "data"
    inputs = []
    for modality in ("image", "text"):
        x = torch.from_numpy(z[f"{group}/{modality}"]).requires_grad_()
        pad = z[f"{group}/{modality}_mask"] if group == "data" else np.zeros(x.shape[:2])
        inputs += [x, torch.from_numpy(pad == 0)]
    return inputs


@pytest.mark.parametrize(("case", "k"), [("k1_div1_image", 1), ("k1_div1_nopad", 1), ("k3_div1_image", 3)])
def test_score_attention_matches_recorded_outputs(golden, case, k):
    z = np.load(golden / "score_attention.npz", allow_pickle=False)
    group = f"params_k{k}_div1_image"
    module = load_recorded(z, group, k)
    inputs = recorded_inputs(z, case)
    out_BKD = module(*inputs[:2], context=Context(*inputs[2:])).vectors.view(len(inputs[0]), k, 16)
    np.testing.assert_allclose(out_BKD.detach(), z[f"{case}/vectors_times_n"], atol=1e-5, rtol=1e-5)
    x_BND, mask_BN, context_BMD, context_mask_BM = inputs
    score_BKN = module.scores(x_BND, context_BMD, context_mask_BM)
    shift_K = [recorded_shift(z, f"{group}/aggregating_layers.{i}") for i in range(k)]
    recorded_BKN = z[f"{case}/raw_scores"] - np.array(shift_K)[:, None]
    real_BKN = mask_BN[:, None].expand_as(score_BKN)
    np.testing.assert_allclose(score_BKN[real_BKN].detach(), recorded_BKN[real_BKN], atol=1e-5, rtol=1e-5)
    if f"{case}/cot" not in z:
        return
    n_B11 = mask_BN.sum(dim=1)[:, None, None]
    (out_BKD / n_B11 * torch.from_numpy(z[f"{case}/cot"])).sum().backward()
    np.testing.assert_allclose(x_BND.grad, z[f"{case}/grad_queries"], atol=2e-5, rtol=1e-4)
    np.testing.assert_allclose(context_BMD.grad, z[f"{case}/grad_keys"], atol=2e-5, rtol=1e-4)
    for ours, parameter in module.named_parameters():
        recorded = np.concatenate([z[f"{case}/grad_param/{name}"] for name in recorded_names(ours, k)])
        np.testing.assert_allclose(parameter.grad, recorded, atol=2e-5, rtol=1e-4)
    for name in SHIFTS:
        for i in range(k):
            dead = z[f"{case}/grad_param/aggregating_layers.{i}.{name}"]
            np.testing.assert_allclose(dead, 0.0, atol=2e-6, err_msg=f"{name} matters after all")


def recorded_shift(z, scorer: str) -> float:
    """Return the constant that the omitted biases add to every raw score of a scorer."""
    return float(z[f"{scorer}.fc_o.bias"][0] + z[f"{scorer}.fc_o.weight"][0] @ z[f"{scorer}.fc_v.bias"])


@pytest.mark.parametrize("answers", [1, 2, 9])
def test_both_matmul_orders_match_the_formula(answers):
    module, draw = trained("score_attention(k=2, heads=2, kv_div=2)", 16), torch.Generator().manual_seed(0)
    x_BND, z_BMD = (torch.randn(3, n, 16, generator=draw, dtype=torch.float64) for n in (7, answers))
    x_BND.requires_grad_(), z_BMD.requires_grad_()
    real_BN, real_BM = (torch.ones(x.shape[:2], dtype=torch.bool) for x in (x_BND, z_BMD))
    found = module.double()(x_BND, real_BN, context=Context(z_BMD, real_BM)).vectors
    wanted = torch.stack([score_attention_of(module, *pair) for pair in zip(x_BND, z_BMD, strict=True)])
    torch.testing.assert_close(found, wanted)
    cot, of = (
        torch.randn(found.shape, generator=draw, dtype=found.dtype),
        (x_BND, z_BMD, *module.parameters()),
    )
    grads = (torch.autograd.grad((vectors * cot).sum(), of) for vectors in (found, wanted))
    torch.testing.assert_close(*grads)
