"""The files of ECCV Caption, and runs that are evaluated by them, beside plain recall and people's ratings."""

from __future__ import annotations

import csv
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from corpora import make_corpus
from cxc_files import caption, image, write_csvs
from eccv_files import write_eccv
from kept import keep_run
from query_results import reproduced

from polypool.infra.errors import InputError
from polypool.infra.registry import TASKS
from polypool.infra.tracking import tracking_uri
from polypool.pipelines.commands import evaluate
from polypool.pipelines.comparison.comparison import compare
from polypool.pipelines.figures.pages.draw import draw
from polypool.pipelines.models import run_evaluation
from polypool.pipelines.models.trained import load_run
from polypool.tasks.datasets.coco_judgments import eccv_files, read_eccv
from polypool.tasks.datasets.corpus import Corpus, write_corpus
from polypool.tasks.scoring.protocols import PROTOCOLS, ScoringProtocol

MADE = ("whole", "small-cxc", "small-eccv")


def test_ids_are_text_and_each_answer_counts_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_eccv(tmp_path, image_to_caption={7: [11, 12, 11]}, caption_to_image={11: [7]})
    read = read_eccv(tmp_path)
    assert read.image_to_caption == {"7": ("11", "12")}
    assert read.caption_to_image == {"11": ("7",)}
    told = "not as many as published (ECCV Caption): image_to_caption 2 of 22,550 pairs"
    assert capsys.readouterr().out.startswith(f"{tmp_path}: {told}")


def test_the_package_has_as_many_answers_as_published(capsys: pytest.CaptureFixture[str]) -> None:
    if find_spec("eccv_caption") is None:
        pytest.skip("not installed (pip install 'polypool[eccv]')")
    read = read_eccv(None)
    assert (len(read.image_to_caption), len(read.caption_to_image)) == (1261, 1332)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no such file; expected a file of ECCV Caption, which the package eccv-caption has"),
        ("", "not valid JSON"),
        ('{"7": [11', "not valid JSON at line 1"),
        ("[[7, 11]]", 'not of the expected form: {"id of a query"'),
        ("{}", "not of the expected form"),
        ('{"seven": [11]}', "the query 'seven' is no id"),
        ('{"": [11]}', "the query '' is no id"),
        ('{"7": []}', r"query 7 has \[\]; expected"),
        ('{"7": 11}', "query 7 has 11; expected"),
        ('{"7": [11, "12"]}', r"query 7 has \[11, '12'\]; expected"),
        ('{"7": [true]}', "query 7 has"),
        ('{"7": [1.5]}', "query 7 has"),
        ('{"7": [-1]}', "query 7 has"),
        ('{"7": null}', "query 7 has None"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, text: str | None, message: str) -> None:
    write_eccv(tmp_path, image_to_caption={7: [11]}, caption_to_image={11: [7]})
    path = tmp_path / "eccv_image_to_caption.json"
    path.unlink() if text is None else path.write_text(text)
    with pytest.raises(InputError, match=message) as raised:
        read_eccv(tmp_path)
    assert str(path) in str(raised.value)


def test_without_package_and_folder_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polypool.tasks.datasets.coco_judgments.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'polypool\[eccv\]', or name a folder"):
        eccv_files(None)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A home with a corpus whose captions have ids, and the ratings and right answers of its test split."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POLYPOOL_HOME", str(folder))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        for right in ("cxc", "eccv"):
            patch.setitem(
                PROTOCOLS, f"small-{right}", ScoringProtocol(name=f"small-{right}", about="", right=right)
            )
        yield folder


@pytest.fixture(scope="module")
def ids(home):
    return [str(i) for i in range(64, 84)]


@pytest.fixture(scope="module")
def run(home, ids):
    made = make_corpus(home)
    corpus = Corpus.open(made.data.corpus)
    items = [
        replace(item, caption_ids=tuple(f"{item.id}{k}" for k in range(3)))
        for split in corpus.splits
        for item in corpus.items(split)
    ]
    write_corpus(home / "named", items, source={"made": "by a test"})
    assert [item.id for item in items if item.split == "test"] == ids
    write_csvs(
        home / "ratings",
        sits=[(caption(f"{ids[0]}0"), image(ids[1]), 3.5)],
        sts=[(caption(f"{ids[0]}0"), caption(f"{ids[5]}1"), 4)],
        sis=[(image(ids[0]), image(ids[2]), 2.5)],
    )
    write_eccv(  # an item and the three after it are alike, and a third caption is none of the run's
        home / "alike",
        image_to_caption={
            ids[at]: [int(f"{ids[at + n]}{k}") for n in range(4) for k in range(2 + (n == 0))]
            for at in range(12)
        },
        caption_to_image={f"{ids[at]}1": [int(ids[at + n]) for n in range(4)] for at in range(9)},
    )
    task = "image_text(cxc='ratings', eccv='alike')"
    return replace(made, data=replace(made.data, corpus="named"), task=task, experiment="judged")


def said(monkeypatch, capsys, *words: str) -> str:
    monkeypatch.setattr(sys, "argv", ["evaluate", *words])
    evaluate.main()
    return capsys.readouterr().out


def test_protocols_stand_side_by_side_and_are_compared(home, run, ids, monkeypatch, capsys) -> None:
    run_id = keep_run(run)
    shown = said(monkeypatch, capsys, run_id, *(word for name in MADE for word in ("--protocol", name)))
    trained = load_run(run_id)
    logged = trained.tracker.metrics()
    lines = {" ".join(line.split()[:-3]): line.split()[-3:] for line in shown.splitlines()[1:]}
    assert lines[""] == list(MADE)
    for name in ("i2t/R1", "t2i/R1"):
        assert [float(x) for x in lines[name]] == pytest.approx(
            [logged[f"{each}/{name}"] for each in MADE], abs=0.006
        )
    assert lines["map_at_r"][:2] == ["\u2013", "\u2013"]
    assert float(lines["chance map_at_r"][2]) > 0
    assert float(lines["chance rsum"][0]) > 0
    assert (logged["small-eccv/i2t/queries"], logged["small-eccv/t2i/queries"]) == (12, 9)
    alone = run_evaluation.evaluate([trained], protocols=["small-eccv"], split="test")[0]
    assert {f"small-eccv/{name}": value for name, value in alone.metrics.items()}.items() <= logged.items()
    described = {"map_at_r"} | {f"{d}/{n}" for d in ("i2t", "t2i") for n in ("map_at_r", "r_precision", "R1")}
    assert reproduced(alone) == described
    together = run_evaluation.evaluate([trained, load_run(run_id)], protocols=MADE, split="test")
    assert [each.metrics["i2t/R1"] for each in together] == pytest.approx(
        [logged[f"{each}/i2t/R1"] for each in MADE]
    )
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
    for row in rows:  # alike, and not COCO's own
        of_image, of_caption = (row["query"], row["found"])[:: 1 if row["direction"] == "i2t" else -1]
        assert of_caption[:-1] != of_image
    assert rows


def test_a_page_shows_the_queries_that_are_asked(run) -> None:
    adapter = TASKS.build(run.task, run)
    record = adapter.evaluate(adapter.model(), "test", "small-eccv").pictures[0]()
    captions = {adapter.data("test").texts[example.query] for example in record.of_captions}
    assert len(record.of_captions) == 9
    assert len(captions) <= 9
    assert {example.query for example in record.of_items} == set(range(12))
    assert {example.right for example in record.of_captions} == {4}
    (page,) = draw(record).values()
    assert "what ECCV Caption found" in page.decode()


def test_files_and_protocols_are_checked_before_anything_is_encoded(home, run, monkeypatch, capsys) -> None:
    run_id = keep_run(run)
    trained = load_run(run_id)
    monkeypatch.setattr(type(trained.adapter), "scorer", lambda *_: pytest.fail("it encodes the split"))
    lost = load_run(run_id, task="image_text(eccv='elsewhere')")
    for models in ([lost], [lost, trained]):
        for protocols in (["small-eccv"], ["whole", "small-eccv"]):
            with pytest.raises(InputError, match=r"elsewhere/eccv_image_to_caption\.json: no such file"):
                run_evaluation.evaluate(models, protocols=protocols, split="test")
    with pytest.raises(InputError, match="no such file"):  # and before training
        TASKS.build("image_text(eccv='elsewhere')", replace(run, protocol="small-eccv"))
    with pytest.raises(InputError, match="asks for few of the queries"):
        run_evaluation.evaluate([trained], protocols=["small-eccv-rerank10"], split="test")
    with pytest.raises(InputError, match=r"'coco-eccv' is defined on 5,000 items"):
        run_evaluation.evaluate([trained], protocols=["coco-eccv"], split="test")


def test_captions_without_ids_are_refused(home, run) -> None:
    nameless = replace(run, data=replace(run.data, corpus="corpus"))
    adapter = TASKS.build(nameless.task, nameless)
    with pytest.raises(InputError, match="its captions have no ids, by which small-eccv finds"):
        adapter.evaluate(adapter.model(), "test", "small-eccv")


def test_a_run_that_chose_it_is_trained_and_analysed_by_its_metric(home, run, monkeypatch, capsys) -> None:
    sets = replace(run, protocol="small-eccv", aggregator="pie(k=2)", similarity="smooth_chamfer")
    monkeypatch.setattr(sys, "argv", ["evaluate", keep_run(sets), "--embeddings"])
    evaluate.main()
    assert "map_at_r under small-eccv, with elements of" in capsys.readouterr().out
