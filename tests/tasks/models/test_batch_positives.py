"""Captions of one image are never negatives of each other: in the loss that training calls, of every kind of model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from corpora import make_corpus
from torch.nn.parallel import DistributedDataParallel
from workers import run_workers

from polypool.infra.compute.dist import rank, world
from polypool.infra.registry import TASKS
from polypool.tasks.objectives.objective import batch_positives
from polypool.tasks.run import Run

MODELS = {
    "dual encoder": {},
    "pairs": {"aggregator": "score_attention(heads=2)"},
    "hgr": {
        "model": "hgr(verbs=2, nouns=2, dropout=0.0)",
        "text": "bigru(width=16, embedding=8, min_count=1, ends=False)",
    },
}
SAMPLES = {
    # both captions of items 0 and 3; those of item 3 are on two workers
    "caption": [0, 1, 6, 20, 7, 30, 41, 50],
    # item 4 on two workers; each comes with its two captions
    "image": [4, 9, 2, 4],
}
CASES = [(model, sample) for model in MODELS for sample in SAMPLES]
TEMPERATURE = 0.05  # that of infonce


def run_of(run: Run, model: str, sample: str) -> Run:
    data = replace(run.data, sample=sample, visual_augment="", text_augment="")
    return replace(run, data=data, objective="infonce", **MODELS[model])


def of_worker(run: Run) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return the terms of the loss of a batch, as the loop asks for them, and the scores of the global batch."""
    torch.manual_seed(0)
    adapter = TASKS.build(run.task, run)
    model = adapter.model()
    index = np.array_split(np.array(SAMPLES[run.data.sample]), world())[rank()]
    batch = adapter.data("train").batch(index, seed=0, epoch=0)
    parallel = DistributedDataParallel(model, broadcast_buffers=False) if world() > 1 else model
    terms = adapter.loss(parallel, batch, epoch=0.0)
    return {name: x.detach() for name, x in terms.items()}, model.score_batch(batch).sim_VT.detach()


def explicit(run: Run, sim_VT: torch.Tensor, *, diagonal: bool = False) -> dict[str, float]:
    """Return InfoNCE, pair by pair, and the mean scores; whose caption is whose is read from the corpus."""
    items = TASKS.build(run.task, run).corpus.items("train")
    captions = [(item.id, text) for item in items for text in item.captions[: run.data.captions]]
    if run.data.sample == "caption":
        rows = [captions[number][0] for number in SAMPLES["caption"]]
        columns = list(enumerate(rows))
    else:
        rows = [items[number].id for number in SAMPLES["image"]]
        columns = [(row, id) for row, id in enumerate(rows) for _ in range(run.data.captions)]
    sim = sim_VT.double().numpy()
    logit, costs, pairs, negatives = sim / TEMPERATURE, [], [], []
    for text, (row, owner) in enumerate(columns):
        of_text = [other == row if diagonal else id == owner for other, id in enumerate(rows)]
        of_row = [other == row if diagonal else id == owner for other, id in columns]
        pair = logit[row, text]
        for line, same in ((logit[row], of_row), (logit[:, text], of_text)):
            costs.append(np.log(np.exp([pair, *line[~np.array(same)]]).sum()) - pair)
        pairs.append(sim[row, text])
        negatives.extend(sim[~np.array(of_text), text])
    return {
        "loss": np.mean(costs),
        "positive_similarity": np.mean(pairs),
        "negative_similarity": np.mean(negatives),
    }


def worker(folder: str, run: Run) -> None:
    found = {f"{model}, {sample}": of_worker(run_of(run, model, sample)) for model, sample in CASES}
    torch.save(found, f"{folder}/{rank()}.pt")


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    return make_corpus(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def two_workers(run, tmp_path_factory) -> list[dict]:
    folder = tmp_path_factory.mktemp("workers")
    run_workers(worker, str(folder), run)
    return [torch.load(folder / f"{number}.pt", weights_only=True) for number in range(2)]


@pytest.mark.parametrize(("model", "sample"), CASES)
def test_the_loss_of_training_has_no_negative_of_the_same_item(run, two_workers, model, sample):
    changed = run_of(run, model, sample)
    for terms, sim_VT in (of_worker(changed), *(found[f"{model}, {sample}"] for found in two_workers)):
        expected, wrong = explicit(changed, sim_VT), explicit(changed, sim_VT, diagonal=True)
        assert abs(expected["loss"] - wrong["loss"]) > 0.01  # so that the batch can tell them apart
        own = {name: terms[name].item() for name in expected}
        assert own == pytest.approx(expected, rel=1e-4, abs=1e-5)
        assert {*terms} - {*expected} <= {"score_deviation", "visual_variance", "text_variance"}


def test_positives_are_all_captions_of_an_item_wherever_it_stands():
    item_V, row_T = torch.tensor([7, 2, 7]), torch.tensor([0, 0, 1, 2])
    expected = [[1, 1, 0, 1], [0, 0, 1, 0], [1, 1, 0, 1]]
    assert batch_positives(item_V, row_T).int().tolist() == expected
