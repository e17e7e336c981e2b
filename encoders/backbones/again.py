"""The backbone that a feature store names, built again for what is not in the store."""

from __future__ import annotations

import inspect
import reprlib
from collections.abc import Mapping
from typing import Any

from encoders.backbones.base import Backbone, build_backbone
from infra.errors import InputError
from infra.fields import from_plain
from infra.registry import BACKBONES
from infra.trust import refuse_untrusted


def spec_again(extractor: Any, *, where: str) -> str:
    """Return the spec of a backbone.

    Args:
        extractor: what it said of itself (`Backbone.describe`), as it was read.
        where: the file and its field, for messages.

    Raises:
        InputError: there is no such backbone, or it is of a module that nobody trusts.
    """
    described = from_plain(dict[str, Any], extractor, where=where)
    name = from_plain(str, described.get("backbone"), where=f"{where}.backbone")
    refuse_untrusted(name, where=f"{where}.backbone")
    takes = inspect.signature(BACKBONES.get(name)).parameters
    params = {key: value for key, value in described.items() if key in takes and value is not None}
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in params.items())})"


def backbone_again(extractor: Mapping[str, Any], *, where: str, store: str) -> Backbone:
    """Return the backbone that made the features of a store.

    Args:
        extractor: what it said of itself, as it was read.
        where: the file and its field, for messages.
        store: the folder, likewise.

    Raises:
        InputError: it cannot be had, or is another one now.
    """
    spec = spec_again(extractor, where=where)
    try:
        built = build_backbone(spec)
    except InputError as error:
        raise InputError(f"{store}: the backbone of its features cannot be had: {error}") from error
    here = built.describe()
    if differing := sorted(key for key in extractor | here if extractor.get(key) != here.get(key)):
        what = ", ".join(
            f"{key} {_SHOWN.repr(extractor.get(key))}, here {_SHOWN.repr(here.get(key))}" for key in differing
        )
        raise InputError(
            f"{store}: its backbone cannot be had as it was ({what}); install what it was made with, or extract the "
            "store again and train on it"
        )
    return built


_SHOWN = reprlib.Repr()
"""Shows what differs in a message: a tokenizer takes megabytes."""
_SHOWN.maxstring = _SHOWN.maxother = 80
