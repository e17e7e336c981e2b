"""`polypool demo`: Run everything on small rendered corpora, from pictures and videos to a comparison.

Renders scenes with captions in COCO's file formats and questions in VQA 2.0's, and moving shapes in MSR-VTT's; ingests
them, extracts features, trains four aggregators on each of the three tasks as a Ray job, and compares them. RAY_ADDRESS
selects the job server of a cluster instead of a private head on this machine.
"""

from __future__ import annotations

import tyro

from polypool.infra.process.command import command
from polypool.pipelines.data.demonstration import DemoOptions, run_demo


@command
def main() -> None:
    """Run the demo."""
    run_demo(tyro.cli(DemoOptions, prog="polypool demo", description=__doc__))
