"""Cost of a step beside the model as workers and the batch grow: calculated from what is measured here.

    python -m benchmarks.training.many_workers --workers 64 --width 1024

Every worker gathers the embeddings of the global batch and computes the whole loss on them, so nothing is sent back
(`infra.compute.dist.gather`). The scores grow with the square of the batch, on each worker. Were they divided among
the workers, row by row, each would have a part of the gradient of every embedding, and the sum over workers would
travel back: twice as much again.

What is measured here is the memory that a score takes with all that a loss makes of it. Speeds are parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
import tyro

from benchmarks.measure import apart, memory
from polypool.infra.fields import at_least
from polypool.infra.process.command import command
from polypool.infra.registry import OBJECTIVES
from polypool.infra.text_tables import aligned
from polypool.tasks.objectives.objective import batch_positives
from polypool.tasks.similarities.similarity import Cosine

_FLOAT = 4
_PRODUCTS = 3  # the scores, and the gradient of either side
_PASSES = 3  # what is kept of a score is written once and read twice
COLUMNS = ("batch", "gathered", "time", "loss: memory", "time", "in shards: memory", "time", "sent back")


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Workers and what joins them."""

    workers: Annotated[int, at_least(2)] = 64
    """How many."""
    width: Annotated[int, at_least(1)] = 1024
    """Of the embeddings."""
    gbit: float = 25.0
    """10^9 bits that a worker receives a second."""
    teraflops: float = 20.0
    """10^12 operations of float32 that a worker makes a second."""
    bandwidth_gb: float = 1000.0
    """10^9 bytes that its device reads or writes a second."""
    batches: tuple[int, ...] = (1024, 4096, 16384, 65536)
    """Pairs of an image and a text in the global batch."""
    objective: str = "infonce"
    """Whose memory is measured."""

    def received(self, batch: int) -> float:
        """Return the bytes of others' embeddings, of both sides, that a worker gathers."""
        return 2 * batch * self.width * _FLOAT * (self.workers - 1) / self.workers

    def loss_seconds(self, scores: float, bytes_a_score: float) -> float:
        """Return how long the products and the passes over so many scores take."""
        products = _PRODUCTS * 2 * scores * self.width / (self.teraflops * 1e12)
        return products + _PASSES * scores * bytes_a_score / (self.bandwidth_gb * 1e9)

    def row(self, batch: int, bytes_a_score: float) -> tuple[str, ...]:
        """Return a batch's row of the table: of the whole loss, and of a loss in shards."""
        received, network = self.received(batch), self.gbit * 1e9 / 8
        whole, part = batch**2, batch**2 / self.workers
        return (
            f"{batch:,}",
            _size(received),
            _time(received / network),
            _size(whole * bytes_a_score),
            _time(self.loss_seconds(whole, bytes_a_score)),
            _size(part * bytes_a_score),
            _time(self.loss_seconds(part, bytes_a_score)),
            _time(2 * received / network),
        )


def bytes_a_score(objective: str, *, batch: int = 2048) -> float:
    """Return the peak memory of a loss and its gradient for each score of a batch, in a process of its own."""
    return apart(_peak, [(objective, batch)])[0] * 1e6 / batch**2


def _peak(objective: str, batch: int) -> float:
    """Return by how many MB the scores of a batch, their loss and its gradient exceed the embeddings."""
    torch.manual_seed(0)
    loss_of, similarity = OBJECTIVES.build(objective), Cosine()

    def step(size: int) -> None:
        image_VD, text_TD = (
            torch.nn.functional.normalize(torch.randn(size, 16), dim=1).requires_grad_() for _ in range(2)
        )
        row_T = torch.arange(size)
        loss_of(similarity(image_VD, text_TD), row_T, batch_positives(row_T, row_T), epoch=1.0)[
            "loss"
        ].backward()

    step(64)  # what is loaded at the first call is not the batch's
    before = memory()["VmRSS"]
    step(batch)
    return memory()["VmHWM"] - before


def table(cluster: Cluster) -> str:
    """Return the table, with what was measured for it."""
    each = bytes_a_score(cluster.objective)
    rows = [cluster.row(batch, each) for batch in cluster.batches]
    said = (
        f"{cluster.workers} workers, embeddings of width {cluster.width}; {cluster.gbit:g} Gbit/s, "
        f"{cluster.teraflops:g} TFLOP/s, {cluster.bandwidth_gb:g} GB/s each"
    )
    measured = f"measured here: {each:.0f} bytes a score at most, of {cluster.objective} and its gradient"
    return "\n".join([said, measured, "", *aligned(COLUMNS, rows, width=110, left=())])


def _size(count: float) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.0f} MB"


def _time(seconds: float) -> str:
    return f"{1000 * seconds:,.1f} ms" if seconds < 10 else f"{seconds:,.0f} s"


@command
def main() -> None:
    """Measure, calculate and print."""
    print(table(tyro.cli(Cluster, description=__doc__)))


if __name__ == "__main__":
    main()
