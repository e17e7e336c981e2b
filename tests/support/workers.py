"""Processes that meet over gloo, for the tests that compare several workers with one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def _work(
    rank: int, function: Callable[..., None], world: int, meeting: str, arguments: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    if world > 1:
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    function(*arguments)
    if world > 1:
        dist.barrier()
        dist.destroy_process_group()
    # gloo's threads may outlive the group, and a process that ends in the usual way beside them can abort
    os._exit(0)


def run_workers(function: Callable[..., None], *arguments: Any, world: int = 2) -> None:
    """Run `function(*arguments)` in `world` new processes of one thread each, which meet where world > 1.

    What it makes, it writes to files: it returns nothing. An exception in any of them is raised here.
    """
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_work, (function, world, f"{folder}/meeting", arguments), nprocs=world)
