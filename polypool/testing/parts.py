"""The checks of each kind of part; those of a task are in `adapters.py`."""

from __future__ import annotations

import copy
import inspect
import io
import itertools
import json
from collections import OrderedDict
from contextlib import redirect_stdout, suppress
from dataclasses import fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import tyro
from PIL import Image
from torch import Tensor, nn

from polypool.aggregators.contract import aggregator_checks
from polypool.encoders.adaptations import Adaptation
from polypool.encoders.backbones import Backbone, Described, build_backbone
from polypool.encoders.encoder import Encoder, TextEncoder
from polypool.infra.checks import Check
from polypool.infra.errors import PLUG_IN_ERRORS
from polypool.infra.registry import ADAPTATIONS, AGGREGATORS, ENCODERS, KINDS, OBJECTIVES, Spec
from polypool.pipelines.data.ingestion import reader_verb
from polypool.pipelines.recipes.load import Ensemble
from polypool.pipelines.training.loop.optim import make_optimizer, set_lr
from polypool.tasks.inputs.texts import Captions
from polypool.tasks.objectives.miners import BatchScores, Chosen, Miner
from polypool.tasks.objectives.objective import Objective, batch_positives, pairs_and_negatives
from polypool.tasks.objectives.regularisers import Regulariser
from polypool.tasks.run import Optim, Run, from_json, to_json
from polypool.tasks.similarities.similarity import Similarity
from polypool.tasks.similarities.vectors import Embeddings, l2_normalise
from polypool.testing.base import (
    REGISTER,
    BuiltChecks,
    PartChecks,
    check,
    check_mask,
    check_parameters,
    check_tensor,
    check_terms,
)

CAPTIONS = (
    "a dog runs on the grass",
    "two people sit at a small table and eat, one of them laughs",
    "boats",
    "the red car is beside a tree",
)
_STORED = 12  # width of made-up stored features
_SIZES = (5, 1, 9, 4)


class EncoderChecks(BuiltChecks):
    """Checks of one encoder."""

    def __init__(self, spec: str) -> None:
        super().__init__(spec)
        self._kind, self._params = ENCODERS.part(spec), Spec.parse(spec).params
        self._of_text = issubclass(self._kind, TextEncoder)
        self._of_pixels = self._kind.reads == "pixels"

    @cached_property
    def assets(self) -> dict[str, Any]:
        """The assets of a new encoder."""
        if self._of_text:  # each caption several times, since rare words may be left out
            return self._kind.prepare([text for text in CAPTIONS for _ in range(8)], **self._params)
        if self._of_pixels:
            return self._kind.prepare(**self._params)
        return {"dim": _STORED, "statistics": {"mean": [0.1] * _STORED, "std": [1.5] * _STORED}}

    @cached_property
    def inputs(self) -> tuple[Tensor, Tensor]:
        """A batch, `(x, mask_BN)`."""
        generator = torch.Generator().manual_seed(0)
        if self._of_text:
            batch = Captions(CAPTIONS, self._kind.tokenizer(self.assets)).batch(np.arange(len(CAPTIONS)))
            return batch["text"], batch["text_mask"]
        if self._of_pixels:
            transform = self._kind.transform(self.assets, **self._params)
            pixels = torch.randn(2, 3, transform.size, transform.size, generator=generator)
            return pixels, torch.ones(2, transform.cells, dtype=torch.bool)
        mask_BN = torch.arange(max(_SIZES)) < torch.tensor(_SIZES)[:, None]
        x_BNF = torch.randn(*mask_BN.shape, _STORED, generator=generator)
        return x_BNF.masked_fill(~mask_BN[..., None], 0.0), mask_BN

    def _new(self, assets: dict[str, Any]) -> Encoder:
        torch.manual_seed(0)
        return ENCODERS.build(self.spec, assets).eval()

    @cached_property
    def part(self) -> Encoder:
        """A new encoder in evaluation mode."""
        return self._new(self.assets)

    @torch.no_grad()
    def _encode(self, x: Tensor, mask_BN: Tensor) -> tuple[Tensor, ...]:
        return self.part(x, mask_BN)

    @check(
        "assets are plain JSON",
        "make them of dicts with string keys, lists, strings, numbers, None: no tensors, arrays, tuples",
        vital=True,
    )
    def _assets_are_json(self) -> None:
        json.dumps(self.assets)

    @check(
        "sets of the declared width, with their mask",
        "return (x_BND, mask_BN), or (x_BND, mask_BN, global_BS), with self.width = D, "
        "self.global_width = S, and a bool mask that marks at least one element of each set",
        vital=True,
    )
    def _shape(self) -> str:
        out = self._encode(*self.inputs)
        width, global_feature = self.part.width, self.part.global_width
        assert len(out) == 2 + bool(global_feature), (
            f"{len(out)} things came out, expected {2 + bool(global_feature)} with global_width = {global_feature}"
        )
        (x_BND, mask_BN, *others), samples = out, len(self.inputs[0])
        check_mask("the mask", mask_BN, samples)
        check_tensor("the set", x_BND.masked_fill(~mask_BN[..., None], 0.0), *mask_BN.shape, width)
        for feature in others:
            check_tensor("the global feature", feature, samples, global_feature)
        return f"{tuple(self.inputs[0].shape)} -> {tuple(x_BND.shape)}"

    @check(
        "padding and values under the mask change nothing",
        "hide it before elements meet: pack sequences, mask attention, fill with 0 before a convolution",
        applies=lambda self: not self._of_pixels,
    )
    def _padding(self) -> None:
        x, mask_BN = self.inputs
        expected = self._encode(x, mask_BN)
        padded = nn.functional.pad(x, [0, 0] * (x.dim() - 2) + [0, 3])
        longer = self._encode(padded, nn.functional.pad(mask_BN, (0, 3)))
        _same_sets(longer, expected, "more padding changes the set")
        noise = torch.full_like(x, 1 if self._of_text else 50)
        filled = x.where(mask_BN[(...,) + (None,) * (x.dim() - 2)], noise)
        _same_sets(self._encode(filled, mask_BN), expected, "values under the mask change the set")

    @check(
        "batch mates change nothing",
        "compute each set from itself alone in evaluation mode, and nothing from the longest set's size",
    )
    def _batch_mates(self) -> None:
        x, mask_BN = self.inputs
        together = self._encode(x, mask_BN)
        for i in range(len(x)):
            size = None if self._of_pixels else int(mask_BN[i].sum())
            alone = self._encode(x[i : i + 1, :size], mask_BN[i : i + 1, :size])
            _same_sets(alone, tuple(part[i : i + 1] for part in together), "batch mates change the set")

    @check(
        "a video is its frames",
        "derive from PixelEncoder and implement `cells`, whose forward takes videos, too",
        applies=lambda self: self._of_pixels,
    )
    def _frames(self) -> None:
        x_B3SS, mask_BN = self.inputs
        x_BND, *_ = self._encode(x_B3SS, mask_BN)
        mask_1N = mask_BN.reshape(1, -1)
        video, frames = self._encode(x_B3SS[None], mask_1N)[:2], (x_BND.flatten(0, 1)[None], mask_1N)
        _same_sets(video, frames, "a video differs from its frames")

    @check(
        "before_affine and its map give what forward gives, where there are any",
        "return what the last step of forward maps, and that step, if nothing follows it; None elsewhere",
        applies=lambda self: not self._of_pixels,
    )
    @torch.no_grad()
    def _before_affine(self) -> None:
        if mapped := self.part.before_affine(*self.inputs):
            x_BNF, mask_BN, affine = mapped
            result, expected = (affine(x_BNF), mask_BN), self._encode(*self.inputs)
            _same_sets(result, expected, "the map of before_affine differs")

    @check("gradients are finite and reach every weight", REGISTER)
    def _gradients(self) -> None:
        module = copy.deepcopy(self.part).train()
        x_BND, mask_BN, *global_feature = module(*self.inputs)
        loss = x_BND[mask_BN].square().sum() + sum(part.square().sum() for part in global_feature)
        loss.backward()
        check_parameters(module)

    @check(
        "assets and state dict rebuild it",
        "make what is learned a parameter, what is fixed a buffer; put what shapes them into the assets",
    )
    @torch.no_grad()
    def _rebuilt(self) -> None:
        other = self._new(json.loads(json.dumps(self.assets)))
        for parameter in other.parameters():
            nn.init.normal_(parameter)
        other.load_state_dict(self.part.state_dict())
        _same_sets(other(*self.inputs), self._encode(*self.inputs), "the rebuilt encoder differs")


def _same_sets(result: tuple[Tensor, ...], expected: tuple[Tensor, ...], what: str) -> None:
    """Assert that two results have the same elements outside the padding, and the same global features."""
    unpadded = [(x_BND[mask_BN], *others) for x_BND, mask_BN, *others in (result, expected)]
    for one, other in zip(*unpadded, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4, msg=what)


_EMBEDDED = 8
_EPOCHS = (0.0, 30.0)
_MINED = ("triplet(warmup_epochs=0, negatives={})", "infonce(negatives={})")
_HIGH = 9.0  # score of positives, above every negative
_OWN_T = torch.arange(6)  # the item of each text of the made-up batch
_OWN_VT = batch_positives(_OWN_T, _OWN_T)


def _embeddings(*shape: int, seed: int) -> Tensor:
    return l2_normalise(torch.randn(*shape, _EMBEDDED, generator=torch.Generator().manual_seed(seed)))


def _distributions(size: int, *, seed: int) -> Tensor:
    """Return means of unit length and log-variances, `(size, 2, D)`."""
    parts = _embeddings(size, 2, seed=seed)
    return torch.stack((parts[:, 0], 3 * parts[:, 1]), dim=1)


class SimilarityChecks(BuiltChecks):
    """Checks of one similarity."""

    @cached_property
    def part(self) -> Similarity:
        """A new similarity."""
        torch.manual_seed(0)
        return Similarity.build(self.spec, _EMBEDDED)

    def _embeddings(self) -> list[tuple[Tensor, Tensor]]:
        """Return pairs of queries and a gallery: vectors, and sets where it compares them; or distributions."""
        if self.part.of_distributions:
            return [(_distributions(5, seed=0), _distributions(7, seed=1))]
        shapes = [(), (3,)] if self.part.of_sets else [()]
        return [(_embeddings(5, *shape, seed=0), _embeddings(7, *shape, seed=1)) for shape in shapes]

    @check(
        "a finite score of every query with every embedding, by what it declares to compare",
        "return (Q, G), and set `of_sets` or `of_distributions` on the class where it compares these",
        vital=True,
    )
    def _scores(self) -> None:
        for query, gallery in self._embeddings():
            check_tensor("the score of all pairs", self.part(query, gallery), 5, 7)

    @check(
        "each pair is scored by itself",
        "normalise over nothing but the two embeddings: evaluation scores block by block",
    )
    def _alone(self) -> None:
        for query, gallery in self._embeddings():
            block_QG, expected_QG = self.part(query[1:2], gallery[3:5]), self.part(query, gallery)[1:2, 3:5]
            different = "a block of the scores differs from the whole"
            torch.testing.assert_close(block_QG, expected_QG, atol=1e-5, rtol=1e-5, msg=different)

    @check(
        "gradients are finite and reach every parameter",
        f"add a small number under roots and in divisions; {REGISTER}",
    )
    def _gradients(self) -> None:
        for query, gallery in self._embeddings():
            query.requires_grad_()
            self.part.zero_grad()
            self.part(query, gallery).square().sum().backward()
            check_tensor("the gradient of the embeddings", query.grad, *query.shape)
            check_parameters(self.part)


class ObjectiveChecks(BuiltChecks):
    """Checks of one objective."""

    part: Objective

    def _terms(
        self, sim_VT: Tensor, *, positive_VT: Tensor = _OWN_VT, epoch: float = 0.0
    ) -> dict[str, Tensor]:
        return self.part(sim_VT, _OWN_T, positive_VT, epoch=epoch)

    def _scores(self) -> Tensor:
        return (_embeddings(6, seed=0) @ _embeddings(6, seed=1).T).requires_grad_()

    @check("finite scalars, `loss` among them", "return a dict of scalar tensors", vital=True)
    def _scalars(self) -> str:
        return check_terms(self._terms(self._scores()))

    @check("what it learns is reached by finite gradients in every epoch", REGISTER)
    def _gradients(self) -> None:
        for epoch in _EPOCHS:
            self.part.zero_grad()
            self._terms(self._scores(), epoch=epoch)["loss"].backward()
            check_parameters(self.part, when=f", in epoch {epoch:g}")

    @check(
        "a batch without negatives has a finite loss and gradient",
        "use polypool.tasks.objectives.objective.pairs_and_negatives, whose lowest number leaves no NaN",
    )
    def _without_negatives(self) -> None:
        for epoch in _EPOCHS:
            sim_VT = self._scores()
            loss = self._terms(sim_VT, positive_VT=torch.ones_like(_OWN_VT), epoch=epoch)["loss"]
            if loss.requires_grad:
                loss.backward()
            for x in (loss, sim_VT.grad):
                assert x is None or x.isfinite().all(), "its loss or its gradient is not finite"

    @check("steps against its gradient lower it", "see that the scores reach the loss with their gradient")
    def _learns(self) -> str:
        for epoch in _EPOCHS:
            sim_VT, losses = self._scores(), []
            for _ in range(20):
                loss = self._terms(sim_VT, epoch=epoch)["loss"]
                losses.append(loss.item())
                (grad,) = torch.autograd.grad(loss, sim_VT)
                sim_VT = (sim_VT - 0.02 * grad / grad.norm().clamp(min=1e-6)).detach().requires_grad_()
            change = f"{losses[0]:.4g} to {losses[-1]:.4g}"
            assert losses[-1] < losses[0], f"20 steps took the loss from {change}"
        return change


class MinerChecks(BuiltChecks):
    """Checks of one miner."""

    part: Miner

    def _sides(self) -> list[tuple[int, Chosen]]:
        """Return the number of pairs and what is chosen of each, of both directions and several batches."""
        found = [(len(scores.row_T), self.part.choose(scores)) for scores in _batches()]
        return [(pairs, side) for pairs, mined in found for side in (mined.to_text, mined.to_visual)]

    @check(
        "it chooses negatives of each pair, in both directions",
        "return Mined of two Chosen; see tasks/objectives/miners.py",
        vital=True,
    )
    def _chooses(self) -> None:
        for pairs, side in self._sides():
            score_TN, weight_TN, _ = side.of_pairs()
            check_tensor("the scores", score_TN.clamp(min=-_HIGH), pairs, -1)
            assert score_TN.requires_grad, "what it chose has lost its gradient"
            if weight_TN is not None:
                check_tensor("the weights", weight_TN, *score_TN.shape)
                assert ((weight_TN >= 0) & (weight_TN <= 1)).all(), "a weight is not from 0 to 1"
                assert not weight_TN.requires_grad, "a weight has a gradient"

    @check(
        "no positive is ever chosen",
        "choose among scores.negative_VT, in which positives are the lowest number",
    )
    def _leaves_positives(self) -> None:
        for _, side in self._sides():
            score_RN = side.score_RN if side.weight_RN is None else side.score_RN * (side.weight_RN > 0)
            assert (score_RN < _HIGH / 2).all(), (
                "an image's own text, or another of its images, is among them"
            )

    @check(
        "triplet and infonce have finite gradients of it, and none where there is no negative",
        "divide by nothing that may be 0",
    )
    def _gradients(self) -> None:
        for scores, spec in itertools.product(_batches(), _MINED):
            objective, sim_VT = spec.format(self.spec), scores.sim_VT.detach().requires_grad_()
            terms = OBJECTIVES.build(objective)(sim_VT, scores.row_T, scores.positive_VT, epoch=2.0)
            terms["loss"].backward()
            check_tensor(f"the gradient of {objective}", sim_VT.grad, *sim_VT.shape)
            assert sim_VT.grad is not None
            learns = sim_VT.grad.any() and scores.positive_VT.all()
            assert not learns, "a batch without negatives has a gradient"


class RegulariserChecks(BuiltChecks):
    """Checks of one regulariser."""

    part: Regulariser

    @check(
        "a finite scalar, logged under a name, with finite gradients, which reach every parameter",
        f"set `name`; add a small number under roots and in divisions; {REGISTER}",
    )
    def _scalar(self) -> str:
        distributions = self.part.of_distributions
        sides = [_distributions(6, seed=n) if distributions else _embeddings(6, 3, seed=n) for n in (0, 1)]
        sides = [embedding.requires_grad_() for embedding in sides]
        term = self.part(*(Embeddings(embedding, embedding * 0.5) for embedding in sides))
        check_tensor("it", term)
        term.backward()
        for embedding in sides:
            if embedding.grad is not None:
                check_tensor("its gradient", embedding.grad, *embedding.shape)
        check_parameters(self.part)
        assert self.part.name, "it has no name to be logged under"
        return f"{self.part.name} {term.item():.4g}, weight {self.part.weight:g}"


def _batches() -> list[BatchScores]:
    """Return a batch of pairs in which an image comes twice, one of items with several texts, and one of one item."""
    cases = [
        (torch.tensor([5, 7, 2, 7, 9]), torch.arange(5)),
        (torch.arange(3), torch.tensor([0, 0, 1, 2, 2, 2])),
        (torch.tensor([4, 4]), torch.arange(2)),
    ]
    batches = []
    for item_V, row_T in cases:
        positive_VT = batch_positives(item_V, row_T)
        sim_VT = torch.rand(len(item_V), len(row_T), generator=torch.Generator().manual_seed(0))
        sim_VT = (sim_VT + _HIGH * positive_VT).requires_grad_()
        pair_T, negative_VT = pairs_and_negatives(sim_VT, row_T, positive_VT)
        known = {"row_T": row_T, "positive_VT": positive_VT, "sim_VT": sim_VT.detach()}
        batches.append(BatchScores(pair_T=pair_T, negative_VT=negative_VT, **known))
    return batches


_RATE, _STEPS = 1e-3, 6
_STATE = "keep what a step needs in self.state[weight], and read rates from the groups"


class OptimiserChecks(BuiltChecks):
    """Checks of one optimiser."""

    def __init__(self, spec: str) -> None:
        super().__init__(spec)
        self._optim = Optim(optimiser=spec, lr=_RATE, weight_decay=0.0)

    @property
    def part(self) -> torch.optim.Optimizer:
        """A new optimiser."""
        return self._made()[1]

    def _made(self, **changes: Any) -> tuple[nn.Module, torch.optim.Optimizer]:
        """Return a model of an embedding table, matrices and vectors, and its optimiser."""
        torch.manual_seed(0)
        parts = (nn.Embedding(5, 4), nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
        model = nn.Sequential(OrderedDict(zip(("words", "inner", "tanh", "outer"), parts, strict=True)))
        return model, make_optimizer(model, replace(self._optim, **changes))

    @check("a step lowers a loss", "step against the gradient", vital=True)
    def _lowers(self) -> str:
        losses = _train(*self._made(), steps=_STEPS)
        assert losses[1] < losses[0], (
            f"at a rate of {_RATE}, it took the loss from {losses[0]:.4g} to {losses[1]:.4g}"
        )
        return f"{_STEPS} took it from {losses[0]:.4g} to {losses[-1]:.4g}"

    @check("each group moves at its own rate", _STATE)
    def _rates(self) -> None:
        model, optimizer = self._made(lr_factors=(("inner", 0.5),))
        first = copy.deepcopy(model)
        set_lr(optimizer, self._optim, 0.0)
        for group in optimizer.param_groups:
            group["lr"] = _RATE if group["factor"] == 0.5 else 0.0
        _train(model, optimizer, steps=1)
        moved = _moved(first, model)
        assert moved == ["inner.bias", "inner.weight"], (
            f"where the group of `inner` alone had a rate, it moved {', '.join(moved) or 'nothing'}"
        )

    @check(
        "a weight without a gradient stays as it is",
        "leave it, its decay and its state alone where weight.grad is None",
    )
    def _left_alone(self) -> None:
        (model, optimizer), left = self._made(weight_decay=0.5), {"inner.weight", "words.weight"}
        for _ in range(2):  # at once, and after a step that had their gradients
            first = copy.deepcopy(model)
            _batch_loss(model)
            for name in left:
                model.get_parameter(name).grad = None
            optimizer.step()
            moved = [name for name in _moved(first, model) if name in left]
            assert not moved, f"it moved {', '.join(moved)}"
            _train(model, optimizer, steps=1)

    @check(
        "an interrupted run ends with the same weights, bit for bit",
        f"{_STATE}; state_dict must hold tensors, numbers and text alone",
    )
    def _resumed(self) -> None:
        (whole, optimizer), (again, other) = self._made(), self._made()
        _train(whole, optimizer, steps=_STEPS // 2)
        torch.save({"weights": whole.state_dict(), "optimizer": optimizer.state_dict()}, file := io.BytesIO())
        file.seek(0)
        state = torch.load(file, weights_only=True)
        again.load_state_dict(state["weights"])
        other.load_state_dict(state["optimizer"])
        for model, method in ((whole, optimizer), (again, other)):
            _train(model, method, steps=_STEPS // 2)
        differing = _moved(whole, again)
        assert not differing, f"after {_STEPS} steps, the weights {', '.join(differing)} differ"


def _batch_loss(model: nn.Module) -> float:
    """Put the gradients of a batch in place, and return its loss."""
    wanted_BO = torch.randn(10, 3, generator=torch.Generator().manual_seed(0))
    loss = F.mse_loss(model(torch.arange(10) % 5), wanted_BO)
    model.zero_grad(set_to_none=True)
    loss.backward()
    return float(loss.detach())


def _train(model: nn.Module, optimizer: torch.optim.Optimizer, *, steps: int) -> list[float]:
    """Train for some steps, and return the loss before each."""
    losses = []
    for _ in range(steps):
        losses.append(_batch_loss(model))
        optimizer.step()
    return losses


def _moved(before: nn.Module, after: nn.Module) -> list[str]:
    """Return the names of the weights that differ."""
    pairs = zip(before.named_parameters(), after.parameters(), strict=True)
    return sorted(name for (name, old), new in pairs if not torch.equal(old, new))


_WIDTH = 8  # of the random sets that an aggregator pools
_IMAGES = ((48, 64), (64, 48), (90, 60))  # which a backbone sees, as height and width
_FRAMES = 20


class AggregatorChecks(BuiltChecks):
    """The contract of aggregators."""

    @cached_property
    def part(self) -> Any:
        """A new aggregator."""
        torch.manual_seed(0)
        return AGGREGATORS.build(self.spec, _WIDTH)

    def checks(self) -> list[Check]:
        """Return that it is built, then the contract; the first alone where it is not built."""
        with suppress(*PLUG_IN_ERRORS):
            return [*super().checks(), *aggregator_checks(self.part, _WIDTH)]
        return super().checks()


class BackboneChecks(BuiltChecks):
    """Checks of one backbone."""

    @cached_property
    def part(self) -> Backbone:
        """A new backbone."""
        return build_backbone(self.spec)

    @check(
        "it describes what its features depend on",
        "return from describe what JSON can hold, with the registered name as `backbone` and parameters "
        "by their names, so that a store can be made again",
    )
    def _describes(self) -> None:
        described, name = self.part.describe(), Spec.parse(self.spec).name
        assert json.loads(json.dumps(described)) == described, "JSON gives back something else, as of tuples"
        found = described.get("backbone")
        assert found == name, f"backbone is {found!r}, expected {name!r}"

    @cached_property
    def _inputs(self) -> list[Any]:
        if self.part.reads == "text":
            return list(CAPTIONS[:3])
        rng = np.random.default_rng(0)
        return [Image.fromarray(rng.integers(0, 256, (*size, 3), np.uint8)) for size in _IMAGES]

    def _of(self, inputs: list[Any]) -> list[dict[str, np.ndarray]]:
        """Return vectors and columns of each input, by name; a video is `_FRAMES` of an image."""
        backbone: Any = self.part
        video = backbone.reads == "video"
        made = [backbone(iter([image] * _FRAMES)) for image in inputs] if video else backbone(inputs)
        assert len(made) == len(inputs), f"{len(made)} things came out of {len(inputs)}"
        refused = [each for each in made if isinstance(each, str)]
        assert not refused, f"it refuses an input: {refused}"
        return [
            {"vectors": x.x_ND, **x.columns} if isinstance(x, Described) else {"vectors": x} for x in made
        ]

    @check(
        "sets of the declared width, with the declared columns",
        "return float32 (N, dim) for each input; where `columns` names any, a Described whose columns "
        "are (N, C)",
        vital=True,
    )
    def _sets(self) -> str:
        widths = {"vectors": self.part.dim, **dict(self.part.columns)}
        for arrays in self._of(self._inputs):
            found = {name: (x.dtype.name, *x.shape) for name, x in arrays.items()}
            size = len(arrays["vectors"])
            expected = {name: ("float32", size, width) for name, width in widths.items()}
            assert size, "a set is empty"
            assert found == expected, f"vectors and columns of {found}, expected {expected}"
            assert all(np.isfinite(x).all() for x in arrays.values()), "vectors or columns are not finite"
        return f"of {self.part.reads}s: {', '.join(f'{name} {width}' for name, width in widths.items())}"

    @check("batch mates change nothing", "describe each input from itself alone")
    def _batch_mates(self) -> None:
        for number, arrays in enumerate(self._of(self._inputs)):
            (alone,) = self._of(self._inputs[number : number + 1])
            for name, x in arrays.items():
                scale = max(1.0, np.abs(alone[name]).max())
                np.testing.assert_allclose(x, alone[name], rtol=0, atol=1e-3 * scale, err_msg=name)


class AdaptationChecks(BuiltChecks):
    """Checks of one adaptation."""

    @cached_property
    def part(self) -> Adaptation:
        """A new adaptation."""
        return ADAPTATIONS.build(self.spec)

    @cached_property
    def _published(self) -> nn.Module:
        from transformers import BertConfig, BertModel

        torch.manual_seed(0)
        config = BertConfig(
            vocab_size=9, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16
        )
        return BertModel(config, add_pooling_layer=False).eval()

    def _changed(self, *, moved: bool) -> nn.Module:
        """Return the changed model; if `moved`, its added weights are random."""
        model = copy.deepcopy(self._published).requires_grad_(False)
        self.part.change(model)
        for name, weight in model.named_parameters():
            if moved and self.part.is_added(name):
                nn.init.normal_(weight, std=0.1)
        return model.eval()

    @check(
        "it adds weights and freezes all others", "let `change` add weights that `is_added` tells", vital=True
    )
    def _adds(self) -> str:
        weights = self._changed(moved=False).named_parameters()
        names = [name for name, weight in weights if weight.requires_grad]
        wrong = [name for name in names if not self.part.is_added(name)]
        assert not wrong, f"{wrong[0]} is trained, and no checkpoint holds it"
        return f"{len(names)} weights are trained"

    @check("a new model is the published one", "let what is added change nothing before training")
    def _begins(self) -> None:
        torch.testing.assert_close(_states(self._changed(moved=False)), _states(self._published))

    @check("every added weight gets a gradient", "use each of them in every pass")
    def _gradients(self) -> None:
        model = self._changed(moved=True)
        weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        if weights:
            _states(model).square().sum().backward()
        without = [name for name, weight in weights.items() if weight.grad is None or not weight.grad.any()]
        assert not without, f"{without[0]} has none"

    @check("what is merged computes the same, with the published names", "undo in `merge` what `change` does")
    def _merges(self) -> None:
        model = self._changed(moved=True)
        expected = _states(model)
        self.part.merge(model)
        assert model.state_dict().keys() == self._published.state_dict().keys(), "names of weights differ"
        torch.testing.assert_close(_states(model), expected)


def _states(model: nn.Module) -> Tensor:
    return model(input_ids=torch.arange(8).view(2, 4)).last_hidden_state


class ReaderChecks(PartChecks):
    """The check of a reader, without its files."""

    @check(
        "its fields are options of `ingest`, each with its help",
        "decorate it with @dataclass(frozen=True, kw_only=True), define read, annotate fields with types that a "
        "command line has, and describe each in a string below it",
    )
    def _has_options(self) -> str:
        kind, printed = self.registry.get(self.spec), io.StringIO()
        assert "__dataclass_fields__" in vars(kind), "it is not decorated as a dataclass"
        assert not inspect.isabstract(kind), "it has no read"
        with redirect_stdout(printed), suppress(SystemExit):
            tyro.cli(reader_verb(self.spec), prog=f"ingest {self.spec}", args=["--help"])
        options = [field.name for field in fields(kind) if field.init]
        lacking = [name for name in options if f"--{name.replace('_', '-')}" not in printed.getvalue()]
        assert not lacking, f"no options are made of {', '.join(lacking)}"
        return f"{', '.join(options) or 'none'}; `polypool ingest {self.spec} --help`"


class RecipeChecks(PartChecks):
    """The check of one recipe."""

    @check("it returns a whole run of known parts", "see pipelines/recipes")
    def _returned(self) -> str:
        recipe = self.registry.get(self.spec)()
        if isinstance(recipe, Ensemble):
            for member in recipe.members:
                self.registry.get(member)
            return f"an ensemble of {', '.join(recipe.members)}"
        assert isinstance(recipe, Run), f"it returned {type(recipe).__name__}, expected a Run or an Ensemble"
        assert from_json(json.loads(json.dumps(to_json(recipe)))) == recipe, (
            "it comes back from JSON as something else; use numbers, strings and tuples of them"
        )
        parts = {"task": [recipe.task], "encoder": [recipe.visual, recipe.text], "model": [recipe.model]}
        parts |= {"aggregator": [recipe.aggregator], "optimiser": [recipe.optim.optimiser]}
        for kind, specs in parts.items():
            for spec in filter(None, specs):
                KINDS[kind].part(spec)
        return f"{recipe.task} on {recipe.data.corpus}; `check {recipe.task} --recipe {self.spec}` tries its data"


class LoadingChecks(PartChecks):
    """The check of a part that cannot be tried outside a run."""

    @check("it can be loaded, with these parameters", "take parameters by keyword", vital=True)
    def _loaded(self) -> str:
        parameters = inspect.signature(self.registry.part(self.spec)).parameters.values()
        takes = {each.name for each in parameters if each.kind == each.KEYWORD_ONLY}
        wrong = {*Spec.parse(self.spec).params} - takes
        assert not wrong, f"it has no parameter {', '.join(wrong)}, only {', '.join(sorted(takes)) or 'none'}"
        return "a run uses it; check the task with a recipe that names it"


_CHECKS: dict[str, type[PartChecks]] = {
    "adaptation": AdaptationChecks,
    "aggregator": AggregatorChecks,
    "backbone": BackboneChecks,
    "encoder": EncoderChecks,
    "miner": MinerChecks,
    "objective": ObjectiveChecks,
    "optimiser": OptimiserChecks,
    "reader": ReaderChecks,
    "recipe": RecipeChecks,
    "regulariser": RegulariserChecks,
    "similarity": SimilarityChecks,
}


def checks_of(spec: str, kind: str) -> list[Check]:
    """Return the checks of a part that is not a task."""
    checks = _CHECKS.get(kind, LoadingChecks)(spec)
    checks.registry = KINDS[kind]
    return checks.checks()
