from __future__ import annotations

import pytest
from verbs import called

from polypool.pipelines.recipes.arguments import read_run


@pytest.mark.parametrize(
    "words",
    [
        ["extract", "--corpus", "ftp://host/x", "--out", "features"],
        ["extract", "--corpus", "corpus", "--out", "ftp://host/x"],
        ["ingest", "karpathy", "--json", "ftp://host/x", "--images", ".", "--out", "corpus"],
        ["ingest", "karpathy", "--json", "here.json", "--images", "ftp://host/x", "--out", "corpus"],
        ["ingest", "verify", "--store", "ftp://host/x"],
        ["ingest", "vse-infinity", "ftp://host/x"],
        ["export", "0" * 32, "--out", "ftp://host/x"],
        ["compare", "--out", "ftp://host/x.csv"],
        ["compare", "--latex", "ftp://host/x.tex"],
        ["search", "0" * 32, "--image", "ftp://host/x.jpg"],
        ["compare", "tables", "ftp://host/x.md"],
    ],
)
def test_a_url_that_cannot_be_served_is_one_line_and_code_2(words, tmp_path, monkeypatch):
    monkeypatch.setenv("POLYPOOL_HOME", str(tmp_path))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.json").write_text('{"dataset": "mine", "images": []}')
    code, _, said = called(*words)
    assert (code, said.count("\n")) == (2, 1), said
    assert said.startswith("error: ftp://host/x"), said
    assert "s3://" in said
    assert [path.name for path in tmp_path.iterdir()] == ["here.json"]


@pytest.mark.parametrize("flag", ["--data.features", "--data.corpus"])
def test_a_run_that_cannot_have_its_data_is_refused_with_its_flags(flag, capsys):
    with pytest.raises(SystemExit) as ended:
        read_run("coco_mini", [flag, "ftp://host/x"])
    assert ended.value.code == 2
    assert "ftp://host/x: nothing is read" in capsys.readouterr().err
