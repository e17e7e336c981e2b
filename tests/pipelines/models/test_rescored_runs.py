"""`evaluate --rescore` on tracked runs: query banks, protocol names and refusals."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from corpora import make_corpus, make_questions
from untrained_runs import track_untrained
from verbs import called

from polypool.infra.tracking import tracking_uri
from polypool.pipelines.comparison.comparison import compare
from polypool.pipelines.models import run_evaluation
from polypool.pipelines.models.trained import TrainedModel, load
from polypool.tasks.run import Run
from polypool.tasks.scoring.metrics import Positives, rank_queries, recall


@pytest.fixture(scope="module")
def run(home) -> Run:
    return make_corpus(home)


def said(*words: str) -> tuple[int, str]:
    code, out, err = called("evaluate", *words)
    return code, out + err


def cosines(trained: TrainedModel) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return cosines of images and captions: test and test, training and test, test and training."""
    sides = {}
    for split in ("train", "test"):
        score = trained.adapter.scorer(trained.model, split)
        sides[split] = score.visual.double(), score.text.double()
    normalised = {
        split: [torch.nn.functional.normalize(side, dim=-1) for side in both] for split, both in sides.items()
    }
    (train_V, train_T), (test_V, test_T) = normalised["train"], normalised["test"]
    return test_V @ test_T.T, train_V @ test_T.T, test_V @ train_T.T


def normalised(sim_QG: torch.Tensor, bank_BG: torch.Tensor) -> torch.Tensor:
    active = torch.isin(sim_QG.argmax(dim=1), bank_BG.argmax(dim=1))
    fit_QG = (20 * sim_QG).exp()
    return torch.where(active[:, None], fit_QG / (20 * bank_BG).exp().sum(dim=0), fit_QG)


def expected(scores: tuple[torch.Tensor, ...]) -> float:
    sim_VT, bank_BT, bank_VB = scores
    of_items = Positives.of_images(np.repeat(np.arange(20), 2), images=20)
    both = (normalised(sim_VT, bank_BT), of_items), (normalised(sim_VT.T, bank_VB.T), of_items.transposed())
    recalls = [recall(rank_queries(side_QG, positives)) for side_QG, positives in both]
    return sum(found[f"R{k}"] for found in recalls for k in (1, 5, 10))


def test_qbnorm_uses_bank_of_training_queries(run):
    trained = load(track_untrained(run))
    found = trained.evaluate("whole-qbnorm")
    assert found.protocol == "whole-qbnorm"
    assert found.metrics["rsum"] == pytest.approx(
        expected(cosines(trained)), abs=2.6
    )  # float32 may swap a rank or two
    assert found.metrics["rsum"] != trained.evaluate("whole").metrics["rsum"]
    assert len(found.pictures) == 1, "rescored results must have no page of examples"


def test_ensemble_qbnorm_averages_banks(run):
    models = [load(track_untrained(replace(run, seed=seed))) for seed in (0, 1)]
    plain, found = run_evaluation.evaluate(models, protocols=["whole", "whole-qbnorm"], split="test")
    means = tuple(torch.stack(of).mean(dim=0) for of in zip(*map(cosines, models), strict=True))
    assert found.metrics["rsum"] == pytest.approx(expected(means), abs=1e-6)
    assert plain.metrics["rsum"] != found.metrics["rsum"]


def test_rescored_results_have_own_protocols_and_notes(run, home):
    run_id = track_untrained(replace(run, experiment="rescored"))
    assert said(run_id)[0] == 0
    own = load(run_id).tracker.metrics()
    assert own["test/score"] == own["whole/rsum"]
    code, shown = said(run_id, "--rescore", "dsl")
    assert code == 0
    assert "test under whole-dsl" in shown
    assert "note: whole-dsl: dual softmax ranks each query with all other queries of the split" in shown
    code, shown = said(run_id, "--rescore", "qbnorm")
    assert code == 0
    assert "note:" not in shown
    found = load(run_id).tracker.metrics()
    shown = ("test/score", "cost/embed", "cost/query", "bytes/item")
    assert [found[name] for name in shown] == [own[name] for name in shown], "of the run's own protocol"
    compared = compare(tracking_uri(home), "rescored")
    assert [group.protocol for group in compared.groups] == ["whole", "whole-dsl", "whole-qbnorm"]
    assert sum(note.startswith("whole-dsl: dual softmax ranks") for note in compared.notes) == 1


def test_invalid_rescoring_is_refused_before_encoding(run, home, monkeypatch):
    pairs, more = (track_untrained(replace(run, cross="cross_modal(heads=2)", seed=seed)) for seed in (0, 1))
    sets = track_untrained(replace(run, aggregator="pie(k=2)", similarity="overlap:Overlap"))
    parts = {"aggregator": "probabilistic(mean=mean)", "objective": "pcmepp"}
    distributions = track_untrained(replace(run, **parts))
    questions = track_untrained(make_questions(home / "questions"))
    kind = type(load(pairs).adapter)
    monkeypatch.setattr(kind, "scorer", lambda *_: pytest.fail("the split was encoded"))
    for words, message in (
        ((pairs, "--rescore", "qbnorm"), "takes a model that looks at every pair too long"),
        ((pairs, more, "--rescore", "qbnorm"), "takes a model that looks at every pair too long"),
        (
            (pairs, "--protocol", "whole", "--protocol", "whole-vectors2"),
            "compares few vectors of each set, and this model has no embeddings",
        ),
        (
            (distributions, "--rescore", "dsl"),
            "negative, so that the best would become the worst; evaluate it",
        ),
        ((questions, "--rescore", "dsl"), "protocol 'vqa-dsl': questions are answered, not ranked"),
        ((pairs, "--rescore", "softmax"), "softmax"),
        ((sets, "--embeddings", "--protocol", "whole-qbnorm"), "'whole-qbnorm' needs the scores of training"),
    ):
        code, shown = said(*words)
        assert code == 2
        assert message in shown
