import copy

import pytest
import torch
from torch import Tensor

from polypool.tasks.hgr.graph_encoders import RoleGraphEncoder

SIZES = {"words": 6, "slots": 5, "width": 8}


def made_up() -> dict[str, Tensor]:
    """Return random inputs; the last slot is always unused, and edges touch unused slots."""
    generator = torch.Generator().manual_seed(0)
    batch, (words, slots, width) = 4, SIZES.values()
    span_BPL = torch.rand(batch, slots, words, generator=generator) < 0.4
    span_BPL[:, -1] = False
    span_BPL[0, 1] = False
    span_BPL[1] = False  # a caption without a phrase
    draw = {"generator": generator, "dtype": torch.float64}
    return {
        "sentence_BKD": torch.randn(batch, 1, width, **draw),
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


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_unused_slots_and_words_affect_no_output(dtype):
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


def test_dropout_applies_to_messages():
    graph, given = graph_of(dropout=1.0).train(), made_up()
    node = {name: x for name, x in given.items() if name != "edge_BVV"}
    for ours, expected in zip(graph(**given), graph(**node, edge_BVV=given["edge_BVV"] & False), strict=True):
        assert torch.equal(ours, expected)
