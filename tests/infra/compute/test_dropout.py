from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from polypool.infra.compute.dropout import Draws, Dropout, by_sample, drawn
from polypool.infra.compute.randomness import state_of, uniform


def dropped(
    shape: tuple[int, ...], p: float = 0.3, *, first: int = 0, calls: int = 1, **draws: int
) -> Tensor:
    """Apply dropout to ones `calls` times, by default with one sample per row; return the last result."""
    of = {"seed": 0, "step": 5, "samples": shape[0]} | draws
    layer = Dropout(p)
    with drawn(Draws(first=first, **of)):
        for _ in range(calls):
            x = layer(torch.ones(shape))
    return x


def test_mask_matches_explicit_formula():
    def hashed(word: int) -> int:
        for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
            word ^= word >> shift
            word = word * factor % 2**32
        return word ^ (word >> 16)

    x = dropped((3, 2, 4), 0.4, seed=7, step=11, first=2, calls=2)
    for b, n, d in np.ndindex(3, 2, 4):
        key = int(float(uniform(7, 11, 2, 2 + b)) * 2**32)
        word = hashed(hashed(key ^ (n * 0x9E3779B1 % 2**32)) ^ (d * 0x85EBCA77 % 2**32))
        signed = word - 2**32 if word >= 2**31 else word
        assert (x[b, n, d] != 0).item() == (signed >= round(0.4 * 2**32) - 2**31), (b, n, d)


def test_mask_is_independent_of_worker_and_padding():
    whole = dropped((12, 7, 5))
    parts = [dropped((6, 9, 5), first=0), dropped((6, 7, 5), first=6)]
    assert torch.equal(torch.cat([part[:, :7] for part in parts]), whole)
    five = dropped((10, 4), samples=2, first=1)  # five captions of each of the second and third image
    assert torch.equal(five, dropped((20, 4), samples=4)[5:15])


def test_keys_from_device_state_equal_host_keys():
    state = torch.tensor(state_of(7, 2**40 + 11))
    on_cpu, on_gpu = (Draws(seed=7, step=2**40 + 11, first=4, samples=6, state=s) for s in (None, state))
    for _ in range(3):
        expected, found = (draws.keys(18, torch.device("cpu")) for draws in (on_cpu, on_gpu))
        assert torch.equal(found, expected)
    whole = np.floor(uniform(7, 2**40 + 11, 3, np.arange(12, 30)) * 2**32).astype(np.uint32)
    assert np.array_equal(found.numpy().view(np.uint32), whole)


def test_gradient_passes_through_kept_values():
    x = torch.ones(4, 6, requires_grad=True)
    with drawn(Draws(seed=0, step=0, first=0, samples=4)):
        y = Dropout(0.5)(x)
    y.sum().backward()
    assert torch.equal(x.grad, y)
    assert torch.equal(x, torch.ones(4, 6)), "the input must not be modified"


def test_outside_steps_and_in_eval_dropout_equals_torch():
    layer, x = Dropout(0.5), torch.ones(8, 50)
    torch.manual_seed(3)
    expected = nn.functional.dropout(x, 0.5)
    torch.manual_seed(3)
    assert torch.equal(layer(x), expected)
    with drawn(Draws(seed=0, step=0, first=0, samples=8)):
        assert layer.eval()(x) is x
        assert torch.equal(Dropout(0.0)(x), x)
        assert not Dropout(1.0)(x).any()


def test_by_sample_replaces_only_nn_dropout():
    inner = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.2))
    module = by_sample(nn.ModuleDict({"a": inner, "b": nn.Dropout(0.4), "c": nn.Dropout1d(0.4)}))
    assert type(module["a"][1]) is Dropout
    assert (module["a"][1].p, module["b"].p) == (0.2, 0.4)
    assert type(module["c"]) is nn.Dropout1d, "other kinds of dropout must not be replaced"
