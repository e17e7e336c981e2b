from __future__ import annotations

import torch
from torch import nn

from polypool.infra.compute.unfilled import Unfilled


def model() -> nn.Module:
    gru, table = nn.GRU(6, 8, bidirectional=True), nn.Embedding(5, 3)
    nn.init.xavier_uniform_(table.weight)
    table.weight.requires_grad_(False)
    made = nn.ModuleDict({"gru": gru, "table": table, "norm": nn.BatchNorm1d(3)})
    made.register_buffer("scale", torch.tensor([2.0, 4.0]).reciprocal())
    return made


def test_a_model_has_its_names_shapes_and_buffers_and_draws_no_numbers():
    expected, before = model(), torch.get_rng_state()
    with Unfilled():
        found = model()
    assert torch.equal(torch.get_rng_state(), before)
    shapes = [
        {name: (x.shape, x.dtype, x.requires_grad) for name, x in made.named_parameters()}
        for made in (found, expected)
    ]
    assert shapes[0] == shapes[1]
    assert torch.equal(found.scale, expected.scale)
    model()
    assert not torch.equal(torch.get_rng_state(), before), "outside numbers are drawn again"
