import pytest
import torch
from formulas import cross_modal_of

from polypool.aggregators.averages.cls import CLS
from polypool.aggregators.random_sets import random_sets
from polypool.encoders.cross.cross_modal import CrossModal

V_SIZES, T_SIZES = [3, 1, 6, 4], [5, 2, 1, 7]


def sets():
    """Return sets of both modalities, with NaN under the masks."""
    found = []
    for sizes, seed in ((V_SIZES, 0), (T_SIZES, 5)):
        x_BND, mask_BN = random_sets(sizes, 8, seed=seed, dtype=torch.float64)
        found += [x_BND.masked_fill(~mask_BN[..., None], torch.nan), mask_BN]
    return found


def made(**params) -> CrossModal:
    torch.manual_seed(0)
    model = CrossModal(8, **params).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model


@pytest.mark.parametrize(("heads", "layers"), [(2, 1), (4, 2)])
def test_cross_modal_matches_paper_formula(heads, layers):
    model = made(heads=heads, layers=layers)
    v, v_mask, t, t_mask = sets()
    v.requires_grad_(), t.requires_grad_()
    sources = [v, t, *model.parameters()]

    v_out, _, t_out, _ = model(v, v_mask, t, t_mask)
    ours = torch.autograd.grad((v_out.square()[v_mask].sum() + t_out.sin()[t_mask].sum()), sources)

    state, total = dict(model.named_parameters()), 0.0
    for b, (n, m) in enumerate(zip(V_SIZES, T_SIZES, strict=True)):
        v_ND, t_MD = cross_modal_of(state, heads, layers, v[b, :n], t[b, :m])
        torch.testing.assert_close(v_out[b, :n], v_ND, rtol=0, atol=1e-10)
        torch.testing.assert_close(t_out[b, :m], t_MD, rtol=0, atol=1e-10)
        total = total + v_ND.square().sum() + t_MD.sin().sum()
    for ours_x, theirs_x in zip(ours, torch.autograd.grad(total, sources), strict=True):
        torch.testing.assert_close(ours_x, theirs_x, rtol=1e-8, atol=1e-9)


def test_class_token_is_prepended_to_each_set():
    plain, model = made(heads=2, layers=2), made(heads=2, layers=2, cls=True)
    plain.load_state_dict({k: x for k, x in model.state_dict().items() if k != "cls_2D"})
    v, v_mask, t, t_mask = sets()
    longer = []
    for token_D, x, mask in ((model.cls_2D[0], v, v_mask), (model.cls_2D[1], t, t_mask)):
        longer.append(torch.cat((token_D.expand(len(x), 1, -1), x), dim=1))
        longer.append(torch.cat((torch.ones(len(x), 1, dtype=torch.bool), mask), dim=1))
    out, expected = model(v, v_mask, t, t_mask), plain(*longer)
    for ours, theirs in zip(out, expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    CLS(8)(*out[:2]).vectors.sum().backward()
    assert model.cls_2D.grad.abs().sum(dim=1).gt(0).all()
