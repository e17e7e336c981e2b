"""`python -m benchmarks.gpu`: what only a GPU runs, checked against the CPU and float64, then measured.

Aggregators and Triton kernels, a step in float32 and bfloat16, copies of batches, memory of a step in chunks, and sums
over GPUs by NCCL. A wrong result is an error.
"""

from __future__ import annotations

import tempfile
from collections import deque
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks import step
from benchmarks.random_data import whole_sets
from benchmarks.side_by_side import compare, milliseconds, run
from polypool.aggregators.random_sets import Inputs, random_inputs
from polypool.aggregators.ranks.sorted_sum import sorted_sum
from polypool.infra.batches import Order, load
from polypool.infra.compute.device import best_device, on_device
from polypool.infra.errors import InputError
from polypool.infra.process.command import command
from polypool.infra.registry import AGGREGATORS
from polypool.pipelines.recipes.load import derive
from polypool.pipelines.training.loop.capture import own_stream
from polypool.pipelines.training.loop.optim import chunked_gradients


def torch_sort(x_BND: Tensor, weight_BN: Tensor, mask_BN: Tensor) -> Tensor:
    """Compute `sorted_sum` of whole sets with torch: a sort along the last axis of a copy, as that is fastest."""
    sorted_BND = x_BND.transpose(1, 2).contiguous().sort(dim=-1, descending=True).values.transpose(1, 2)
    return (sorted_BND * weight_BN[..., None]).sum(dim=1)


def gradients(way, x_BND: Tensor, weight_BN: Tensor, mask_BN: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sums and the gradient of the weights; the elements' is made, too."""
    out_BD = way(x_BND, weight_BN, mask_BN)
    return out_BD.detach(), torch.autograd.grad(out_BD.sum(), (x_BND, weight_BN))[1]


def kernels(device: torch.device, *, quick: bool) -> None:
    """Compare the sorted sum with the formula in float64, and measure it against torch's sort."""
    batch, width = (2, 16) if quick else (128, 1024)
    for elements in (5,) if quick else (16, 36, 64):
        x_BND, mask_BN = (part.to(device) for part in whole_sets(batch, elements, width))
        weight_BN = torch.randn(batch, elements).softmax(dim=1).to(device).requires_grad_()
        x_BND.requires_grad_()
        wide = [part.detach().double().requires_grad_() for part in (x_BND, weight_BN)]
        ours = gradients(sorted_sum, x_BND, weight_BN, mask_BN)
        for own, exact in zip(ours, gradients(torch_sort, *wide, mask_BN), strict=True):
            torch.testing.assert_close(own.double(), exact, rtol=1e-4, atol=1e-3)
        sides = (
            milliseconds(partial(gradients, way, x_BND, weight_BN, mask_BN))
            for way in (sorted_sum, torch_sort)
        )
        compare(f"sorted sum / torch.sort, {batch} sets of {elements} x {width}", *sides, rounds=5)


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


def steps(device: torch.device, *, quick: bool) -> None:
    """Measure a step against the authors' arithmetic and bfloat16 against float32; copies, and chunks."""
    step.main(quick=quick, device=device)
    with tempfile.TemporaryDirectory() as folder:
        settings = step.made(folder, quick=quick)
        whole, half = (
            step.past_warm_up(derive(settings, optim={"precision": precision}), device)
            for precision in ("float32", "bfloat16")
        )
        data, size = whole.data, settings.optim.batch
        order = Order(size=len(data), batch=size, unit=1, seed=0)
        made = [data.batch(index_B, seed=0, epoch=0) for index_B in order.batches(0)]
        for batch, (_, arrived) in zip(made, load(data, order, 0, device), strict=True):
            torch.testing.assert_close(on_device(arrived, torch.device("cpu")), batch, rtol=0, atol=0)
        first = on_device(made[0], device)
        sides = (milliseconds(partial(trainer.train_step, first)) for trainer in (half, whole))
        compare(f"step in bfloat16 / float32, {size} sets", *sides, rounds=7)
        with own_stream(device):
            for precision, eager in (("float32", whole), ("bfloat16", half)):
                captured = step.past_warm_up(derive(settings, optim={"precision": precision}), device)
                captured.capture()
                sides = (milliseconds(partial(trainer.train_step, first)) for trainer in (captured, eager))
                compare(f"step as a CUDA graph / eager, {precision}", *sides, rounds=7)
        compare(
            f"{len(made)} batches loaded ahead / one by one",
            milliseconds(lambda: deque(load(data, order, 0, device), maxlen=0)),
            milliseconds(
                lambda: [on_device(data.batch(of_B, seed=0, epoch=0), device) for of_B in order.batches(0)]
            ),
            rounds=5,
        )
        sides = (partial(_peak, whole, first, chunk) for chunk in (max(1, size // 16), size))
        compare("step in chunks / at once: memory", *sides, rounds=1, unit="MB")


def _peak(trainer: step.Trainer, batch: dict[str, Tensor], chunk: int, _: int) -> float:
    """Return by how many MB the memory of the GPU grows at most in a step's gradients."""
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
    device = best_device()
    agreement(device)
    kernels(device, quick=quick)
    if device.type == "cuda":
        steps(device, quick=quick)
        exchange(min(2, torch.cuda.device_count()))


@command
def on_gpu() -> None:
    if not torch.cuda.is_available():
        raise InputError("torch finds no GPU here; run it on a machine with one, and a torch with CUDA")
    run(main)


if __name__ == "__main__":
    on_gpu()
