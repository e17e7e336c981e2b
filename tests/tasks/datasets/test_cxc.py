"""The official files of Crisscrossed Captions, and runs that are evaluated by them."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from corpora import make_corpus
from cxc_files import HEADERS, caption, image, write_csvs
from kept import keep_run
from query_results import reproduced

from polypool.infra.errors import InputError
from polypool.infra.registry import TASKS
from polypool.pipelines.commands import evaluate
from polypool.pipelines.models import run_evaluation
from polypool.pipelines.models.trained import load_run
from polypool.tasks.datasets.coco_judgments import read_cxc
from polypool.tasks.datasets.corpus import Corpus, Item, Tolerance, write_corpus
from polypool.tasks.scoring.crisscrossed import right_answers
from polypool.tasks.scoring.protocols import PROTOCOLS, ScoringProtocol

DIRECTIONS = ("i2t", "t2i", "t2t", "i2i")


def test_the_official_files_of_the_validation_split_have_the_known_counts(
    shared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ratings = read_cxc(shared / "data" / "cxc", "val")
    assert (len(ratings.sits), len(ratings.sts), len(ratings.sis)) == (44722, 44009, 42767)
    assert capsys.readouterr().out == ""
    lines = (shared / "data" / "cxc" / "sits_val.csv").read_text().splitlines()
    own = dict(line.split(",")[:2] for line in lines if line.endswith("c2i_original"))
    images = sorted({int(name[13:-4]) for name in own.values()})
    place = {id: at for at, id in enumerate(images)}
    owner = sorted((place[int(name[13:-4])], text.rpartition(":")[2]) for text, name in own.items())
    answers = right_answers(
        ratings,
        image_ids=[str(id) for id in images],
        caption_ids=[id for _, id in owner],
        owner_T=np.array([at for at, _ in owner]),
    )
    counts = {direction: positives.count_Q for direction, positives in answers.of.items()}
    assert {direction: len(count_Q) for direction, count_Q in counts.items()} == {
        "i2t": 5000,
        "t2i": 25000,
        "t2t": 25000,
        "i2i": 5000,
    }
    assert answers.unknown == 0
    assert np.count_nonzero(ratings.sits.rating_P >= 3.0) == 37254
    assert counts["t2i"].sum() == 37254 + 38  # 38 of COCO's own pairs are rated lower and stay right answers
    assert counts["t2t"].sum() == 25000 * 4 + 2 * 1092
    assert np.count_nonzero(counts["i2i"]) == 4927
    one_way = ratings.sis.first_P[ratings.sis.rating_P >= 2.5]
    assert len(np.unique(one_way)) == 4718


def test_ids_are_numbers_of_files_and_sentences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_csvs(
        tmp_path,
        sits=[(caption(648388), image(391895), "1.8")],
        sts=[(caption(1), caption(22), 5)],
        sis=[(image(42), image(7), 0)],
    )
    found = read_cxc(tmp_path, "test")
    told = "not as many as published (Crisscrossed Captions, test): sits 1 of 44,833 ratings, sts 1 of 44,045 ratings"
    assert capsys.readouterr().out.startswith(f"{tmp_path}: {told}")
    assert (found.sits.first_P.tolist(), found.sits.second_P.tolist()) == (["648388"], ["391895"])
    assert found.sits.rating_P.tolist() == [1.8]
    assert (found.sts.first_P.tolist(), found.sts.second_P.tolist()) == (["1"], ["22"])
    assert (found.sis.first_P.tolist(), found.sis.second_P.tolist()) == (["42"], ["7"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, r"sis_test.csv: no such file; expected the official Crisscrossed Captions of the test split"),
        ("", "no column image1, image2, agg_score"),
        ("image1,image2,annotator,score\n", "no column agg_score; expected image1, image2, agg_score"),
        (HEADERS["sis"] + "\n", "no ratings; the file is cut short"),
        (f"{HEADERS['sis']}\n{image(1)},42,3.0,made\n", "line 2: image2 is '42', expected the form COCO_"),
        (f"{HEADERS['sis']}\n{image(1)}\n", "line 2: a row of 1 fields, where the header has 4"),
        (
            f"{HEADERS['sis']}\n{image(1)},{image(2)},high,made\n",
            "line 2: agg_score is 'high', expected a number",
        ),
        (
            f'{HEADERS["sis"]}\n{image(1)},{image(2)},3,"made\n{image(1)},{image(3)},3,made\n',
            "line 2: a row with a quote that is not closed",
        ),
        (f"{HEADERS['sis']}\n{image(1)},{image(2)},nan,made\n", "expected a number from 0 to 5"),
        (f"{HEADERS['sis']}\n{image(1)},{image(2)},51,made\n", "expected a number from 0 to 5"),
        (f"{HEADERS['sis']}\n{'x' * 200000}\n", "line 2: a row with a field that is far too long"),
    ],
)
def test_a_bad_file_is_named_with_its_line(tmp_path: Path, text: str | None, message: str) -> None:
    write_csvs(tmp_path, sits=[(caption(1), image(1), 3)], sts=[(caption(1), caption(2), 3)])
    path = tmp_path / "sis_test.csv"
    path.unlink() if text is None else path.write_text(text)
    with pytest.raises(InputError, match=message) as raised:
        read_cxc(tmp_path, "test")
    assert "sis_test.csv" in str(raised.value)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A home with a corpus whose captions have ids, and the ratings of its test split."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POLYPOOL_HOME", str(folder))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        small = ScoringProtocol(name="small-cxc", about="", right="cxc")
        patch.setitem(PROTOCOLS, "small-cxc", small)
        yield folder


@pytest.fixture(scope="module")
def run(home):
    made = make_corpus(home)
    corpus = Corpus.open(made.data.corpus)
    items = [
        replace(item, caption_ids=tuple(f"{item.id}{k}" for k in range(3)))
        for split in corpus.splits
        for item in corpus.items(split)
    ]
    write_corpus(home / "named", items, source={"made": "by a test"})
    ids = [item.id for item in items if item.split == "test"]
    write_csvs(
        home / "ratings",
        sits=[(caption(f"{ids[0]}0"), image(ids[1]), 3.5), (caption(f"{ids[0]}2"), image(ids[3]), 5)],
        sts=[(caption(f"{ids[0]}0"), caption(f"{ids[5]}1"), 4)],
        sis=[(image(ids[0]), image(ids[2]), 2.5)],
    )
    return replace(made, data=replace(made.data, corpus="named"), task="image_text(cxc='ratings')")


def test_a_run_is_evaluated_by_ratings_and_logs_all_directions(home, run, monkeypatch, capsys) -> None:
    run_id = keep_run(run)
    words = ["evaluate", run_id, "--protocol", "small-cxc"]
    monkeypatch.setattr(sys, "argv", words)
    evaluate.main()
    trained = load_run(run_id)
    logged = trained.tracker.metrics()
    assert logged["small-cxc/i2i/skipped"] == 18
    assert logged["small-cxc/unknown_ratings"] == 1  # of a third caption, and the run uses two
    shown = capsys.readouterr().out
    for name in ("i2t/R1", "t2i/R5", "t2t/R10", "i2i/R1", "rsum"):
        assert f"small-cxc/{name}" in logged
        assert name in shown
    with np.load(trained.tracker.download("per_query") / "small-cxc.npz", allow_pickle=False) as kept:
        assert [len(kept[f"{direction}_rank"]) for direction in DIRECTIONS] == [20, 40, 40, 20]
    members = [trained, load_run(run_id)]
    together = run_evaluation.evaluate(members, protocols=["small-cxc"], split="test")[0]
    assert together.metrics["t2t/R1"] == pytest.approx(logged["small-cxc/t2t/R1"])
    assert {"rsum", "i2t/R1", "t2t/R5", "i2i/R10", "i2i/meanr"} <= reproduced(together)


def test_missing_files_are_said_before_anything_is_encoded(home, run, monkeypatch, capsys) -> None:
    run_id = keep_run(run)
    words = ["evaluate", run_id, "--protocol", "small-cxc", "--task", "image_text(cxc='elsewhere')"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as ended:
        evaluate.main()
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert f"{home / 'elsewhere' / 'sits_test.csv'}: no such file" in error
    assert "sts_test.csv" in error
    with pytest.raises(InputError, match="no such file"):  # and before training
        TASKS.build("image_text(cxc='elsewhere')", replace(run, protocol="small-cxc"))


def test_a_split_or_corpus_that_has_no_ratings_is_refused(home, run) -> None:
    adapter = TASKS.build(run.task, run)
    with pytest.raises(
        InputError, match=r"'coco-5k-cxc' is defined on 5,000 items.*fit it: whole, distinct, small-cxc$"
    ):
        adapter.evaluate(adapter.model(), "test", "coco-5k-cxc")
    with pytest.raises(InputError, match=r"val split: sits_val\.csv"):
        adapter.evaluate(adapter.model(), "val", "small-cxc")
    nameless = replace(run, data=replace(run.data, corpus="corpus"))
    adapter = TASKS.build(nameless.task, nameless)
    with pytest.raises(InputError, match="its captions have no ids"):
        adapter.evaluate(adapter.model(), "test", "small-cxc")


def test_caption_ids_follow_the_captions_that_are_kept(tmp_path: Path) -> None:
    given = Item(id="a", split="test", captions=("one", " ", "three"), caption_ids=("1", "2", "3"))
    other = Item(id="b", split="test", captions=("b",))
    write_corpus(tmp_path, [given, other], source={}, tolerance=Tolerance(allow_skipped=True))
    first, second = Corpus.open(tmp_path).items("test")
    assert (first.captions, first.caption_ids) == (("one", "three"), ("1", "3"))
    assert second.caption_ids == ()
