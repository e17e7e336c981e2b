"""Synthetic records of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from polypool.infra.tracking import RunRecord, Tracker, tracking_uri
from polypool.pipelines.comparison.cross_task import CrossTaskTable, cross_task_table
from polypool.pipelines.comparison.grouping import arranged
from polypool.pipelines.comparison.rows import Group
from polypool.tasks.adapter import Metric
from polypool.tasks.questions.answer_report import ACCURACY
from polypool.tasks.scoring.metric_specs import retrieval_records
from polypool.tasks.scoring.records import TAG, metrics_file, metrics_json, metrics_tag

SIX = [f"{direction}/R{k}" for direction in ("i2t", "t2i") for k in (1, 5, 10)]
VQA = {"task": "vqa", "dataset": "daquar", "recipe": "daquar", "protocol": "vqa"}
VIDEO = {"task": "video_text", "dataset": "msrvtt", "recipe": "msrvtt", "protocol": "distinct"}

DESCRIPTIONS: dict[str, bytes] = {}
"""Metric descriptions by the digest in a run's tag."""
RETRIEVAL = retrieval_records(("i2t", "t2i"), dict.fromkeys(SIX, 0.5) | {"rsum": 3.2})
ANSWERS = (replace(ACCURACY, chance=20.0), replace(ACCURACY, name="number"))


def described(metrics: Mapping[str, float]) -> dict[str, Sequence[Metric]]:
    """Return the metric records of the scored retrieval and VQA protocols, as their tasks write them."""
    of = {"rsum": RETRIEVAL, "accuracy": ANSWERS}
    scored = [name.rpartition("/") for name in metrics]
    return {protocol: of[name] for protocol, _, name in scored if name in of}


def scores(protocol: str, rsum: float) -> dict[str, float]:
    found = {**dict.fromkeys(SIX, rsum / 6), "rsum": rsum, "i2t/medr": 9.0 - rsum / 100, "ties": 0.0}
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
    records: Mapping[str, Sequence[Metric]] | None = None,
    **tags: str,
) -> RunRecord:
    given = {
        "kind": "train",
        "task": "image_text",
        "dataset": "coco_mini",
        "recipe": "mini",
        "protocol": "whole",
    } | tags
    if metrics is None:
        metrics = scores(given["protocol"], rsum) | {"time/train_seconds": 80.0, "cost/step": 40.0}
    for name, of in (described(metrics) if records is None else records).items():
        given |= metrics_tag(name, text := metrics_json(of))
        DESCRIPTIONS[given[TAG + name]] = text
    return RunRecord(
        run_id=f"id-{aggregator}-{seed}-{ended:.0f}",
        name=f"{aggregator} seed {seed}",
        status=status,
        started=0.0,
        ended=ended if status == "FINISHED" else None,
        tags={"aggregator": aggregator, "seed": str(seed), **given},
        params={"seed": str(seed), "optim.lr": str(lr)},
        metrics=metrics,
    )


def vqa(aggregator: str, seed: int, accuracy: float, **more) -> RunRecord:
    metrics = {"vqa/accuracy": accuracy, "time/train_seconds": 9.0, "cost/step": 20.0}
    return run(aggregator, seed, metrics=metrics, **{**VQA, **more})


def begun(made: RunRecord, home: Path) -> Tracker:
    """Start tracking a run with the name, tags, parameters and metric descriptions of `made`."""
    described = {"name": made.name, "tags": made.tags, "params": made.params}
    tracker = Tracker.start("polypool", uri=tracking_uri(home), home=home, **described)
    for tag, digest in made.tags.items():
        if digest in DESCRIPTIONS:
            tracker.text(metrics_file(tag.removeprefix(TAG)), DESCRIPTIONS[digest].decode())
    return tracker


def read(run: RunRecord, name: str) -> bytes:
    """Return a protocol's metric description by the digest in the run's tag."""
    return DESCRIPTIONS[run.tags[name.replace("/", ".").removesuffix(".json")]]


def blocks_of(*runs: RunRecord) -> tuple[Group, ...]:
    return arranged(runs, experiment="x", read=read)[0]


def grid(*runs: RunRecord) -> CrossTaskTable:
    return cross_task_table(blocks_of(*runs))


def three_tasks() -> list[RunRecord]:
    """Return runs of three aggregators on three tasks with two seeds; chance: RSUM 3.2, accuracy 20."""
    table = {"mean": (60.0, 90.0, 40.0), "max": (50.0, 96.0, 40.0), "gpo": (70.0, 120.0, 30.0)}
    runs = []
    for name, (image, video, answer) in table.items():
        for seed, off in ((0, -1), (1, 1)):
            of_clips = run(name, seed, video + off, **VIDEO)
            runs += [run(name, seed, image + off), of_clips, vqa(name, seed, answer + off)]
    return runs
