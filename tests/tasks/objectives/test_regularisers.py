import itertools

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from polypool.infra.errors import InputError
from polypool.infra.registry import REGULARISERS
from polypool.tasks.similarities.vectors import Embeddings

WITHIN_SETS = ("diversity", "uniformity", "intra_set_divergence")


def build(name: str, **given):
    return REGULARISERS.build(f"{name}({', '.join(f'{k}={v}' for k, v in ({'weight': 1} | given).items())})")


def encoded(size: int, k: int, *, seed: int = 0, residual: bool = True) -> Embeddings:
    generator = torch.Generator().manual_seed(seed)
    draw = lambda: torch.randn(size, k, 5, generator=generator, dtype=torch.float64)  # noqa: E731
    embedding = normalize(draw(), dim=-1).requires_grad_()
    global_feature = 3 * draw()[:, 0]
    return Embeddings(
        embedding, draw().requires_grad_() if residual else None, global_feature.requires_grad_()
    )


@pytest.mark.parametrize("name", WITHIN_SETS)
def test_on_embedding_option_ignores_residuals(name):
    visual, text = encoded(3, 3), encoded(6, 3, seed=1)
    bare = [Embeddings(side.vectors) for side in (visual, text)]
    on_embedding = build(name, on="embedding")(visual, text)
    assert on_embedding == build(name)(*bare) != build(name, on="residual")(visual, text)


@pytest.mark.parametrize("case", ["recipe", "with_div"])
def test_dive_regularisers_match_recorded_outputs(golden, case):
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
        ]:  # the triplet loss does not depend on residuals
            np.testing.assert_allclose(side.grad, z[f"{case}/grad_{name}"], atol=1e-8, rtol=1e-3)


def explicit(pairs) -> torch.Tensor:
    return sum(torch.exp(2 * (a @ b / (a.norm() * b.norm()) - 0.3)) for a, b in pairs) / len(pairs)


def test_maxmatch_losses_match_loops():
    """Each element against the others of its set and against its global feature; the sides differ in size."""
    sides = encoded(3, 3), encoded(6, 2, seed=1)
    within, globally = 0, 0
    for vectors, _, feature in sides:
        pairs = [pair for set_KD in vectors for pair in itertools.permutations(set_KD, 2)]
        within += explicit(pairs)
        globally += explicit([(v, f) for set_KD, f in zip(vectors, feature, strict=True) for v in set_KD])
    given = [x for side in sides for x in (side.vectors, side.global_feature)]
    for name, expected in (("intra_set_divergence", within), ("global_discriminative", globally)):
        term = build(name, margin=0.3, scale=2)(*sides)
        torch.testing.assert_close(term, expected)
        ours, theirs = (
            torch.autograd.grad(x, given, retain_graph=True, materialize_grads=True) for x in (term, expected)
        )
        torch.testing.assert_close(ours, theirs)


def test_global_discriminative_needs_a_global_feature():
    term, single = build("global_discriminative"), Embeddings(encoded(6, 1).vectors[:, 0])
    assert term(encoded(3, 3), single) == term(single, encoded(3, 3)) > term(single, single) == 0
    with pytest.raises(InputError, match="choose slots"):
        term(single, Embeddings(encoded(3, 3).vectors))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_mmd_gradient_is_zero_at_zero_distance(dtype):
    one = normalize(torch.randn(1, 1, 64, dtype=dtype), dim=-1)
    same = one.expand(8, 4, 64).clone().requires_grad_()
    value = build("mmd")(Embeddings(same), Embeddings(same))
    value.backward()
    assert value.item() == pytest.approx(0, abs=1e-6)
    assert (same.grad == 0).all()


@pytest.mark.parametrize("name", WITHIN_SETS)
def test_within_set_regularisers_ignore_single_vectors(name):
    sets, single = encoded(3, 3), Embeddings(encoded(6, 1).vectors[:, 0])
    assert 2 * build(name)(sets, single) == build(name)(sets, sets)
    assert build(name)(encoded(6, 1), single) == 0
