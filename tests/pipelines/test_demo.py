from __future__ import annotations

import pytest

from pipelines.demo import RAYS_OWN


@pytest.mark.parametrize(
    ("line", "own"),
    [
        (
            "2026-11-21 08:30:55,716\tINFO dashboard_sdk.py:371 -- Uploading package gcs://_ray_pkg_1.zip.",
            True,
        ),
        ("2026-11-21 08:30:56,563\tSUCC cli.py:66 -- Job 'raysubmit_B' submitted successfully", True),
        ("\x1b[36m(PlacementGroupCleaner pid=32029)\x1b[0m Traceback (most recent call last):", True),
        ("2026-11-21 08:34:03,843\tERR cli.py:75 -- Job 'raysubmit_Z' failed", False),
        ("\x1b[36m(RayTrainWorker pid=2573)\x1b[0m ████░░░░ 25/170 4.9 step/s  demo mean", False),
        ("error: unknown aggregator 'gpoo'. Did you mean 'gpo'?", False),
    ],
)
def test_what_ray_says_of_itself_is_left_out(line, own):
    assert bool(RAYS_OWN.match(line)) == own
