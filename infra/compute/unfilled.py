"""Models without values, for when only the names and shapes of their weights are asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
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
        options, name = options or {}, getattr(function, "__name__", "")
        first = next(chain(arguments, options.values()), None)  # torch.nn.init names all it passes on
        writes = name.endswith("_") and not name.endswith("__") and name != "requires_grad_"
        return first if writes and isinstance(first, nn.Parameter) else function(*arguments, **options)
