"""Run GPU code paths without a GPU: on the device `meta`, whose tensors have no values to read, or on a CPU."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch
import torch._dynamo.trace_rules
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

META = torch.device("meta")
torch._dynamo.trace_rules.get_torch_obj_rule_map()  # built before functions are patched


class NoCopies(TorchDispatchMode):
    """Refuses copies from the host, which a captured graph could not repeat."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given, made = (
            {leaf.device.type for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)}
            for tree in ((args, kwargs), out)
        )
        assert not ("cpu" in given and "meta" in given | made and "copy" in str(func)), (
            f"{func} copies from the host"
        )
        return out


@contextmanager
def without_device_reads() -> Iterator[None]:
    """Fail if code on `META` reads a value or copies from the host; autocast, which does not support `META`, is off."""
    autocast, enabled = torch.autocast, torch.is_autocast_enabled
    with (
        mock.patch(
            "torch.autocast",
            lambda kind, *a, **k: nullcontext() if kind == "meta" else autocast(kind, *a, **k),
        ),
        mock.patch("torch.is_autocast_enabled", lambda *kind: "meta" not in kind and enabled(*kind)),
        NoCopies(),
    ):
        yield


def on_meta(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: x.to(META) for name, x in batch.items()}


@contextmanager
def gpu_paths_on_cpu() -> Iterator[None]:
    """Take the GPU code paths, which read only shapes, on the CPU."""
    with ExitStack() as stack:
        for name, module in [*sys.modules.items()]:
            if name.startswith("polypool.") and "shapes_only" in vars(module):
                stack.enter_context(mock.patch.object(module, "shapes_only", return_value=True))
        yield
