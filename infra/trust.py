"""Whose code may run: the modules that specs may name as `module:Name`.

A plain name is a registered part or an installed entry point, wherever it comes from. `module:Name` runs the code of a
module, for which somebody has to vouch. Who types it in a command or writes it in Python does so; a file never does:
what is read back (runs, stores, tags) may name a module only after `--trust MODULE`, or `trust=("MODULE",)` in Python.

Modules are trusted by the process, not by a thread, since any thread may ask a model that was loaded; what is sent to
Ray's workers takes `trusted` along.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable
from typing import Any

from infra.errors import InputError

_CODE = re.compile(r"([^\W\d][\w.\-]*):([^\W\d]\w*)")
"""`module:Name`, wherever it stands: in parameters, brackets and quotes, too."""
_trusted: set[str] = set()


def trust_modules(*modules: str) -> None:
    """Let specs name parts of these modules, and no others, as `module:Name`, from now on."""
    _trusted.update(modules)


def trusted() -> tuple[str, ...]:
    """Return the modules that are trusted, to trust them in another process."""
    return tuple(sorted(_trusted))


def modules_of(specs: Iterable[str]) -> tuple[str, ...]:
    """Return the modules that specs name, and the specs inside them, each once: `gcn(then=mine:Mean)` names `mine`."""
    return tuple(dict.fromkeys(module for spec in specs for module, _ in _CODE.findall(spec)))


def vouch(*specs: str) -> None:
    """Trust the modules that specs name; for what people typed, and for what a program of theirs made."""
    trust_modules(*modules_of(specs))


def refuse_untrusted(spec: str, *, where: str) -> None:
    """Refuse a spec that names a module which nobody trusts; nothing is imported.

    Args:
        spec: as it was read.
        where: the file and its field, for the message.

    Raises:
        InputError: it names such a module, itself or in a parameter.
    """
    for module in modules_of([spec]):
        if module not in _trusted:
            raise InputError(
                f"{where}: {spec!r} names code of the module {module}; what is read from files may name registered "
                f"parts and installed plug-ins alone. Where you know that this code may run, say --trust {module} "
                f"(in Python, trust=({module!r},))"
            )


def load_part(target: str, *, kind: str = "part", origin: str = "") -> Any:
    """Return what `module:Name` names, whatever it is; its module is imported, so somebody has to trust it.

    Args:
        target: `module:Name`.
        kind: what it is called in messages.
        origin: said after the name, such as which package plugs it in.

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
    except Exception as error:  # a plug-in may raise anything; it is named and the rest goes on
        raise InputError(
            f"cannot load the {kind} {target!r}{origin}: {type(error).__name__}: {error}"
        ) from error


def trust_flags(modules: Iterable[str]) -> list[str]:
    """Return the words of a command line that trust modules."""
    return [word for module in modules for word in ("--trust", module)]
