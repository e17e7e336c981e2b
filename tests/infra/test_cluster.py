from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from places import ROOT

from infra import paths
from infra.errors import InputError
from infra.ray.head import private_head
from infra.ray.progress import LineBar

JOB = "import os; from infra.paths import home; print('home is', home()); print('from', os.getcwd())"


def alive(folder: str) -> list[str]:
    """The processes that name a head's folder on their command line."""
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = process.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if folder in words:
            found.append(words)
    return found


def folders() -> set[Path]:
    return set(Path("/tmp").glob("pp-*"))


def test_a_job_runs_on_a_private_head_that_leaves_nothing_behind():
    before = folders()
    with private_head(cpus=1) as head:
        (folder,) = folders() - before
        assert alive(str(folder))
        words = [sys.executable, "-m", "ray.scripts.scripts", "job", "submit", "--address", head.address]
        job = subprocess.run(
            [*words, "--working-dir", str(ROOT), "--", sys.executable, "-c", JOB],
            env={**os.environ, **head.env, "POLYPOOL_HOME": ""},
            capture_output=True,
            text=True,
            check=False,
        )
        assert job.returncode == 0, job.stdout + job.stderr
        assert f"home is {ROOT}" in job.stdout, "a job finds its way back to the project"
        assert f"from {folder}" in job.stdout
    assert not folder.exists()
    time.sleep(1)
    assert not alive(str(folder))


def test_a_head_ends_when_its_owner_is_terminated():
    before = folders()
    code = (
        "from infra.ray.head import private_head\nwith private_head(cpus=1): print('up', flush=True); input()"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout.readline() == "up\n"
    (folder,) = folders() - before
    owner.send_signal(signal.SIGTERM)
    assert owner.wait(60) == 128 + signal.SIGTERM
    time.sleep(1)
    assert not alive(str(folder))


def test_home_is_refused_to_a_job_that_cannot_find_the_project(monkeypatch, tmp_path):
    monkeypatch.delenv("POLYPOOL_HOME", raising=False)
    assert paths.home() == Path.cwd()
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    assert paths.home() == ROOT
    monkeypatch.setattr(paths, "_editable_folder", lambda: None)
    with pytest.raises(InputError, match="MLFLOW_TRACKING_URI"):
        paths.home()
    monkeypatch.setenv("POLYPOOL_HOME", str(tmp_path))
    assert paths.resolve("data/x") == tmp_path / "data/x"
    assert paths.resolve("/data/x") == Path("/data/x")


def test_progress_in_a_log_is_a_line_now_and_then(capsys):
    bar = LineBar(desc="demo", total=40, every=0.0)
    bar.update(10)
    bar.set_description("demo epoch 1")
    bar.update(1)
    bar.close()
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in lines] == ["10/40", "11/40", "11/40"]
    assert lines[0].startswith("█" * 5 + "░" * 15)
    assert lines[1].endswith("demo epoch 1")
    quiet = LineBar(desc="demo", total=40, every=60.0)
    quiet.update(1)
    assert capsys.readouterr().err == ""
