"""One training step with stored regions, split into waiting for data, forward pass, and the rest."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from infra.device import best_device
from pipelines.benchmarks.row import Row
from pipelines.benchmarks.training import QUICK, Size, Watch, made_up_run, train


def step(*, quick: bool = False) -> list[Row]:
    """Measure the parts of a step of `coco_region_bigru`, on the GPU where there is one."""
    size = QUICK if quick else Size()
    device = best_device()
    with tempfile.TemporaryDirectory() as name:
        run = made_up_run(Path(name), size)
        watch = train(run, steps=size.warm + size.steps, device=device)
    parts_SK, made = parts(watch)[size.warm :], 1e3 * float(np.median(watch.batches[size.warm :]))
    step_S = parts_SK.sum(axis=1)
    note = (
        f"{size.steps} steps of {size.batch} x {size.regions} x {size.dim} float16 regions and captions of about 12 "
        f"words on {device}. A batch takes {made:,.1f} ms to make ({100 * made / np.median(step_S):.1f}% of a step), "
        "in a thread beside the step before."
    )
    names = ("step: wait for data", "step: forward", "step: backward, optimiser")
    return [
        _row(names[k], parts_SK[:, k], step_S, target=0.05 if k == 0 else None, note=note if k == 0 else "")
        for k in range(3)
    ]


def parts(watch: Watch) -> np.ndarray:
    """Return `(S, 3)`: milliseconds of each step's wait for data, forward pass, and backward pass with optimiser."""
    began, scored, ended = (np.array(times) for times in (watch.began[:-1], watch.scored, watch.ended))
    return 1e3 * np.stack([began - ended[:-1], scored - began, ended[1:] - scored], axis=1)


def _row(name: str, part_S: np.ndarray, step_S: np.ndarray, *, target: float | None, note: str) -> Row:
    share_S = part_S / step_S
    return Row(
        name=name,
        measured="part of a whole step",
        unit="ms",
        ours=float(np.median(part_S)),
        reference=float(np.median(step_S)),
        ratio=float(np.median(share_S)),
        spread=(float(share_S.min()), float(share_S.max())),
        goal="at most",
        target=target,
        percent=True,
        note=note,
    )
