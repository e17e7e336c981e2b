"""Visual question answering through adapter, training loop and evaluation."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from corpora import make_questions
from query_results import reproduced
from torch.nn.parallel import DistributedDataParallel
from toy import trainer_of
from workers import run_workers

from polypool.infra.compute.dist import rank
from polypool.infra.errors import InputError
from polypool.infra.registry import TASKS
from polypool.pipelines.figures.pages import draw
from polypool.pipelines.recipes.load import derive
from polypool.pipelines.training.train import prepare
from polypool.tasks.datasets.corpus import QuestionCorpus, write_questions
from polypool.tasks.questions.accuracy import HumanAnswers
from polypool.tasks.questions.vqa_model import best_answers
from polypool.tasks.run import AUTO
from polypool.tasks.scoring.scores import mean_score
from polypool.tasks.vqa import VQA

CROSS = {"cross": "cross_modal(heads=2, dropout=0.0)", "fusion": "concat"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_questions(tmp_path_factory.mktemp("tiny"), unanswered=4)


def trained(run, folder):
    trainer = trainer_of(run, folder)
    trainer.train()
    return trainer.adapter, trainer.model, trainer.log


def test_training_on_small_corpus_beats_prior(tmp_path):
    run = make_questions(tmp_path / "data", train=100)
    adapter, _, log = trained(derive(run, optim={"epochs": 10}), tmp_path)
    metrics = {name.removeprefix("vqa/"): value for name, value in log.rows[-1][1].items()}
    assert metrics["accuracy"] > metrics["prior_accuracy"] + 4
    assert {"yes_no", "number", "other", "type/what is", "type/how many", "type/is there a"} <= set(metrics)
    assert metrics["coverage"] == 100
    results = np.load(tmp_path / "per_query" / "vqa.npz", allow_pickle=False)
    assert results["accuracy"].mean() * 100 == pytest.approx(metrics["accuracy"])
    questions = adapter.corpus.questions("test")
    assert results["question_id"].tolist() == [q.id for q in questions]
    people = HumanAnswers([q.answers for q in questions])
    explicit = people.accuracy(results["prediction"].tolist(), version="2017")
    assert 100 * explicit.mean() == pytest.approx(metrics["accuracy_2017"])
    assert ((results["confidence"] > 0) & (results["confidence"] <= 1)).all()
    assert not (tmp_path / "evaluation").exists()  # results files are only for questions without answers
    assert (tmp_path / "figures" / "vqa_test_examples.html").read_text().count("<article>") == 40


def test_evaluation_matches_single_question_predictions(run):
    adapter = TASKS.build(run.task, derive(run, aggregator="score_attention(heads=2)", **CROSS))
    model = adapter.model().double().eval()
    found = adapter.evaluate(model, "val", "vqa")
    assert reproduced(found) == {"accuracy"}
    assert {metric.name for metric in (found.primary, *found.others)} == {*found.metrics}
    data = adapter.data("val")
    with torch.no_grad():
        for number in range(len(data)):
            logits = model(data.evaluation_batch(np.array([number])))[0].sigmoid()
            assert adapter.vocabulary.answers[int(logits.argmax())] == found.per_query["prediction"][number]
            assert float(logits.max()) == pytest.approx(found.per_query["confidence"][number], abs=1e-6)


def test_loss_sums_over_answers_and_averages_questions(run):
    adapter = TASKS.build(run.task, run)
    torch.manual_seed(0)
    model, batch = adapter.model(), adapter.data("train").batch(np.arange(7), seed=0, epoch=0)
    terms = adapter.loss(model, batch, epoch=0.0)
    logit, target = model(batch).double(), batch["target"].double()
    p = logit.sigmoid()
    expected = -(target * p.log() + (1 - target) * (1 - p).log()).sum() / 7
    torch.testing.assert_close(terms["loss"].double(), expected, rtol=1e-5, atol=1e-5)
    score = sum(float(target[i, logit[i].argmax()]) for i in range(7)) / 7
    assert float(terms["accuracy"]) == pytest.approx(100 * score)
    assert not terms["accuracy"].requires_grad


def test_target_kind_and_answer_splits_are_configurable(run):
    index_B = np.arange(9)
    tasks = [TASKS.build(f"vqa(min_count=1, targets={kind})", run) for kind in ("soft", "hard")]
    soft, hard = (task.data("train").batch(index_B, seed=0, epoch=0)["target"] for task in tasks)
    assert sorted(soft[0][soft[0] > 0].tolist()) == pytest.approx([0.3, 1.0])
    assert hard.sum(dim=1).tolist() == [1.0] * 9
    assert torch.equal(soft.argmax(dim=1), hard.argmax(dim=1))
    tasks = [f"vqa(min_count=12, answers='{splits}')" for splits in ("train+val", "train")]
    both, train = (TASKS.build(task, run) for task in tasks)
    assert set(train.vocabulary.answers) < set(both.vocabulary.answers)
    labels = [q.label for q in train.corpus.questions("train")]
    assert set(train.vocabulary.answers) == {label for label in labels if labels.count(label) >= 12}


def test_batch_rows_match_single_and_evaluation_batches(run):
    augments = {"visual_augment": "drop(p=0.5)", "text_augment": "mask_replace_delete(p=0.5)"}
    augmented = derive(run, data=augments)
    data = TASKS.build(augmented.task, augmented).data("train")
    index_B = np.array([5, 3, 4, 60])
    whole, later = (data.batch(index_B, seed=0, epoch=epoch) for epoch in (0, 1))
    alone = data.batch(index_B[2:3], seed=0, epoch=0)
    for name in ("visual", "text"):
        size = int(alone[f"{name}_mask"].sum())
        assert torch.equal(whole[name][2][whole[f"{name}_mask"][2]], alone[name][0][:size])
    assert any(not torch.equal(whole[key], later[key]) for key in ("visual_mask", "text", "text_mask"))
    plain = TASKS.build(run.task, run).data("train")
    evaluated, batch = plain.evaluation_batch(index_B), plain.batch(index_B, seed=0, epoch=0)
    assert len(evaluated["visual"]) == 2
    rebuilt = [evaluated["visual"][i][evaluated["visual_mask"][i]] for i in evaluated["image"]]
    for b, x_ND in enumerate(rebuilt):
        assert torch.equal(batch["visual"][b][batch["visual_mask"][b]], x_ND)
    assert torch.equal(evaluated["text"], batch["text"])


def test_unanswered_questions_give_results_file_not_accuracy(run):
    adapter = TASKS.build(run.task, run)
    found = adapter.evaluate(adapter.model(), "test-dev", "vqa")
    assert found.metrics == {"questions": 12}
    assert set(found.per_query) == {"question_id", "image_id", "prediction", "confidence"}
    said = json.loads(found.files["vqa_test-dev_results.json"])
    assert [row["answer"] for row in said] == found.per_query["prediction"].tolist()
    assert [row["question_id"] for row in said] == [int(q.id) for q in adapter.corpus.questions("test-dev")]
    assert "not asked" in draw(found.pictures[0]())["vqa_test-dev_examples.html"].decode()


def test_ensemble_averages_probabilities(run):
    adapters = [TASKS.build(run.task, run) for _ in range(2)]
    models = [adapter.model().eval() for adapter in adapters]
    adapters[0].check_same_data(adapters[1], "test")
    scores = [adapter.scorer(model, "test") for adapter, model in zip(adapters, models, strict=True)]
    mean = (scores[0](slice(None), slice(None)) + scores[1](slice(None), slice(None))) / 2
    found = adapters[0].evaluate_scores(mean_score(scores), "test", "vqa")
    assert found.per_query["confidence"] == pytest.approx(mean.max(dim=1).values.numpy())
    other = TASKS.build("vqa(min_count=1, answers=train)", run)
    other.vocabulary = type(other.vocabulary)(["yes", "no"])
    with pytest.raises(InputError, match="cannot be one ensemble"):
        adapters[0].check_same_data(other, "test")


def step(adapter: VQA, index_B: np.ndarray, *, parallel: bool) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    model = adapter.model().double()
    module = DistributedDataParallel(model) if parallel else model
    batch = adapter.data("train").batch(index_B, seed=0, epoch=0)
    batch = {key: x.double() if x.is_floating_point() else x for key, x in batch.items()}
    terms = adapter.loss(module, batch, epoch=0.0)
    terms["loss"].backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    return {name: x.detach() for name, x in terms.items()} | gradients


def evaluation(adapter: VQA) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    found = adapter.evaluate(adapter.model(), "test", "vqa")
    numbers = {name: torch.from_numpy(x) for name, x in found.per_query.items() if x.dtype.kind == "f"}
    # one chunk, which leaves a worker without; its empty tensors must match these of no default type
    few_QA = torch.eye(5, dtype=torch.float64)
    numbers["few"] = torch.from_numpy(best_answers(lambda *block: few_QA[block], questions=5, chunk=8)[1])
    return numbers | {f"metric/{name}": torch.tensor(x) for name, x in found.metrics.items()}


def worker(folder: str, run) -> None:
    adapter = TASKS.build("vqa(min_count=1, chunk=25)", run)
    share = [np.arange(6), np.arange(6, 10)][rank()]  # uneven
    torch.save(step(adapter, share, parallel=True) | evaluation(adapter), f"{folder}/{rank()}.pt")


def test_two_workers_match_one_in_training_and_evaluation(run, tmp_path):
    run = derive(run, aggregator="score_attention(heads=2)", **CROSS)
    run_workers(worker, str(tmp_path), run)
    adapter = TASKS.build("vqa(min_count=1, chunk=60)", run)
    expected = step(adapter, np.arange(10), parallel=False) | evaluation(adapter)
    for number in (0, 1):
        found = torch.load(tmp_path / f"{number}.pt", weights_only=True)
        assert set(found) == set(expected)
        for name, x in expected.items():
            torch.testing.assert_close(found[name], x, rtol=1e-5, atol=1e-6, msg=name)


def rewritten(run, folder, change):
    """Return the run on a corpus with `change` applied to its questions."""
    corpus = QuestionCorpus.open(run.data.corpus)
    questions = [q for split in corpus.splits for q in corpus.questions(split)]
    write_questions(folder / "questions", change(questions), source={"made": "by a test"})
    return derive(run, data={"corpus": str(folder / "questions")})


@pytest.mark.parametrize("splits", [("test",), ("train", "test")])
def test_corpus_without_training_answers_has_no_prior(run, tmp_path, splits):
    def change(questions):
        without = {"answers": (), "label": ""}
        return [replace(q, **without if q.split == "train" else {}) for q in questions if q.split in splits]

    first, moved = TASKS.build(run.task, run), rewritten(run, tmp_path, change)
    adapter = TASKS.build(run.task, moved, assets=first.assets)
    found, expected = (of.evaluate(first.model().eval(), "test", "vqa") for of in (adapter, first))
    assert {*expected.metrics} - {*found.metrics} == {"prior_accuracy"}
    assert np.isnan(found.primary.chance)


def test_few_answers_use_exact_match_for_loss_and_score(run, tmp_path):
    """One answer per question, with non-numeric ids: VQA's rule would give accuracy 0, and targets of 0.3."""
    few = rewritten(
        run,
        tmp_path,
        lambda all: [replace(q, id=f"a.csv, row {q.id}", answers=(f"{q.label}!",)) for q in all if q.label],
    )
    with pytest.raises(
        InputError, match=r"split 'train' .* fewer \(144 with 1\).* take --protocol exact-match"
    ):
        prepare(few)
    own = derive(few, protocol=AUTO, optim={"epochs": 1})
    assert (own.protocol, derive(run, protocol=AUTO).protocol) == ("exact-match", "vqa")
    adapter = prepare(own)
    target_BA = adapter.data("train").batch(np.arange(9), seed=0, epoch=0)["target"]
    assert target_BA.max(dim=1).values.tolist() == [1.0] * 9
    questions = adapter.corpus.questions("test")
    best = adapter.vocabulary.indices([q.label for q in questions])

    def score(rows: slice, answers: slice) -> torch.Tensor:
        return torch.eye(len(adapter.vocabulary))[best[rows], answers]

    found = adapter.evaluate_scores(score, "test", "exact-match")
    assert (found.protocol, found.metrics["accuracy"], found.files) == ("exact-match", 100, {})
    assert reproduced(found) == {"accuracy"}
    assert not {"accuracy_2017"} & {*found.metrics}
    trainer = trainer_of(own, tmp_path, adapter=adapter)
    trainer.train()
    assert {name for _, row in trainer.log.rows for name in row} >= {"exact-match/accuracy", "test/score"}
