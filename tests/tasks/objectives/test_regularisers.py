import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from polypool.infra.registry import REGULARISERS
from polypool.tasks.similarities.vectors import Embeddings

WITHIN_SETS = ("diversity", "uniformity")


def build(name: str, **given):
    return REGULARISERS.build(f"{name}({', '.join(f'{k}={v}' for k, v in ({'weight': 1} | given).items())})")


def encoded(size: int, k: int, *, seed: int = 0, residual: bool = True) -> Embeddings:
    generator = torch.Generator().manual_seed(seed)
    draw = lambda: torch.randn(size, k, 5, generator=generator, dtype=torch.float64)  # noqa: E731
    embedding = normalize(draw(), dim=-1).requires_grad_()
    return Embeddings(embedding, draw().requires_grad_() if residual else None)


def explicit(name: str, visual: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
    """The terms by their definition, vector by vector; `visual` and `text` are what they are computed on."""
    if name == "mmd":
        x, y = visual.flatten(0, 1), text.flatten(0, 1)
        kernel = lambda a, b: (-0.5 * ((a - b).square().sum() + 1e-300).sqrt()).exp()  # noqa: E731
        mean = lambda xs, ys: sum(kernel(a, b) for a in xs for b in ys) / len(xs) / len(ys)  # noqa: E731
        return mean(x, x) - 2 * mean(x, y) + mean(y, y)
    total = 0
    for sets in (visual, text):
        for x_KD in sets:
            x_KD, k = normalize(x_KD, dim=-1), len(x_KD)
            if name == "diversity":
                off = [x_KD[i] @ x_KD[j] for i in range(k) for j in range(k) if i != j]
                term = torch.stack(off).square().sum().sqrt() / k**2
            else:
                off = [(x_KD[i] - x_KD[j]).square().sum() for i in range(k) for j in range(i)]
                term = (-2 * torch.stack(off)).exp().mean()
            total = total + term / len(sets)
    return total


def of(name: str, encoded: Embeddings, on: str = "residual") -> torch.Tensor:
    whole = name == "mmd" or on == "embedding" or encoded.residual is None
    return encoded.vectors if whole else encoded.residual


@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("name", ["mmd", *WITHIN_SETS])
def test_against_the_definition_with_gradients(name, residual):
    visual, text = encoded(3, 3, residual=residual), encoded(6, 2, seed=1, residual=residual)
    used = of(name, visual), of(name, text)
    value, expected = build(name)(visual, text), explicit(name, *used)
    assert value.ndim == 0
    assert value.item() == pytest.approx(expected.item(), abs=1e-7)
    for ours, theirs in zip(*(torch.autograd.grad(v, used) for v in (value, expected)), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-7, rtol=0)


@pytest.mark.parametrize("name", WITHIN_SETS)
def test_what_it_is_computed_on_can_be_chosen(name):
    visual, text = encoded(3, 3), encoded(6, 3, seed=1)
    value = build(name, on="embedding")(visual, text)
    assert value.item() == pytest.approx(explicit(name, visual.vectors, text.vectors).item(), abs=1e-7)
    assert value.item() != pytest.approx(build(name)(visual, text).item(), abs=1e-4)


@pytest.mark.parametrize("case", ["recipe", "with_div"])
def test_the_recorded_numbers_of_dive(golden, case):
    z = np.load(golden / "dive_loss.npz", allow_pickle=False)
    parts = ("images", "image_residuals", "captions", "caption_residuals")
    x = [torch.from_numpy(z[f"{case}/{name}"]) for name in parts]
    weights = {"mmd": 0.01, "unif": 0.01, "div": 0.1 if case == "with_div" else 0.0}
    for dtype, tolerance in ((torch.float64, 1e-8), (torch.float32, 1e-6)):
        sides = [t.to(dtype).requires_grad_() for t in x]
        total = 0
        for name, short in {"mmd": "mmd", "uniformity": "unif", "diversity": "div"}.items():
            term = build(name)(Embeddings(*sides[:2]), Embeddings(*sides[2:]))
            total = total + weights[short] * term
            if f"{case}/ref64_{short}" in z:
                assert term.item() == pytest.approx(float(z[f"{case}/ref64_{short}"]), abs=tolerance)
        total.backward()
        for name, side in list(zip(parts, sides, strict=True))[
            1::2
        ]:  # the triplet loss has no part in residuals
            np.testing.assert_allclose(side.grad, z[f"{case}/grad_{name}"], atol=1e-8, rtol=1e-3)


def test_the_recorded_numbers_of_pvse(golden):
    z = np.load(golden / "pvse.npz", allow_pickle=False)
    parts = ("images", "image_residuals", "captions", "caption_residuals")
    x = [torch.from_numpy(z[f"loss_hard/{name}"]) for name in parts]
    for name, short in {"mmd": "mmd", "diversity": "div"}.items():
        term = build(name)(Embeddings(*x[:2]), Embeddings(*x[2:]))
        assert term.item() == pytest.approx(float(z[f"loss_hard/{short}"]), abs=1e-6)


def test_mmd_takes_single_vectors_and_is_zero_between_equals():
    visual, text = encoded(4, 1), encoded(6, 1, seed=1)
    single = build("mmd")(Embeddings(visual.vectors[:, 0]), Embeddings(text.vectors[:, 0]))
    assert single.item() == pytest.approx(explicit("mmd", visual.vectors, text.vectors).item(), abs=1e-7)
    assert build("mmd")(visual, visual).item() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_at_zero_distance_are_zero(dtype):
    one = normalize(torch.randn(1, 1, 64, dtype=dtype), dim=-1)
    same = one.expand(8, 4, 64).clone().requires_grad_()
    value = build("mmd")(Embeddings(same), Embeddings(same))
    value.backward()
    assert value.item() == pytest.approx(0, abs=1e-6)
    assert (same.grad == 0).all()


@pytest.mark.parametrize("name", WITHIN_SETS)
def test_single_vectors_add_nothing(name):
    visual, text = encoded(3, 3), Embeddings(encoded(6, 1).vectors[:, 0].detach())
    assert build(name)(visual, text).item() == pytest.approx(
        explicit(name, visual.residual, []).item(), abs=1e-7
    )
    for single in (text, encoded(6, 1)):
        assert build(name)(single, text).item() == 0
