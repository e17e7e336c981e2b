"""GPU code paths of modules: same results as on a CPU in float64, and no value is read from the device."""

import copy
from collections.abc import Callable, Sequence

import pytest
import torch
from gpu_paths import META, gpu_paths_on_cpu, without_device_reads
from score_batches import pairs
from torch import Tensor, nn

from polypool.aggregators.random_sets import random_inputs
from polypool.infra.registry import AGGREGATORS, MINERS, OBJECTIVES, REGULARISERS, SIMILARITIES
from polypool.tasks.similarities.similarity import Similarity
from polypool.tasks.similarities.vectors import Embeddings


def assert_fit(
    call: Callable[..., Tensor], module: nn.Module, floats: Sequence[Tensor], others: Sequence[Tensor] = ()
) -> None:
    """Compare `call(module, *floats, *others)` and its gradients on both code paths, then run on `META`."""

    def computed(
        module: nn.Module, floats: Sequence[Tensor], others: Sequence[Tensor]
    ) -> list[Tensor | None]:
        torch.manual_seed(0)
        floats = [x.detach().requires_grad_() for x in floats]
        out = call(module, *floats, *others)
        return [
            out,
            *torch.autograd.grad(out.square().sum(), [*floats, *module.parameters()], allow_unused=True),
        ]

    expected = computed(copy.deepcopy(module), floats, others)
    with gpu_paths_on_cpu():
        found = computed(copy.deepcopy(module), floats, others)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-8)
    on_meta = [[x.to(META) for x in tensors] for tensors in (floats, others)]
    module = module.to(META)
    with without_device_reads():
        computed(module, *on_meta)


FEW_SETS, FEW_ELEMENTS = (5, 1, 9, 5), (2, 1, 2, 1, 2)
BY_SIZE = ("gpo", "fspool", "fsw", "pswe")  # with fewer sizes than sets, weights are computed per size


@pytest.mark.parametrize(
    ("name", "sizes"),
    [*((name, FEW_SETS) for name in AGGREGATORS.built_in()), *((name, FEW_ELEMENTS) for name in BY_SIZE)],
)
def test_aggregator_gpu_path_matches_cpu_without_sync(name, sizes):
    torch.manual_seed(0)
    module = AGGREGATORS.build(name, 16).double()
    inputs = random_inputs([*sizes], module=module, dim=16).cast(torch.float64)
    of_set = inputs.context is not None and inputs.context.mask is not None
    masks = [inputs.mask_BN, *([inputs.context.mask] if of_set else [])]

    def call(module: nn.Module, *tensors: Tensor) -> Tensor:
        own = inputs.with_floats(*tensors[: -len(masks)])
        mask_BN, *mask = tensors[-len(masks) :]
        context = own.context._replace(mask=mask[0]) if mask else own.context
        return module(own.x_BND, mask_BN, context=context, global_feature_BS=own.global_feature_BS).vectors

    assert_fit(call, module, inputs.floats(), masks)


def unit(*shape: int) -> Tensor:
    return torch.nn.functional.normalize(torch.randn(*shape, dtype=torch.float64), dim=-1)


@pytest.mark.parametrize("name", SIMILARITIES.built_in())
def test_similarity_gpu_path_matches_cpu_without_sync(name):
    torch.manual_seed(0)
    module = Similarity.build(name, 6).double()
    shape = (3, 6) if module.of_sets else (2, 6) if module.of_distributions else (6,)
    assert_fit(lambda module, x, y: module(x, y), module, [unit(5, *shape), unit(4, *shape)])


MINED = [f"triplet(negatives={name}, warmup_epochs=0)" for name in MINERS.built_in()]


@pytest.mark.parametrize("spec", [*OBJECTIVES.built_in(), *MINED])
def test_objective_gpu_path_matches_cpu_without_sync(spec):
    torch.manual_seed(0)
    sim_VT = torch.rand(6, 6, dtype=torch.float64)
    assert_fit(
        lambda module, *batch: module(*batch, epoch=2.0)["loss"],
        OBJECTIVES.build(spec).double(),
        [sim_VT],
        pairs(6),
    )


@pytest.mark.parametrize("name", REGULARISERS.built_in())
def test_regulariser_gpu_path_matches_cpu_without_sync(name):
    torch.manual_seed(0)
    module = REGULARISERS.build(f"{name}(weight=1)").double()
    k = 2 if module.of_distributions else 3

    def call(module: nn.Module, *floats: Tensor) -> Tensor:
        return module(Embeddings(*floats[:3]), Embeddings(*floats[3:]))

    assert_fit(call, module, 2 * [unit(4, k, 6), unit(4, k, 6), unit(4, 6)])
