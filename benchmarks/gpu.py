"""`python -m benchmarks.gpu`: check GPU code against the CPU and float64, then measure it against targets.

Aggregators and Triton kernels; steps with their data as CUDA graphs, against plain torch; a validation of COCO's size;
extraction against the bare model; memory of a step in chunks; sums over GPUs by NCCL. It needs neither Ray nor MLflow.
A wrong result is an error; a missed target gives exit code 1. Targets are for one H100.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from PIL import Image
from torch import Tensor

from benchmarks import step
from benchmarks.extract import WIDTHS, save_model
from benchmarks.plain_step import plain_step
from benchmarks.random_data import image_run, question_run, video_run, whole_sets
from benchmarks.row import RECIPE, write_data
from benchmarks.side_by_side import compare, milliseconds, run
from polypool.aggregators.random_sets import Inputs, random_inputs
from polypool.aggregators.ranks.gpo import GPO
from polypool.aggregators.ranks.sorted_sum import sorted_sum
from polypool.encoders.backbones import build_backbone
from polypool.infra.batches import Order, load
from polypool.infra.compute.device import best_device, on_device, own_stream
from polypool.infra.compute.dropout import drawn
from polypool.infra.errors import InputError
from polypool.infra.process.command import command
from polypool.infra.registry import AGGREGATORS, RECIPES
from polypool.pipelines.recipes.load import derive
from polypool.pipelines.training.loop.optim import chunked_gradients
from polypool.tasks.run import Run

COCO_CAPTIONS, COCO_EPOCHS = 566_435, 25
TINY_VQA = {"visual": "grid(width=8)", "aggregator": "score_attention(k=2, heads=2)"}
TINY_VQA |= {"cross": "cross_modal(heads=2)", "optim": {"batch": 8}}
TINY_HGR = {"visual": "frames(width=8)", "optim": {"batch": 8}}


class Targets:
    """Measured values with their limits."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, float, float]] = []

    def most(self, name: str, value: float, limit: float) -> None:
        self.rows.append((name, value, limit))

    def report(self) -> int:
        """Print a table; return the number of missed targets."""
        print("\n| target | value | at most | |\n| --- | ---: | ---: | --- |")
        for name, value, limit in self.rows:
            print(f"| {name} | {value:.3g} | {limit:.3g} | {'met' if value <= limit else 'MISSED'} |")
        return sum(value > limit for _, value, limit in self.rows)


def replayed(work: Callable[[], Any], device: torch.device) -> Callable[[], Any]:
    """Return a function that replays the work as one CUDA graph; on a CPU, the work itself."""
    if device.type != "cuda":
        return work
    for _ in range(3):
        work()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        work()
    return graph.replay


def torch_sort(x_BND: Tensor, weight_BN: Tensor, mask_BN: Tensor) -> Tensor:
    """Compute `sorted_sum` of whole sets with torch: a sort along the last axis of a copy, as that is fastest."""
    sorted_BND = x_BND.transpose(1, 2).contiguous().sort(dim=-1, descending=True).values.transpose(1, 2)
    return (sorted_BND * weight_BN[..., None]).sum(dim=1)


def gradients(way, x_BND: Tensor, weight_BN: Tensor, mask_BN: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sums and the gradient of the weights; the gradient of the elements is computed, too."""
    out_BD = way(x_BND, weight_BN, mask_BN)
    return out_BD.detach(), torch.autograd.grad(out_BD.sum(), (x_BND, weight_BN))[1]


def kernels(device: torch.device, targets: Targets, *, quick: bool) -> None:
    """Compare the sorted sum with the formula in float64; measure GPO as a graph against torch's sort."""
    batch, width = (2, 16) if quick else (128, 1024)
    for elements in (5,) if quick else (16, 36, 64):
        x_BND, mask_BN = (part.to(device) for part in whole_sets(batch, elements, width))
        weight_BN = torch.randn(batch, elements).softmax(dim=1).to(device).requires_grad_()
        x_BND.requires_grad_()
        wide = [part.detach().double().requires_grad_() for part in (x_BND, weight_BN)]
        ours = gradients(sorted_sum, x_BND, weight_BN, mask_BN)
        for own, exact in zip(ours, gradients(torch_sort, *wide, mask_BN), strict=True):
            torch.testing.assert_close(own.double(), exact, rtol=1e-4, atol=1e-3)
    gpo = GPO(width).to(device)
    learned = [*gpo.parameters()]
    for elements in (5,) if quick else (36, 100, 256):
        x_BND, mask_BN = (part.to(device) for part in whole_sets(batch, elements, width))
        x_BND.requires_grad_()

        def pooled_by(way, x_BND=x_BND, mask_BN=mask_BN) -> None:
            vectors_BD = way(x_BND, gpo._weights(x_BND, mask_BN), mask_BN)
            torch.autograd.grad(vectors_BD.sum(), (x_BND, *learned))

        ours, sort = (
            milliseconds(replayed(partial(pooled_by, way), device), repeats=1 if quick else 20)
            for way in (sorted_sum, torch_sort)
        )
        name = f"gpo, {batch} sets of {elements} x {width} with gradient"
        found = compare(f"{name} / by torch.sort, graphs", ours, sort, rounds=5)
        if elements == 36:
            targets.most(f"{name}, ms", found.ours, 0.5)
        else:
            targets.most(f"{name} / torch.sort", found.ratio, 1.0)


def pooled(module: torch.nn.Module, inputs: Inputs, device: torch.device) -> list[Tensor]:
    """Pool on a device; return the vectors and the gradients of all floats, on the CPU."""
    module = module.to(device)
    inputs = inputs.map(lambda x, mask: (x.to(device), mask.to(device)))
    parts = [part.detach().to(device).requires_grad_() for part in inputs.floats()]
    vectors = inputs.with_floats(*parts).pool(module).vectors
    (vectors * torch.linspace(-1, 1, vectors.shape[-1], device=device)).sum().backward()
    grads = [torch.zeros_like(part) if part.grad is None else part.grad for part in parts]
    return [part.detach().cpu() for part in (vectors, *grads)]


def agreement(device: torch.device) -> None:
    """Compare vectors and gradients of every aggregator with the CPU's, in float32 on sets of different sizes."""
    names = AGGREGATORS.built_in()
    for name in names:
        torch.manual_seed(0)
        module = AGGREGATORS.build(name, 32).eval()
        inputs = random_inputs([5, 1, 9, 5, 36], module=module, dim=32)
        expected, found = (pooled(module, inputs, where) for where in (torch.device("cpu"), device))
        for own, other in zip(found, expected, strict=True):
            torch.testing.assert_close(own, other, rtol=1e-3, atol=1e-3, msg=f"{name} differs from the CPU")
    print(f"{len(names)} aggregators: as on the CPU")


def of_run(settings: Run, device: torch.device) -> Callable[[int], float]:
    """Return a function that trains an epoch with captured graphs, and returns the milliseconds of a step with data."""
    trainer = step.past_warm_up(settings, device)
    trainer.use_device()

    def epoch(_: int) -> float:
        started = time.perf_counter()
        for size, batch in load(trainer.data, trainer.order, trainer.progress.samples, device):
            with drawn(trainer._draws(size)):
                trainer.train_step(batch)
        if device.type == "cuda":
            torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - started) / trainer.order.epoch_steps

    for number in range(3):  # eager steps of each shape, then captures
        epoch(number)
    return epoch


def losses(settings: Run, device: torch.device, *, captured: bool) -> Tensor:
    """Return the losses of 50 steps."""
    trainer = step.past_warm_up(settings, device)
    if captured:
        trainer.use_device()
    epochs = (load(trainer.data, trainer.order, samples, device) for samples in count(step=len(trainer.data)))
    found = []
    for size, batch in islice(chain.from_iterable(epochs), 50):
        with drawn(trainer._draws(size)):
            found.append(trainer.train_step(batch)["loss"].detach().clone())
    return torch.stack(found)


def steps(device: torch.device, targets: Targets, *, quick: bool) -> None:
    """Measure steps with their data as graphs against plain torch, and a validation of COCO's size."""
    step.main(quick=quick, device=device)
    sizes = step.TINY if quick else step.FULL
    small = {
        name: sizes.get(name, size) for name, size in (("regions", 36), ("dim", 2048), ("words", 11_000))
    }
    plain = {"batch": sizes["optim"]["batch"], "length": 18, "width": 8 if quick else 1024, **small}
    with tempfile.TemporaryDirectory() as name, own_stream(device):
        folder, test, protocol = Path(name), *((5000, "coco-5k") if not quick else (2, "whole"))
        settings = image_run(folder, **({"text": "bigru(min_count=1)"} | sizes), test=test)
        measured = {}
        for precision, difference in (("float32", 1e-5), ("bfloat16", 1e-2)):
            run = derive(settings, optim={"precision": precision})
            found, expected = (losses(run, device, captured=captured) for captured in (True, False))
            most = float(((found - expected) / expected).abs().max())
            targets.most(f"{precision}, losses of 50 steps, graph / eager - 1", most, difference)
            ours = of_run(run, device)
            eager = plain_step(device, bfloat16=precision == "bfloat16", **plain)
            for way, work in (("eager", eager), ("as a graph", replayed(eager, device))):
                reference = milliseconds(work, repeats=1 if quick else 30)
                what = f"coco_region_bigru, step with data / plain torch {way}, {precision}"
                measured[precision] = compare(what, ours, reference, rounds=1 if quick else 3).ours
        trainer = step.past_warm_up(settings, device)
        validation = milliseconds(lambda: trainer.adapter.evaluate(trainer.model, "test", protocol))(0)
        step_ms, batch = measured["bfloat16"], settings.optim.batch
        whole = COCO_EPOCHS * (COCO_CAPTIONS // batch * step_ms + validation) / 60_000
        print(
            f"a validation of {test:,} x {5 * test:,}: {validation:,.0f} ms; 25 epochs of COCO: {whole:.1f} minutes"
        )
        targets.most("coco_region_bigru, bfloat16, ms a step with data", step_ms, 4.5)
        targets.most("coco_region_bigru, 25 epochs of COCO, minutes", whole, 10)
        _loading(settings, device)
    text = f"bigru(width={8 if quick else 512}, min_count=1, ends=False, split=questions)"
    with tempfile.TemporaryDirectory() as name, own_stream(device):
        size = {"questions": 24, "regions": 5, "dim": 16, "answers": 7} | TINY_VQA if quick else {}
        full = {"questions": 1280, "regions": 36, "dim": 2048, "answers": 3000}
        ms = of_run(question_run(Path(name), text=text, **(size or full)), device)(0)
        targets.most("vqa2_scoreattn_k5, ms a step with data", ms, 2.0)
    with tempfile.TemporaryDirectory() as name, own_stream(device):
        width = "width=8, embedding=4, " if quick else ""
        text = f"bigru({width}dropout=0.2, ends=False, orthogonal=True, min_count=1)"
        size = (
            {"videos": 4, "frames": 5, "dim": 16} | TINY_HGR
            if quick
            else {"videos": 192, "frames": 20, "dim": 2048}
        )
        targets.most(
            "msrvtt_hgr, ms a step with data",
            of_run(video_run(Path(name), text=text, **size), device)(0),
            8.0,
        )
    with tempfile.TemporaryDirectory() as name, own_stream(device):
        folder = Path(name)
        write_data(folder, {"train": 140 if quick else 1_359, "val": 8, "test": 8})
        data = {
            "corpus": str(folder / "corpus"),
            "features": str(folder / "cells"),
            "texts": str(folder / "tokens"),
        }
        ms = of_run(derive(RECIPES.get(RECIPE)(), aggregator="mean", data=data), device)(0)
        print(f"{RECIPE}: {ms:.3g} ms a step with data")


def _loading(settings: Run, device: torch.device) -> None:
    """Check and measure batches that are loaded ahead from files; measure the memory of a step in chunks."""
    trainer = step.past_warm_up(settings, device)
    data, size = trainer.data, settings.optim.batch
    order = Order(size=len(data), batch=size, unit=1, seed=0)
    made = [data.batch(index_B, seed=0, epoch=0) for index_B in order.batches(0)]
    for batch, (_, arrived) in zip(made, load(data, order, 0, device), strict=True):
        for name, x in on_device(arrived, torch.device("cpu")).items():
            parts = tuple(slice(size) for size in batch[name].shape)
            torch.testing.assert_close(x[parts], batch[name], rtol=0, atol=0)
    compare(
        f"{len(made)} batches loaded ahead / one by one",
        milliseconds(lambda: deque(load(data, order, 0, device), maxlen=0)),
        milliseconds(
            lambda: [on_device(data.batch(of_B, seed=0, epoch=0), device) for of_B in order.batches(0)]
        ),
        rounds=3,
    )
    if device.type == "cuda":
        first = on_device(made[0], device)
        sides = (partial(_peak, trainer, first, chunk) for chunk in (max(1, size // 16), size))
        compare("step in chunks / at once: memory", *sides, rounds=1, unit="MB")


def extraction(device: torch.device, targets: Targets, *, quick: bool) -> None:
    """Measure a DINOv2 of size S in bfloat16 on prepared images, as `extract` calls it, against the bare model."""
    batch, rounds = (2, 1) if quick else (128, 8)
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder), WIDTHS[quick])
        backbone: Any = build_backbone(f"dinov2(name={folder!r}, bfloat16=True)")
    images = [
        Image.fromarray(np.random.default_rng(number).integers(0, 256, (480, 640, 3), np.uint8))
        for number in range(batch)
    ]
    pixels = [backbone.prepare(image) for image in images]
    backbone(pixels)
    model, pixel_BCHW = backbone._pretrained.model, torch.stack(pixels).to(device)

    def bare() -> None:
        with torch.inference_mode(), torch.autocast(device.type, torch.bfloat16):
            for _ in range(rounds):
                model(pixel_BCHW)

    def ours() -> None:
        with ThreadPoolExecutor(2) as pool:
            deque(pool.map(backbone, [pixels] * rounds), maxlen=0)

    found = compare(
        f"dinov2 in bfloat16, batches of {batch} prepared images / the bare model",
        milliseconds(ours),
        milliseconds(bare),
        rounds=1 if quick else 5,
    )
    targets.most("dinov2, time of prepared images / the bare model", found.ratio, 1 / 0.8)


def _peak(trainer: step.Trainer, batch: dict[str, Tensor], chunk: int, _: int) -> float:
    """Return the peak growth of GPU memory in MB while computing a step's gradients."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    chunked_gradients(
        trainer.adapter, trainer.model, batch, epoch=1.0, chunk=chunk, precision=trainer.precision
    )
    return (torch.cuda.max_memory_allocated() - before) / 1e6


def exchange(workers: int) -> None:
    """Check a sum over GPUs by NCCL, and measure it against a copy."""
    with tempfile.TemporaryDirectory() as name:
        torch.multiprocessing.spawn(_worker, (workers, f"file://{name}/meet"), nprocs=workers)


def _worker(rank: int, workers: int, meet: str) -> None:
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=meet, rank=rank, world_size=workers)
    x = torch.full((20_000_000,), float(rank + 1), device="cuda")
    dist.all_reduce(x)
    assert (x == workers * (workers + 1) / 2).all()
    sums, copies = milliseconds(partial(dist.all_reduce, x)), milliseconds(x.clone)
    for number in range(7):
        took = sums(number), copies(number)
    if rank == 0:
        print(f"sum over {workers} GPUs / a copy: {took[0]:.2g} ms, {took[1]:.2g} ms")
    dist.destroy_process_group()


def main(*, quick: bool = False) -> None:
    if not (quick or torch.cuda.is_available()):
        raise InputError("torch finds no GPU here; run it on a machine with one, and a torch with CUDA")
    device, targets = best_device(), Targets()
    agreement(device)
    with own_stream(device):
        kernels(device, targets, quick=quick)
    steps(device, targets, quick=quick)
    extraction(device, targets, quick=quick)
    if device.type == "cuda":
        exchange(min(2, torch.cuda.device_count()))
        print(torch.cuda.get_device_name(device))
    missed = targets.report()
    if missed and not quick:
        sys.exit(1)


if __name__ == "__main__":
    command(partial(run, main))()
