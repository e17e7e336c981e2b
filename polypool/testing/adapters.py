"""Checks of a task's adapter, from data to scores and the abilities of `tasks.abilities`, and a random corpus."""

from __future__ import annotations

import copy
import json
import math
import re
import tempfile
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from polypool.infra.errors import PLUG_IN_ERRORS, InputError
from polypool.infra.registry import TASKS
from polypool.infra.store import StoreWriter
from polypool.pipelines.comparison.queries import Queries
from polypool.pipelines.figures.pages import draw
from polypool.pipelines.models.search import AnswerSearch, Query
from polypool.pipelines.models.trained import TrainedModel
from polypool.pipelines.training.loop.optim import chunked_gradients
from polypool.tasks.abilities import Answers, Chunked, ReadsInputs, Scores, Searchable, missing
from polypool.tasks.adapter import Evaluation, Metric
from polypool.tasks.datasets.corpus import Item, Question, write_corpus, write_questions
from polypool.tasks.models.retrieval_model import RetrievalModel
from polypool.tasks.run import Data, Optim, Run
from polypool.tasks.scoring.records import queries_from, queries_json
from polypool.testing.base import PartChecks, check, check_mask, check_parameters, check_tensor, check_terms

_METRIC = re.compile(r"[\w.\-/ :]+")
_STEPS = 20
_BATCH = 16
_SIZES = (3, 2)  # of the new sets
_TEXTS = ["what is beside the dog", "a cat"]


class AdapterChecks(PartChecks):
    """Checks of the adapter of one run."""

    def __init__(self, run: Run) -> None:
        self.run = run

    @cached_property
    def adapter(self) -> Any:  # Any, because checks determine its protocols
        return TASKS.build(self.run.task, self.run)

    @cached_property
    def batches(self) -> list[dict[str, Tensor]]:
        """Two batches of the training split."""
        return [self._batch(0), self._batch(1)]

    def _batch(self, number: int) -> dict[str, Tensor]:
        data, size = self.adapter.data("train"), min(_BATCH, self.run.optim.batch)
        index_S = np.random.default_rng(0).permutation(len(data))
        return data.batch(index_S[number * size : (number + 1) * size], seed=0, epoch=0)

    @cached_property
    def model(self) -> nn.Module:
        """A new model; checks train copies of it."""
        torch.manual_seed(0)
        return self.adapter.model(pretrained=False)

    @cached_property
    def scores(self) -> dict[str, Evaluation]:
        """The new model's evaluations on `val` and `test`."""
        return {
            "val": self._score("val", self.adapter.dev_protocol),
            "test": self._score("test", self.run.protocol),
        }

    def _score(self, split: str, protocol: str) -> Evaluation:
        return self.adapter.evaluate(self.model.train(), split, protocol)  # in the mode of the training loop

    @check(
        "it is built, with the metric that selects the best epoch",
        "derive from polypool.tasks.adapter.TaskAdapter; take (run, assets=None) and then parameters by keyword; set "
        "`primary`, a polypool.tasks.adapter.Metric, and `dev_protocol`, a name",
        vital=True,
    )
    def _is_built(self) -> str:
        primary, dev = self.adapter.primary, self.adapter.dev_protocol
        assert isinstance(primary, Metric), (
            f"primary is {primary!r}, expected a polypool.tasks.adapter.Metric"
        )
        assert dev, "dev_protocol is empty, expected the name of a protocol"
        return f"{primary.name} under {dev}"

    @check(
        "data of train, val and test",
        "return a polypool.infra.batches.Dataset of each: __len__ and batch(index_B, *, seed, epoch)",
        vital=True,
    )
    def _has_data(self) -> str:
        sizes = {split: len(self.adapter.data(split)) for split in ("train", "val", "test")}
        assert all(sizes.values()), f"an empty split: {sizes}"
        assert sizes["train"] > 1, "the training split has one sample"
        return ", ".join(f"{split} {size:,}" for split, size in sizes.items())

    @check(
        "two batches of consistent tensors",
        "return a dict of tensors whose first axis is the samples, or, if it has a `row`, the captions of `row`; a key "
        "`x_mask` is a bool mask of `x`",
        vital=True,
    )
    def _batches_fit(self) -> str:
        assert all(self.batches), "a batch is empty"
        batch, size = self.batches[0], min(_BATCH, self.run.optim.batch, len(self.adapter.data("train")))
        lengths = {size, *([len(batch["row"])] if "row" in batch else [])}
        expected = f"expected {' or '.join(map(str, sorted(lengths)))}"
        for key, x in batch.items():
            assert isinstance(x, Tensor), f"`{key}` is {type(x).__name__}, expected a tensor"
            assert [*x.shape[:1]] in [[length] for length in lengths], (
                f"`{key}` has shape {tuple(x.shape)} in a batch of {size} samples, {expected}"
            )
            if key.endswith("_mask"):
                self._mask_fits(key, x)
        return ", ".join(f"{key} {tuple(x.shape)}" for key, x in batch.items())

    def _mask_fits(self, key: str, mask_BN: Tensor) -> None:
        x = self.batches[0].get(key.removesuffix("_mask"))
        assert x is not None, f"the batch has `{key}` without `{key.removesuffix('_mask')}`"
        check_mask(f"`{key}`", mask_BN, len(x))
        assert x.dim() > 3 or x.shape[:2] == mask_BN.shape, (  # images become sets later
            f"`{key}` has shape {tuple(mask_BN.shape)} for a tensor of shape {tuple(x.shape)}"
        )

    @check(
        "a sample depends only on its index, the seed and the epoch",
        "draw random numbers with polypool.infra.compute.randomness.uniform, not from a stateful generator",
    )
    def _batches_repeat(self) -> None:
        again = self._batch(0)
        for key, x in self.batches[0].items():
            assert torch.equal(x, again[key]), f"the same samples have another `{key}` the second time"

    @check(
        "the model is a module, also on the device `meta`",
        "return a new nn.Module from model(pretrained=True), without published weights if pretrained is False; create "
        "tensors by torch functions, so that a run can build it on the device `meta` before it starts",
        vital=True,
    )
    def _makes_a_model(self) -> str:
        assert isinstance(self.model, nn.Module), (
            f"the model is {type(self.model).__name__}, expected an nn.Module"
        )
        with torch.device("meta"):
            self.adapter.model(pretrained=False)
        count = sum(p.numel() for p in self.model.parameters() if p.requires_grad)
        assert count, "the model has no weight to train"
        return f"{count:,} weights"

    @check(
        "the loss is a dict of finite scalars",
        "return {'loss': scalar, ...} from loss(model, batch, epoch=...), and call the model once",
        vital=True,
    )
    def _has_a_loss(self) -> str:
        self.model.train()
        return ", ".join(
            check_terms(self.adapter.loss(self.model, batch, epoch=0.0)) for batch in self.batches
        )

    @check(
        "gradients are finite and reach every weight",
        "remove unused weights: training on several workers refuses them",
        vital=True,
    )
    def _has_gradients(self) -> None:
        model = copy.deepcopy(self.model).train()
        self.adapter.loss(model, self.batches[0], epoch=0.0)["loss"].backward()
        check_parameters(model)

    @check(
        f"{_STEPS} steps on one batch lower its loss",
        "check the sign of the loss, and that it depends on the batch through the model",
    )
    def _learns(self) -> str:
        torch.manual_seed(0)
        model = copy.deepcopy(self.model).train()
        optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-3)
        losses = []
        for _ in range(_STEPS):
            loss = self.adapter.loss(model, self.batches[0], epoch=0.0)["loss"]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        end = float(np.mean(losses[-3:]))
        assert end < losses[0], f"it went from {losses[0]:.4g} to {end:.4g}"
        return f"{losses[0]:.4g} to {end:.4g}"

    @check(
        "val and test are scored, with metrics and queries that can be logged",
        "return a polypool.tasks.adapter.Evaluation with the adapter's `primary` metric, and ids and results per query",
        vital=True,
    )
    def _evaluates(self) -> str:
        adapter, test = self.adapter, self.scores["test"]
        check_evaluation(self.scores["val"], protocol=adapter.dev_protocol, primary=adapter.primary)
        check_evaluation(test, protocol=self.run.protocol, primary=test.primary)
        return f"{test.primary.name} {test.metrics[test.primary.name]:.4g} before any training"

    @check(
        "two runs of it can be normalised and compared query by query",
        "set the best possible value and the chance level of Evaluation.primary; define the primary metric in "
        "Evaluation.query_metrics as a mean of arrays of per_query, with the array of units",
    )
    def _compares(self) -> str:
        return check_comparison(self.scores["test"])

    @check(
        "scoring is deterministic and does not change the model",
        "call model.eval() in evaluate, and draw no random numbers there",
    )
    def _evaluates_twice(self) -> None:
        before = {name: x.clone() for name, x in self.model.state_dict().items()}
        check_same_evaluation(self._score("val", self.adapter.dev_protocol), self.scores["val"])
        changed = [name for name, x in self.model.state_dict().items() if not torch.equal(x, before[name])]
        assert not changed, f"scoring changed {', '.join(changed)}"

    @check("its description is text", "return a dict of strings from describe(): digests and counts")
    def _describes(self) -> str:
        description = self.adapter.describe()
        for name, value in description.items():
            assert isinstance(value, str), f"{name} is {type(value).__name__}, expected a string"
            assert _METRIC.fullmatch(name), f"MLflow refuses characters in the name {name}"
        return ", ".join(description)

    @check(
        "assets survive JSON and rebuild the model without its data",
        "put everything that determines the model's shapes into `assets`, as plain JSON; use the argument `assets` if "
        "it is not None, and open data lazily (functools.cached_property)",
    )
    def _is_rebuilt(self) -> None:
        assets = json.loads(json.dumps(self.adapter.assets))
        data = replace(self.run.data, corpus="nowhere/corpus", features="nowhere/features")
        bare = replace(self.run, data=data)
        state = self.model.state_dict()
        TASKS.build(bare.task, bare, assets=assets).model(pretrained=False).load_state_dict(state)
        adapter = TASKS.build(self.run.task, self.run, assets=assets)
        torch.manual_seed(1)
        model = adapter.model(pretrained=False)
        model.load_state_dict(state)
        check_same_evaluation(adapter.evaluate(model, "val", adapter.dev_protocol), self.scores["val"])

    # --- abilities: each protocol of `tasks.abilities` that the adapter implements

    def _not_offered(self, protocol: type, verbs: str) -> str:
        """Return the members of a protocol that the adapter lacks, as text; empty if it implements the protocol."""
        absent = missing(self.adapter, protocol)
        assert not absent or protocol not in type(self.adapter).__mro__, (
            f"it derives from polypool.tasks.abilities.{protocol.__name__} and has no {', '.join(absent)}"
        )
        return f"not offered, without {', '.join(absent)}; {verbs} its runs" if absent else ""

    @check(
        "a batch in chunks has the gradient of the whole (polypool.tasks.abilities.Chunked)",
        "weight each chunk of a mean by its number of samples; for a loss that compares samples, see "
        "polypool.tasks.models.grad_cache",
    )
    def _chunked(self) -> str:
        if refused := self._not_offered(Chunked, "`--optim.chunk` is refused of"):
            return refused
        model, batch = copy.deepcopy(self.model).double(), self.batches[0]
        model.train()
        for module in model.modules():
            if isinstance(module, _BatchNorm | torch.nn.Dropout):  # refused in chunks, and random
                module.eval()
        batch = {name: x.double() if x.is_floating_point() else x for name, x in batch.items()}
        whole, cut = model, copy.deepcopy(model)
        terms = self.adapter.loss(whole, batch, epoch=0.0)
        terms["loss"].backward()
        precision = torch.autocast(next(cut.parameters()).device.type, enabled=False)
        found = chunked_gradients(self.adapter, cut, batch, epoch=0.0, chunk=3, precision=precision)
        assert found.keys() == terms.keys(), (
            f"it logs {', '.join(sorted(found))}, and loss {', '.join(sorted(terms))}"
        )
        for name, value in terms.items():
            assert torch.allclose(found[name].double(), value.double(), rtol=1e-4), (
                f"{name} is {float(found[name]):.6g} in chunks of 3, and {float(value.detach()):.6g} of the whole batch"
            )
        for (name, one), other in zip(whole.named_parameters(), cut.parameters(), strict=True):
            if one.grad is not None:
                scale, message = float(one.grad.abs().max()), f"the gradient of {name} differs in chunks of 3"
                torch.testing.assert_close(other.grad, one.grad, rtol=1e-3, atol=1e-5 * scale, msg=message)
        return "in chunks of 3"

    @check(
        "scores of any block, for `evaluate` of several runs (polypool.tasks.abilities.Scores)",
        "let evaluate(model, ...) be evaluate_scores(scorer(model, ...), ...), and score only the requested block",
    )
    def _scores(self) -> str:
        if refused := self._not_offered(Scores, "`evaluate A B` and `evaluate --embeddings` refuse"):
            return refused
        adapter = self.adapter
        score = adapter.scorer(self.model.eval(), "val")
        block, corner = score(slice(0, 3), slice(0, 2)), score(slice(1, 3), slice(1, 2))
        check_tensor("score(slice(0, 3), slice(0, 2))", block, 3, 2)
        assert torch.allclose(block[1:, 1:].float(), corner.float(), rtol=1e-3, atol=1e-4), (
            "the scores of a block differ from the same part of a larger block"
        )
        evaluation = adapter.evaluate_scores(score, "val", adapter.dev_protocol)
        check_same_evaluation(evaluation, self.scores["val"], "evaluate and evaluate_scores differ: ")
        adapter.check_same_data(adapter, "val")
        return f"{type(score).__name__} of {len(adapter.data('val')):,} samples"

    @check(
        "new images and texts can be read, for an exported model (polypool.tasks.abilities.ReadsInputs)",
        "derive from polypool.tasks.corpus_task.CorpusTask, or return "
        "polypool.tasks.inputs.visuals.unseen_inputs and polypool.tasks.inputs.texts.Captions",
    )
    def _reads_inputs(self) -> str:
        if refused := self._not_offered(ReadsInputs, "`search` refuses"):
            return refused
        with tempfile.TemporaryDirectory() as folder:
            visuals = _visuals(self.adapter.visual_dim, Path(folder))
            number_B = np.arange(len(visuals))
            _, mask_BN = self.adapter.visual_inputs(visuals).batch(number_B, sample_B=number_B, draw=None)
            check_mask("the mask of visual_inputs", mask_BN, len(visuals))
            text = self.adapter.text_inputs(_TEXTS).batch(number_B)
            check_mask("the mask of text_inputs", text["text_mask"], len(visuals))
            return _used(self._trained(), visuals)

    @check(
        "items and texts can be searched (polypool.tasks.abilities.Searchable)",
        "let data(split) be polypool.tasks.inputs.pairs.Pairs, in the order of corpus.items(split), and the model "
        "a polypool.tasks.models.retrieval_model.RetrievalModel",
    )
    def _searchable(self) -> str:
        if refused := self._not_offered(Searchable, "`search` refuses"):
            return refused
        with closing(self._trained().open_search("val")) as search:
            first = search.items[0].id
            if isinstance(search, AnswerSearch):
                assert search.find(Query(id=first, text=_TEXTS[0]), 3), "a question has no answer"
            else:
                known = {item.id for item in search.items}
                hits = (*search.find(Query(text=search.pairs.texts[0]), 3), *search.find(Query(id=first), 3))
                unknown = [hit.id for hit in hits if hit.id not in known]
                assert not unknown, f"the split has no item with the id {unknown[0]!r}"
            return f"{len(search.items):,} {self.adapter.modality}s of val"

    def _trained(self) -> TrainedModel:
        return TrainedModel(run=self.run, adapter=self.adapter, model=self.model.eval())


def check_evaluation(evaluation: Evaluation, *, protocol: str, primary: Metric) -> None:
    """Assert that an evaluation under a protocol is complete; `primary` is the adapter's metric."""
    assert evaluation.protocol == protocol, f"its protocol is {evaluation.protocol!r}, expected {protocol!r}"
    assert primary.name in evaluation.metrics, (
        f"{primary.name} is not among its metrics {', '.join(evaluation.metrics) or 'none'}"
    )
    for name, value in evaluation.metrics.items():
        assert _METRIC.fullmatch(name), f"MLflow refuses characters in the metric {name!r}"
        assert math.isfinite(value), f"the metric {name} is {value}"
    for make in evaluation.pictures:
        draw(make())
    own = evaluation.primary
    assert (own.name, own.higher_is_better) == (primary.name, primary.higher_is_better), (
        f"its primary metric is {own.name}, {own.direction}, and the adapter's {primary.name}, {primary.direction}"
    )
    names = [metric.name for metric in (own, *evaluation.others)]
    assert len({*names}) == len(names), f"it describes a metric twice: {', '.join(names)}"
    absent = ", ".join(name for name in names if name not in evaluation.metrics)
    assert not absent, f"it describes {absent}, not among its metrics {', '.join(evaluation.metrics)}"
    per_query = evaluation.per_query
    for name, x in per_query.items():
        assert not x.dtype.hasobject, f"per_query {name} has dtype object, which cannot be read back"
    ids = [name for name, x in per_query.items() if x.dtype.kind in "iuU" and len(np.unique(x)) == len(x)]
    assert ids, f"none of {', '.join(per_query)} has a unique value for each query"


def check_same_evaluation(evaluation: Evaluation, expected: Evaluation, what: str = "") -> None:
    """Assert that two evaluations have the same metrics, and the same queries in the same order.

    Args:
        evaluation: the second.
        expected: the first.
        what: begins the messages.
    """
    metrics, per_query = evaluation.metrics, evaluation.per_query
    assert metrics.keys() == expected.metrics.keys(), f"{what}the second evaluation has other metrics"
    for name, value in expected.metrics.items():
        close = math.isclose(metrics[name], value, rel_tol=1e-4, abs_tol=1e-4)
        assert close, f"{what}{name} was {value:.6g} and then {metrics[name]:.6g}"
    assert per_query.keys() == expected.per_query.keys(), (
        f"{what}the second evaluation has other results per query"
    )
    for name, x in expected.per_query.items():
        same = x.dtype.kind not in "iuU" or np.array_equal(x, per_query[name])
        assert same, f"{what}per_query {name} has another order"


def check_comparison(evaluation: Evaluation) -> str:
    """Assert that runs with this evaluation can be normalised and compared query by query; return a summary."""
    metric = evaluation.primary
    for name in ("best", "chance"):
        assert not math.isnan(getattr(metric, name)), f"the {name} value of {metric.name} is unknown"
    assert metric.better(metric.best, metric.chance), (
        f"{metric.name}, {metric.direction}: its best value {metric.best:g} is no better than chance, {metric.chance:g}"
    )
    assert not metric.better(evaluation.metrics[metric.name], metric.best), (
        f"{metric.name} is {evaluation.metrics[metric.name]:g}, better than its best value {metric.best:g}"
    )
    metrics = queries_from(queries_json(evaluation.query_metrics), where="Evaluation.query_metrics")
    queries = Queries(arrays=evaluation.per_query, metrics=metrics)
    try:
        units = queries.units(metric.name, evaluation.metrics[metric.name])
    except InputError as error:
        raise AssertionError(str(error)) from None
    return f"{metric.name} of {units.kind}, {metric.best:g} at best and {metric.chance:.4g} by chance"


def _visuals(dim: int, folder: Path) -> Sequence[np.ndarray | Path]:
    rng = np.random.default_rng(0)
    if dim:
        return [rng.normal(size=(size, dim)).astype(np.float32) for size in _SIZES]
    paths = [folder / f"{number}.png" for number in range(len(_SIZES))]
    for path in paths:
        Image.fromarray(rng.integers(0, 256, (48, 64, 3), dtype=np.uint8)).save(path)
    return paths


def _used(trained: TrainedModel, visuals: Sequence[np.ndarray | Path]) -> str:
    """Use a model as an exported one; return a summary."""
    if isinstance(trained.adapter, Answers):
        for answer, probability in trained.answers(visuals, _TEXTS):
            assert answer in trained.adapter.choices, f"{answer!r} is not among its choices"
            assert 0 <= probability <= 1, f"a probability is {probability}"
        return f"it answers with one of {len(trained.adapter.choices):,} choices"
    if isinstance(trained.model, RetrievalModel):
        sim_VT = trained.scores(visuals, _TEXTS)
        check_tensor("scores(visuals, texts)", sim_VT, len(visuals), len(_TEXTS))
        pair_11 = trained.scores(visuals[1:], _TEXTS[1:])
        assert torch.allclose(pair_11, sim_VT[1:, 1:], rtol=1e-3, atol=1e-4), (
            "the score of a pair depends on the other pairs"
        )
        return "it scores images or videos with texts"
    return "batches; the model is for neither retrieval nor answers, so call `model` directly"


# --- a random corpus, whose sets depict the nouns of the texts

_NOUNS = ("dog", "cat", "car", "tree", "boat", "bird", "house", "horse")
_SPLITS = ("train",) * 48 + ("val",) * 16 + ("test",) * 16
_WIDTH = 12


def random_run(task: str, folder: Path) -> Run:
    """Write a random corpus into a folder, and return a run of the task on its captions or questions.

    A task that accepts neither gets the run on captions; its own error then names the missing data.
    """
    rng, source = np.random.default_rng(0), {"random": "corpus"}
    noun_F = rng.normal(size=(len(_NOUNS), _WIDTH))
    items, questions = list[Item](), list[Question]()
    with StoreWriter(folder / "features", dim=_WIDTH, dtype="float32", source=source) as writer:
        for number, split in enumerate(_SPLITS):
            id, (one, other) = str(number), rng.choice(len(_NOUNS), 2, replace=False)
            x_NF = noun_F[[one, other, one, one, other][: rng.integers(2, 6)]]
            writer.add(id, (x_NF + 0.1 * rng.normal(size=x_NF.shape)).astype(np.float32))
            a, b = _NOUNS[one], _NOUNS[other]
            captions = (f"a {a} and a {b}", f"the {b} beside the {a}", f"one {a} , {b}")
            items.append(Item(id=id, split=split, captions=captions))
            for text, kind, of, answer in (
                (f"What is beside the {a}?", "what is", "other", b),
                (f"Is there a {b}?", "is there a", "yes/no", "yes"),
            ):
                question = Question(
                    id=f"{id} {kind}",
                    split=split,
                    image_id=id,
                    question=text,
                    question_type=kind,
                    answer_type=of,
                    answers=(answer,) * 10,
                    label=answer,
                )
                questions.append(question)
        writer.close(statistics_of=[item.id for item in items if item.split == "train"])
    write_corpus(folder / "captions", items, source=source)
    write_questions(folder / "questions", questions, source=source)
    runs = [
        _run(task, folder, "captions", _CAPTIONS, captions=2),
        _run(task, folder, "questions", _QUESTIONS),
    ]
    for run in runs:
        with suppress(*PLUG_IN_ERRORS):  # checks report the error
            TASKS.build(run.task, run)
            return run
    return runs[0]


_CAPTIONS: dict[str, Any] = {
    "visual": "regions(width=16)",
    "text": "bigru(width=16, embedding=8, min_count=1)",
    "protocol": "whole",
    "objective": "infonce",
}
_QUESTIONS: dict[str, Any] = {
    "visual": "grid(width=16)",
    "text": "bigru(width=16, embedding=8, min_count=1, ends=False, split=questions)",
    "protocol": "vqa",
    "objective": "bce",
}


def _run(task: str, folder: Path, corpus: str, settings: dict[str, Any], **data: Any) -> Run:
    return Run(
        recipe="random",
        data=Data(dataset="random", corpus=str(folder / corpus), features=str(folder / "features"), **data),
        task=task,
        aggregator="mean",
        optim=Optim(epochs=1, batch=16),
        **settings,
    )
