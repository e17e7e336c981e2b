import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from torch.nn.functional import normalize

from polypool.infra.errors import InputError
from polypool.infra.registry import SIMILARITIES
from polypool.tasks.similarities import blocks as set_similarity
from polypool.tasks.similarities.similarity import Similarity

OF_SETS = ("mil", "match_probability(scale=3, shift=-1)", "chamfer", "smooth_chamfer(alpha=16)")
OF_SETS += ("aligned_mean", "maxsim", "maxsim(over=text)", "maxsim(over=visual)", "mms", "wti")
OF_SETS += ("max_match", "max_match(exponential=True)")


def sets(size: int, k: int, dim: int = 6, *, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    x_BKD = torch.randn(size, k, dim, generator=generator, dtype=torch.float64)
    return (scale * normalize(x_BKD, dim=-1)).requires_grad_()


def build(spec: str) -> Similarity:
    torch.manual_seed(0)  # wti has random initial weights
    return Similarity.build(spec, 6)


def explicit(similarity: Similarity, spec: str, x_KD: torch.Tensor, y_LD: torch.Tensor) -> torch.Tensor:
    """Return a similarity of two sets by its definition, element by element."""
    cosine = [[(x * y).sum() for y in y_LD] for x in x_KD]
    columns = list(zip(*cosine, strict=True))
    flat = [c for row in cosine for c in row]
    match spec if spec.startswith("maxsim") else spec.split("(")[0]:
        case "mil":
            return torch.stack(flat).max()
        case "match_probability":
            return sum(torch.sigmoid(similarity.scale * c + similarity.shift) for c in flat) / len(flat)
        case "aligned_mean":
            return sum(row[k] for k, row in enumerate(cosine)) / len(cosine)
        case "chamfer" | "maxsim":
            return (_best(cosine, max) + _best(columns, max)) / 2
        case "maxsim(over=visual)":
            return _best(cosine, max)
        case "maxsim(over=text)":
            return _best(columns, max)
        case "mms":
            return sum(_best([*zip(*cosine[level::2], strict=True)], max) for level in (0, 1))
        case "wti":
            return (_weighed(cosine, similarity.visual(x_KD)) + _weighed(columns, similarity.text(y_LD))) / 2
        case "max_match":
            score = torch.stack(flat).view(len(x_KD), len(y_LD))
            score = score.exp() - 1 if similarity.exponential else score
            return score[linear_sum_assignment(score.detach(), maximize=True)].mean()
        case "smooth_chamfer":
            smooth = lambda line: sum(torch.exp(16 * c) for c in line).log() / 16  # noqa: E731
            return (_best(cosine, smooth) + _best(columns, smooth)) / 2


def _best(lines, of_line):
    return sum(map(of_line, lines)) / len(lines)


def _weighed(lines, score_K1):
    shares = [torch.exp(score) for score in score_K1]
    return sum(share[0] * max(line) for share, line in zip(shares, lines, strict=True)) / sum(shares)[0]


@pytest.fixture(
    params=[((3, 4), 1 << 25), ((3, 4), 0), ((1024, 1024), 1 << 25)],
    ids=["blocks", "recomputed", "one_block"],
)
def block(request, monkeypatch):
    """Many blocks, with products stored or recomputed for the gradient, and one block."""
    size, stored = request.param
    monkeypatch.setitem(set_similarity.VECTORS, "cpu", size)
    monkeypatch.setattr(set_similarity, "STORED", stored)


CASES = [(spec, k, 3) for spec in OF_SETS for k in (3, 2) if (spec, k) != ("aligned_mean", 2)]
CASES += [("max_match", 4, 4), ("max_match", 3, 2), ("max_match", 2, 8)]


@pytest.mark.parametrize(("spec", "k", "l"), CASES)
def test_values_and_gradients_match_definition(spec, k, l, block):  # noqa: E741
    similarity = build(spec).double()
    x, y, weight_QG = sets(4, k), sets(5, l, seed=1), torch.randn(4, 5, dtype=torch.float64)
    expected_QG = torch.stack([torch.stack([explicit(similarity, spec, a, b) for b in y]) for a in x])
    sim_QG = similarity(x, y)
    torch.testing.assert_close(sim_QG, expected_QG, atol=1e-6, rtol=0)
    given = (x, y, *similarity.parameters())
    pairs_Q, weight_Q = similarity.pairs(x, y[:4]), weight_QG.diagonal()
    torch.testing.assert_close(pairs_Q, expected_QG.diagonal(), atol=1e-6, rtol=0)
    for found, expected, weight in (
        (sim_QG, expected_QG, weight_QG),
        (pairs_Q, expected_QG.diagonal(), weight_Q),
    ):
        ours, theirs = (
            torch.autograd.grad((s * weight).sum(), given, retain_graph=True) for s in (found, expected)
        )
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)


@pytest.mark.parametrize("spec", ["maxsim", "maxsim(over=text)", "wti"])
def test_padding_never_wins_over_negative_cosines(spec, block):
    """Sets of 3, 1 and 2 elements, opposite to the gallery's, padded with zeros between and after."""
    similarity, dim = build(spec).double(), 6
    x, y = (sets(3, 5, dim, seed=seed).detach().abs() for seed in (0, 1))
    y = -y
    for embedding, kept in ((x, [[0, 2, 3], [4], [1, 2]]), (y, [[0], [1, 4], [0, 1, 2, 3, 4]])):
        for x_KD, places in zip(embedding, kept, strict=True):
            x_KD[[k for k in range(5) if k not in places]] = 0.0
    x, y = x.requires_grad_(), y.requires_grad_()
    closed = [[x_KD[x_KD.any(dim=1)] for x_KD in embedding] for embedding in (x, y)]
    expected_QG = torch.stack(
        [torch.stack([explicit(similarity, spec, a, b) for b in closed[1]]) for a in closed[0]]
    )
    assert (expected_QG < 0).all()
    weight_QG = torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    for sim, expected, weight in (
        (similarity(x, y), expected_QG, weight_QG),
        (similarity.pairs(x, y), expected_QG.diagonal(), weight_QG[0]),
    ):
        torch.testing.assert_close(sim, expected)
        ours, theirs = (
            torch.autograd.grad((s * weight).sum(), (x, y), retain_graph=True) for s in (sim, expected)
        )
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("spec", ["maxsim", "wti"])
def test_empty_set_scores_zero_with_finite_gradients(spec, block):
    similarity = build(spec).double()
    x, y = sets(2, 3), sets(2, 2, seed=1)
    with torch.no_grad():
        y[1] = 0.0
    sim_QG = similarity(x, y)
    assert sim_QG[:, 1].tolist() == [0.0, 0.0]
    sim_QG.sum().backward()
    assert x.grad.isfinite().all()
    assert not y.grad[1].any()


@pytest.mark.parametrize("case", ["base", "alpha32", "collapsed"])
def test_set_similarities_match_recorded_outputs(golden, case):
    z = np.load(golden / "dive_similarity.npz", allow_pickle=False)
    x, y = (torch.from_numpy(z[f"{case}/{name}"]).requires_grad_() for name in ("images", "captions"))
    alpha = 32 if case == "alpha32" else 16
    names = {"smooth_chamfer": f"smooth_chamfer(alpha={alpha})", "chamfer": "chamfer", "mil_max": "mil"}
    for name, spec in (names | {"mp_avg": "match_probability"}).items():
        sim_QG = build(spec)(x, y).detach()
        np.testing.assert_allclose(sim_QG, z[f"{case}/{name}"], atol=2e-6, rtol=0)
    if f"{case}/cot" in z:
        sim_QG = SIMILARITIES.build(names["smooth_chamfer"])(x, y)
        (sim_QG * torch.from_numpy(z[f"{case}/cot"])).sum().backward()
        np.testing.assert_allclose(x.grad, z[f"{case}/grad_images"], atol=1e-5, rtol=0)
        np.testing.assert_allclose(y.grad, z[f"{case}/grad_captions"], atol=1e-5, rtol=0)


@pytest.mark.parametrize(("scale", "alpha"), [(1.0, 0.01), (30.0, 16), (1.0, 500), (30.0, 500)])
def test_smooth_chamfer_neither_overflows_nor_vanishes(scale, alpha):
    """Embeddings of norm 30 and a sharp alpha give exponents of hundreds of thousands."""
    x, y = (sets(3, 4, seed=seed, scale=scale).detach().float().requires_grad_() for seed in (0, 1))
    sim_QG = SIMILARITIES.build(f"smooth_chamfer(alpha={alpha})")(x, y)
    c_QKLG = torch.einsum("qkd,gld->qklg", x.double(), y.double())
    expected = sum((alpha * c_QKLG).logsumexp(dim).mean(dim=1) for dim in (1, 2)) / (2 * alpha)
    torch.testing.assert_close(sim_QG.double(), expected, rtol=1e-5, atol=1e-5 * scale**2)
    sim_QG.sum().backward()
    assert x.grad.isfinite().all()
    assert x.grad.abs().sum() > 0


def test_max_match_refuses_sets_above_8_elements():
    with pytest.raises(InputError, match="at most 8 elements, and a set has 9"):
        build("max_match")(sets(2, 4), sets(2, 9))


SCALED = {OF_SETS[1]: lambda x: torch.sigmoid(3 * x - 1), OF_SETS[-1]: torch.expm1}


@pytest.mark.parametrize("spec", [*OF_SETS, "cosine"])
def test_single_vector_scores_as_set_of_one(spec):
    similarity, x, y = build(spec).double(), sets(3, 1)[:, 0], sets(4, 1, seed=1)[:, 0]
    expected = x @ y.T
    if spec in SCALED:
        expected = SCALED[spec](expected)
    torch.testing.assert_close(similarity(x, y), expected)
    torch.testing.assert_close(similarity.pairs(x, y[:3]), expected[:, :3].diagonal())
