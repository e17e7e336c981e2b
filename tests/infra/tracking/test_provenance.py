from __future__ import annotations

import os

from polypool.infra.tracking import provenance as named


def test_processors_and_gpus_are_counted_and_no_host_is_named(tmp_path, monkeypatch):
    (tmp_path / "cpuinfo").write_text(
        "model name\t: Fast  CPU @ 3 GHz\nflags: a\nmodel name\t: Fast  CPU @ 3 GHz\n"
    )
    for number, model in enumerate(("NVIDIA H100", "NVIDIA H100", "NVIDIA T4")):
        (tmp_path / f"gpus/{number}").mkdir(parents=True)
        (tmp_path / f"gpus/{number}/information").write_text(f"Model: \t\t {model}\nIRQ: 1\n")
    monkeypatch.setattr(named, "_CPU", tmp_path / "cpuinfo")
    monkeypatch.setattr(named, "_GPUS", tmp_path / "gpus")
    cores = len(os.sched_getaffinity(0))
    assert named.machine().endswith(f", {cores} x Fast CPU @ 3 GHz, 2 x NVIDIA H100, 1 x NVIDIA T4")
    assert os.uname().nodename not in named.machine()
    monkeypatch.setattr(named, "_CPU", tmp_path / "none")
    monkeypatch.setattr(named, "_GPUS", tmp_path / "none")
    assert named.machine().count(",") == 1
