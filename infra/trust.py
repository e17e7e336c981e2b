"""Trusted modules: those whose code a spec may name as `module:Name`.

A plain name is a registered part or an installed entry point. `module:Name` runs the code of a module: a spec in a
command line or in Python may name any, but one in a file (runs, stores, tags) only a module that is trusted by
`--trust MODULE`, or `trust=("MODULE",)` in Python.

Trust holds for the process, not for a thread, since any thread may use a loaded model; it is sent to Ray workers.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable
from typing import Any

from polypool.infra.errors import InputError

_CODE = re.compile(r"([^\W\d][\w.\-]*):([^\W\d]\w*)")
"""`module:Name` anywhere: also in parameters, brackets and quotes."""
_trusted: set[str] = set()


def trust_modules(*modules: str) -> None:
    _trusted.update(modules)


def trusted() -> tuple[str, ...]:
    """Return the trusted modules, for another process."""
    return tuple(sorted(_trusted))


def modules_of(specs: Iterable[str]) -> tuple[str, ...]:
    """Return the modules that specs name, each once: `gcn(then=mine:Mean)` names `mine`."""
    return tuple(dict.fromkeys(module for spec in specs for module, _ in _CODE.findall(spec)))


def trust_specs(*specs: str) -> None:
    """Trust the modules that specs name, which a user typed or a user's program made."""
    trust_modules(*modules_of(specs))


def refuse_untrusted(spec: str, *, where: str) -> None:
    """Refuse a spec that names an untrusted module, itself or in a parameter; nothing is imported.

    Args:
        spec: as it was read.
        where: the file and its field, for the message.

    Raises:
        InputError: it names one.
    """
    for module in modules_of([spec]):
        if module not in _trusted:
            raise InputError(
                f"{where}: {spec!r} names code of the module {module}; what is read from files may name registered "
                f"parts and installed plug-ins alone. If you trust this code, add --trust {module} "
                f"(in Python, trust=({module!r},))"
            )


def load_part(target: str, *, kind: str = "part", origin: str = "") -> Any:
    """Import what `module:Name` names, which must be trusted.

    Args:
        target: `module:Name`.
        kind: its name in messages.
        origin: follows the name in messages, such as the package of a plug-in.

    Raises:
        InputError: the module cannot be imported, or has nothing of this name.
    """
    if not (match := _CODE.fullmatch(target)):
        raise InputError(
            f"cannot load the {kind} {target!r}{origin}: expected module:Name, a class or function of the module itself"
        )
    module, name = match.groups()
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:  # of any plug-in
        raise InputError(
            f"cannot load the {kind} {target!r}{origin}: {type(error).__name__}: {error}"
        ) from error


def trust_flags(modules: Iterable[str]) -> list[str]:
    """Return the flags of a command line that trust modules."""
    return [word for module in modules for word in ("--trust", module)]
