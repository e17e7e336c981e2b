from __future__ import annotations

import subprocess
import sys

from places import ROOT

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
