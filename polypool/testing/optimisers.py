"""Checks of optimisers, on a small model with random targets."""

from __future__ import annotations

import copy
import io
from collections import OrderedDict
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from polypool.pipelines.training.loop.optim import make_optimizer, set_lr
from polypool.tasks.run import Optim
from polypool.testing.base import PartChecks, check

_RATE, _STEPS = 1e-3, 6
_STATE = "keep what a step needs in self.state[weight], and read rates from the groups"


class OptimiserChecks(PartChecks):
    """Checks of one optimiser."""

    def __init__(self, spec: str) -> None:
        super().__init__(spec)
        self._optim = Optim(optimiser=spec, lr=_RATE, weight_decay=0.0)

    def _made(self, **changes: Any) -> tuple[nn.Module, torch.optim.Optimizer]:
        """Return a model of an embedding table, matrices and vectors, and its optimiser."""
        torch.manual_seed(0)
        layers = {
            "words": nn.Embedding(5, 4),
            "inner": nn.Linear(4, 6),
            "tanh": nn.Tanh(),
            "outer": nn.Linear(6, 3),
        }
        model = nn.Sequential(OrderedDict(layers))
        return model, make_optimizer(model, replace(self._optim, **changes))

    @check(
        "it is built of groups of weights, a rate and a decay",
        "take the groups first, and lr and weight_decay by keyword",
        vital=True,
    )
    def _built(self) -> str:
        model, optimizer = self._made()
        held = [weight for group in optimizer.param_groups for weight in group["params"]]
        assert {id(w) for w in held} == {id(w) for w in model.parameters()}, (
            "its param_groups are not the weights that it was given, each once"
        )
        return f"{type(optimizer).__name__} of {len(optimizer.param_groups)} groups"

    @check("a step lowers a loss", "step against the gradient", vital=True)
    def _lowers(self) -> str:
        model, optimizer = self._made()
        losses = _train(model, optimizer, steps=_STEPS)
        assert losses[1] < losses[0], (
            f"at a rate of {_RATE}, it took the loss from {losses[0]:.4g} to {losses[1]:.4g}"
        )
        return f"{_STEPS} took it from {losses[0]:.4g} to {losses[-1]:.4g}"

    @check("each group moves at its own rate", _STATE)
    def _rates(self) -> None:
        model, optimizer = self._made(lr_factors=(("inner", 0.5),))
        first = copy.deepcopy(model)
        set_lr(optimizer, self._optim, 0.0)
        _train(model, optimizer, steps=1)
        assert not _moved(first, model), f"at a rate of 0, it moved {', '.join(_moved(first, model))}"
        for group in optimizer.param_groups:
            group["lr"] = _RATE if group["factor"] == 0.5 else 0.0
        _train(model, optimizer, steps=1)
        moved = _moved(first, model)
        assert moved == ["inner.bias", "inner.weight"], (
            f"where the group of `inner` alone had a rate, it moved {', '.join(moved) or 'nothing'}"
        )

    @check(
        "a weight without a gradient stays as it is",
        "leave it, its decay and its state alone where weight.grad is None",
    )
    def _left_alone(self) -> None:
        model, optimizer = self._made(weight_decay=0.5)
        weights, left = dict(model.named_parameters()), ("inner.weight", "words.weight")
        for _ in range(2):
            first = copy.deepcopy(model)
            _gradients(model)
            for name in left:
                weights[name].grad = None
            optimizer.step()
            moved = [name for name in _moved(first, model) if name in left]
            assert not moved, f"it moved {', '.join(moved)}"
            _train(model, optimizer, steps=1)

    @check(
        "an interrupted run ends with the same weights, bit for bit",
        f"{_STATE}; state_dict must hold tensors, numbers and text alone",
    )
    def _resumed(self) -> None:
        (whole, optimizer), (again, other) = self._made(), self._made()
        _train(whole, optimizer, steps=_STEPS // 2)
        kept = io.BytesIO()
        torch.save({"weights": whole.state_dict(), "optimizer": optimizer.state_dict()}, kept)
        kept.seek(0)
        state = torch.load(kept, weights_only=True)
        again.load_state_dict(state["weights"])
        other.load_state_dict(state["optimizer"])
        for model, method in ((whole, optimizer), (again, other)):
            _train(model, method, steps=_STEPS // 2)
        differing = _moved(whole, again)
        assert not differing, f"after {_STEPS} steps, the weights {', '.join(differing)} differ"


def _gradients(model: nn.Module) -> float:
    """Put the gradients of a batch in place, and return its loss."""
    wanted_BO = torch.randn(10, 3, generator=torch.Generator().manual_seed(0))
    loss = F.mse_loss(model(torch.arange(10) % 5), wanted_BO)
    model.zero_grad(set_to_none=True)
    loss.backward()
    return float(loss.detach())


def _train(model: nn.Module, optimizer: torch.optim.Optimizer, *, steps: int) -> list[float]:
    """Train for some steps, and return the loss before each."""
    losses = []
    for _ in range(steps):
        losses.append(_gradients(model))
        optimizer.step()
    return losses


def _moved(before: nn.Module, after: nn.Module) -> list[str]:
    """Return the names of the weights that differ."""
    pairs = zip(before.named_parameters(), after.parameters(), strict=True)
    return sorted(name for (name, old), new in pairs if not torch.equal(old, new))
