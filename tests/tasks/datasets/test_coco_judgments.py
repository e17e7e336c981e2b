"""Readers of Crisscrossed Captions and ECCV Caption, and evaluation of runs by their protocols."""

import csv
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from corpora import hgr, make_corpus
from judgment_files import HEADERS, caption, image, write_csvs, write_eccv
from query_results import reproduced
from untrained_runs import track_untrained
from verbs import called

from polypool.infra.errors import InputError
from polypool.infra.registry import TASKS
from polypool.infra.tracking import tracking_uri
from polypool.pipelines.comparison.comparison import compare
from polypool.pipelines.models import run_evaluation
from polypool.pipelines.models.trained import load
from polypool.pipelines.training.train import prepare
from polypool.tasks.datasets.coco_judgments import eccv_files, read_cxc, read_eccv
from polypool.tasks.datasets.corpus import Corpus, write_corpus
from polypool.tasks.scoring.crisscrossed import right_answers
from polypool.tasks.scoring.protocols import PROTOCOLS, ScoringProtocol

DIRECTIONS = ("i2t", "t2i", "t2t", "i2i")
MADE = ("whole", "small-cxc", "small-eccv")


def test_cxc_validation_files_have_published_counts(shared, capsys):
    ratings = read_cxc(shared / "data" / "cxc", "val")
    assert (len(ratings.sits), len(ratings.sts), len(ratings.sis)) == (44722, 44009, 42767)
    assert capsys.readouterr().out == ""
    lines = (shared / "data" / "cxc" / "sits_val.csv").read_text().splitlines()
    own = dict(line.split(",")[:2] for line in lines if line.endswith("c2i_original"))
    images = sorted({int(name[13:-4]) for name in own.values()})
    place = {id: at for at, id in enumerate(images)}
    owner = sorted((place[int(name[13:-4])], text.rpartition(":")[2]) for text, name in own.items())
    names, captions = [str(id) for id in images], [id for _, id in owner]
    owner_T = np.array([at for at, _ in owner])
    answers = right_answers(ratings, image_ids=names, caption_ids=captions, owner_T=owner_T)
    counts = {direction: positives.count_Q for direction, positives in answers.of.items()}
    assert [len(counts[direction]) for direction in DIRECTIONS] == [5000, 25000, 25000, 5000]
    assert answers.unknown == 0
    assert np.count_nonzero(ratings.sits.rating_P >= 3.0) == 37254
    assert counts["t2i"].sum() == 37254 + 38  # 38 of COCO's own pairs are rated lower but stay positives
    assert counts["t2t"].sum() == 25000 * 4 + 2 * 1092
    assert np.count_nonzero(counts["i2i"]) == 4927
    one_way = ratings.sis.first_P[ratings.sis.rating_P >= 2.5]
    assert len(np.unique(one_way)) == 4718


def test_readers_parse_ids_and_report_wrong_counts(tmp_path, capsys):
    sits, sts = (caption(648388), image(391895), "1.8"), (caption(1), caption(22), 5)
    write_csvs(tmp_path, sits=[sits], sts=[sts], sis=[(image(42), image(7), 0)])
    write_eccv(tmp_path, image_to_caption={7: [11, 12, 11]}, caption_to_image={11: [7]})
    found, read = read_cxc(tmp_path, "test"), read_eccv(tmp_path)
    ids = [(kind.first_P.tolist(), kind.second_P.tolist()) for kind in (found.sits, found.sts, found.sis)]
    assert ids == [(["648388"], ["391895"]), (["1"], ["22"]), (["42"], ["7"])]
    assert found.sits.rating_P.tolist() == [1.8]
    assert (read.image_to_caption, read.caption_to_image) == ({"7": ("11", "12")}, {"11": ("7",)})
    told = capsys.readouterr().out
    assert (
        f"{tmp_path}: counts differ from the published ones (Crisscrossed Captions, test): sits 1 of 44,833 ratings"
        in told
    )
    assert (
        f"{tmp_path}: counts differ from the published ones (ECCV Caption): image_to_caption 2 of 22,550 pairs"
        in told
    )


def test_eccv_package_has_published_query_counts(capsys):
    if find_spec("eccv_caption") is None:
        pytest.skip("not installed (pip install 'polypool[eccv]')")
    read = read_eccv(None)
    assert (len(read.image_to_caption), len(read.caption_to_image)) == (1261, 1332)
    assert capsys.readouterr().out == ""


HEADER = HEADERS["sis"] + "\n"
PAIR = f"{image(1)},{image(2)}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, r"sis_test.csv: no such file; expected the official Crisscrossed Captions of the test split"),
        (HEADER, "no ratings; the file is cut short"),
        (f"{HEADER}{image(1)},42,3.0,made\n", "line 2: image2 is '42', expected the form COCO_"),
        (f"{HEADER}{PAIR},high,made\n", "line 2: agg_score is 'high', expected a number"),
        (f"{HEADER}{PAIR},nan,made\n", "expected a number from 0 to 5"),
        (f"{HEADER}{PAIR},51,made\n", "expected a number from 0 to 5"),
    ],
)
def test_bad_cxc_file_error_names_path_and_line(tmp_path, text, message):
    write_csvs(tmp_path, sits=[(caption(1), image(1), 3)], sts=[(caption(1), caption(2), 3)])
    refuses(lambda: read_cxc(tmp_path, "test"), tmp_path / "sis_test.csv", text, message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no such file; expected a file of ECCV Caption, which the package eccv-caption has"),
        ("[[7, 11]]", 'expected {"id of a query".* must be a mapping'),
        ("{}", "it must be not empty"),
        ('{"7": []}', "7 must be not empty"),
        ('{"7": 11}', "7 must be a list"),
        ('{"7": [11, "12"]}', r"7\[1\] must be a whole number"),
        ('{"7": [true]}', r"7\[0\] must be a whole number"),
        ('{"7": [-1]}', r"7\[0\] must be at least 0"),
    ],
)
def test_bad_eccv_file_error_names_path(tmp_path, text, message):
    write_eccv(tmp_path, image_to_caption={7: [11]}, caption_to_image={11: [7]})
    refuses(lambda: read_eccv(tmp_path), tmp_path / "eccv_image_to_caption.json", text, message)


def refuses(read: Callable[[], object], path: Path, text: str | None, message: str) -> None:
    """Write or delete a file, then check that reading it fails with a message that names it."""
    path.unlink() if text is None else path.write_text(text)
    with pytest.raises(InputError, match=message) as raised:
        read()
    assert str(path) in str(raised.value)


def test_missing_package_message_names_the_extra(monkeypatch):
    monkeypatch.setattr("polypool.tasks.datasets.coco_judgments.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'polypool\[eccv\]', or name a folder"):
        eccv_files(None)


IDS = [str(i) for i in range(64, 84)]


@pytest.fixture(scope="module", autouse=True)
def protocols():
    """Register protocols of both kinds that fit a small split."""
    with pytest.MonkeyPatch.context() as patch:
        for name, right in (("small-cxc", "cxc"), ("small-eccv", "eccv")):
            patch.setitem(PROTOCOLS, name, ScoringProtocol(name=name, about="", right=right))
        yield


@pytest.fixture(scope="module")
def run(home):
    """Return a run on captions with ids; write ratings and right answers for its test split."""
    made = make_corpus(home)
    corpus = Corpus.open(made.data.corpus)
    items = [item for split in corpus.splits for item in corpus.items(split)]
    items = [replace(item, caption_ids=tuple(f"{item.id}{k}" for k in range(3))) for item in items]
    write_corpus(home / "named", items, source={"made": "by a test"})
    assert [item.id for item in items if item.split == "test"] == IDS
    write_csvs(
        home / "ratings",
        sits=[(caption(f"{IDS[0]}0"), image(IDS[1]), 3.5), (caption(f"{IDS[0]}2"), image(IDS[3]), 5)],
        sts=[(caption(f"{IDS[0]}0"), caption(f"{IDS[5]}1"), 4)],
        sis=[(image(IDS[0]), image(IDS[2]), 2.5)],
    )
    write_eccv(  # each item matches itself and the next three; the run does not use third captions
        home / "alike",
        image_to_caption={
            IDS[at]: [int(f"{IDS[at + n]}{k}") for n in range(4) for k in range(2 + (n == 0))]
            for at in range(12)
        },
        caption_to_image={f"{IDS[at]}1": [int(IDS[at + n]) for n in range(4)] for at in range(9)},
    )
    task = f"image_text(cxc='{home}/ratings', eccv='{home}/alike')"
    return replace(made, data=replace(made.data, corpus="named"), task=task, experiment="judged")


def test_missing_ratings_or_caption_ids_are_refused(home, run):
    adapter = TASKS.build(run.task, run)
    with pytest.raises(
        InputError, match=r"'coco-5k-cxc' is defined on 5,000 items.*fit it: whole, distinct, small-cxc, "
    ):
        adapter.evaluate(adapter.model(), "test", "coco-5k-cxc")
    with pytest.raises(InputError, match=r"val split: sits_val\.csv"):
        adapter.evaluate(adapter.model(), "val", "small-cxc")
    named = Corpus.open(home / "named")
    items = [item for split in named.splits for item in named.items(split)]
    twice = [replace(item, caption_ids=(item.caption_ids[0],) * len(item.captions)) for item in items]
    write_corpus(home / "twice", twice, source={"made": "by a test"})
    for right, corpus in (("cxc", "corpus"), ("eccv", "corpus"), ("eccv", "twice")):
        unnamed = replace(run, data=replace(run.data, corpus=corpus))
        adapter = TASKS.build(unnamed.task, unnamed)
        with pytest.raises(InputError, match=f"no ids, or an id twice, and small-{right} finds"):
            adapter.evaluate(adapter.model(), "test", f"small-{right}")


@pytest.mark.parametrize("protocol", MADE)
def test_first_vectors_of_sets_are_scored_under_every_protocol(run, protocol):
    run = replace(run, aggregator="map(k=4, heads=2)", similarity="maxsim", objective="infonce(learned=True)")
    adapter = TASKS.build(run.task, run)
    score = adapter.scorer(adapter.model(), "test")
    few = adapter.evaluate_scores(score, "test", f"{protocol}-vectors1").metrics
    whole, expected = (
        adapter.evaluate_scores(of, "test", protocol).metrics for of in (score, score.first(1))
    )
    assert few == expected
    assert few != whole


@pytest.mark.parametrize(
    "pairs",
    [
        {"cross": "cross_modal(heads=2)"},
        {"aggregator": "xpool", "text_aggregator": "mean"},
        {"model": hgr(dropout=0.0), "text": "bigru(width=16, embedding=8, min_count=1, ends=False)"},
    ],
)
def test_model_of_pairs_is_not_trained_for_cxc(run, pairs):
    run = replace(run, data=replace(run.data, text_augment=""))
    with pytest.raises(InputError, match="'small-cxc' also compares captions with captions"):
        prepare(replace(run, protocol="small-cxc", **pairs))
    assert prepare(replace(run, protocol="small-eccv", **pairs))


def test_protocols_are_compared_side_by_side(home, run):
    run_id = track_untrained(run)
    words = (word for name in MADE for word in ("--protocol", name))
    code, shown, error = called("evaluate", run_id, *words)
    assert code == 0, error
    trained = load(run_id)
    logged = trained.tracker.metrics()
    lines = {
        " ".join(line.split()[:-3]): line.split()[-3:]
        for line in shown.partition("\nnext:")[0].splitlines()
        if line.startswith("  ")
    }
    assert lines[""] == list(MADE)
    for name in ("i2t/R1", "t2i/R1"):
        assert [float(x) for x in lines[name]] == pytest.approx(
            [logged[f"{each}/{name}"] for each in MADE], abs=0.006
        )
    assert lines["map_at_r"][:2] == ["\u2013", "\u2013"]
    assert float(lines["chance map_at_r"][2]) > 0
    assert float(lines["chance rsum"][0]) > 0
    assert (logged["small-eccv/i2t/queries"], logged["small-eccv/t2i/queries"]) == (12, 9)
    assert logged["small-cxc/i2i/skipped"] == 18
    assert logged["small-cxc/unknown_ratings"] == 1  # rates a third caption; the run uses two
    with np.load(trained.tracker.download("per_query") / "small-cxc.npz", allow_pickle=False) as kept:
        assert [len(kept[f"{direction}_rank"]) for direction in DIRECTIONS] == [20, 40, 40, 20]
    alone = run_evaluation.evaluate([trained], protocols=["small-eccv"], split="test")[0]
    assert {f"small-eccv/{name}": value for name, value in alone.metrics.items()}.items() <= logged.items()
    described = {"map_at_r"} | {f"{d}/{n}" for d in ("i2t", "t2i") for n in ("map_at_r", "r_precision", "R1")}
    assert reproduced(alone) == described
    together = run_evaluation.evaluate([trained, load(run_id)], protocols=MADE, split="test")
    assert [each.metrics["i2t/R1"] for each in together] == pytest.approx(
        [logged[f"{each}/i2t/R1"] for each in MADE]
    )
    assert {"rsum", "i2t/R1", "t2t/R5", "i2i/R10", "i2i/meanr"} <= reproduced(together[1])
    compared = compare(tracking_uri(home), "judged")
    (group,) = (group for group in compared.groups if group.protocol == "small-eccv")
    assert group.metric.name == "map_at_r"
    assert {metric.name for metric in group.metrics} == described
    assert all(metric.higher_is_better and metric.best == 100 for metric in group.metrics)

    with np.load(trained.tracker.download("per_query") / "small-eccv.npz", allow_pickle=False) as kept:
        missed = {d: kept[f"{d}_false_negative"] for d in ("i2t", "t2i")}
        assert np.isfinite(kept["i2t_map_at_r"]).sum() == 12
        assert kept["caption_id"][missed["t2i"]].tolist() == sorted(kept["caption_id"][missed["t2i"]])
    with (trained.tracker.download("evaluation") / "small-eccv-false-negatives.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for direction, missed_Q in missed.items():
        found = [row for row in rows if row["direction"] == direction]
        assert len(found) == missed_Q.sum() == logged[f"small-eccv/{direction}/false_negatives"]
    for row in rows:  # only matches beyond COCO's own pairs
        of_image, of_caption = (row["query"], row["found"])[:: 1 if row["direction"] == "i2t" else -1]
        assert of_caption[:-1] != of_image
    assert rows
