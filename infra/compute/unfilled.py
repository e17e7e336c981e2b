"""Models with uninitialised weights, for reading parameter names and shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

from torch import nn
from torch.overrides import TorchFunctionMode


class Unfilled(TorchFunctionMode):
    """Leaves parameters uninitialised: memory that is never written costs nothing.

    Initialising on the device `meta` would import torch's compiler, which takes two seconds.
    """

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        arguments: Sequence[Any] = (),
        options: Mapping[str, Any] | None = None,
    ) -> Any:
        options, name = options or {}, getattr(function, "__name__", "")
        first = next(chain(arguments, options.values()), None)  # torch.nn.init passes all arguments by name
        writes = name.endswith("_") and not name.endswith("__") and name != "requires_grad_"
        return first if writes and isinstance(first, nn.Parameter) else function(*arguments, **options)
