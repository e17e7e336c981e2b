from annotations import karpathy_entry, write_karpathy
from verbs import corpus_of, refused

from polypool.tasks.datasets.readers.karpathy import Karpathy


def test_karpathy_reads_splits_ids_and_paths(tmp_path):
    splits = ["train", "restval", "val", "test", "restval"]
    path = write_karpathy(tmp_path, [karpathy_entry(i, split=split) for i, split in enumerate(splits)])
    files = "karpathy", "--json", path, "--images", tmp_path / "images"
    out, corpus, _ = corpus_of(tmp_path / "out", *files)
    assert "5 items (train 3, val 1, test 1), 25 captions" in out
    assert "nothing skipped" in out
    items = corpus.items("train")
    assert [it.id for it in items] == ["1000", "1001", "1004"]
    assert items[1].captions == ("A cat, number 1.",) * 5
    assert items[1].caption_ids == ("5", "6", "7", "8", "9")
    assert corpus.image_path(items[1]).is_file()


def test_karpathy_flickr_uses_imgids_and_one_folder(tmp_path):
    entries = [karpathy_entry(i, filename=f"{i}.jpg") for i in range(3)]
    for one in entries:
        del one["cocoid"], one["filepath"]
    del entries[1]["sentences"][2]["sentid"]
    path = write_karpathy(tmp_path, entries, place=".")
    items = list(Karpathy(json=path, images=tmp_path / "images").read().rows)
    assert [(it.id, it.path) for it in items] == [("0", "0.jpg"), ("1", "1.jpg"), ("2", "2.jpg")]
    assert [len(it.caption_ids) for it in items] == [5, 0, 5]


def test_karpathy_skips_and_lists_bad_entries(tmp_path):
    entries = [
        karpathy_entry(0),
        karpathy_entry(1, filename="gone.jpg"),
        karpathy_entry(2, sentences=[{"raw": " "}, {"raw": "Fine."}]),
        karpathy_entry(3, sentences=[]),
        karpathy_entry(4, split="holdout"),
        karpathy_entry(5, cocoid=1000),
        karpathy_entry(6, sentences=[{"text": "no raw"}]),
        "not an object",
        karpathy_entry(8, split=3),
    ]
    path = write_karpathy(tmp_path, entries)
    (tmp_path / "images" / "val2014" / "gone.jpg").unlink()
    (tmp_path / "images" / "val2014" / "gone.jpg").mkdir()  # a folder is not an image
    files = "karpathy", "--json", path, "--images", tmp_path / "images"
    out, corpus, skipped = corpus_of(tmp_path / "out", *files)
    assert [it.id for it in corpus.items("train")] == ["1000", "1002"]
    listed = dict(skipped)
    unknown, form = "unknown split, expected train, restval, val, test", "not of the expected form: "
    assert listed.pop("id 1001, val2014/gone.jpg").startswith("no such image in ")
    assert listed == {
        "id 1002, caption 1": "a caption that is empty",
        "id 1003": "no captions",
        'dataset.json, image 4, split "holdout"': unknown,
        "id 1000": "duplicate id; the first is kept",
        "id 1006, caption 1": "a caption that is not a string",
        "id 1006": "no captions",
        "dataset.json, image 7": f"{form}an image that is not an object",
        "dataset.json, image 8, split 3": unknown,
    }
    assert "skipped 9:" in out
    assert str(tmp_path / "out" / "corpus.skipped.jsonl") in out


def test_karpathy_reads_real_coco_subset(shared, tmp_path):
    data = shared / "data" / "coco_mini"
    files = "--json", data / "dataset_coco_mini.json", "--images", data
    out, corpus, _ = corpus_of(tmp_path, "karpathy", *files)
    assert "nothing skipped" in out
    assert corpus.splits == {"train": 1359, "val": 195, "test": 1064}
    first = corpus.items("test")[0]
    assert first.id == "42"
    assert first.captions[1] == "A dog sleeping on a show rack in the shoes."
    assert corpus.image_path(first).is_file()
    assert sum(min(5, len(it.captions)) for split in corpus.splits for it in corpus.items(split)) == 13090


def test_limit_keeps_first_usable_images_of_each_split(tmp_path):
    splits = ["train", "restval", "val", "train", "val", "test"]
    path = write_karpathy(tmp_path, [karpathy_entry(i, split=split) for i, split in enumerate(splits)])
    (tmp_path / "images" / "val2014" / karpathy_entry(1)["filename"]).unlink()
    files = "karpathy", "--json", path, "--images", tmp_path / "images"
    _, corpus, skipped = corpus_of(tmp_path / "out", *files, "--limit", 2)
    assert [it.id for it in corpus.items("train")] == ["1000", "1003"]
    assert corpus.splits == {"train": 2, "val": 2, "test": 1}
    assert len(skipped) == 1
    refused("--limit must be at least 1, not 0", *files, "--limit", 0, "--out", tmp_path / "out")
