"""User workflow in Python from a table to a search, and messages about invalid arguments."""

import pytest
from fake_extractor import in_this_process
from PIL import Image

import polypool as pp
from polypool.infra.errors import InputError

COLORS = ("red", "green", "blue", "white", "black")


def test_python_workflow_from_table_to_search(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    (tmp_path / "photos").mkdir()
    lines = ["image,caption,split"]
    for n in range(10):
        Image.new("RGB", (8, 8), COLORS[n % 5]).save(tmp_path / "photos" / f"{n}.png")
        lines.append(
            f"photos/{n}.png,all is {COLORS[n % 5]},{'train' if n < 6 else 'val' if n < 8 else 'test'}"
        )
    (tmp_path / "captions.csv").write_text("\n".join(lines))
    corpus = pp.ingest("table", file="captions.csv", out="data/mine")
    with pytest.MonkeyPatch.context() as patch:
        in_this_process(patch)
        store = pp.extract(
            corpus, backbone="cells(grid=2)", out="data/mine/cells", splits=["train", "val", "test"]
        )
    run = pp.train("image_text", corpus=corpus, features=store, aggregator="mean", optim={"epochs": 2})
    assert 0 <= run.metrics["test/score"] <= 600
    assert len(pp.load(run.id).search("all is red", k=2)) == 2
    elsewhere = pp.ingest("table", file=["captions.csv"], out="data/other")
    moved = pp.load(run.id, data=pp.OtherData(corpus="data/other", features="data/mine/cells"))
    assert len(moved.search("all is red", k=2)) == 2
    assert (elsewhere / "corpus.json").is_file()
    assert pp.compare("polypool")["row"].tolist() == ["mean"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pp.ingest("tables", file="a.csv", out="x"), "Did you mean 'table'"),
        (lambda: pp.ingest("table", files="a.csv", out="x"), "unknown option of ingest table 'files'"),
        (lambda: pp.ingest("karpathy", out="x"), "ingest karpathy: missing .* argument: 'json'"),
        (lambda: pp.extract("nowhere", out="x"), "nowhere"),
    ],
)
def test_invalid_arguments_are_named(call, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message):
        call()
