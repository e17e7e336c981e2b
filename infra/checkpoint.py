"""A training run on disk: weights as safetensors, everything else that a restart needs beside them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from zipfile import is_zipfile

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from infra.compute.dist import gather_objects, rank
from infra.errors import InputError
from infra.fields import at_least, read_record
from infra.files import existing

FILES = ("model.safetensors", "state.pt", "progress.json")
"""What a checkpoint is made of."""


@dataclass(kw_only=True)
class Progress:
    """How far a run is. Samples, not steps, so that it means the same for any number of workers.

    Attributes:
        samples: trained on.
        seconds: that passed in training.
        cost: of training on each worker, in `infra.compute.cost.UNIT`.
        cost_seconds, cost_steps: of how many seconds and steps that is.
        best, best_epoch: the best score on `val` so far.
    """

    samples: Annotated[int, at_least(0)] = 0
    seconds: float = 0.0
    cost: float = 0.0
    cost_seconds: float = 0.0
    cost_steps: Annotated[int, at_least(0)] = 0
    best: float | None = None
    best_epoch: Annotated[int, at_least(0)] = 0


def save_weights(model: nn.Module, path: Path) -> None:
    """Write a model's parameters and buffers."""
    # copied, since two names of one tensor, of a part that is shared, cannot be written
    save_file({name: x.contiguous() for name, x in _copied(model.state_dict()).items()}, path)


def load_weights(model: nn.Module, path: Path, *, optional: tuple[str, ...] = ()) -> None:
    """Read what `save_weights` wrote.

    Args:
        model: of the same architecture.
        path: the file.
        optional: prefixes of names that the file may lack; such a weight stays as it is.

    Raises:
        InputError: the file belongs to another architecture; missing and unexpected names are listed.
    """
    weights, own = _read_weights(path), model.state_dict()
    absent, unexpected = sorted(own.keys() - weights.keys()), sorted(weights.keys() - own.keys())
    missing = [name for name in absent if not name.startswith(optional)]
    shapes = [
        f"{name} {tuple(weights[name].shape)} for {tuple(own[name].shape)}"
        for name in own.keys() & weights.keys()
        if own[name].shape != weights[name].shape
    ]
    if missing or unexpected or shapes:
        raise InputError(
            f"the weights {path} belong to another architecture: missing {missing or 'none'}, "
            f"unexpected {unexpected or 'none'}, other shapes {sorted(shapes) or 'none'}"
        )
    model.load_state_dict(own | weights)


class Filled(NamedTuple):
    """Which of a model's weights and buffers another model's took the place of, by name."""

    taken: tuple[str, ...]
    """Those of the same name and shape."""
    left: tuple[str, ...]
    """The rest of the model's, which stay as they are."""


def fill_weights(model: nn.Module, path: Path) -> Filled:
    """Read from what `save_weights` wrote of any model what has a name and a shape of this one.

    Raises:
        InputError: the file cannot be read, or has nothing of the kind.
    """
    weights, own = _read_weights(path), model.state_dict()
    same = {name: weights[name] for name in own if name in weights and weights[name].shape == own[name].shape}
    if not any(name in same for name, _ in model.named_parameters()):  # a counter alone is nothing
        raise InputError(
            f"the weights {path} have no name and shape in common with the model: they hold {_some(weights)}, and it "
            f"has {_some(own)}"
        )
    model.load_state_dict(own | same)
    return Filled(tuple(same), tuple(name for name in own if name not in same))


def _some(names: Iterable[str]) -> str:
    first, *rest = sorted(names)
    return f"{first} and {len(rest)} more"


def _read_weights(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except Exception as error:  # safetensors raises its own types for damaged headers
        raise InputError(f"cannot read the weights {path}: {error}") from error


class Snapshot:
    """The full state at one moment, in memory of its own: it can be written while training goes on.

    Args:
        model, optimizer, progress: whose state it is; tensors are copied to the host.
        random: the state of every worker's generators, in order of rank.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        progress: Progress,
        *,
        random: list[dict[str, Tensor]],
    ) -> None:
        self._weights = _copied(model.state_dict())
        self._state = {"optimizer": _copied(optimizer.state_dict()), "random": random}
        self._progress = asdict(progress)

    @property
    def samples(self) -> int:
        """How many were trained on."""
        return self._progress["samples"]

    def write(self, folder: Path) -> None:
        """Write the checkpoint."""
        weights, state, position = (folder / name for name in FILES)
        save_file({name: x.contiguous() for name, x in self._weights.items()}, weights)
        torch.save(self._state, state)
        position.write_text(json.dumps(self._progress))


def snapshot(model: nn.Module, optimizer: torch.optim.Optimizer, progress: Progress) -> Snapshot | None:
    """Return the full state, on rank 0 alone; every worker calls this."""
    random_states = gather_objects(_random_state())
    return Snapshot(model, optimizer, progress, random=random_states) if rank() == 0 else None


def _copied(state: Any) -> Any:
    """Return a copy of a tree of dicts and lists, with its tensors on the host."""
    if isinstance(state, Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, dict):
        return {name: _copied(part) for name, part in state.items()}
    return [_copied(part) for part in state] if isinstance(state, list | tuple) else state


def load_checkpoint(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> Progress:
    """Bring back the full state on this worker. A worker that there was not before keeps its random state.

    Raises:
        InputError: a file is missing or damaged, or belongs to another model.
    """
    weights, rest, position = (folder / name for name in FILES)
    load_weights(model, weights)
    progress = read_record(Progress, position, what="how far a run is")
    path = existing(rest, what="the state of an optimiser")
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        optimizer.load_state_dict(state["optimizer"])
        if rank() < len(state["random"]):
            _set_random_state(state["random"][rank()])
    except Exception as error:  # by where the damage is: of pickles, zips, keys, types or shapes
        raise InputError(
            f"{path}: is damaged, or the state of another model ({type(error).__name__}); train the run again"
        ) from error
    return progress


def is_whole(folder: Path) -> bool:
    """Whether all files of a checkpoint are there and none is cut off."""
    weights, rest, position = (folder / name for name in FILES)
    try:
        with safe_open(weights, framework="pt"):  # which compares its length with what it should hold
            pass
        read_record(Progress, position, what="how far a run is")
    except (InputError, OSError, SafetensorError):
        return False
    return is_zipfile(rest)  # the end of such a file says what is in it


def _random_state() -> dict[str, Tensor]:
    state = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def _set_random_state(state: dict[str, Tensor]) -> None:
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
