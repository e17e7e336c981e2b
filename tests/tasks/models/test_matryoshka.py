"""The first vectors of sets: what they are trained by, and scores of as many as an evaluation asks for."""

from dataclasses import replace

import pytest
import torch
from corpora import make_corpus
from kept import keep_run
from pair_models import batch_of
from toy import WORDS, toy_run
from verbs import called

from polypool.encoders.text.bigru import BiGRU
from polypool.encoders.visual.stored import Frames
from polypool.infra.errors import InputError
from polypool.pipelines.models import run_evaluation
from polypool.pipelines.models.trained import load_run
from polypool.tasks.models.parts import Parts, retrieval_model
from polypool.tasks.models.retrieval_model import RetrievalModel
from polypool.tasks.objectives.objective import batch_positives
from polypool.tasks.run import Run
from polypool.tasks.scoring.scores import Banked, first_vectors

SETS = {"aggregator": "map(k=4, heads=2)", "similarity": "maxsim", "objective": "infonce(learned=True)"}


def built(**changes) -> RetrievalModel:
    torch.manual_seed(0)
    run = toy_run(**SETS | {"model": "matryoshka(vectors='1 2')"} | changes)
    visual, text = Frames({"dim": 6}, width=8), BiGRU({"words": WORDS}, width=8, embedding=4)
    return retrieval_model(run, Parts(run, visual=lambda: visual, text=lambda: text)).double()


def closest(x_VKD: torch.Tensor, y_TLD: torch.Tensor) -> torch.Tensor:
    """Return maxsim of sets without pads, pair by pair."""
    rows = [[(x @ y.T) for y in y_TLD] for x in x_VKD]
    return torch.stack(
        [torch.stack([(s.amax(1).mean() + s.amax(0).mean()) / 2 for s in row]) for row in rows]
    )


def test_the_loss_is_the_mean_over_the_groups():
    model, batch = built(text_aggregator="map(k=3, heads=2)").eval(), batch_of(0, 7, 20, 3, 30, 12)
    terms = model(batch, epoch=2.0)
    visual, text = model.encode_visual(batch).vectors, model.encode_text(batch).vectors
    assert (visual.shape[1], text.shape[1]) == (4, 3)
    positive_VT = batch_positives(batch["item"], batch["row"])
    losses = {
        k: model.objective(closest(visual[:, :k], text[:, :k]), batch["row"], positive_VT, epoch=2.0)["loss"]
        for k in (1, 2, 4)
    }
    torch.testing.assert_close(terms["loss"], sum(losses.values()) / 3)
    for k in (1, 2):
        torch.testing.assert_close(terms[f"loss_{k}"], losses[k])
    assert len({round(float(loss.detach()), 6) for loss in losses.values()}) == 3


def test_all_vectors_are_one_of_the_groups_named_or_not():
    batch = batch_of(0, 7, 20, 3, 30, 12)
    named, not_named = (built(model=f"matryoshka(vectors='{v}')").eval() for v in ("1 2 4", "1 2"))
    torch.testing.assert_close(named(batch, epoch=0.0)["loss"], not_named(batch, epoch=0.0)["loss"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"aggregator": "mean", "similarity": ""}, "make 1 of an image or video and 1 of a text"),
        ({"aggregator": "late"}, "any number of an image or video"),
        (
            {"model": "matryoshka(vectors='1 5')"},
            "the first 1 5 vectors of each set, and the aggregators make 4",
        ),
        ({"aggregator": "score_attention(k=4, heads=2)", "similarity": ""}, "encodes each side alone"),
        *(
            ({"model": f"matryoshka(vectors='{words}')"}, "expected ascending numbers")
            for words in ("", "2 1", "1 1", "0 2", "one", "-1")
        ),
    ],
)
def test_what_has_no_first_vectors_is_refused(changes, message):
    with pytest.raises(InputError, match=message):
        built(**changes)


@pytest.fixture(scope="module")
def run(home) -> Run:
    return replace(make_corpus(home), model="matryoshka(vectors='1 2')", **SETS)


@pytest.mark.parametrize("how", ["", "-qbnorm", "-dsl"])
def test_an_evaluation_compares_as_many_as_it_asks_for(run, how):
    trained = load_run(keep_run(run))
    found = trained.evaluate(f"whole-vectors2{how}")
    assert found.protocol == f"whole-vectors2{how}"
    score = trained.adapter.scorer(trained.model, "test").first(2)
    assert score.visual.shape[1] == score.text.shape[1] == 2
    expected = closest(score.visual, score.text)
    torch.testing.assert_close(score(slice(0, 20), slice(0, 40)), expected, atol=1e-5, rtol=0)
    if not how:
        t2i = [int((row > row[i // 2]).sum()) for i, row in enumerate(expected.T)]
        assert found.metrics["t2i/R1"] == pytest.approx(100 * sum(r == 0 for r in t2i) / len(t2i))
    assert found.metrics != trained.evaluate(f"whole{how}").metrics


def test_the_verb_names_the_protocol_and_says_what_it_cannot_do(run, home):
    sets = keep_run(run)
    single = keep_run(replace(run, model="", aggregator="mean", similarity=""))
    pairs = keep_run(replace(run, model="", aggregator="mean", similarity="", cross="cross_modal(heads=2)"))
    code, out, _ = called("evaluate", sets, "--vectors", "1")
    assert code == 0
    assert "test under whole-vectors1" in out
    for words, message in (
        ((sets, "--vectors", "5"), "5 vectors of each set are to be compared, and this model has 4"),
        ((single, "--vectors", "1"), "and this model has 1 of an image"),
        ((pairs, "--vectors", "1"), "compares few vectors of each set, and this model looks at every pair"),
        ((sets, "--vectors", "0"), "--vectors must be at least 1"),
        ((sets, "--protocol", "whole-vectorsx"), "expected a number behind '-vectors'"),
        ((sets, single, "--vectors", "1"), "members of an ensemble"),
    ):
        code, out, err = called("evaluate", *words)
        assert code == 2, words
        assert message in out + err


def test_a_bank_is_of_the_same_vectors(run):
    trained = load_run(keep_run(run))
    adapter, model = trained.adapter, trained.model
    bank = adapter.bank(model, "test", protocol="whole-vectors1-qbnorm")
    few = first_vectors(Banked(score=adapter.scorer(model, "test"), bank=bank), 1)
    block = slice(0, 5), slice(0, 7)
    for of, whole in ((few.bank.items, bank.items), (few.bank.captions, bank.captions)):
        torch.testing.assert_close(of(*block), closest(whole.visual[:5, :1], whole.text[:7, :1]))
        assert not torch.allclose(of(*block), whole(*block))
    several = run_evaluation.evaluate([trained], protocols=["whole-vectors1-qbnorm", "whole"], split="test")
    assert several[0].metrics == trained.evaluate("whole-vectors1-qbnorm").metrics
