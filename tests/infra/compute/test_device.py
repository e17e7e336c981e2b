from __future__ import annotations

import torch
from torch import nn

from polypool.infra.compute.device import best_device, device_of, free_memory, on_device
from polypool.infra.compute.unfilled import Unfilled

META = torch.device("meta")


def test_batch_moves_to_model_device():
    batch = {"x": torch.zeros(2, 3), "mask": torch.ones(2, dtype=torch.bool)}
    there = on_device(batch, device_of(nn.Linear(3, 3, device=META)))
    assert list(there) == ["x", "mask"]
    assert {x.device for x in there.values()} == {META}
    assert batch["x"].device.type == "cpu", "the given batch must not be moved"
    assert on_device(batch, torch.device("cpu"))["x"] is batch["x"]


def test_model_without_parameters_defaults_to_cpu():
    assert device_of(nn.Identity()) == torch.device("cpu")


def test_best_device_prefers_gpu_and_disables_tf32(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    for there, kind in [(False, "cpu"), (True, "cuda")]:
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        assert best_device().type == kind
        assert torch.backends.cudnn.allow_tf32 is not there


def test_free_memory_includes_torch_cache(monkeypatch):
    for name, value in {"memory_reserved": 50, "memory_allocated": 20, "mem_get_info": (7, 100)}.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value)
    assert free_memory(torch.device("cuda")) == 7 + 30


def model() -> nn.Module:
    gru, table = nn.GRU(6, 8, bidirectional=True), nn.Embedding(5, 3)
    nn.init.xavier_uniform_(table.weight)
    table.weight.requires_grad_(False)
    made = nn.ModuleDict({"gru": gru, "table": table, "norm": nn.BatchNorm1d(3)})
    made.register_buffer("scale", torch.tensor([2.0, 4.0]).reciprocal())
    return made


def test_unfilled_model_keeps_shapes_and_draws_no_numbers():
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
    assert not torch.equal(torch.get_rng_state(), before), "initialisation outside `Unfilled` must be random"
