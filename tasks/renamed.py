"""Settings of runs of earlier versions, under their present names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_AMSGRAD = "optim.amsgrad"
_OPTIMISERS = {"False": "adamw", "True": "adamw(amsgrad=True)"}


def renamed_params(params: Mapping[str, str]) -> dict[str, str]:
    """Return a run's tracked settings under their present names: `optim.amsgrad` became `optim.optimiser`."""
    params = dict(params)
    if params.get(_AMSGRAD) in _OPTIMISERS and "optim.optimiser" not in params:
        params["optim.optimiser"] = _OPTIMISERS[params.pop(_AMSGRAD)]
    return params


def renamed(values: Any) -> Any:
    """Return the JSON of a run of any version under the present names of settings."""
    optim = values.get("optim") if isinstance(values, dict) else None
    if not isinstance(optim, dict) or not isinstance(optim.get("amsgrad"), bool) or "optimiser" in optim:
        return values
    kept = {name: value for name, value in optim.items() if name != "amsgrad"}
    return values | {"optim": kept | {"optimiser": _OPTIMISERS[str(optim["amsgrad"])]}}
