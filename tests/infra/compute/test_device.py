from __future__ import annotations

import torch
from torch import nn

from polypool.infra.compute.device import best_device, device_of, on_device

META = torch.device("meta")


def test_a_batch_is_where_the_model_is():
    batch = {"x": torch.zeros(2, 3), "mask": torch.ones(2, dtype=torch.bool)}
    there = on_device(batch, device_of(nn.Linear(3, 3, device=META)))
    assert list(there) == ["x", "mask"]
    assert {x.device for x in there.values()} == {META}
    assert batch["x"].device.type == "cpu", "what was given stays where it is"
    assert on_device(batch, torch.device("cpu"))["x"] is batch["x"]


def test_a_model_without_parameters_is_on_the_cpu():
    assert device_of(nn.Identity()) == torch.device("cpu")


def test_a_gpu_is_taken_where_there_is_one(monkeypatch):
    for there, kind in [(True, "cuda"), (False, "cpu")]:
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        assert best_device().type == kind
