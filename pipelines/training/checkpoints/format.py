"""Format of a checkpoint: weights as safetensors, and beside them all else that a restart needs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from polypool.encoders.adaptations import check_published, left_out
from polypool.encoders.visual.resnet import fill
from polypool.infra.compute.dist import gather_objects, rank
from polypool.infra.digests import DIGESTS, damaged, refuse_damaged, write_digests
from polypool.infra.errors import InputError
from polypool.infra.fields import at_least, read_record
from polypool.infra.files import existing
from polypool.pipelines.training.loop.averaging import WeightAverage

FILES = ("model.safetensors", "state.pt", "progress.json")
"""The files of a checkpoint."""


@dataclass(kw_only=True)
class Progress:
    """Progress of a run, in samples instead of steps: equal for any number of workers.

    Attributes:
        samples: trained on.
        seconds: of wall-clock time in training.
        cost: of training on each worker, in `polypool.infra.compute.cost.UNIT`.
        cost_seconds, cost_steps: over which `cost` was counted.
        best, best_epoch: the best score on `val` so far.
        precision: of the steps, which stays where another machine goes on.
    """

    samples: Annotated[int, at_least(0)] = 0
    seconds: float = 0.0
    cost: float = 0.0
    cost_seconds: float = 0.0
    cost_steps: Annotated[int, at_least(0)] = 0
    best: float | None = None
    best_epoch: Annotated[int, at_least(0)] = 0
    precision: Literal["float32", "bfloat16"] | None = None


def save_weights(model: nn.Module, path: Path) -> None:
    """Write a model's parameters and buffers, without those that are published and stay so."""
    _write_weights(_own_weights(model), path)


def _own_weights(model: nn.Module) -> dict[str, Tensor]:
    published = left_out(model)
    return {name: _copied(x) for name, x in model.state_dict().items() if name not in published}


def _write_weights(weights: dict[str, Tensor], path: Path) -> None:
    # of copies: safetensors refuses two names of one tensor, as of a shared part
    save_file({name: x.contiguous() for name, x in weights.items()}, path)


def load_weights(model: nn.Module, path: Path, *, optional: tuple[str, ...] = ()) -> None:
    """Read what `save_weights` wrote.

    Args:
        model: of the same architecture.
        path: the file.
        optional: prefixes of names that the file may lack; such a weight keeps its value.

    Raises:
        InputError: the file belongs to another architecture; lists missing and unexpected names.
    """
    weights, published = _read_weights(path), left_out(model)
    check_published(model, weights, where=path)
    kept = {
        name: x for name, x in model.state_dict().items() if name in published or name.startswith(optional)
    }
    fill(model, kept | weights, where=path)


def fill_weights(model: nn.Module, path: Path) -> tuple[list[str], list[str]]:
    """Load the weights of any model that have a name and a shape of this one.

    Returns:
        The names that were loaded, and those of the model that keep their values.

    Raises:
        InputError: the file cannot be read, or has no parameter in common with the model.
    """
    weights, own = _read_weights(path), model.state_dict()
    same = {name: weights[name] for name in own if name in weights and weights[name].shape == own[name].shape}
    if not any(name in same for name, _ in model.named_parameters()):  # buffers alone do not count
        raise InputError(
            f"the weights {path} have no name and shape in common with the model: they hold {_some(weights)}, and it "
            f"has {_some(own)}"
        )
    model.load_state_dict(own | same)
    return [*same], [name for name in own if name not in same]


def _some(names: Iterable[str]) -> str:
    first, *rest = sorted(names)
    return f"{first} and {len(rest)} more"


def _read_weights(path: Path) -> dict[str, Tensor]:
    try:
        weights = load_file(path)
    except Exception as error:  # safetensors raises its own types for damaged headers
        raise InputError(
            f"cannot read the weights {path}: {error}; the file is damaged, or no file of weights; copy it again, or "
            "export or train the model again"
        ) from error
    for name, x in weights.items():
        if x.is_floating_point() and x.isnan().any():  # infinity may be meant, as in a mask
            raise InputError(f"the weights {path} are damaged: {name} has values that are NaN")
    return weights


class Snapshot:
    """A copy of the full state, which can be written while training goes on.

    Args:
        model, optimizer, progress, average: the state; tensors are copied to the host.
        random: states of every worker's generators, by rank.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        progress: Progress,
        average: WeightAverage | None = None,
        *,
        random: list[dict[str, Tensor]],
    ) -> None:
        self._weights = _own_weights(model)
        self._state = {"optimizer": _copied(optimizer.state_dict()), "random": random}
        self._state |= {"average": _copied(average.state())} if average else {}
        self._progress = asdict(progress)

    @property
    def samples(self) -> int:
        return self._progress["samples"]

    def write(self, folder: Path) -> None:
        weights, state, position = (folder / name for name in FILES)
        _write_weights(self._weights, weights)
        torch.save(self._state, state)
        position.write_text(json.dumps(self._progress))
        write_digests(folder, FILES)


def snapshot(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    progress: Progress,
    average: WeightAverage | None = None,
) -> Snapshot | None:
    """Return the full state on rank 0, None on others; every worker calls this."""
    random_states = gather_objects(_random_state())
    return Snapshot(model, optimizer, progress, average, random=random_states) if rank() == 0 else None


def _copied(state: Any) -> Any:
    """Return a copy of a tree of dicts and lists, with its tensors on the host."""
    if isinstance(state, Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, dict):
        return {name: _copied(part) for name, part in state.items()}
    return [_copied(part) for part in state] if isinstance(state, list | tuple) else state


def load_checkpoint(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    average: WeightAverage | None = None,
) -> Progress:
    """Restore the full state on this worker; a rank that the checkpoint lacks keeps its random state.

    Raises:
        InputError: a file is missing or damaged, or belongs to another model.
    """
    weights, rest, position = (folder / name for name in FILES)
    refuse_damaged(folder, then="train the run again")
    load_weights(model, weights)
    progress = read_record(Progress, position, what="the progress of a run")
    path = existing(rest, what="the state of an optimiser")
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        optimizer.load_state_dict(state["optimizer"])
        if average:
            average.load(state["average"])
        if rank() < len(state["random"]):
            _set_random_state(state["random"][rank()])
    except Exception as error:  # pickle, zip, key, type or shape errors, by where the damage is
        raise InputError(
            f"{path}: is damaged, or the state of another model ({type(error).__name__}); train the run again"
        ) from error
    return progress


def is_whole(folder: Path) -> bool:
    """Whether all files of a checkpoint are as they were written."""
    try:
        return (folder / DIGESTS).is_file() and not damaged(folder)
    except (InputError, OSError):
        return False


def _random_state() -> dict[str, Tensor]:
    state = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def _set_random_state(state: dict[str, Tensor]) -> None:
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
