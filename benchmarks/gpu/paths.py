"""The names of all paths that only a GPU takes."""

from __future__ import annotations

from benchmarks.gpu.exchange import exchange
from benchmarks.gpu.kernels import agreement, kernel_tests, kernels
from benchmarks.gpu.steps import copies, memory_cap, precisions
from benchmarks.run import Benchmark
from benchmarks.training.questions import vqa_step
from benchmarks.training.steps import step, video_step

PATHS: dict[str, Benchmark] = {
    "kernel_tests": kernel_tests,
    "kernels": kernels,
    "agreement": agreement,
    "precisions": precisions,
    "copies": copies,
    "memory_cap": memory_cap,
    "exchange": exchange,
    "step": step,
    "vqa_step": vqa_step,
    "video_step": video_step,
}
"""By name, in the order of the table: what may be wrong comes before what may be slow."""
