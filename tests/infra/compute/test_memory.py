"""Memory that is kept is not asked for again."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest

from infra.compute import memory

FAULTS = """
import resource
import torch
from infra.compute.memory import keep_freed_memory
{call}
def step():
    for _ in range(4):
        torch.zeros(12 << 20).add_(1)
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(call: str) -> int:
    script = [sys.executable, "-c", FAULTS.format(call=call)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "THP_MEM_ALLOC_ENABLE": "0"}
    return int(subprocess.run(script, env=env, check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library is not GNU's")
def test_a_step_after_the_first_asks_the_system_for_nothing():
    assert 4 * faults("keep_freed_memory()") < faults("")


def test_other_c_libraries_are_left_alone(monkeypatch):
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda _: object())
    memory.keep_freed_memory()
