"""The command line: `polypool VERB ...`, or `python -m polypool VERB ...`."""

from __future__ import annotations

import ast
import importlib
import sys
from contextlib import redirect_stdout
from importlib.util import find_spec
from pathlib import Path

from polypool.infra.errors import InputError, unknown
from polypool.infra.extras import needed
from polypool.infra.process.output import HELP, Printable, open_closed_streams
from polypool.infra.process.stopping import exit_now, set_handler

COMMANDS = "polypool.pipelines.commands"


def main() -> None:
    """Run the verb named on the command line; only its module is imported."""
    set_handler(exit_now)
    open_closed_streams()
    with redirect_stdout(Printable(sys.stdout)):
        try:
            _call()
        finally:
            sys.stdout.flush()


def _call() -> None:
    known = verbs()
    name, *words = sys.argv[1:] or ["--help"]
    if name.startswith("-") and (verb := next((word for word in words if word in known), "")):  # --quiet VERB
        before = words.index(verb)
        name, words = verb, [*words[before + 1 :], name, *words[:before]]
    elif name.startswith("-") and {"--help", "-h"} & {*words}:
        name = "--help"
    if name in ("--help", "-h"):
        width = max(map(len, known))
        print("polypool VERB ...; `polypool VERB --help` says more\n")
        print("\n".join(f"  {verb:<{width}}  {about}" for verb, about in known.items()))
        print(f"\n{HELP}")
        if find_spec("tyro") is None:
            print("\nverbs need more packages: pip install 'polypool[all]'")
        sys.exit(0 if sys.argv[1:] else 2)
    if name not in known:
        print(f"error: {unknown('verb', name, known)}", file=sys.stderr)
        sys.exit(2)
    sys.argv = [f"polypool {name}", *words]
    try:
        with needed():
            verb = importlib.import_module(f"{COMMANDS}.{name}")
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    verb.main()


def verbs() -> dict[str, str]:
    """Return each verb with its summary, from the first line of its module's docstring; no verb is imported."""
    (folder,) = importlib.import_module(COMMANDS).__path__
    found = {}
    for file in sorted(Path(folder).glob("*.py")):
        source = file.read_text()
        if "def main()" in source:
            about = (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]
            found[file.stem] = about.rpartition("`: ")[2]
    return found


if __name__ == "__main__":
    main()
