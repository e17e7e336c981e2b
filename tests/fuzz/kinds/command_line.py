"""Typed text: specs of parts, and paths in the place of files and folders."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from unittest.mock import patch

from PIL import Image

from fuzz.cases import Kind, SilentlyWrong, expect
from polypool.infra.registry import AGGREGATORS
from polypool.infra.spec import Spec
from polypool.pipelines.commands import ingest

_SPECS = [
    "mean",
    "kmax(k=5)",
    "gem(p=3.0)",
    "logsumexp(sharpness=1.0, average=True)",
    "slots(k=4, heads=2)",
    "gpo",
]
_LINES = [
    "karpathy --json PATH --images images --out out",
    "karpathy --json empty.json --images PATH --out out",
    "karpathy --json empty.json --images images --out PATH",
    "scan --dir PATH --out out",
    "msrvtt --json PATH --out out --videos images",
    "msvd --captions PATH --lists PATH --out out",
    "hgr --captions PATH --splits PATH --out out",
    "vqa2 --questions PATH --annotations PATH --out out",
    "butd --tsv PATH --out PATH",
    "hdf5 --file PATH --ids PATH --out out",
    "arrays --dir PATH --out out",
    "hgr-features --dir PATH --splits PATH --out out",
    "verify --store PATH",
]


def _specs(folder: Path) -> None:
    (folder / "spec.txt").write_text("logsumexp(sharpness=1.0, average=True)")


def _build(folder: Path) -> int:
    """Build what a spec names; what is no aggregator is refused before it is called."""

    def called(*_: object) -> None:
        raise SilentlyWrong("a spec called something that is no aggregator")

    spec = (folder / "spec.txt").read_bytes().decode("utf-8", "surrogateescape")
    parsed = Spec.parse(spec)
    expect(Spec.parse(str(parsed)).name == parsed.name, f"{spec!r} reads as {parsed}")
    with patch.object(os, "system", called), patch.object(os, "abort", called):
        AGGREGATORS.build(spec, 8)
    return 0


def _paths(folder: Path) -> None:
    (folder / "images").mkdir()
    Image.new("L", (2, 2)).save(folder / "images" / "0.png")
    (folder / "images" / "loop").symlink_to(".")
    (folder / "empty.json").write_text('{"images": []}')
    (folder / "loop.json").symlink_to("loop.json")
    (folder / "paths.txt").write_text("images\nempty.json\nloop.json\nno/such/file\nimages/0.png/0.png")


def _type(folder: Path) -> int:
    """Give every verb the paths of a file, one after another, with as many of its lines as it reads well."""
    text = (folder / "paths.txt").read_bytes().decode("utf-8", "surrogateescape")
    path = text.split("\n")[0] or "."
    for line in _LINES:
        words = [path if word == "PATH" else word for word in line.split()]
        with patch.object(sys, "argv", ["ingest", *words]):
            try:
                ingest.main()
            except SystemExit as stop:
                if stop.code not in (0, 1, 2):
                    raise
    return 0


KINDS = [
    Kind(name="specs", make=_specs, read=_build, damaged={"spec.txt": "spec"}),
    Kind(name="paths", make=_paths, read=_type, damaged={"paths.txt": "paths"}),
]
