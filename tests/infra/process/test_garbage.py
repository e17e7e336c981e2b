from __future__ import annotations

import gc
import subprocess
import sys

import pytest
from places import ROOT

from infra.process.garbage import without_search

CODE = """
import atexit, gc
from infra.errors import command
atexit.register(lambda: print(gc.get_freeze_count() > 1000))

@command
def main():
    print(gc.get_threshold()[0] > 10_000, gc.get_freeze_count())

main()
"""


def test_a_command_looks_for_garbage_seldom_and_at_its_end_not_at_all():
    done = subprocess.run([sys.executable, "-c", CODE], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["True 0", "True"]


def test_the_search_for_garbage_goes_on_afterwards_as_before() -> None:
    assert gc.isenabled()
    with without_search():
        with without_search():
            assert not gc.isenabled()
        assert not gc.isenabled(), "the inner one found it off"
    assert gc.isenabled()


def test_the_search_for_garbage_goes_on_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), without_search():
        1 / 0  # noqa: B018
    assert gc.isenabled()
