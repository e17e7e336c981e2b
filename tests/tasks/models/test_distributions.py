"""Embeddings that are distributions: normalised, scored, trained, searched and analysed as such, or refused."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from corpora import make_corpus, make_questions
from kept import keep_run
from toy import FolderLog, trainer_of

from polypool.aggregators.observe import observe
from polypool.infra.errors import InputError
from polypool.infra.registry import TASKS
from polypool.pipelines.commands import evaluate
from polypool.pipelines.figures.run_figures import spread_of
from polypool.pipelines.models.run_evaluation import analyse
from polypool.pipelines.models.trained import TrainedModel, load
from polypool.tasks.models.dual_encoder import SplitEmbeddings
from polypool.tasks.models.retrieval_model import variance
from polypool.tasks.run import Run
from polypool.tasks.scoring.geometry import ablated, alignment, uniformity
from polypool.tasks.similarities.similarity import ClosedFormSampledDistance

PARTS = {
    "aggregator": "probabilistic",
    "text_aggregator": "probabilistic(mean=mean)",
    "objective": "pcmepp",
    "regularisers": ("vib(weight=1e-4)",),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    run = make_corpus(tmp_path_factory.mktemp("corpus"), train=64, test=40)
    return replace(run, **PARTS, figures=False, optim=replace(run.optim, epochs=4, lr=1e-2))


@pytest.fixture(scope="module")
def trained(run, tmp_path_factory) -> tuple[TrainedModel, float, FolderLog]:
    """Return a model that was trained, what it had scored before, and the run's log."""
    adapter = TASKS.build(run.task, run)
    log = FolderLog(tmp_path_factory.mktemp("log"))
    torch.manual_seed(0)
    trainer = trainer_of(run, log.folder, adapter=adapter, log=log)
    before = adapter.evaluate(trainer.model, "test", "whole").metrics["rsum"]
    trainer.train()
    return TrainedModel(run=run, adapter=adapter, model=trainer.model.eval()), before, log


@pytest.fixture(scope="module")
def split(trained) -> SplitEmbeddings:
    return trained[0].adapter.scorer(trained[0].model, "test")


def test_training_finds_more_and_logs_what_it_learns(trained):
    model, before, log = trained
    after = model.evaluate()
    assert after.metrics["rsum"] > before + 40
    losses = log.history("train/loss") or log.history("loss")
    assert losses[-1][1] < 0.9 * losses[0][1]
    named = {name.rpartition("/")[2] for _, row in log.rows for name in row}
    assert {"vib", "scale", "bias", "pseudo_positives", "visual_variance"} <= named


def test_a_split_is_scored_by_the_distance_of_what_it_is_encoded_to(trained, split):
    assert isinstance(split.similarity, ClosedFormSampledDistance)
    assert split.visual.shape == (40, 2, 16)
    for side in (split.visual, split.text):
        torch.testing.assert_close(side[:, 0].norm(dim=-1), torch.ones(len(side)))
        assert (side[:, 1].norm(dim=-1) - 1).abs().min() > 0.1, "a log-variance has no length"
    (v, s), (t, u) = (side.double().unbind(dim=1) for side in (split.visual, split.text))
    expected_VT = -torch.cdist(v, t).square() - s.exp().sum(dim=1)[:, None] - u.exp().sum(dim=1)
    found_VT = split(slice(0, 40), slice(0, 80))
    torch.testing.assert_close(found_VT.double(), expected_VT, atol=1e-5, rtol=0)
    pair = split.of_images(slice(0, 1), slice(0, 1))
    assert pair.item() == pytest.approx(-2 * float(s[0].exp().sum()), abs=1e-5)
    assert split.item_bytes() == 2 * 16 * 4


def test_how_unsure_the_model_is_stands_beside_the_ranks_of_each_item_and_caption(trained, split):
    found = trained[0].evaluate().per_query
    for name, side in (("image_uncertainty", split.visual), ("caption_uncertainty", split.text)):
        np.testing.assert_allclose(found[name], side[:, 1].double().exp().sum(dim=1), rtol=1e-5)
    means = {"visual": split.visual[:, 0], "text": split.text[:, 0]}
    plain = SplitEmbeddings(**means, similarity=torch.nn.CosineSimilarity())
    plain.similarity.of_distributions = False
    assert plain.uncertainty() is None


def test_it_is_searched_exactly_and_refuses_what_searches_vectors(trained, split):
    model = trained[0]
    text = model.adapter.data("test").texts[3]
    hits = model.search(text, k=5)
    score_V = split(slice(0, 40), slice(3, 4)).flatten()
    ids = model.adapter.data("test").item_ids
    assert [hit.id for hit in hits] == ids[score_V.argsort(descending=True)[:5].numpy()].tolist()
    best_V = score_V.sort(descending=True).values[:5]
    assert [hit.score for hit in hits] == pytest.approx(best_V.tolist(), abs=1e-5)
    with pytest.raises(InputError, match=r"for single vectors .*; choose --index exact"):
        model.search(text, index="faiss")


def test_a_saved_model_scores_what_it_scored_and_its_geometry_is_that_of_means(run, home):
    run_id = keep_run(run)
    torch.manual_seed(run.seed)
    adapter = TASKS.build(run.task, run)
    expected = adapter.scorer(adapter.model(), "test")
    again = load(run_id)
    found = again.adapter.scorer(again.model, "test")
    for part in ("visual", "text"):
        torch.testing.assert_close(getattr(found, part), getattr(expected, part), check_device=False)
    texts = again.adapter.data("test").texts[:7]
    torch.testing.assert_close(again.encode_text(texts), found.text[:7], atol=1e-5, rtol=1e-5)
    numbers, owner_T = analyse(again, split="test").geometry, again.pairs("test", "be tried").owner_T
    means = found.visual[:, 0], found.text[:, 0]
    assert numbers["alignment/joint"] == pytest.approx(alignment(*means, owner_T))
    assert numbers["uniformity/joint"] == pytest.approx(uniformity(*means)["joint"])
    for side, embedding in (("visual", found.visual), ("text", found.text)):
        sum_B = embedding[:, 1].double().exp().sum(dim=1)
        assert numbers[f"uncertainty/{side}"] == pytest.approx(float(sum_B.mean()), rel=1e-5)
        deviation = float(sum_B.std(correction=0))
        assert numbers[f"uncertainty_deviation/{side}"] == pytest.approx(deviation, rel=1e-4)
    assert not [name for name in numbers if name.startswith(("variance", "log_variance"))]
    assert not [*ablated(found)]


def test_analyse_prints_uncertainties(run, home, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["evaluate", keep_run(run), "--embeddings"])
    evaluate.main()
    shown = capsys.readouterr().out
    assert "uncertainty deviation" in shown
    assert "are distributions: variance and elements are for models of sets" in shown


def test_no_figure_takes_a_log_variance_for_a_vector(run):
    torch.manual_seed(0)
    adapter = TASKS.build(run.task, replace(run, aggregator="probabilistic(mean=attention)"))
    model = adapter.model()
    with observe(model) as watched:
        evaluation = adapter.evaluate(model, "test", "whole")
    assert len(watched) == 2
    assert all(it.seen and spread_of(it) is None for it in watched)
    attention = evaluation.pictures[-1]()
    assert all(len(example.visual) == 1 for example in attention.examples)
    assert not any(example.nearest for example in attention.examples), (
        "no caption is nearest to a log-variance"
    )


def test_what_is_watched_for_a_collapse_is_the_means(trained):
    model, data = trained[0].model, trained[0].adapter.data("train")
    batch = data.batch(np.arange(8), seed=0, epoch=0)
    with torch.no_grad():
        terms = model(batch, epoch=0.0)
        expected = variance(model.encode_visual(batch).vectors[:, 0])
    assert terms["visual_variance"].item() == pytest.approx(expected.item())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_under_autocast_distributions_scores_and_loss_are_in_single_precision(trained, dtype):
    model, data = trained[0].model, trained[0].adapter.data("train")
    batch = data.batch(np.arange(8), seed=0, epoch=0)
    model.zero_grad()
    with torch.autocast("cpu", dtype):
        visual, text = model.encode_visual(batch), model.encode_text(batch)
        sim_VT = model.score(visual, text)
        loss = model(batch, epoch=0.0)["loss"]
    loss.backward()
    assert {x.dtype for x in (visual.vectors, text.vectors, sim_VT, loss)} == {torch.float32}
    torch.testing.assert_close(visual.vectors[:, 0].norm(dim=-1), torch.ones(8))
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    model.zero_grad()


VECTORS = {"aggregator": "mean", "text_aggregator": "", "objective": "infonce", "regularisers": ()}
CSD, MAKES = VECTORS | {"similarity": "csd"}, "makes distributions, a mean and a log-variance"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"text_aggregator": "mean"}, "'probabilistic' makes distributions and 'mean' vectors, and the two"),
        ({"aggregator": "gpo"}, "makes distributions and 'gpo' vectors.*--text-aggregator"),
        ({"similarity": "cosine"}, "'cosine' compares vectors, and probabilistic makes distributions.*: csd"),
        ({"similarity": "maxsim"}, "compares vectors, and probabilistic makes distributions"),
        (CSD, "'csd' compares distributions, and mean makes vectors.*cosine"),
        (CSD | {"aggregator": "pie(k=2)"}, "compares distributions, and pie makes vectors"),
        (CSD | {"aggregator": "late"}, "compares distributions, and late makes vectors"),
        ({"regularisers": ("mmd(weight=1)",)}, "mmd is of vectors, and the embeddings are distributions"),
        ({"regularisers": ("diversity(weight=1)",)}, "diversity is of vectors, and the emb.* distributions"),
        (VECTORS | {"regularisers": ("vib(weight=1)",)}, "vib is of distributions .* are vectors"),
        (
            {"cross": "cross_modal(heads=2)", "regularisers": ()},
            f"{MAKES}, and a model of pairs takes vectors",
        ),
        ({"model": "hgr", "regularisers": ()}, f"{MAKES}.* and hgr takes vectors"),
        ({"aggregator": "probabilistic(mean=pie)"}, "does not make one vector of a set alone"),
    ],
)
def test_what_does_not_fit_is_refused_before_training(run, change, message):
    wrong = replace(run, **change)
    with pytest.raises(InputError, match=message):
        TASKS.build(wrong.task, wrong).model()


@pytest.mark.parametrize("side", ["aggregator", "text_aggregator"])
def test_questions_have_no_place_for_distributions(tmp_path, side):
    questions = make_questions(tmp_path)
    changes = {"aggregator": "mean", "text_aggregator": "mean"} | {side: "probabilistic"}
    wrong = replace(questions, **changes)
    with pytest.raises(InputError, match="and answering questions takes vectors; choose one"):
        TASKS.build(wrong.task, wrong).model()


def test_where_variances_start_is_where_distances_do(run):
    """Each of 16 channels adds about exp(start) of either side to the distances, which are at most 4."""
    scores = {}
    for start in (-20.0, 3.0):
        torch.manual_seed(0)
        spec = f"probabilistic(mean=mean, start={start})"
        adapter = TASKS.build(run.task, replace(run, aggregator=spec, text_aggregator=spec))
        model, batch = adapter.model().eval(), adapter.data("train").batch(np.arange(16), seed=0, epoch=0)
        scores[start] = model(batch, epoch=0.0)["negative_similarity"].item()
    assert -4 < scores[-20.0] < 0
    added = scores[-20.0] - scores[3.0]
    assert 0.3 < added / (2 * 16 * math.exp(3)) < 3
