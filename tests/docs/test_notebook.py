"""The notebook runs from top to bottom, in a process of its own, as a kernel would run it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile

import pytest
from places import ROOT

NOTEBOOK = ROOT / "docs/examples/five_poolings.ipynb"


def cells(kind: str) -> list[dict]:
    return [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == kind]


@pytest.mark.notebook
def test_the_notebook_runs_from_top_to_bottom(tmp_path):
    program = tmp_path / "notebook.py"
    code = ["".join(cell["source"]) for cell in cells("code")]
    last = 'assert len(hits) == 5 and {*table["row"]} == {"mean", "gpo"}'
    # a kernel has no `if __name__` either: Ray's workers import nothing of it
    program.write_text("\n\n".join([*code, last]))
    with tempfile.TemporaryDirectory(
        prefix="nb"
    ) as short:  # the paths of Ray's sockets have at most 107 bytes
        environment = os.environ | {"TMPDIR": short, "POLYPOOL_EPOCHS": "1"}
        command = [sys.executable, str(program)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    printed = done.stdout.splitlines()
    for spec in ("mean", "max", "kmax(k=5)", "gpo", "esa"):
        assert any(line.startswith(spec) and "(4, " in line for line in printed)
    assert sum("RSUM" in line for line in printed) == 2
    assert sum(line[:2] in ("1.", "5.") for line in printed) == 4


def test_the_notebook_is_kept_without_what_it_printed():
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells("code"))
    assert all("".join(cell["source"]).strip() for cell in cells("markdown"))
