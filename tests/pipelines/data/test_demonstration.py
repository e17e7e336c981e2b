from __future__ import annotations

import pytest

from polypool.pipelines.data.demonstration import HIDDEN


@pytest.mark.parametrize(
    ("line", "own"),
    [
        ("2026-11-21 08:30:55,716\tINFO job_manager.py:581 -- Runtime env is setting up.", True),
        ("Running entrypoint for job raysubmit_B: polypool train demo", True),
        ("\x1b[36m(PlacementGroupCleaner pid=32029)\x1b[0m Traceback (most recent call last):", True),
        ("2026-11-21 08:34:03,843\tERROR job_manager.py:591 -- the working directory is gone", False),
        ("\x1b[36m(RayTrainWorker pid=2573)\x1b[0m ████░░░░ 25/170 4.9 step/s  demo mean", False),
        ("gpo         308.3 * 234.8 * 46.9 ?        36.6   1.3   25,408  1.08", False),
        ("", False),
        ("run 7721cf33b987495fa49c8421bc914447 finished", False),
        ("error: unknown aggregator 'gpoo'. Did you mean 'gpo'?", False),
    ],
)
def test_ray_log_lines_are_hidden(line, own):
    assert bool(HIDDEN.match(line)) == own
