"""The working directory of a job, before it is sent."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from ray._private import ray_constants

from polypool.infra.errors import InputError
from polypool.infra.ray.jobs import JobServer, refuse_large

KIB = 1024


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of 60 KiB, for a server that takes 50."""
    monkeypatch.setattr(ray_constants, "DASHBOARD_CLIENT_MAX_SIZE", 50 * KIB)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "features").write_bytes(bytes(20 * KIB))
    (tmp_path / "data" / "captions").write_bytes(bytes(10 * KIB))
    (tmp_path / "weights").write_bytes(bytes(25 * KIB))
    (tmp_path / "code").write_bytes(bytes(5 * KIB))
    return tmp_path


def test_what_is_too_large_is_said_with_what_is_in_it(folder: Path) -> None:
    with pytest.raises(InputError) as refused:
        asyncio.run(JobServer(address="http://127.0.0.1:9").run(["true"], folder=folder, env={}, show=print))
    said = str(refused.value)
    assert "it has 0 MiB, and a job server takes 0 MiB" in said
    assert f"in {folder}/.rayignore, a pattern a line" in said
    assert [line.split()[-1] for line in said.splitlines()[1:]] == ["data", "weights", "code"]


@pytest.mark.parametrize(("ignored", "name"), [("data", ".rayignore"), ("/weights", ".gitignore")])
def test_what_is_left_out_does_not_count(
    ignored: str, name: str, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / name).write_text(f"{ignored}\n")
    refuse_large(folder)
    assert capfd.readouterr().err == ""
