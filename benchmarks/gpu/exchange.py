"""What workers exchange in training, over NCCL between GPUs and over gloo between processes of a CPU."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.gpu.waiting import waited
from benchmarks.measure import Measurement, Scale, Sides, Size, apart
from polypool.infra.compute.dist import average_gradients, broadcast_state, gather, gather_objects


@dataclass(frozen=True, kw_only=True)
class ExchangeSize(Size):
    """Embeddings of `batch` pairs, and gradients of `weights` numbers, which is about those of `coco_region_bigru`."""

    tiny: ClassVar = {"batch": 4, "width": 8, "weights": 100, "rounds": 2}
    batch: int = 128
    width: int = 1024
    weights: int = 20_000_000
    rounds: int = 7


def exchange(scale: Scale = "full") -> Iterator[Measurement]:
    """Check gradients of a group of workers against one process, and measure sums over the group against copies."""
    size, gpus = ExchangeSize.of(scale), torch.cuda.device_count()
    workers, backend = (min(gpus, 2), "nccl") if gpus else (2, "gloo")
    with tempfile.TemporaryDirectory() as name:
        calls = [(size, rank, workers, backend, str(Path(name) / "meet")) for rank in range(workers)]
        found_2R, *_ = apart(worker, calls)
    yield Measurement(
        name=f"gradients over {backend} / a copy",
        measured=f"sum of {size.weights:,} float32 over {workers} worker{'s' if workers > 1 else ''}",
        unit="ms",
        goal="at most",
        note="Before that, a step's gradients by DDP and by gathered embeddings were those of one process"
        + ("; one GPU exchanges with nobody." if gpus == 1 else "."),
        **Sides(ours_R=found_2R[0], reference_R=found_2R[1]).numbers(),
    )


def worker(size: ExchangeSize, rank: int, workers: int, backend: str, meet: str) -> np.ndarray:
    """Join the group, check, and return `(2, R)`: milliseconds of sums and of copies."""
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    place = {"init_method": f"file://{meet}", "rank": rank, "world_size": workers}
    dist.init_process_group(backend, timeout=timedelta(minutes=2), **place)
    try:
        check(size, rank, workers, device)
        x = torch.ones(size.weights, device=device)
        sums, copies = waited(partial(dist.all_reduce, x), device), waited(x.clone, device)
        return np.array([(sums(n), copies(n)) for n in range(size.rounds)]).T
    finally:
        dist.destroy_process_group()


def check(size: ExchangeSize, rank: int, workers: int, device: torch.device) -> None:
    """Assert that a step's gradients are those of one process with the whole batch, by DDP and by our means.

    Raises:
        AssertionError: they are not, or an object does not arrive.
    """
    torch.manual_seed(0)
    whole, ours = (nn.Linear(size.width, size.width).to(device) for _ in range(2))
    ours.load_state_dict(whole.state_dict())
    x_VD, y_VD = torch.randn(2, workers * size.batch, size.width).to(device)
    loss_of(whole(x_VD), y_VD).backward()
    own = slice(rank * size.batch, (rank + 1) * size.batch)
    if rank:  # it is given the first one's
        nn.init.zeros_(ours.weight)
    broadcast_state(ours)
    parallel = DistributedDataParallel(ours)
    loss_of(gather(parallel(x_VD[own])), gather(y_VD[own])).backward()
    torch.testing.assert_close(ours.weight.grad, whole.weight.grad, rtol=1e-3, atol=1e-5)
    ours.zero_grad()
    loss_of(gather(ours(x_VD[own])), gather(y_VD[own])).backward()
    average_gradients(ours.parameters())
    torch.testing.assert_close(ours.weight.grad, whole.weight.grad, rtol=1e-3, atol=1e-5)
    assert gather_objects(rank) == list(range(workers)), "objects do not arrive"
    parts = [torch.empty_like(y_VD[own]) for _ in range(workers)]
    dist.all_gather(parts, y_VD[own].contiguous())
    torch.testing.assert_close(torch.cat(parts), y_VD, rtol=0, atol=0)


def loss_of(x_VD: Tensor, y_VD: Tensor) -> Tensor:
    """Return a loss that every pair of samples has a part in."""
    return (x_VD @ y_VD.T / x_VD.shape[1]).logsumexp(dim=1).mean()
