from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from workers import run_workers

from polypool.encoders.visual.cnn import CNN, NETWORKS
from polypool.infra.compute.dist import rank
from polypool.pipelines.training.loop.optim import lr_scale, make_optimizer, ready_gradients, set_lr
from polypool.tasks.run import Optim

FROZEN = {"lr_factors": (("cnn", 0.1),), "freeze": (("cnn", 1.5), ("cnn.layer4", 0.0))}
OPTIM = Optim(lr=1e-2, weight_decay=0.1, clip=0.5, schedule="constant", **FROZEN)
EPOCH_STEPS = 2


def encoder() -> CNN:
    torch.manual_seed(0)
    with patch.dict(NETWORKS, tiny={"depths": (1, 1, 1, 1), "base": 4}):
        model = CNN({}, name="tiny", width=4).double()
    for module in model.modules():
        if hasattr(module, "bn3"):
            nn.init.constant_(module.bn3.weight, 0.5)
    return model


def train(model, optimizer, steps: range, *, wrapped=None, share: slice = slice(None)) -> list:
    """Train like the loop; return for each step the norm, and whether conv1 and layer4 had a gradient."""
    found = []
    for step in steps:
        draw = torch.Generator().manual_seed(step)
        x = torch.randn(4, 3, 32, 32, dtype=torch.float64, generator=draw)[share]
        set_lr(optimizer, OPTIM, lr_scale(OPTIM, step=step, epoch_steps=EPOCH_STEPS))
        loss = (wrapped or model)(x, torch.ones(len(x), 1, dtype=torch.bool))[0].square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = ready_gradients(optimizer, OPTIM, step=step, epoch_steps=EPOCH_STEPS)
        optimizer.step()
        has = [p.grad is not None for p in (model.cnn.conv1.weight, model.cnn.layer4[0].conv1.weight)]
        found.append((float(norm), *has))
    return found


def frozen_by_hand(model: CNN, frozen: bool) -> None:
    for name, parameter in model.cnn.named_parameters():
        if not name.startswith("layer4"):
            parameter.requires_grad_(not frozen)


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: x.clone() for name, x in model.state_dict().items()}


def test_freeze_equals_disabling_gradients():
    """Compare norm, clipping, weight decay, moments and bias correction."""
    model, other = encoder(), encoder()
    found = train(model, make_optimizer(model, OPTIM), range(6))
    optimizer = make_optimizer(other, OPTIM)
    frozen_by_hand(other, True)
    expected = train(other, optimizer, range(3))
    frozen_by_hand(other, False)
    expected += train(other, optimizer, range(3, 6))
    assert found == expected
    for name, x in weights(other).items():
        assert torch.equal(model.state_dict()[name], x), name


def worker(folder: str) -> None:
    model = encoder()
    optimizer = make_optimizer(model, OPTIM)
    wrapped = DistributedDataParallel(model, broadcast_buffers=False)
    share = slice(2 * rank(), 2 * rank() + 2)
    found = train(model, optimizer, range(6), wrapped=wrapped, share=share)
    if rank() == 0:
        torch.save({"weights": model.state_dict(), "found": found}, f"{folder}/two.pt")


def test_two_workers_freeze_like_one(tmp_path):
    run_workers(worker, str(tmp_path))
    two = torch.load(tmp_path / "two.pt", weights_only=True)
    model = encoder()
    found = train(model, make_optimizer(model, OPTIM), range(6))
    for ours, theirs in zip(found, two["found"], strict=True):
        assert theirs == pytest.approx(ours, rel=1e-9)
    for name, x in weights(model).items():
        torch.testing.assert_close(two["weights"][name], x, rtol=1e-7, atol=1e-9, msg=name)
