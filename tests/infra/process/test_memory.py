from __future__ import annotations

import ctypes
import gc
import os

import pytest
from programs import begin, end

from polypool.infra.process import memory
from polypool.infra.process.memory import no_collection

COMMAND = """
import atexit, gc
from polypool.infra.process.command import command
atexit.register(lambda: print(gc.get_freeze_count() > 1000))

@command
def main():
    print(gc.get_threshold()[0] > 10_000, gc.get_freeze_count() < 1000)

main()
"""
FAULTS = """
import resource
import torch
from polypool.infra.process.memory import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(8):
        torch.zeros(12 << 20).add_(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

freed = faults()
keep_freed_memory()
faults()
print(4 * faults() < freed)
"""


def run(code: str, **env: str) -> str:
    code, out, err = end(begin("-c", code, env=os.environ | env))
    assert code == 0, err
    return out


def test_commands_collect_garbage_rarely_and_not_at_exit():
    assert run(COMMAND).splitlines() == ["True True", "True"]


def test_collection_is_enabled_again_also_after_an_error():
    assert gc.isenabled()
    with no_collection():
        with no_collection():
            assert not gc.isenabled()
        assert not gc.isenabled(), "it was disabled before the inner block"
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError), no_collection():
        1 / 0  # noqa: B018
    assert gc.isenabled()


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library is not GNU's")
def test_a_step_after_the_first_causes_few_page_faults():
    assert run(FAULTS, OMP_NUM_THREADS="1", THP_MEM_ALLOC_ENABLE="0") == "True\n"


def test_other_c_libraries_are_left_alone(monkeypatch):
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda _: object())
    memory.keep_freed_memory()
