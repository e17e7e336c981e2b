"""Run published implementations on random inputs, and record outputs and gradients."""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

GOLDEN = Path(__file__).parents[1]


class Family:
    """The parts recorded by one script, a `.npz` each, and the `.json` that describes them.

    Args:
        name: folder in `tests/golden`.
    """

    def __init__(self, name: str) -> None:
        parser = argparse.ArgumentParser(description=f"Record the numbers of tests/golden/{name}.")
        parser.add_argument(
            "authors", type=Path, help="the folder of the repositories, each in OWNER+NAME, a git checkout"
        )
        parser.add_argument("--out", type=Path, default=GOLDEN, help="the folder that the files go to")
        options = parser.parse_args()
        self.authors, self.folder = options.authors.resolve(), options.out / name
        self.about: dict[str, Any] = {}

    @contextmanager
    def repository(self, name: str, licence: str, *, under: str = "") -> Iterator[Repository]:
        """Import from a repository `OWNER/NAME`; its modules are removed from `sys.modules` afterwards.

        Args:
            name: `OWNER/NAME`.
            licence: SPDX identifier.
            under: folder that its imports start from.
        """
        root = self.authors / name.replace("/", "+")
        if not root.is_dir():
            sys.exit(f"{root}: no such folder; it is to be a checkout of https://github.com/{name}")
        before = set(sys.modules)
        sys.path.insert(0, str(root / under))
        with _without_cuda():
            yield Repository(self, name, licence, root)
        sys.path.remove(str(root / under))
        for module in set(sys.modules) - before:
            if isinstance(sys.modules[module], _StandIn) or _lies_in(sys.modules[module], root):
                del sys.modules[module]

    def write(self) -> None:
        """Write the descriptions of the parts."""
        self.folder.mkdir(exist_ok=True)
        text = json.dumps(self.about, indent=1, ensure_ascii=False)
        (self.folder / f"{self.folder.name}.json").write_text(text + "\n")


class Repository:
    """A published implementation."""

    def __init__(self, family: Family, name: str, licence: str, root: Path) -> None:
        self.family, self.name, self.licence, self.root = family, name, licence, root

    def load(self, file: str, *, without: tuple[str, ...] = ()) -> Any:
        """Import one of its modules.

        Args:
            file: its dotted name.
            without: imported packages that the recorded code does not use, replaced by empty ones.
        """
        self.stand_in(*without)
        return importlib.import_module(file)

    def stand_in(self, *packages: str) -> None:
        """Replace packages by empty ones."""
        for name in packages:
            _stand_in(name)

    @contextmanager
    def part(self, name: str, files: str, what: str) -> Iterator[Part]:
        """Record a part of ours.

        Args:
            name: registered name of our part.
            files: files of the repository with the recorded code.
            what: recorded class or function.
        """
        git = ["git", "-C", str(self.root), "rev-parse", "HEAD"]
        commit = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
        part = Part(name)
        yield part
        self.family.folder.mkdir(exist_ok=True)
        np.savez_compressed(self.family.folder / f"{name}.npz", **part.arrays)
        self.family.about[name] = {
            "repository": self.name,
            "commit": commit,
            "licence": self.licence,
            "files": files,
            "what": what,
            "cases": part.cases,
        }


class Part:
    """The cases of a part."""

    def __init__(self, name: str) -> None:
        self.arrays: dict[str, np.ndarray] = {}
        self.cases: dict[str, str] = {}
        seed = zlib.crc32(name.encode())
        self.draw = torch.Generator().manual_seed(seed)
        torch.manual_seed(seed)  # for the authors' initialisation

    def normal(self, *shape: int) -> Tensor:
        """Return standard normal numbers."""
        return torch.randn(shape, generator=self.draw)

    def sets(self, *sizes: int, dim: int) -> tuple[Tensor, Tensor]:
        """Return elements `(B, N, D)`, pads included, and the mask `(B, N)` of real ones, which come first."""
        mask_BN = torch.arange(max(sizes)) < torch.tensor(sizes)[:, None]
        return self.normal(len(sizes), max(sizes), dim), mask_BN

    def case(
        self,
        name: str,
        what: str,
        module: nn.Module | None,
        call: Callable[..., Tensor],
        *,
        training: bool = False,
        still: tuple[str, ...] = (),
        **inputs: Tensor,
    ) -> None:
        """Record the output of `call(**inputs)`, and the gradients of the sum of output times `cot`.

        Gradients are taken for floating-point inputs and parameters. First, noise is added to parameters and running
        statistics, except to `still` ones, because many start at special values.
        """
        every = {} if module is None else dict(module.named_parameters())
        params = {key: tensor for key, tensor in every.items() if tensor.requires_grad}
        fixed = {key: tensor for key, tensor in every.items() if key not in params}
        buffers = fixed if module is None else fixed | dict(module.named_buffers())
        with torch.no_grad():
            for key, tensor in (params | buffers).items():
                if tensor.is_floating_point() and key not in still:
                    move = self.normal(*tensor.shape)
                    tensor.add_(0.3 * move if key in params else move.abs())
        if module is not None:
            module.train(training)
            for key, tensor in (params | buffers).items():
                self._keep(f"{name}/param/{key}", tensor)
        floats = {
            key: tensor.requires_grad_() for key, tensor in inputs.items() if tensor.is_floating_point()
        }
        for key, tensor in inputs.items():
            self._keep(f"{name}/{key}", tensor)
        out = call(**{key: tensor * 1 if key in floats else tensor for key, tensor in inputs.items()})
        cot = self.normal(*out.shape) if out.ndim else torch.ones(())
        leaves = [*floats.values(), *params.values()]
        grads = torch.autograd.grad((out * cot).sum(), leaves, allow_unused=True)
        names = [f"grad_{key}" for key in floats] + [f"grad_param/{key}" for key in params]
        for key, grad, leaf in zip(names, grads, leaves, strict=True):
            self._keep(f"{name}/{key}", torch.zeros_like(leaf) if grad is None else grad)
        self._keep(f"{name}/out", out)
        self._keep(f"{name}/cot", cot)
        self.cases[name] = what

    def _keep(self, key: str, tensor: Tensor) -> None:
        self.arrays[key] = tensor.detach().clone().numpy()


class _Unused(type):
    """Type of unused classes, with any attribute."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _unused(name)


def _unused(name: str) -> _Unused:
    return _Unused(name, (nn.Module,), {"__init__": lambda self, *_, **__: nn.Module.__init__(self)})


class _StandIn(ModuleType):
    """An imported but unused package."""

    __path__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _unused(name)


def _stand_in(name: str) -> ModuleType:
    """Return an empty package below its real parents, if these exist."""
    parent, _, last = name.rpartition(".")
    module = sys.modules.setdefault(name, _StandIn(name))
    if parent:
        try:
            above = importlib.import_module(parent)
        except ImportError:
            above = _stand_in(parent)
        setattr(above, last, module)
    return module


def _lies_in(module: ModuleType, root: Path) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and Path(file).resolve().is_relative_to(root)


@contextmanager
def _without_cuda() -> Iterator[None]:
    """Ignore requests for a GPU."""
    tensor, cuda = torch.tensor, Tensor.cuda
    torch.tensor = lambda *args, device=None, **named: tensor(*args, **named)
    Tensor.cuda = lambda self, *args, **named: self
    yield
    torch.tensor, Tensor.cuda = tensor, cuda
