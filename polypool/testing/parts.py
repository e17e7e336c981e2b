"""The checks of each kind of part except tasks, whose checks are in `adapters.py`."""

from __future__ import annotations

import copy
import inspect
import io
import itertools
import json
from contextlib import redirect_stdout, suppress
from dataclasses import fields
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import tyro
from PIL import Image
from torch import Tensor, nn

from polypool.aggregators.contract import aggregator_checks
from polypool.encoders.backbones import ImageFeatures
from polypool.encoders.encoder import Encoder, TextEncoder
from polypool.infra.checks import Check
from polypool.infra.errors import PLUG_IN_ERRORS
from polypool.infra.registry import AGGREGATORS, ENCODERS, KINDS, OBJECTIVES, Spec
from polypool.pipelines.data.ingestion import reader_verb
from polypool.pipelines.recipes.load import Ensemble
from polypool.pipelines.training.loop.optim import make_optimizer
from polypool.tasks.inputs.texts import Captions
from polypool.tasks.objectives.miners import BatchScores, Miner
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
_STORED = 12  # width of the random stored features
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
        if self._of_text:  # repeated captions, because an encoder may drop rare words
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
            f"forward returned {len(out)} values, expected {2 + bool(global_feature)}: global_width = {global_feature}"
        )
        (x_BND, mask_BN, *others), samples = out, len(self.inputs[0])
        check_mask("the mask", mask_BN, samples)
        check_tensor("the set", x_BND.masked_fill(~mask_BN[..., None], 0.0), *mask_BN.shape, width)
        for feature in others:
            check_tensor("the global feature", feature, samples, global_feature)
        return f"{tuple(self.inputs[0].shape)} -> {tuple(x_BND.shape)}"

    @check(
        "padding and values under the mask change nothing",
        "mask it before elements interact: pack sequences, mask attention, fill with 0 before a convolution",
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
        "in evaluation mode, compute each set from its own elements only, independent of the longest set's size",
    )
    def _batch_mates(self) -> None:
        x, mask_BN = self.inputs
        together = self._encode(x, mask_BN)
        for i in range(len(x)):
            size = None if self._of_pixels else int(mask_BN[i].sum())
            alone = self._encode(x[i : i + 1, :size], mask_BN[i : i + 1, :size])
            _same_sets(alone, tuple(part[i : i + 1] for part in together), "batch mates change the set")

    @check(
        "before_affine and its map are equal to forward, unless it returns None",
        "return the input of the last linear map of forward, and this map, if nothing follows it; otherwise None",
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
        "make learned tensors parameters and constants buffers; put their sizes into the assets",
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
_OWN_T = torch.arange(6)  # the item of each text of the random batch
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
        """Return queries and galleries: vectors, and sets if it compares sets; or distributions."""
        if self.part.of_distributions:
            return [(_distributions(5, seed=0), _distributions(7, seed=1))]
        shapes = [(), (3,)] if self.part.of_sets else [()]
        return [(_embeddings(5, *shape, seed=0), _embeddings(7, *shape, seed=1)) for shape in shapes]

    @check(
        "a finite score of every query with every gallery embedding",
        "return (Q, G), and set `of_sets` or `of_distributions` on the class if it compares sets or distributions",
        vital=True,
    )
    def _scores(self) -> None:
        for query, gallery in self._embeddings():
            check_tensor("the score of all pairs", self.part(query, gallery), 5, 7)

    @check(
        "the score of a pair is independent of the other pairs",
        "normalise only over the two embeddings: evaluation scores block by block",
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

    @check("gradients are finite and reach every parameter in every epoch", REGISTER)
    def _gradients(self) -> None:
        for epoch in _EPOCHS:
            self.part.zero_grad()
            self._terms(self._scores(), epoch=epoch)["loss"].backward()
            check_parameters(self.part, when=f", in epoch {epoch:g}")

    @check(
        "a batch without negatives has a finite loss and gradient",
        "use polypool.tasks.objectives.objective.pairs_and_negatives, whose lowest number avoids NaN",
    )
    def _without_negatives(self) -> None:
        for epoch in _EPOCHS:
            sim_VT = self._scores()
            loss = self._terms(sim_VT, positive_VT=torch.ones_like(_OWN_VT), epoch=epoch)["loss"]
            if loss.requires_grad:
                loss.backward()
            for x in (loss, sim_VT.grad):
                assert x is None or x.isfinite().all(), "its loss or its gradient is not finite"

    @check(
        "gradient descent lowers it", "check the sign of the loss, and that the scores keep their gradient"
    )
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

    @check(
        "it selects negatives of each pair in both directions, and never a positive",
        "return Mined(to_text=MinedNegatives(...), to_visual=MinedNegatives(...)), selected from scores.negative_VT, "
        "where positives have the lowest number",
        vital=True,
    )
    def _chooses(self) -> None:
        for scores in _batches():
            mined = self.part.choose(scores)
            for side in (mined.to_text.of_pairs(), mined.to_visual.of_pairs()):
                score_TN, weight_TN, _ = side
                check_tensor("the scores", score_TN.clamp(min=-_HIGH), len(scores.row_T), -1)
                assert score_TN.requires_grad, "the selected scores have no gradient"
                if weight_TN is not None:
                    check_tensor("the weights", weight_TN, *score_TN.shape)
                    assert ((weight_TN >= 0) & (weight_TN <= 1)).all(), "a weight is not from 0 to 1"
                    assert not weight_TN.requires_grad, "a weight has a gradient"
                    score_TN = score_TN * (weight_TN > 0)
                assert (score_TN < _HIGH / 2).all(), "a positive is selected as a negative"

    @check(
        "triplet and infonce have finite gradients with it, and zero gradients without negatives",
        "avoid divisions by 0",
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
        "a finite scalar with a name, and with finite gradients that reach every parameter",
        f"set `name`; add a small number under roots and in divisions; {REGISTER}",
    )
    def _scalar(self) -> str:
        distributions = self.part.of_distributions
        sides = [_distributions(6, seed=n) if distributions else _embeddings(6, 3, seed=n) for n in (0, 1)]
        sides = [embedding.requires_grad_() for embedding in sides]
        term = self.part(
            *(Embeddings(embedding, embedding * 0.5, embedding.mean(dim=1)) for embedding in sides)
        )
        check_tensor("the term", term)
        term.backward()
        for embedding in sides:
            if embedding.grad is not None:
                check_tensor("the gradient", embedding.grad, *embedding.shape)
        check_parameters(self.part)
        assert self.part.name, "`name` is empty; the term is logged under it"
        return f"{self.part.name} {term.item():.4g}, weight {self.part.weight:g}"


def _batches() -> list[BatchScores]:
    """Return batches of pairs with a duplicate image, of items with several texts, and of a single item."""
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


class OptimiserChecks(BuiltChecks):
    """Checks of one optimiser."""

    @property
    def part(self) -> torch.optim.Optimizer:
        """A new optimiser."""
        return self._made()[1]

    def _made(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        """Return a model of an embedding table, matrices and vectors, and its optimiser."""
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
        return model, make_optimizer(model, Optim(optimiser=self.spec, lr=_RATE, weight_decay=0.0))

    @check("a step lowers a loss", "step against the gradient", vital=True)
    def _lowers(self) -> str:
        losses = _train(*self._made())
        assert losses[1] < losses[0], (
            f"at a rate of {_RATE}, it took the loss from {losses[0]:.4g} to {losses[1]:.4g}"
        )
        return f"{_STEPS} steps took it from {losses[0]:.4g} to {losses[-1]:.4g}"

    @check(
        "an interrupted run ends with the same weights, bit for bit",
        "keep the state of each weight in self.state[weight], and read rates from the groups; state_dict may hold only "
        "tensors, numbers and text",
    )
    def _resumed(self) -> None:
        (whole, optimizer), (again, other) = self._made(), self._made()
        _train(whole, optimizer)
        torch.save({"weights": whole.state_dict(), "optimizer": optimizer.state_dict()}, file := io.BytesIO())
        file.seek(0)
        state = torch.load(file, weights_only=True)
        again.load_state_dict(state["weights"])
        other.load_state_dict(state["optimizer"])
        _train(whole, optimizer)
        _train(again, other)
        pairs = zip(whole.named_parameters(), again.parameters(), strict=True)
        differing = [name for (name, one), other in pairs if not torch.equal(one, other)]
        assert not differing, f"after {2 * _STEPS} steps, the weights {', '.join(differing)} differ"


def _train(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[float]:
    """Train for `_STEPS` steps, and return the loss before each."""
    wanted_BO, losses = torch.randn(10, 3, generator=torch.Generator().manual_seed(0)), []
    for _ in range(_STEPS):
        optimizer.zero_grad()
        loss = F.mse_loss(model(torch.arange(10) % 5), wanted_BO)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


_WIDTH = 8  # of the random sets for an aggregator
_IMAGES = ((48, 64), (64, 48), (90, 60))  # height and width of the images for a backbone
_FRAMES = 20


class AggregatorChecks(BuiltChecks):
    """The contract of aggregators."""

    @cached_property
    def part(self) -> Any:
        """A new aggregator."""
        torch.manual_seed(0)
        return AGGREGATORS.build(self.spec, _WIDTH)

    def checks(self) -> list[Check]:
        """Return the check that the aggregator is built, then, if it is, the checks of the contract."""
        with suppress(*PLUG_IN_ERRORS):
            return [*super().checks(), *aggregator_checks(self.part, _WIDTH)]
        return super().checks()


class BackboneChecks(BuiltChecks):
    """Checks of one backbone."""

    @check(
        "its description is JSON that rebuilds it",
        "return a dict from describe() with the registered name as `backbone` and the parameters by name, so that a "
        "store can be reproduced",
    )
    def _describes(self) -> None:
        described, name = self.part.describe(), Spec.parse(self.spec).name
        assert json.loads(json.dumps(described)) == described, "it changes in JSON, as tuples do"
        found = described.get("backbone")
        assert found == name, f"backbone is {found!r}, expected {name!r}"

    @cached_property
    def _inputs(self) -> list[Any]:
        if self.part.reads == "text":
            return list(CAPTIONS[:3])
        rng = np.random.default_rng(0)
        return [Image.fromarray(rng.integers(0, 256, (*size, 3), np.uint8)) for size in _IMAGES]

    def _of(self, inputs: list[Any]) -> list[dict[str, np.ndarray]]:
        """Return vectors and columns of each input, by name; a video repeats an image `_FRAMES` times."""
        backbone: Any = self.part
        video = backbone.reads == "video"
        made = [backbone(iter([image] * _FRAMES)) for image in inputs] if video else backbone(inputs)
        assert len(made) == len(inputs), f"{len(inputs)} inputs gave {len(made)} outputs"
        refused = [each for each in made if isinstance(each, str)]
        assert not refused, f"it rejects an input: {refused}"
        return [
            {"vectors": x.x_ND, **x.columns} if isinstance(x, ImageFeatures) else {"vectors": x} for x in made
        ]

    @check(
        "sets of the declared width, with the declared columns",
        "return float32 (N, dim) for each input; where `columns` names any, a ImageFeatures whose columns "
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

    @check("batch mates change nothing", "compute each output from its own input only")
    def _batch_mates(self) -> None:
        for number, arrays in enumerate(self._of(self._inputs)):
            (alone,) = self._of(self._inputs[number : number + 1])
            for name, x in arrays.items():
                scale = max(1.0, np.abs(alone[name]).max())
                np.testing.assert_allclose(x, alone[name], rtol=0, atol=1e-3 * scale, err_msg=name)


class AdaptationChecks(BuiltChecks):
    """Checks of one adaptation."""

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
        "it adds weights and freezes all others",
        "let `is_added` recognise the weights that `change` adds",
        vital=True,
    )
    def _adds(self) -> str:
        weights = self._changed(moved=False).named_parameters()
        names = [name for name, weight in weights if weight.requires_grad]
        wrong = [name for name in names if not self.part.is_added(name)]
        assert not wrong, f"{wrong[0]} is trained, but is not in checkpoints"
        return f"{len(names)} weights are trained"

    @check(
        "an adapted model starts as the published one", "let the added weights change nothing before training"
    )
    def _begins(self) -> None:
        torch.testing.assert_close(_states(self._changed(moved=False)), _states(self._published))

    @check("every added weight gets a gradient", "use each of them in every forward pass")
    def _gradients(self) -> None:
        model = self._changed(moved=True)
        weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        if weights:
            _states(model).square().sum().backward()
        without = [name for name, weight in weights.items() if weight.grad is None or not weight.grad.any()]
        assert not without, f"{without[0]} has no gradient"

    @check("a merged model gives the same output under the published names", "let `merge` undo `change`")
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
        assert not inspect.isabstract(kind), "it does not define read"
        with redirect_stdout(printed), suppress(SystemExit):
            tyro.cli(reader_verb(self.spec), prog=f"ingest {self.spec}", args=["--help"])
        options = [field.name for field in fields(kind) if field.init]
        lacking = [name for name in options if f"--{name.replace('_', '-')}" not in printed.getvalue()]
        assert not lacking, f"no option for {', '.join(lacking)}"
        return f"{', '.join(options) or 'none'}; `polypool ingest {self.spec} --help`"


class RecipeChecks(PartChecks):
    """The check of one recipe."""

    @check("it returns a complete run of registered parts", "see pipelines/recipes")
    def _returned(self) -> str:
        recipe = self.registry.get(self.spec)()
        if isinstance(recipe, Ensemble):
            for member in recipe.members:
                self.registry.get(member)
            return f"an ensemble of {', '.join(recipe.members)}"
        assert isinstance(recipe, Run), f"it returned {type(recipe).__name__}, expected a Run or an Ensemble"
        assert from_json(json.loads(json.dumps(to_json(recipe)))) == recipe, (
            "it changes in JSON; use numbers, strings and tuples of them"
        )
        parts = {"task": [recipe.task], "encoder": [recipe.visual, recipe.text], "model": [recipe.model]}
        parts |= {"aggregator": [recipe.aggregator], "optimiser": [recipe.optim.optimiser]}
        for kind, specs in parts.items():
            for spec in filter(None, specs):
                KINDS[kind].part(spec)
        return f"{recipe.task} on {recipe.data.corpus}; `check {recipe.task} --recipe {self.spec}` checks its data"


class LoadingChecks(PartChecks):
    """The check of a part that only a run can use."""

    @check("it can be loaded, with these parameters", "take parameters by keyword", vital=True)
    def _loaded(self) -> str:
        parameters = inspect.signature(self.registry.part(self.spec)).parameters.values()
        takes = {each.name for each in parameters if each.kind == each.KEYWORD_ONLY}
        wrong = {*Spec.parse(self.spec).params} - takes
        assert not wrong, f"it has no parameter {', '.join(wrong)}, only {', '.join(sorted(takes)) or 'none'}"
        return "check its task with --recipe and a recipe that names it"


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
