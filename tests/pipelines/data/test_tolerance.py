from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from verbs import run

from polypool.tasks.datasets.corpus import Corpus

HEADER = "key,vid_key,video_id,sentence"


@pytest.fixture
def split(tmp_path: Path) -> dict[str, Any]:
    """Files in the format of split 1k-A: 20 videos for training, 10 for testing."""
    sentences = [
        {"sen_id": number, "video_id": f"video{number // 2}", "caption": f"a caption {number}"}
        for number in range(60)
    ]
    videos = [{"video_id": f"video{number}", "split": "train"} for number in range(30)]
    (tmp_path / "data.json").write_text(json.dumps({"videos": videos, "sentences": sentences}))
    (tmp_path / "train.csv").write_text("\n".join(["video_id", *(f"video{number}" for number in range(20))]))
    rows = [f"ret{number},msr{number},video{number},text {number}" for number in range(20, 30)]
    return {"folder": tmp_path, "rows": rows}


def ingest(split: dict[str, Any], *options: object) -> tuple[int, str, str]:
    folder = split["folder"]
    (folder / "test.csv").write_text("\n".join([HEADER, *split["rows"]]) + "\n")
    files = ("--json", folder / "data.json", "--train", folder / "train.csv", "--test", folder / "test.csv")
    return run("msrvtt-1ka", *files, "--val", 2, "--out", folder / "out", *options)


def test_unusable_row_is_counted_and_reported(split):
    split["rows"][2] = "ret22,msr22,video99,text 22"
    code, _, err = ingest(split)
    assert code == 1
    assert "1 of 10 items of test (10.0%) were skipped, and at most 5% may be" in err
    assert "1 x a listed video that the annotations do not have: test.csv, line 4, id video99" in err
    out = split["folder"] / "out"
    assert [path.name for path in out.iterdir()] == ["refused.jsonl"]
    assert f"all of them: {out / 'refused.jsonl'}" in err
    assert "--allow-skipped" in err
    code, said, _ = ingest(split, "--allow-skipped")
    assert code == 0
    assert [item.id for item in Corpus.open(out).items("test")] == [
        f"video{i}" for i in range(20, 30) if i != 22
    ]
    assert "counts differ from the published ones (MSR-VTT, split 1k-A with " in said
    assert "test 9 of 1,000 items" in said
    assert sorted(path.name for path in out.iterdir()) == [
        "corpus.arrow",
        "corpus.json",
        "corpus.skipped.jsonl",
    ]


def karpathy(folder: Path, ids: list[dict[str, Any]]) -> tuple[int, str, str]:
    (folder / "images").mkdir(exist_ok=True)
    entries = []
    for number, numbers in enumerate(ids):
        (folder / "images" / f"{number}.jpg").touch()
        sentences = [{"raw": f"caption {number}"}]
        entries.append({"filename": f"{number}.jpg", "split": "train", "sentences": sentences} | numbers)
    (folder / "f.json").write_text(json.dumps({"images": entries, "dataset": "flickr30k"}))
    words = ("--json", folder / "f.json", "--images", folder / "images", "--out", folder / "out")
    return run("karpathy", *words)


def test_null_cocoids_fall_back_to_imgids_without_mixing(tmp_path):
    def ids() -> list[str]:
        return [item.id for item in Corpus.open(tmp_path / "out").items("train")]

    code, said, _ = karpathy(tmp_path, [{"cocoid": None, "imgid": number} for number in range(3)])
    assert (code, ids()) == (0, ["0", "1", "2"])
    told = "3 x its cocoid is null, and its imgid is taken as its id: f.json, image 0; f.json, image 1"
    assert told in said
    assert (
        "counts differ from the published ones (Flickr30K, Karpathy's splits): train 3 of 29,000 items"
        in said
    )
    numbered = [{"cocoid": 100 + number, "imgid": number} for number in range(40)]
    numbered[3]["cocoid"] = None
    del numbered[5]["cocoid"]
    code, said, _ = karpathy(tmp_path, numbered)
    assert (code, ids()) == (0, [str(100 + number) for number in range(40) if number not in (3, 5)])
    assert (
        "2 x not of the expected form: an image whose cocoid is missing or no whole number or string" in said
    )


@pytest.mark.parametrize(
    "name", [{"filepath": "../other"}, {"filename": "../other/secret.jpg"}, {"filepath": "/etc"}]
)
def test_image_path_outside_folder_is_refused(tmp_path, name):
    (tmp_path / "other").mkdir()
    for secret in ("0.jpg", "secret.jpg"):
        (tmp_path / "other" / secret).touch()
    code, _, err = karpathy(tmp_path, [{"imgid": 0} | name, {"imgid": 1}])
    assert code == 1
    assert "1 x a path that leaves the folder of images: id 0, " in err
