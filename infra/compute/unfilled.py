"""Models without values, for when only the names and shapes of their weights are asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn
from torch.overrides import TorchFunctionMode


class Unfilled(TorchFunctionMode):
    """Leaves parameters as their memory comes, which the system gives when somebody writes to it: they cost nothing.

    On the device `meta`, filling one imports torch's compiler, which takes two seconds.
    """

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        arguments: Sequence[Any] = (),
        options: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a function of torch, unless it would write into a parameter."""
        name = getattr(function, "__name__", "")
        writes = name.endswith("_") and not name.endswith("__") and name != "requires_grad_"
        if writes and arguments and isinstance(arguments[0], nn.Parameter):
            return arguments[0]
        return function(*arguments, **(options or {}))
