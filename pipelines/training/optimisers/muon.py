"""Muon (Jordan et al. 2024; Liu et al., "Muon is scalable for LLM training", 2025): steps of orthogonal matrices."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from polypool.infra.errors import InputError
from polypool.infra.registry import OPTIMISERS
from polypool.pipelines.training.optimisers.first_order import AdamW, OwnUpdate, Plain

MATRIX, OTHER = "matrix", "other"
_RATES = ("match_rms_adamw", "original")


@OPTIMISERS.register("muon")
class Muon(OwnUpdate):
    """torch's Muon for matrices; AdamW for all else: vectors, kernels of convolutions, and tables of word vectors.

    Both have the run's learning rate and weight decay, each group times its factor. By `match_rms_adamw` a step of
    Muon is as large as one of AdamW, whose rates then fit; by `original` it wants some 20 to 50 times the rate.
    A stacked matrix, as of a GRU's gates, is one matrix. The steps of matrices are formed in bfloat16.

    Args:
        params: groups of weights of one `sort` each.
        lr: learning rate.
        weight_decay: taken off every weight, times the learning rate.
        momentum: of matrices.
        nesterov: look ahead along it.
        iterations: of Newton and Schulz, toward the nearest orthogonal matrix.
        rate: how a matrix's rate follows from its shape (a, b): `match_rms_adamw`, times 0.2 sqrt(max(a, b)), or
            `original`, times sqrt(max(1, a / b)).
        beta1: of AdamW.
        beta2: of AdamW.

    Raises:
        InputError: torch is older than 2.9, which has none.
    """

    def __init__(
        self,
        params: Iterable[Mapping[str, Any]],
        *,
        lr: float,
        weight_decay: float,
        momentum: float = 0.95,
        nesterov: bool = True,
        iterations: int = 5,
        rate: str = "match_rms_adamw",
        beta1: float = 0.9,
        beta2: float = 0.999,
    ) -> None:
        if not hasattr(torch.optim, "Muon"):
            raise InputError(f"muon needs torch 2.9 or newer, not {torch.__version__}; choose adamw or lion")
        if rate not in _RATES:
            raise InputError(f"rate must be {' or '.join(map(repr, _RATES))}, not {rate!r}")
        if not 0 <= momentum < 1:
            raise InputError(f"momentum must be at least 0 and below 1, not {momentum}")
        if not 1 <= iterations < 100:
            raise InputError(f"iterations must be from 1 to 99, not {iterations}")
        of_matrices = {
            "momentum": momentum,
            "nesterov": nesterov,
            "ns_steps": iterations,
            "adjust_lr_fn": rate,
        }
        others, own = [], []
        for group in params:
            (own if group["sort"] == MATRIX else others).append(dict(group))
        common: dict[str, Any] = {"lr": lr, "weight_decay": weight_decay}
        self._parts: list[torch.optim.Optimizer] = []
        if own:
            self._parts.append(_matrices()(own, **common, **of_matrices))
        if others:
            self._parts.append(AdamW(others, **common, beta1=beta1, beta2=beta2))
        super().__init__([group for part in self._parts for group in part.param_groups], common)
        self._share()

    @staticmethod
    def sort(module: nn.Module, weight: nn.Parameter) -> str:
        """Return `matrix` for weights that Muon trains, else `other`, as for tables of word vectors."""
        table = isinstance(module, nn.Embedding | nn.EmbeddingBag)
        return MATRIX if weight.ndim == 2 and not table else OTHER

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state of both."""
        super().load_state_dict(state_dict)
        self._share()

    def update(self) -> None:
        for part in self._parts:
            part.step()

    def _share(self) -> None:
        """Let both optimisers use the groups and the state of this one, each its own groups."""
        start = 0
        for part in self._parts:
            end = start + len(part.param_groups)
            part.param_groups, part.state, start = self.param_groups[start:end], self.state, end


@functools.cache
def _matrices() -> type[torch.optim.Optimizer]:
    """Return torch's Muon without its compiler."""
    kind = torch.optim.Muon
    step = torch.no_grad()(inspect.unwrap(kind.step))
    return type("Matrices", (Plain, kind), {"step": step, "__doc__": kind.__doc__})
