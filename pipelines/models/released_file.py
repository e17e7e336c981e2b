"""Reading a released VSE-infinity model (`model_best.pth`) without running anything that it may hold."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.serialization import safe_globals

from polypool.infra.errors import InputError
from polypool.infra.files import existing


@dataclass(frozen=True, kw_only=True)
class Release:
    """What a file holds: weights as `img_enc.*` and `txt_enc.*`, the authors' command line, how far and how good."""

    path: Path
    weights: dict[str, Tensor]
    options: dict[str, Any]
    epoch: int
    best_rsum: float

    def shape(self, name: str) -> torch.Size:
        """Return the shape of a weight that says how wide the model is."""
        if name not in self.weights:
            raise self.refusal(missing=[name])
        return self.weights[name].shape

    def refusal(self, *, missing: Iterable[str] = (), unexpected: Iterable[str] = ()) -> InputError:
        """Return the error for weights of another architecture."""
        return InputError(
            f"the weights {self.path} are those of another architecture: missing {_listed(missing)}; unexpected "
            f"{_listed(unexpected)}"
        )


def read_release(path: Path) -> Release:
    """Read a `model_best.pth`, in DataParallel or not, of old or new versions of torch.

    torch's restricted unpickler builds tensors and plain containers, and here `argparse.Namespace` too, in which the
    authors keep their command line: that class only sets attributes of its own. Any other name in the file is
    refused before it is imported.

    Raises:
        InputError: no such file, it is damaged, holds other classes, or is no model of VSE-infinity.
    """
    path = existing(path, what="a model_best.pth of VSE-infinity")
    try:
        with safe_globals([Namespace]):
            held = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises anything from EOFError to UnpicklingError
        if refused := re.search(r"GLOBAL (\S+)", str(error)):
            raise InputError(
                f"{path} holds {refused[1]}, which is neither a tensor nor plain data: to read it could run code, so "
                "nothing of it was read; fetch it again if it was cut short, else take the one that the authors publish"
            ) from error
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise InputError(
            f"{path} is damaged, or not written by torch.save ({reason}); fetch it again"
        ) from error
    if not _is_release(held):
        content = ", ".join(map(str, held)) if isinstance(held, dict) else type(held).__name__
        raise InputError(
            f"{path} is no model of VSE-infinity: expected `model`, the weights of two encoders, and `opt`, the "
            f"command line; found {content or 'nothing'}"
        )
    weights = {
        f"{encoder}.{name.removeprefix('module.')}": x
        for encoder, state in zip(("img_enc", "txt_enc"), held["model"], strict=True)
        for name, x in state.items()
    }
    reached = {"epoch": int(held.get("epoch", 0)), "best_rsum": float(held.get("best_rsum", 0))}
    return Release(path=path, weights=weights, options=vars(held["opt"]), **reached)


def _is_release(held: object) -> bool:
    if not isinstance(held, dict) or not isinstance(held.get("opt"), Namespace):
        return False
    states = held.get("model")
    return (
        isinstance(states, list | tuple)
        and len(states) == 2
        and all(isinstance(state, dict) for state in states)
        and all(isinstance(x, Tensor) for state in states for x in state.values())
    )


def _listed(names: Iterable[str], *, most: int = 20) -> str:
    names = sorted(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return (", ".join(names[:most]) or "none") + more
