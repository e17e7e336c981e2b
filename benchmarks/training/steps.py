"""Training steps: the parts of one, videos against images, and one worker against two."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.measure import Measurement, Scale, apart, by_turns
from benchmarks.training.watched import TrainingSize, Watch, random_run, train
from polypool.infra.compute.device import best_device
from polypool.infra.files import write_json
from polypool.infra.ray.session import local_cores
from polypool.pipelines.recipes.load import derive
from polypool.tasks.datasets.corpus import Corpus
from polypool.tasks.run import Run


@dataclass(frozen=True, kw_only=True)
class VideoSize(TrainingSize):
    """Fewer steps, since each is of three kinds."""

    steps: int = 3
    warm: int = 1


@dataclass(frozen=True, kw_only=True)
class WorkerSize(TrainingSize):
    """Half the width, so that what workers tell each other is not all of a step."""

    steps: int = 8
    visual: str = "regions(width=512)"
    text: str = "bigru(width=512, min_count=1)"


def step(scale: Scale = "full") -> list[Measurement]:
    """Measure the parts of a step of `coco_region_bigru`, on the GPU where there is one."""
    size = TrainingSize.of(scale)
    device = best_device()
    with tempfile.TemporaryDirectory() as name:
        run = random_run(Path(name), size)
        watch = train(run, steps=size.warm + size.steps, device=device)
    parts_SK, batch_ms = parts(watch)[size.warm :], 1e3 * float(np.median(watch.batches[size.warm :]))
    step_S = parts_SK.sum(axis=1)
    note = (
        f"{size.steps} steps of {size.batch} x {size.regions} x {size.dim} float16 regions and captions of about 12 "
        f"words on {device}. A batch takes {batch_ms:,.1f} ms ({100 * batch_ms / np.median(step_S):.1f}% of a step), "
        "in a thread beside the step before."
    )
    names = ("step: wait for data", "step: forward", "step: backward, optimiser")
    return [
        _part(names[k], parts_SK[:, k], step_S, target=0.05 if k == 0 else None, note=note if k == 0 else "")
        for k in range(3)
    ]


def parts(watch: Watch) -> np.ndarray:
    """Return `(S, 3)`: milliseconds of each step's wait for data, forward pass, and backward pass with optimiser."""
    began, scored, ended = (np.array(times) for times in (watch.began[:-1], watch.scored, watch.ended))
    return 1e3 * np.stack([began - ended[:-1], scored - began, ended[1:] - scored], axis=1)


def _part(
    name: str, part_S: np.ndarray, step_S: np.ndarray, *, target: float | None, note: str
) -> Measurement:
    share_S = part_S / step_S
    return Measurement(
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


def video_step(scale: Scale = "full") -> Iterator[Measurement]:
    """Measure a step of VSE-infinity and of HGR on videos, on the GPU where there is one."""
    size = VideoSize.of(scale)
    device = best_device()

    def step_of(run: Run) -> float:
        ended = train(run, steps=size.warm + size.steps, device=device).ended[size.warm :]
        return 1e3 * float(np.median(np.diff(ended)))

    with tempfile.TemporaryDirectory() as name:
        images = derive(random_run(Path(name), size), data={"text_augment": ""})
        videos = derive(images, task="video_text")
        graphs, corpus = Path(name) / "graphs.json", Corpus.open(images.data.corpus)
        phrases = {
            str(n): {"role": role, "spans": [n, n + 1]}
            for n, role in enumerate(["V", "ARG0", "V", "ARG1", "NOUN"], start=1)
        }
        captions = (text for split in corpus.splits for texts in corpus.captions(split) for text in texts)
        entry = [phrases, [["1", "2", "ARG0"], ["3", "4", "ARG1"]]]
        write_json(graphs, dict.fromkeys(captions, entry))
        hgr = derive(videos, model=f"hgr(graphs='{graphs}')", aggregator="attention")
        compared = {
            "video step / image step": (
                videos,
                "The same encoders and aggregators: only the adapter differs.",
            ),
            "hgr step / image step": (
                hgr,
                "Three visual encoders, a role graph, and attention of phrases to frames.",
            ),
        }
        for label, (run, note) in compared.items():
            sides = by_turns(lambda _, run=run: step_of(run), lambda _: step_of(images), rounds=size.rounds)
            yield Measurement(
                name=label,
                measured=f"{size.batch} sets of {size.regions} x {size.dim} and captions of 12 words or so, {device}",
                unit="ms",
                goal="at most",
                note=note,
                **sides.numbers(),
            )


def workers(scale: Scale = "full") -> list[Measurement]:
    """Measure training in one process and in two."""
    size = WorkerSize.of(scale)
    with tempfile.TemporaryDirectory() as name:
        run = random_run(Path(name), size)
        sides = by_turns(
            lambda number: speed(run, size, 2, meet=Path(name) / f"meet{number}"),
            lambda number: speed(run, size, 1, meet=Path(name) / f"meet{number}"),
            rounds=size.rounds,
        )
    return [
        Measurement(
            name="workers: 2 / 1",
            measured=f"training, global batch {size.batch}, {size.visual}, {size.text}",
            unit="/s",
            note=f"Processes that meet over gloo; {local_cores()} cores in all for both sides, so the ratio says what "
            "a second process costs or gains, not what a second machine adds. No target.",
            **sides.numbers(),
        )
    ]


def speed(run: Run, size: TrainingSize, count: int, *, meet: Path) -> float:
    """Return the samples a second of `count` workers in fresh processes.

    Args:
        run: what they train.
        size: how many steps.
        count: workers.
        meet: a file that does not exist yet, by which they find each other.
    """
    threads = max(1, local_cores() // count)
    run = replace(run, workers=count, cpus=threads)
    calls = [(run, size.warm + size.steps, rank, threads, str(meet)) for rank in range(count)]
    began_WS = np.array(apart(_worker, calls))[:, size.warm :]
    return size.batch / float(np.median(np.diff(began_WS, axis=1).mean(axis=0)))


def _worker(run: Run, steps: int, rank: int, threads: int, meet: str) -> list[float]:
    """Train in a group of `run.workers`; return when each step began."""
    torch.set_num_threads(threads)
    if run.workers > 1:
        place = {"init_method": f"file://{meet}", "rank": rank, "world_size": run.workers}
        dist.init_process_group("gloo", timeout=timedelta(minutes=2), **place)
    try:
        return train(run, steps=steps, device=torch.device("cpu")).began
    finally:
        if run.workers > 1:
            dist.destroy_process_group()
