"""Checks of what an adapter can do beyond training: each protocol of `tasks.abilities` that it implements."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.nn.modules.batchnorm import _BatchNorm

from polypool.infra.errors import InputError
from polypool.pipelines.models.search import AnswerSearch, Query, RetrievalSearch
from polypool.pipelines.models.trained import TrainedModel
from polypool.pipelines.training.loop.optim import chunked_gradients
from polypool.tasks.abilities import Answers, Chunked, ReadsInputs, Scores, Searchable, missing
from polypool.tasks.models.retrieval_model import RetrievalModel
from polypool.tasks.scoring.scores import mean_score
from polypool.testing.adapters import AdapterChecks, check_same_evaluation
from polypool.testing.base import PartChecks, check, check_mask, check_tensor

_SIZES = (3, 2)  # elements of the sets that a model reads
_TEXTS = ["what is beside the dog", "a cat"]


class AbilityChecks(PartChecks):
    """Checks of the protocols beyond `TaskAdapter`, run after those of the adapter."""

    def __init__(self, of: AdapterChecks) -> None:
        self.of = of

    @property
    def adapter(self) -> Any:  # which protocols it implements is checked
        return self.of.adapter

    def _not_offered(self, protocol: type, verbs: str) -> str:
        """Return which members of a protocol the adapter lacks, as text; empty where it implements it."""
        absent = missing(self.adapter, protocol)
        assert not absent or protocol not in type(self.adapter).__mro__, (
            f"it derives from polypool.tasks.abilities.{protocol.__name__} and has no {', '.join(absent)}"
        )
        return f"not offered, without {', '.join(absent)}; {verbs} its runs" if absent else ""

    @check(
        "a batch in chunks has the gradient of the whole (polypool.tasks.abilities.Chunked)",
        "weigh each chunk of a mean by its samples; a loss that compares samples with each other yields passes as "
        "polypool.tasks.models.grad_cache does",
    )
    def _chunked(self) -> str:
        if refused := self._not_offered(Chunked, "`--optim.chunk` is refused of"):
            return refused
        model, batch = copy.deepcopy(self.of.model).double(), self.of.batches[0]
        model.train()
        for module in model.modules():
            if isinstance(module, _BatchNorm | torch.nn.Dropout):  # refused in chunks, or random
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
                assert other.grad is not None, f"no gradient reaches {name} in chunks"
                small = 1e-5 * float(one.grad.abs().max())
                assert torch.allclose(other.grad, one.grad, rtol=1e-3, atol=small), (
                    f"the gradient of {name} in chunks of 3 is not that of the whole batch"
                )
        return "in chunks of 3"

    @check(
        "scores of any block, as `evaluate` of several runs needs (polypool.tasks.abilities.Scores)",
        "let evaluate(model, ...) be evaluate_scores(scorer(model, ...), ...), and score only the slices",
    )
    def _scores(self) -> str:
        if refused := self._not_offered(Scores, "`evaluate A B` and `evaluate --embeddings` refuse"):
            return refused
        adapter, protocol = self.adapter, self.adapter.dev_protocol
        score = adapter.scorer(self.of.model.eval(), "val")
        block, corner = score(slice(0, 3), slice(0, 2)), score(slice(1, 3), slice(1, 2))
        check_tensor("score(slice(0, 3), slice(0, 2))", block, -1, -1)
        check_tensor("score(slice(1, 3), slice(1, 2))", corner, -1, -1)
        assert block[1:, 1:].shape == corner.shape, (
            f"slices are not followed: {tuple(block.shape)} and {tuple(corner.shape)} came of (3, 2) and (2, 1)"
        )
        assert torch.allclose(block[1:, 1:].float(), corner.float(), rtol=1e-3, atol=1e-4), (
            "a block of the scores differs from the same place of a larger one"
        )
        for name, function in (("its scores", score), ("the mean of them twice", mean_score([score, score]))):
            evaluation = adapter.evaluate_scores(function, "val", protocol)
            differ = f"evaluate and evaluate_scores of {name} differ: "
            check_same_evaluation(evaluation, self.of.scores["val"], differ)
        adapter.check_same_data(adapter, "val")
        return f"{type(score).__name__} of {len(self.adapter.data('val')):,} samples"

    @check(
        "new images and texts are read, as an exported model needs (polypool.tasks.abilities.ReadsInputs)",
        "derive from polypool.tasks.corpus_task.CorpusTask, or return "
        "polypool.tasks.inputs.visuals.unseen_inputs and polypool.tasks.inputs.texts.Captions",
    )
    def _reads_inputs(self) -> str:
        if refused := self._not_offered(ReadsInputs, "`search` refuses"):
            return refused
        dim = self.adapter.visual_dim
        assert isinstance(dim, int), (
            f"visual_dim is {dim!r}, expected a width, or 0 for a model that reads files"
        )
        with tempfile.TemporaryDirectory() as folder:
            visuals = _visuals(dim, Path(folder))
            number_B = np.arange(len(visuals))
            x, mask_BN = self.adapter.visual_inputs(visuals).batch(number_B, sample_B=number_B, draw=None)
            text = self.adapter.text_inputs(_TEXTS).batch(number_B)
            check_mask("the mask of visual_inputs", mask_BN, len(visuals))
            check_mask("the mask of text_inputs", text["text_mask"], len(visuals))
            assert len(x) == len(visuals), f"visual_inputs gives {len(x)} rows for {len(visuals)}"
            use = _used(self._trained(), visuals)
        if dim:
            try:
                self.adapter.visual_inputs([np.zeros((2, dim + 1), np.float32)])
            except InputError:
                return use
            raise AssertionError(f"features of width {dim + 1} are taken, and {dim} is expected")
        return use

    @check(
        "items and texts are found, as `search` needs (polypool.tasks.abilities.Searchable)",
        "let data(split) be polypool.tasks.inputs.pairs.Pairs, in the order of corpus.items(split), and the model "
        "a polypool.tasks.models.retrieval_model.RetrievalModel",
    )
    def _searchable(self) -> str:
        if refused := self._not_offered(Searchable, "`search` refuses"):
            return refused
        modality = self.adapter.modality
        assert modality in ("image", "video"), f"modality is {modality!r}, expected 'image' or 'video'"
        with closing(self._trained().open_search("val")) as search:
            if isinstance(search, AnswerSearch):
                answers = search.find(Query(id=search.items[0].id, text=_TEXTS[0]), 3)
                assert answers, "a question gets no answer"
                return f"{len(search.items):,} {modality}s of val to ask about"
            self._check_hits(search)
            return f"{len(search.items):,} {modality}s of val"

    def _check_hits(self, search: RetrievalSearch) -> None:
        by_text = search.find(Query(text=search.pairs.texts[0]), 3)
        by_id = search.find(Query(id=search.items[0].id), 3)
        known = {item.id for item in search.items}
        for hit in (*by_text, *by_id):
            assert hit.id in known, f"the id {hit.id!r} is none of the split"
        if isinstance(self.adapter, Scores):
            score = self.adapter.scorer(self.of.model.eval(), "val")
            for query, hits, items, texts in (
                ("a caption", by_text, len(known), 1),
                ("an item", by_id, 1, len(search.pairs.texts)),
            ):
                best = score(slice(0, items), slice(0, texts)).max().item()
                assert abs(hits[0].score - best) < 1e-3 * max(1, abs(best)), (
                    f"the best hit of {query} scores {hits[0].score:.4g}, and the split's scores say {best:.4g}"
                )

    def _trained(self) -> TrainedModel:
        return TrainedModel(run=self.of.run, adapter=self.adapter, model=self.of.model.eval())


def _visuals(dim: int, folder: Path) -> Sequence[np.ndarray | Path]:
    rng = np.random.default_rng(0)
    if dim:
        return [rng.normal(size=(size, dim)).astype(np.float32) for size in _SIZES]
    paths = [folder / f"{number}.png" for number in range(len(_SIZES))]
    for path in paths:
        Image.fromarray(rng.integers(0, 256, (48, 64, 3), dtype=np.uint8)).save(path)
    return paths


def _used(trained: TrainedModel, visuals: Sequence[np.ndarray | Path]) -> str:
    """Use a model as an exported one is used; return how."""
    if isinstance(trained.adapter, Answers):
        for answer, probability in trained.answers(visuals, _TEXTS):
            assert answer in trained.adapter.choices, f"{answer!r} is none of its choices"
            assert 0 <= probability <= 1, f"a probability is {probability}"
        return f"it answers, by one of {len(trained.adapter.choices):,} choices"
    if isinstance(trained.model, RetrievalModel):
        sim_VT = trained.scores(visuals, _TEXTS)
        check_tensor("scores(visuals, texts)", sim_VT, len(visuals), len(_TEXTS))
        alone = trained.scores(visuals[1:], _TEXTS[1:])
        assert torch.allclose(alone, sim_VT[1:, 1:], rtol=1e-3, atol=1e-4), (
            "the score of a pair depends on what else is scored"
        )
        return "it scores images or videos with texts"
    return "batches; its model is neither of retrieval nor of answers, so `model` is used by hand"
