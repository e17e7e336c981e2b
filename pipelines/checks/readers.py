"""Promises of readers that can be held to without their files."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import fields

import tyro

from infra.checks import Check
from infra.errors import InputError
from infra.registry import READERS
from pipelines.ingesting.corpora import verb_of


def reader_checks(name: str) -> list[Check]:
    """Return the promises of a reader."""
    return [
        Check(
            what="it is a dataclass that can read",
            run=lambda: _is_record(name),
            advice="decorate it with @dataclass(frozen=True, kw_only=True), and define read",
            vital=True,
        ),
        Check(
            what="its fields are options of `ingest`, each with its help",
            run=lambda: _has_options(name),
            advice="annotate fields with types that a command line has, and say below each in a string what it is",
        ),
    ]


def _is_record(name: str) -> str:
    kind = READERS.get(name)
    assert "__dataclass_fields__" in vars(kind), "it is not decorated as a dataclass"
    missing = getattr(kind, "__abstractmethods__", ())
    assert not missing, f"it has no {', '.join(sorted(missing))}"
    return kind.__qualname__


def _has_options(name: str) -> str:
    said = io.StringIO()
    try:
        with redirect_stdout(said), redirect_stderr(said), suppress(SystemExit):
            tyro.cli(verb_of(name), prog=f"ingest {name}", args=["--help"])
    except InputError:
        raise
    except Exception as error:  # tyro has several for annotations that it cannot read
        raise AssertionError(f"its options cannot be read: {error}") from error
    options = [field.name for field in fields(READERS.get(name)) if field.init]
    lacking = [each for each in options if f"--{each.replace('_', '-')}" not in said.getvalue()]
    assert not lacking, f"no options are made of {', '.join(lacking)}"
    return f"{', '.join(options) or 'none'}; `python -m pipelines.ingest {name} --help`"
