"""Base class of optimisers, without torch's compiler, and the protocol of those with groups of their own."""

from __future__ import annotations

import inspect
from typing import Protocol, runtime_checkable

import torch
from torch import nn


class Plain(torch.optim.Optimizer):
    """An optimiser without the compiler wrappers of torch's methods, whose import takes two seconds.

    A class derives from this one first and then from torch's, and has an unwrapped `step`.
    """

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    state_dict = inspect.unwrap(torch.optim.Optimizer.state_dict)
    load_state_dict = inspect.unwrap(torch.optim.Optimizer.load_state_dict)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)


@runtime_checkable
class Sorts(Protocol):
    """An optimiser that treats kinds of weights differently, and gets groups of one `sort` each."""

    @staticmethod
    def sort(module: nn.Module, weight: nn.Parameter) -> str:
        """Return the kind of a module's weight."""
