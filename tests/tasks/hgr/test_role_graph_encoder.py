import copy

import pytest
import torch
from torch import Tensor

from polypool.encoders.visual.stored import Frames
from polypool.infra.errors import InputError
from polypool.infra.registry import ENCODERS
from polypool.tasks.hgr.graph_encoders import RoleGraphEncoder

SIZES = {"words": 6, "slots": 5, "width": 8}


def made_up(*, k: int = 1, batch: int = 4) -> dict[str, Tensor]:
    """Captions of 3 to 6 words; the last slot is used by none, and edges touch slots that are not used."""
    generator = torch.Generator().manual_seed(0)
    words, slots, width = SIZES.values()
    span_BPL = torch.rand(batch, slots, words, generator=generator) < 0.4
    span_BPL[:, -1] = False
    span_BPL[0, 1] = False
    span_BPL[1] = False  # a caption without a phrase
    draw = {"generator": generator, "dtype": torch.float64}
    return {
        "sentence_BKD": torch.randn(batch, k, width, **draw),
        "word_BLD": torch.randn(batch, words, width, **draw),
        "span_BPL": span_BPL,
        "role_BP": torch.randint(16, (batch, slots), generator=generator).masked_fill(
            ~span_BPL.any(dim=2), 0
        ),
        "edge_BVV": torch.rand(batch, 1 + slots, 1 + slots, generator=generator) < 0.5,
    }


def graph_of(dtype: torch.dtype = torch.float64, **params) -> RoleGraphEncoder:
    torch.manual_seed(0)
    graph = RoleGraphEncoder(SIZES["width"], **params)
    for layer in graph.layers:
        torch.nn.init.normal_(layer.norm.weight)
        torch.nn.init.normal_(layer.norm.bias)
    return graph.to(dtype).eval()


def explicit(
    graph: RoleGraphEncoder, given: dict[str, Tensor], b: int, *, root: bool
) -> tuple[Tensor, dict[int, Tensor]]:
    """One caption, node by node, by section 3.1 of the paper; only slots that are used exist."""
    word_LD, span_PL, edge_VV = (given[name][b] for name in ("word_BLD", "span_BPL", "edge_BVV"))
    sentence = list(given["sentence_BKD"][b])
    phrase = {}
    for slot, span_L in enumerate(span_PL):
        if span_L.any():
            most_D = torch.stack([word_LD[span_L, d].max() for d in range(word_LD.shape[1])])
            phrase[slot] = most_D * graph.role.weight[given["role_BP"][b, slot]]
    for layer in graph.layers:
        node = {0: sum(sentence) / len(sentence)} | {1 + slot: x for slot, x in phrase.items()}
        message = {}
        for target, x_D in node.items():
            sends = edge_VV[:, 0] if root and target == 0 else edge_VV[target]
            sources = [source for source in node if sends[source]]
            query_E = layer.query.weight @ x_D + layer.query.bias
            keys = [layer.key.weight @ node[source] for source in sources]
            powers = [(query_E @ key_E / len(query_E) ** 0.5).exp() for key_E in keys]
            total_D = sum((p * node[s] for p, s in zip(powers, sources, strict=True)), 0 * x_D)
            message[target] = layer.context.weight @ (total_D / sum(powers) if sources else total_D)
        sentence = [layer_norm(layer, x_D + message[0]) for x_D in sentence]
        phrase = {slot: layer_norm(layer, x_D + message[1 + slot]) for slot, x_D in phrase.items()}
    return torch.stack(sentence), phrase


def layer_norm(layer: torch.nn.Module, x_D: Tensor) -> Tensor:
    centred_D = x_D - x_D.mean()
    return centred_D / (centred_D.square().mean() + 1e-5).sqrt() * layer.norm.weight + layer.norm.bias


@pytest.mark.parametrize(("k", "layers", "root"), [(1, 1, False), (1, 2, True), (3, 1, True), (3, 2, False)])
def test_values_and_gradients_are_those_of_the_definition(k, layers, root):
    graph, given = graph_of(layers=layers, root_messages=root), made_up(k=k)
    sources = [x.requires_grad_() for x in given.values() if x.is_floating_point()] + [*graph.parameters()]
    sentence_BKD, phrase_BPD = graph(**given)
    expected = [torch.zeros_like(sentence_BKD), torch.zeros_like(phrase_BPD)]
    for b in range(len(sentence_BKD)):
        sentence_KD, phrases = explicit(graph, given, b, root=root)
        expected[0] = expected[0].index_put((torch.tensor(b),), sentence_KD)
        for slot, x_D in phrases.items():
            expected[1] = expected[1].index_put((torch.tensor(b), torch.tensor(slot)), x_D)
    for ours, wanted in zip((sentence_BKD, phrase_BPD), expected, strict=True):
        torch.testing.assert_close(ours, wanted, rtol=0, atol=1e-12)
    sums = [a.sin().sum() + b.sin().sum() for a, b in ((sentence_BKD, phrase_BPD), expected)]
    ours, wanted = (torch.autograd.grad(total, sources, allow_unused=True) for total in sums)
    for ours_x, wanted_x in zip(ours, wanted, strict=True):
        torch.testing.assert_close(ours_x, wanted_x, rtol=1e-9, atol=1e-10)


def test_as_published_the_graph_leaves_the_sentence_alone():
    given = made_up()
    given["edge_BVV"][:, 0] = False
    without = given | {"edge_BVV": given["edge_BVV"] & False}
    assert torch.equal(graph_of()(**given)[0], graph_of()(**without)[0])
    changed = graph_of(root_messages=True)(**given)[0] != graph_of(root_messages=True)(**without)[0]
    receives_B = (given["edge_BVV"][:, 1:, 0] & given["span_BPL"].any(dim=2)).any(dim=1)
    assert receives_B.tolist() == [False, False, True, True]
    assert changed.any(dim=(1, 2)).tolist() == receives_B.tolist()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_nothing_of_an_unused_slot_reaches_anything(dtype):
    graph = graph_of(dtype)
    given = {name: x.to(dtype) if x.is_floating_point() else x for name, x in made_up().items()}
    used_BP = given["span_BPL"].any(dim=2)
    other = given | {
        "role_BP": given["role_BP"].masked_fill(~used_BP, 9),
        "word_BLD": given["word_BLD"].masked_fill(~given["span_BPL"].any(dim=1)[..., None], float("nan")),
    }
    spoilt = copy.deepcopy(graph)
    with torch.no_grad():
        spoilt.role.weight[9] = 3e4
    given["role_BP"].masked_fill_(given["role_BP"] == 9, 8)
    other["role_BP"] = other["role_BP"].where(~used_BP, given["role_BP"])
    for x, wanted in zip(spoilt(**other), graph(**given), strict=True):
        assert x.dtype == dtype
        torch.testing.assert_close(x, wanted, rtol=0, atol=0)
        assert x.isfinite().all()
    assert (graph(**given)[1][~used_BP] == 0).all()
    sum(x.sum() for x in graph(**given)).backward()
    assert all(p.grad.isfinite().all() for p in graph.parameters())


def test_the_number_of_weights():
    """Of one layer at the published width: query and key to a half, context without bias, norm, 16 roles."""
    count = sum(p.numel() for p in RoleGraphEncoder(1024).parameters())
    assert count == 16 * 1024 + 2 * 1024 * 512 + 512 + 1024 * 1024 + 2 * 1024


def test_dropout_is_that_of_the_messages():
    graph, given = graph_of(dropout=1.0).train(), made_up()
    node = {name: x for name, x in given.items() if name != "edge_BVV"}
    for ours, expected in zip(graph(**given), graph(**node, edge_BVV=given["edge_BVV"] & False), strict=True):
        assert torch.equal(ours, expected)


def test_frames_are_mapped_linearly():
    torch.manual_seed(0)
    encoder = ENCODERS.build("frames(width=4, dropout=0.5)", {"dim": 3})
    x_BNF, mask_BN = torch.randn(2, 5, 3).half(), torch.ones(2, 5, dtype=torch.bool)
    out, out_mask = encoder.eval()(x_BNF, mask_BN)
    assert torch.equal(out_mask, mask_BN)
    torch.testing.assert_close(out, x_BNF.float() @ encoder.fc.weight.T + encoder.fc.bias)
    dropped = encoder.train()(x_BNF, mask_BN)[0]
    assert 0 < (dropped == 0).sum() < dropped.numel()
    torch.testing.assert_close(dropped[dropped != 0], 2 * out[dropped != 0])


def test_frames_are_standardised_where_that_is_asked_for():
    assets = {"dim": 2, "statistics": {"mean": [1.0, -1.0], "std": [2.0, 0.5]}}
    plain, brought = Frames(assets, width=4).eval(), Frames(assets, width=4, standardise=True).eval()
    statistics = {k: x for k, x in brought.state_dict().items() if k.endswith("_F")}
    brought.load_state_dict(plain.state_dict() | statistics)
    x_BNF, mask_BN = torch.tensor([[[3.0, -0.5]]]), torch.ones(1, 1, dtype=torch.bool)
    torch.testing.assert_close(brought(x_BNF, mask_BN)[0], plain(torch.ones(1, 1, 2), mask_BN)[0])
    with pytest.raises(InputError, match="statistics"):
        ENCODERS.build("frames(standardise=True)", {"dim": 3})
    assert ENCODERS.build("frames(standardise=auto)", assets).standardise
    assert not ENCODERS.build("frames(standardise=auto)", {"dim": 2, "statistics": None}).standardise
    with pytest.raises(InputError, match="standardise must be True, False or auto, not 'atuo'"):
        ENCODERS.build("frames(standardise=atuo)", assets)
