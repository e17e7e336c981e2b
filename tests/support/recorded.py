"""Compare parts with numbers recorded from their authors' code."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor, nn

from polypool.aggregators.aggregator import Aggregator, Context
from polypool.infra.registry import AGGREGATORS

Arrays = Mapping[str, np.ndarray]
Pick = str | Callable[[Arrays], np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Row:
    """A recorded case, and our part to compare it with.

    Attributes:
        case: recorded case, `part/case`.
        spec: our aggregator, as wide as the recorded elements.
        names: recorded array for each of our parameters and buffers, or a function of the recorded arrays.
        of_ours: function that maps our vectors to the recorded layout.
        unlike: recorded parameters and inputs whose gradients differ from ours, with the reason.
        training: compare in training mode.
    """

    case: str
    spec: str
    names: Mapping[str, Pick] = field(default_factory=dict)
    of_ours: Callable[[Tensor], Tensor] = lambda vectors: vectors
    unlike: Mapping[str, str] = field(default_factory=dict)
    training: bool = False

    def __str__(self) -> str:
        return self.case


class Case(Mapping[str, np.ndarray]):
    """The arrays of a case; records which of them were read.

    Args:
        folder: folder of the family.
        case: `part/case`.
        under: prefix of the names.
    """

    def __init__(self, folder: Path, case: str, under: str = "") -> None:
        part, name = case.split("/")
        self.prefix, self.used = f"{name}/{under}", set[str]()
        with np.load(folder / f"{part}.npz", allow_pickle=False) as arrays:
            self.arrays = {
                key.removeprefix(self.prefix): array
                for key, array in arrays.items()
                if key.startswith(self.prefix)
            }

    def __getitem__(self, key: str) -> np.ndarray:
        self.used.add(key)
        return self.arrays[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)


def picked(pick: Pick, arrays: Arrays, like: Tensor) -> Tensor:
    """Return a recorded parameter in the shape of ours."""
    array = arrays[pick] if isinstance(pick, str) else pick(arrays)
    return torch.from_numpy(np.ascontiguousarray(array)).reshape(like.shape)


def rows(name: str, start: int, stop: int) -> Pick:
    """Pick rows of a recorded parameter."""
    return lambda arrays: arrays[name][start:stop]


def transposed(name: str) -> Pick:
    """Pick a parameter, squeezed to two axes and transposed."""
    return lambda arrays: arrays[name].squeeze().T


def layer(ours: str, theirs: str, *, bias: bool = True) -> dict[str, Pick]:
    """Return the names of the weight and bias of a linear map or norm."""
    return {f"{ours}.{kind}": f"{theirs}.{kind}" for kind in ("weight", "bias")[: 1 + bias]}


def load(module: nn.Module, names: Mapping[str, Pick], params: Arrays) -> None:
    """Load the recorded parameters and buffers; all of the module's must be recorded, except batch counts."""
    state = module.state_dict()
    own = {name for name in state if name.endswith("num_batches_tracked")}
    assert set(names) == set(state) - own
    module.load_state_dict({name: picked(names[name], params, state[name]) for name in names}, strict=False)


def hold_to_recorded(folder: Path, row: Row) -> None:
    """Assert that outputs and gradients of an aggregator equal the recorded ones."""
    dim = Case(folder, row.case)["x"].shape[-1]
    module = AGGREGATORS.build(row.spec, dim).train(row.training)
    hold(
        folder,
        row.case,
        module,
        lambda **inputs: row.of_ours(pooled(module, inputs)),
        row.names,
        unlike=row.unlike,
    )


def hold(
    folder: Path,
    case: str,
    module: nn.Module,
    call: Callable[..., Tensor],
    names: Mapping[str, Pick],
    *,
    unlike: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Load the recorded parameters, and compare the outputs of `call` and the gradients of inputs and parameters.

    Recorded parameters without a counterpart must have zero gradients.
    """
    z, params, grads = (Case(folder, case, under) for under in ("", "param/", "grad_param/"))
    load(module, names, params)
    inputs = {key: torch.from_numpy(z[key]) for key in z if not re.match("grad_|param/|out$|cot$", key)}
    floats = {key: tensor.requires_grad_() for key, tensor in inputs.items() if tensor.is_floating_point()}
    out = call(**inputs)
    np.testing.assert_allclose(out.detach(), z["out"], atol=1e-5, rtol=1e-5)
    (out * torch.from_numpy(z["cot"])).sum().backward()
    for key in set(floats) - set(unlike):
        assert_gradient(floats[key].grad, z[f"grad_{key}"], key)
    for name, parameter in module.named_parameters():
        assert_gradient(parameter.grad, picked(names[name], grads, parameter), name)
    for name in set(grads) - grads.used - set(unlike):
        np.testing.assert_allclose(grads[name], 0.0, atol=2e-5, err_msg=f"{name} has a gradient")


def pooled(module: Aggregator, inputs: Mapping[str, Tensor]) -> Tensor:
    """Return the vectors of `x` with its recorded mask, context and global feature."""
    x_BND = inputs["x"]
    mask_BN = inputs.get("mask", torch.ones(x_BND.shape[:2], dtype=torch.bool))
    optional = {}
    if "global" in inputs:
        optional["global_feature_BS"] = inputs["global"]
    if "text" in inputs:
        optional["context"] = Context(
            inputs["text"], inputs.get("text_mask"), all_pairs=len(inputs["text"]) != len(x_BND)
        )
    return module(x_BND, mask_BN, **optional).vectors


def assert_gradient(ours: Tensor | None, recorded: np.ndarray | Tensor, name: str) -> None:
    found = np.zeros(recorded.shape) if ours is None else ours
    np.testing.assert_allclose(found, recorded, atol=2e-5, rtol=1e-4, err_msg=name)
