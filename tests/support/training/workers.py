"""Worker processes connected by gloo, for tests that compare several workers with one."""

import os
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from polypool.pipelines.training.loop.trainer import Trainer

_RUNNING: list[tuple[mp.Process, Connection]] = []
"""Worker processes; each imports torch and the project once, and serves all tests of this process."""


def run_workers(function: Callable[..., None], *arguments: Any, world: int = 2) -> None:
    """Run `function(*arguments)` in `world` worker processes of one thread each, in one gloo group if world > 1.

    Results go to files; nothing is returned.

    Raises:
        RuntimeError: a worker failed; the message is its traceback. The other workers are killed.
    """
    while len(_RUNNING) < world:
        _RUNNING.append(_start())
    with tempfile.TemporaryDirectory() as folder:
        waiting = {connection for _, connection in _RUNNING[:world]}
        for rank, (_, connection) in enumerate(_RUNNING[:world]):
            connection.send((function, arguments, rank, world, f"file://{folder}/meeting"))
        while waiting:
            for connection in wait(waiting):
                waiting.remove(connection)
                if failure := _answer(connection):
                    _end()  # the others may wait for this one forever
                    raise RuntimeError(failure)


def _start() -> tuple[mp.Process, Connection]:
    ours, theirs = mp.Pipe()
    context = mp.get_context("forkserver")
    context.set_forkserver_preload([Trainer.__module__])  # imported once for all
    process = context.Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    return process, ours


def _answer(connection: Connection) -> str:
    try:
        return connection.recv()
    except EOFError:
        return "a worker's process ended"


def _end() -> None:
    while _RUNNING:
        process, connection = _RUNNING.pop()
        process.kill()
        process.join()
        connection.close()


def _serve(tests: Connection) -> None:
    """Run the requested functions until the test process ends."""
    torch.set_num_threads(1)
    while True:
        try:
            function, arguments, rank, world, meeting = tests.recv()
        except EOFError:
            os._exit(0)  # gloo's threads outlive a group, so a normal exit can abort
        torch.set_default_dtype(torch.float32)  # as in a new process
        try:
            if world > 1:
                dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world)
            function(*arguments)
            if world > 1:
                dist.barrier()
                dist.destroy_process_group()
        except BaseException:
            tests.send(traceback.format_exc())
        else:
            tests.send("")
