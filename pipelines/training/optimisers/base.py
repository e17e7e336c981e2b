"""What optimisers share: the methods of torch's without its compiler, and how one asks for groups of its own."""

from __future__ import annotations

import inspect
from typing import Protocol, runtime_checkable

import torch
from torch import nn


class Plain(torch.optim.Optimizer):
    """An optimiser without what torch wraps around its methods for its compiler: importing that takes two seconds.

    A class derives from this one first and then from torch's, and has a `step` that is not wrapped either.
    """

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    state_dict = inspect.unwrap(torch.optim.Optimizer.state_dict)
    load_state_dict = inspect.unwrap(torch.optim.Optimizer.load_state_dict)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)


@runtime_checkable
class Sorts(Protocol):
    """An optimiser that treats weights differently by what they are: it is given groups of one sort each."""

    @staticmethod
    def sort(module: nn.Module, weight: nn.Parameter) -> str:
        """Return the sort of a module's own weight, which stands in its group as `sort`."""
