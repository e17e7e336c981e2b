"""Cross-encoder: scores of batches, blocks and selected pairs, and their gradients."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from corpora import make_corpus
from formulas import cross_modal_of
from small_models import CROSS, PAIR_MODELS, batch_of, pair_model
from torch.nn.parallel import DistributedDataParallel
from workers import run_workers

from polypool.aggregators.aggregator import Context
from polypool.infra.compute.dist import broadcast_state, gather_uneven, rank
from polypool.infra.compute.dropout import Draws, drawn
from polypool.infra.registry import TASKS
from polypool.tasks.models.pair_encoder import PaddedSets, PairEncoder, PairScores


def parts_of(model: PairEncoder) -> tuple[torch.nn.Module, ...]:
    return model.visual, model.text, model.similarity, model.objective


def cosine(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a * b).sum() / (a.square().sum().sqrt() * b.square().sum().sqrt())


@pytest.mark.parametrize(("cross", "aggregator"), PAIR_MODELS)
def test_batch_scores_match_explicit_single_pairs(cross, aggregator):
    model, batch = pair_model(cross, aggregator).eval(), batch_of(0, 7, 20)
    visual, text = model.encode_visual(batch), model.encode_text(batch)
    parameters = list(model.parameters())
    weight = torch.randn(3, 3, dtype=torch.float64)
    sim = model.score_batch(batch).sim_VT
    ours = torch.autograd.grad((sim * weight).sum(), parameters, allow_unused=True, retain_graph=True)

    state = {} if model.cross is None else dict(model.cross.named_parameters())
    expected = torch.stack([torch.stack([
        score_of_pair(model, state, v[v_mask], t[t_mask]) for t, t_mask in zip(*text, strict=True)
    ]) for v, v_mask in zip(*visual, strict=True)])  # fmt: skip
    torch.testing.assert_close(sim, expected, rtol=0, atol=1e-7)
    theirs = torch.autograd.grad((expected * weight).sum(), parameters, allow_unused=True)
    for ours_x, theirs_x in zip(ours, theirs, strict=True):
        torch.testing.assert_close(ours_x, theirs_x, rtol=1e-6, atol=1e-6)


def score_of_pair(model: PairEncoder, state: dict, v_ND: torch.Tensor, t_MD: torch.Tensor) -> torch.Tensor:
    """Section III of the paper for one image and one caption: no padding, no batch, explicit attention."""
    if state:
        v_ND, t_MD = cross_modal_of(state, 2, 1, v_ND, t_MD)
    vectors = []
    for branch, own, other in ((model.visual, v_ND, t_MD), (model.text, t_MD, v_ND)):
        masks = [torch.ones(1, len(x), dtype=torch.bool) for x in (own, other)]
        context = None if branch.aggregator.context == "none" else Context(other[None], masks[1])
        pooled = branch.aggregator(own[None], masks[0], context=context)
        vectors.append(pooled.vectors.view(-1, v_ND.shape[1]))
    return torch.stack([cosine(a, b) for a, b in zip(*vectors, strict=True)]).mean()


@pytest.mark.parametrize(("cross", "aggregator"), PAIR_MODELS)
def test_chunk_size_does_not_change_scores_or_gradients(cross, aggregator):
    model, batch = pair_model(cross, aggregator), batch_of(0, 3, 11, 20, 30)
    found = []
    for chunk in (2, 5, 1000):
        other = PairEncoder(*parts_of(model), cross=model.cross, chunk=chunk)
        sim = other.score_batch(batch).sim_VT
        grads = torch.autograd.grad(sim.square().sum(), [*other.parameters()], allow_unused=True)
        found.append([sim, *grads])
    for first, *rest in zip(*found, strict=True):
        for x in rest:
            torch.testing.assert_close(x, first, rtol=1e-9, atol=1e-9)


def test_autograd_stores_sets_not_pairs():
    """With small chunks, autograd saves less than one value per pair and element of 12 x 12 pairs."""
    batch = batch_of(*range(12))

    def held(chunk: int) -> int:
        model, sizes = pair_model(CROSS, "score_attention(heads=2)"), []
        model.side = int(chunk**0.5)
        visual, text = ([x.detach() for x in of(batch)] for of in (model.encode_visual, model.encode_text))
        text[0].requires_grad_()
        sets = PaddedSets(*visual), PaddedSets(*text)
        with torch.autograd.graph.saved_tensors_hooks(lambda x: sizes.append(x.numel()) or x, lambda x: x):
            model.score(*sets)
        return sum(sizes)

    assert held(9) < 12 * 12 * 8


def loss_and_gradients(model: torch.nn.Module, batch: dict, world: int) -> dict[str, torch.Tensor]:
    parallel = DistributedDataParallel(model, broadcast_buffers=False) if world > 1 else model
    terms = parallel(batch, epoch=1.0)
    terms["loss"].backward()
    return {"loss": terms["loss"].detach()} | {name: p.grad for name, p in model.named_parameters()}


def scores(run) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    adapter = TASKS.build(run.task, run)
    model = adapter.model()
    score = adapter.scorer(model, "test")
    block = score(slice(3, 9), slice(4, 17))
    found = adapter.evaluate(model, "test", "whole")
    rsum = torch.tensor(found.metrics["rsum"])
    of_run = {"block": block, "whole": score(slice(None), slice(None)), "rsum": rsum}
    if model.looks_at_pairs:
        of_run["some"] = adapter.scorer(model, "test").of_all(np.arange(9), np.arange(9, 0, -1))
        of_run |= {name: torch.from_numpy(found.per_query[name]) for name in ("i2t_rank", "t2i_rank")}
    return of_run


def share(rank: int, world: int) -> dict[str, torch.Tensor]:
    return batch_of(*np.array_split(np.arange(8) * 5, world)[rank].tolist())


def found_by(share: dict[str, torch.Tensor], runs, world: int) -> dict[str, torch.Tensor]:
    found = {}
    for spec in PAIR_MODELS[-2:]:
        found |= {
            f"{spec}/{key}": x for key, x in loss_and_gradients(pair_model(*spec), share, world).items()
        }
    for i, run in enumerate(runs):
        found |= {f"run {i}: {key}": x for key, x in scores(run).items()}
    return found


def worker(folder: str, runs) -> None:
    found = found_by(share(rank(), 2), runs, 2)
    found["uneven"] = gather_uneven(torch.full((3 * rank(), 2), rank()))
    linear = torch.nn.Linear(1, 1).requires_grad_(False)
    linear.weight.fill_(rank())
    broadcast_state(linear)
    found["broadcast"] = linear.weight
    torch.save(found, f"{folder}/{rank()}.pt")


def test_two_workers_match_scores_and_gradients_of_one(tmp_path):
    run = make_corpus(tmp_path / "tiny")
    runs = [run, replace(run, aggregator="score_attention(heads=2)")]
    run_workers(worker, str(tmp_path), runs)
    widths = [share(rank, 2)["text"].shape[1] for rank in (0, 1)]
    assert widths[0] != widths[1]  # the workers must pad captions to different lengths
    expected = found_by(share(0, 1), runs, 1)
    for two in (torch.load(tmp_path / f"{number}.pt", weights_only=True) for number in (0, 1)):
        assert two.pop("uneven").tolist() == [[1, 1]] * 3
        assert two.pop("broadcast").item() == 0
        assert two.keys() == expected.keys()
        for name, x in expected.items():
            close = {} if name.startswith("run") else {"rtol": 1e-9, "atol": 1e-9}
            torch.testing.assert_close(two[name], x, **close, msg=name)


def test_checkpoint_recomputation_repeats_dropout(monkeypatch):
    model, batch = pair_model("cross_modal(heads=2, dropout=0.3)", "mean").train(), batch_of(0, 7, 20, 3)
    model.side = 2  # images and captions per block

    def gradients() -> list[torch.Tensor | None]:
        model.zero_grad()
        with drawn(Draws(seed=0, step=0, first=0, samples=4)):
            model(batch, epoch=2.0)["loss"].backward()
        return [parameter.grad for parameter in model.parameters()]

    checkpointed = gradients()
    monkeypatch.setattr(model, "_checkpointed", model._score_block)
    torch.testing.assert_close(checkpointed, gradients(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("side", [16, 1])
def test_selected_pairs_score_as_in_full_block(side):
    model, batch = pair_model(*PAIR_MODELS[1]).eval(), batch_of(0, 7, 20, 33, 41)
    visual, text = model.encode_visual(batch), model.encode_text(batch)
    visual, text = ([x[mask].detach() for x, mask in zip(*of, strict=True)] for of in (visual, text))
    assert len({len(x_MD) for x_MD in text}) > 1
    score, block = (PairScores(model, visual=visual[:4], text=text) for _ in range(2))
    expected = block(slice(None), slice(None))
    model.side, some = side, (np.array([3, 1]), np.array([4, 0, 2]))
    torch.testing.assert_close(score.of_all(*some), expected[np.ix_(*some)])
