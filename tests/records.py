"""Runs as they are recorded, made up."""

from __future__ import annotations

from infra.tracking import RunRecord

SIX = [f"{direction}/R{k}" for direction in ("i2t", "t2i") for k in (1, 5, 10)]


def scores(protocol: str, rsum: float) -> dict[str, float]:
    each = dict.fromkeys(SIX, rsum / 6)
    found = {**each, "rsum": rsum, "i2t/medr": 9.0 - rsum / 100, "chance_rsum": 3.2, "ties": 0.0}
    return {f"{protocol}/{name}": value for name, value in found.items()}


def run(
    aggregator: str = "gpo",
    seed: int = 0,
    rsum: float = 60.0,
    *,
    status: str = "FINISHED",
    ended: float = 0.0,
    metrics: dict[str, float] | None = None,
    lr: float = 1e-3,
    **tags: str,
) -> RunRecord:
    given = {
        "kind": "train",
        "task": "image_text",
        "dataset": "coco_mini",
        "recipe": "mini",
        "protocol": "whole",
    } | tags
    return RunRecord(
        run_id=f"id-{aggregator}-{seed}-{ended:.0f}",
        name=f"{aggregator} seed {seed}",
        status=status,
        started=0.0,
        ended=ended if status == "FINISHED" else None,
        tags={"aggregator": aggregator, "seed": str(seed), **given},
        params={"seed": str(seed), "optim.lr": str(lr)},
        metrics=scores(given["protocol"], rsum) | {"time/train_seconds": 80.0}
        if metrics is None
        else metrics,
    )
