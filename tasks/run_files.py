"""Run files in YAML or JSON: a recipe with changes, or a complete run, as `run.json` is."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError

from polypool.infra.errors import InputError
from polypool.infra.files import existing
from polypool.infra.registry import RECIPES
from polypool.infra.spec import refuse_untrusted
from polypool.tasks.run import Run, from_json, to_json

SUFFIXES = (".yaml", ".yml", ".json")
_LARGEST = 1 << 20  # bytes
BASE = "base"  # what names the recipe that a file changes
_PARTS = ("data", "optim")  # settings that have settings, of which a file may change some


class _Loader(yaml.SafeLoader):
    """Reads `1e-3` as the number that it is to everybody but YAML 1.1, and each name once.

    Aliases are not read: a kB of them can fill memory.
    """

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise ComposerError(None, None, "aliases are not read", self.peek_event().start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[str, Any]:
        names = [self.construct_object(key, deep=deep) for key, _ in node.value]
        for at, name in enumerate(names):
            if not isinstance(name, str) or name in names[:at]:
                why = "is given twice" if isinstance(name, str) else "is no name of a setting"
                raise ConstructorError(None, None, f"{name!r} {why}", node.value[at][0].start_mark)
        return super().construct_mapping(node, deep)


_FLOAT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))


def read_run_file(path: str | Path) -> Run:
    """Return the run of a file.

    Settings that it does not give are those of the recipe that it names as `base`, and without one `Run`'s own.

    Raises:
        InputError: there is no such file, it is no YAML or JSON of settings, its base is no recipe of one run, or
            `polypool.tasks.run.from_json` refuses its settings, such as code of a module that is not trusted.
    """
    path = existing(path, what="a run in YAML or JSON")
    data = path.read_bytes()
    if len(data) > _LARGEST:
        raise InputError(f"{path}: {len(data):,} bytes; a run has at most {_LARGEST:,}")
    try:
        values = yaml.load(data, _Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read as YAML or JSON: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise InputError(f"{path}: expected settings such as `base: coco_mini` and `aggregator: gpo`")
    base = values.pop(BASE, None)
    return from_json(values if base is None else _changed(base, values, where=path), where=str(path))


def _changed(base: Any, values: Mapping[str, Any], *, where: Path) -> dict[str, Any]:
    """Return the settings of a recipe with those that a file gives."""
    refuse_untrusted(str(base), where=f"{where}: {BASE}")
    try:
        recipe = RECIPES.get(str(base))()
    except InputError as error:
        raise InputError(f"{where}: {BASE}: {error}") from error
    if not isinstance(recipe, Run):
        members = ", ".join(recipe.members)
        raise InputError(f"{where}: {BASE}: {base!r} is an ensemble; name one of its members: {members}")
    settings = json.loads(json.dumps(to_json(recipe)))
    parts = {name: values[name] for name in _PARTS if isinstance(values.get(name), dict)}
    return settings | values | {name: settings[name] | part for name, part in parts.items()}
