"""MSR-VTT's JSON and split 1k-A, MSVD's descriptions and VATEX's JSON."""

import json
from pathlib import Path

import numpy as np
from annotations import (
    msrvtt_sentence,
    msrvtt_video,
    vatex_entries,
    vatex_name,
    write_msrvtt,
    write_msvd,
    write_vatex,
)
from verbs import corpus_of, refused, run

from polypool.tasks.datasets.corpus import Item
from polypool.tasks.datasets.readers.video_captions import MsrVtt1kA


def official(folder: Path) -> tuple[Path, Path]:
    """Write the official pair of files: 4 training, 1 validation and 2 test videos, captions out of order."""
    splits = ["train"] * 4 + ["validate"]
    sentences = [msrvtt_sentence(3 * of + i, of) for i in (2, 0, 1) for of in (4, 1, 0, 3, 2)]
    videos = [msrvtt_video(i, s) for i, s in enumerate(splits)]
    first = write_msrvtt(folder / "train_val_videodatainfo.json", videos, sentences)
    tested = [msrvtt_sentence(15 + 3 * of + i, 5 + of) for of in (1, 0) for i in range(3)]
    videos = [msrvtt_video(5, "test"), msrvtt_video(6, "test")]
    return first, write_msrvtt(folder / "test_videodatainfo.json", videos, tested)


def test_msrvtt_reads_official_pair_or_merged_file(tmp_path):
    pair = official(tmp_path)
    out, corpus, _ = corpus_of(tmp_path / "out", "msrvtt", "--json", *pair)
    assert "7 items (train 4, val 1, test 2), 21 captions" in out
    assert "nothing skipped" in out
    assert [item.id for item in corpus.items("train")] == ["video0", "video1", "video2", "video3"]
    captions, ids = ("a caption 3", "a caption 4", "a caption 5"), ("3", "4", "5")
    second = Item(id="video1", split="train", captions=captions, caption_ids=ids)
    assert corpus.items("train")[1] == second
    assert corpus.items("test")[1].caption_ids == ("18", "19", "20")
    halves = [json.loads(path.read_text()) for path in pair]
    both = ([entry for half in halves for entry in half[key]] for key in ("videos", "sentences"))
    merged = write_msrvtt(tmp_path / "merged.json", *both)
    assert corpus_of(tmp_path / "merged", "msrvtt", "--json", merged)[1].digest == corpus.digest


def test_msrvtt_finds_videos_in_folders(tmp_path):
    pair = official(tmp_path)
    names = ["TrainValVideo/video0.mp4", "TrainValVideo/video1.avi", "video2.webm", "TestVideo/video5.MP4"]
    others = ["other/video0.mp4", "other/deeper/video2.mp4", "TrainValVideo/video1.mkv", "video6.txt"]
    for name in names + others:
        (tmp_path / "videos" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "videos" / name).touch()
    out, files = tmp_path / "out", ("msrvtt", "--json", *pair)
    told, corpus, skipped = corpus_of(out, *files, "--videos", tmp_path / "videos")
    assert "4 items (train 3, test 1)" in told
    found = [item for split in corpus.splits for item in corpus.items(split)]
    assert [item.path for item in found] == names
    assert all(corpus.image_path(item).is_file() for item in found)
    lost = f"no such video in {tmp_path / 'videos'}"
    assert skipped == [(f"id video{i}", lost) for i in (3, 4, 6)]
    (tmp_path / "empty").mkdir()
    empty = "holds no videos; expected files that end in .mp4, "
    for folder, message in (("none", "no such folder"), ("empty", empty)):
        refused(message, *files, "--out", out, "--videos", tmp_path / folder)


def test_msrvtt_finds_videos_as_folders_of_frames(tmp_path):
    pair = official(tmp_path)
    names = [
        "train/video0/1.jpg",
        "train/video0/2.jpg",
        "video1.d/1.png",
        "video1.png",
        "test/deep/video5/7.jpg",
    ]
    for name in [*names, "video6/1.jpg", "video6/a.mp4", "other/video6.mp4", "video2/.1.jpg", "video3/1.txt"]:
        (tmp_path / "videos" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "videos" / name).write_text(name)
    rows = ("msrvtt", "--json", *pair, "--videos", tmp_path / "videos")
    told, corpus, _ = corpus_of(tmp_path / "out", *rows)
    found = [item for split in corpus.splits for item in corpus.items(split)]
    assert [item.path for item in found] == ["train/video0/", "test/deep/video5/", "other/video6.mp4"]
    assert "extract --corpus" in told
    assert " --video " in told
    assert len({item.sha256 for item in found}) == len(found)
    for changed in ("renamed", "other bytes", ".hidden"):
        before = corpus.items("train")[0].sha256
        folder = tmp_path / "videos" / "train" / "video0"
        if changed == "renamed":
            (folder / "2.jpg").rename(folder / "3.jpg")
        else:
            (folder / (changed if changed == ".hidden" else "3.jpg")).write_text(changed)
        _, corpus, _ = corpus_of(tmp_path / changed, *rows)
        assert (corpus.items("train")[0].sha256 == before) == (changed == ".hidden")


def test_msrvtt_skips_and_lists_bad_entries(tmp_path):
    videos = [
        msrvtt_video(0),
        msrvtt_video(1, "holdout"),
        msrvtt_video(0, "test"),
        msrvtt_video(2, "validate"),
    ]
    videos += [msrvtt_video(3, None), {"id": 4}, "not an object", msrvtt_video(5)]
    sentences = [
        msrvtt_sentence(1, 0),
        msrvtt_sentence(0, 0, caption=7),
        msrvtt_sentence(2, 99),
        msrvtt_sentence(1, 0, caption="again"),
        msrvtt_sentence(3, 0, caption=" "),
        msrvtt_sentence(4, 5, sen_id="4"),
        {"sen_id": 5, "video_id": "video5"},
        msrvtt_sentence(6, 5, caption="half a pair \ud83d"),
        ["not an object"],
        msrvtt_sentence(7, 2),
    ]
    path = write_msrvtt(tmp_path / "f.json", videos, sentences)
    out, corpus, skipped = corpus_of(tmp_path / "out", "msrvtt", "--json", path)
    assert corpus.splits == {"train": 1, "val": 1}
    assert corpus.items("train")[0].captions == ("a caption 1",)
    unknown, form = "unknown split, expected train, validate, test", "not of the expected form: a"
    assert dict(skipped) == {
        "id video0, f.json, video 2": "duplicate id; the first is kept",
        "f.json, video 5": f"{form} video whose video_id is missing or no string",
        "f.json, video 6": f"{form} video that is not an object",
        "f.json, sentence 1": f"{form} sentence whose caption is missing or no string",
        "f.json, sentence 3": "a sen_id that the video has already; the first is kept",
        "f.json, sentence 5": f"{form} sentence whose sen_id is missing or no whole number",
        "f.json, sentence 6": f"{form} sentence whose caption is missing or no string",
        "f.json, sentence 8": f"{form} sentence that is not an object",
        "sentence 2, of the video video99": "a caption of a video that is not listed",
        "id video0, caption 2": "a caption that is empty",
        'id video1, split "holdout"': unknown,
        "id video3, split null": unknown,
        "id video5, caption 1": "a caption that is not valid UTF-8",
        "id video5": "no captions",
    }
    assert "skipped 14:" in out


def test_msrvtt_reads_real_subset(shared, tmp_path):
    data = shared / "data" / "msrvtt_mini"
    files = [data / f"{name}_videodatainfo.json" for name in ("train_val", "test")]
    out, corpus, _ = corpus_of(tmp_path, "msrvtt", "--json", *files)
    assert "1,200 items (train 900, val 60, test 240), 24,000 captions" in out
    assert "nothing skipped" in out
    for split in corpus.splits:
        for item in corpus.items(split):
            assert len(item.captions) == 20
            assert [int(name) for name in item.caption_ids] == sorted(map(int, item.caption_ids))


def csvs(folder: Path, *, train: list[str], test: list[str]) -> tuple[Path, Path]:
    (folder / "train.csv").write_text("\n".join(["video_id", *train]))
    (folder / "test.csv").write_text("\n".join(["key,vid_key,video_id,sentence", *test]))
    return folder / "train.csv", folder / "test.csv"


def whole(folder: Path, count: int = 30) -> Path:
    sentences = [msrvtt_sentence(2 * of + i, of) for of in range(count) for i in (1, 0)]
    return write_msrvtt(folder / "MSRVTT_data.json", [msrvtt_video(i) for i in range(count)], sentences)


def test_1ka_reads_lists_and_holds_out_val(tmp_path):
    data = whole(tmp_path)
    tested = [f'ret{i},msr{i},video{i},"in {i}, a dog runs"' for i in (27, 25, 26)]
    train, test = csvs(tmp_path, train=[f"video{i}" for i in range(20)], test=tested)
    files = ("msrvtt-1ka", "--json", data, "--train", train, "--test", test)
    out, corpus, skipped = corpus_of(tmp_path / "a", *files, "--val", 5)
    for told in (
        "23 items (",
        "(seed 0); nothing is chosen on the test set",
        "1k-A has no validation split: val is 5 videos held out of train.csv",
    ):
        assert told in out
    assert corpus.splits == {"train": 15, "val": 5, "test": 3}
    tested = corpus.items("test")
    found = [(item.id, item.captions, item.caption_ids) for item in tested]
    assert found == [(f"video{i}", (f"in {i}, a dog runs",), (f"ret{i}",)) for i in (27, 25, 26)]
    assert corpus.items("train")[0].caption_ids in {(str(2 * i), str(2 * i + 1)) for i in range(20)}
    unused = {f"id video{i}": "a video that neither list has" for i in (20, 21, 22, 23, 24, 28, 29)}
    assert dict(skipped) == unused

    def held_out(**options: int) -> set[str]:
        rows = MsrVtt1kA(json=(data,), train=train, test=test, val=5, **options).read().rows
        return {row.id for row in rows if row.split == "val"}

    first = {item.id for item in corpus.items("val")}
    assert held_out(seed=1) != first
    csvs(tmp_path, train=[f"video{i}" for i in reversed(range(20))], test=["k,v,video25,text"])
    assert held_out() == first  # the draw depends neither on the order of the list nor on the test set


def test_1ka_skips_bad_rows_and_never_trains_on_test(tmp_path):
    data = whole(tmp_path, 8)
    train, test = csvs(
        tmp_path,
        train=["video0", "video1", "video0", "video5", "video77", '""', "video2"],
        test=["k1,m,video5,a cat", "k2,m,,no video", "k4,m,video5,a cat again"],
    )
    files = ("msrvtt-1ka", "--json", data, "--train", train, "--test", test)
    _, corpus, listed = corpus_of(tmp_path / "out", *files, "--val", 1)
    assert corpus.splits["test"] == 1
    used = {item.id for split in ("train", "val") for item in corpus.items(split)}
    assert used == {"video0", "video1", "video2"}
    left = "a training video that the test set has; it is left to the test set"
    for case in [
        ("train.csv, line 4, id video0", "duplicate id; the first is kept"),
        ("train.csv, line 5, id video5", left),
        ("train.csv, line 6, id video77", "a listed video that the annotations do not have"),
        ("train.csv, line 7, id ", "a row without a video_id"),
        ("test.csv, line 3, id ", "a row without a video_id"),
        ("id video5", "duplicate id; the first is kept"),
        ("id video7", "a video that neither list has"),
    ]:
        assert case in listed
    for val in (3, -1):
        message = f"val={val}: expected 0 or more, and fewer than the 3 usable training videos"
        refused(message, *files, "--val", val, "--out", tmp_path / "out")
    assert "val" not in corpus_of(tmp_path / "out", *files, "--val", 0)[1].splits


def test_msvd_reads_descriptions_and_lists(tmp_path):
    lines = (
        b"# Descriptions of clips\n# <name> <text>\n\n"
        b"-4wsuPCjDBc_5_15 a squirrel is eating a peanut in it's shell\n"
        b"__KkyLWV1HA_0_9 a  man\tplays\n"
        b"-4wsuPCjDBc_5_15 #1: a chipmunk eats\r\n"
        b"nothing_0_1\n"
        b"other_1_2 a cat sleeps\n"
        b"bad_2_3 caf\xe9\n"
        b"__KkyLWV1HA_0_9 someone is singing"
    )
    lists = {"train": "-4wsuPCjDBc_5_15\nmute_3_4\n", "val": "__KkyLWV1HA_0_9\n-4wsuPCjDBc_5_15\n"}
    options = write_msvd(tmp_path, lines, **lists, test="\nbad_2_3\n")
    (tmp_path / "clips").mkdir()
    for clip in ("-4wsuPCjDBc_5_15", "__KkyLWV1HA_0_9", "bad_2_3", "mute_3_4"):
        (tmp_path / "clips" / f"{clip}.avi").touch()
    out, corpus, skipped = corpus_of(tmp_path / "out", "msvd", *options, "--videos", tmp_path / "clips")
    assert "2 items (train 1, val 1), 4 captions" in out
    (train,), (val,) = corpus.items("train"), corpus.items("val")
    assert train.captions == ("a squirrel is eating a peanut in it's shell", "#1: a chipmunk eats")
    assert val.captions == ("a man plays", "someone is singing")
    assert corpus.image_path(val) == (tmp_path / "clips").resolve() / "__KkyLWV1HA_0_9.avi"
    assert dict(skipped) == {
        "AllVideoDescriptions.txt, line 7": "a clip name without a caption",
        "id -4wsuPCjDBc_5_15": "duplicate id; the first is kept",
        "id mute_3_4": "no captions",
        "id bad_2_3, caption 1": "a caption that is not valid UTF-8",
        "id bad_2_3": "no captions",
        "id other_1_2 (1 captions)": "captions of a clip that no list has",
    }


def test_vatex_without_lists_warns_of_unpublished_split(tmp_path):
    options = write_vatex(tmp_path, vatex_entries(0, 6), vatex_entries(100, 8))
    out, corpus, _ = corpus_of(tmp_path / "out", "vatex", *options)
    for told in ("14 items (train 6, ", "140 captions", "seed 0: NOT the published split"):
        assert told in out
    assert corpus.splits == {"train": 6, "val": 4, "test": 4}
    assert corpus.items("train")[2].captions == tuple(f"Person 2 says {j}." for j in range(10))
    val = {item.id for item in corpus.items("val")}
    assert val.isdisjoint(item.id for item in corpus.items("test"))
    write_vatex(tmp_path, vatex_entries(0, 6), vatex_entries(100, 8)[::-1])
    again, other = (corpus_of(tmp_path / "out", "vatex", *options, "--seed", seed)[1] for seed in (0, 1))
    assert {item.id for item in again.items("val")} == val
    assert {item.id for item in other.items("val")} != val


def test_vatex_reads_chinese_captions(tmp_path):
    entries = vatex_entries(0, 3)
    del entries[1]["chCap"]
    options = write_vatex(tmp_path, entries, vatex_entries(100, 4))
    _, corpus, skipped = corpus_of(tmp_path / "out", "vatex", *options, "--language", "zh", "--allow-skipped")
    assert [item.captions for item in corpus.items("train")] == [("一个人",) * 10] * 2
    assert [why for _, why in skipped] == [
        "not of the expected form: a video whose chCap is missing or no list"
    ]
    assert json.loads((tmp_path / "out/corpus.json").read_text())["source"]["language"] == "zh"


def test_vatex_splits_follow_given_lists(tmp_path):
    options = write_vatex(tmp_path, vatex_entries(0, 2), vatex_entries(100, 6))
    numbers = {"val": [103, 101, 104], "test": [100, 104, 9, 100]}
    lists = {split: [vatex_name(number) for number in of] for split, of in numbers.items()}
    paths = {split: tmp_path / f"{split}.npy" for split in lists}
    for split, ids in lists.items():
        np.save(paths[split], np.array(ids, "S" if split == "val" else "U"))
    val, test = ("--val-ids", paths["val"]), ("--test-ids", paths["test"])
    out, corpus, skipped = corpus_of(tmp_path / "out", "vatex", *options, *val, *test)
    assert "val and test follow val.npy and test.npy" in out
    assert "NOT" not in out
    assert [item.id for item in corpus.items("val")] == [vatex_name(101), vatex_name(103)]
    assert [item.id for item in corpus.items("test")] == [vatex_name(100), vatex_name(104)]
    assert dict(skipped) == {
        f"id {vatex_name(104)}, val list": "an id of both lists; it stays in test",
        f"id {vatex_name(9)}": "an id of the test list that the validation file does not have",
        f"id {vatex_name(102)}": "a validation video that neither list has",
        f"id {vatex_name(105)}": "a validation video that neither list has",
    }
    assert run("vatex", *options, *test)[0] == 1
    for given, val_test in ((test, {"val": 4, "test": 2}), (val, {"val": 3, "test": 3})):
        corpus = corpus_of(tmp_path / "out", "vatex", *options, *given)[1]
        assert corpus.splits == {"train": 2, **val_test}


def test_vatex_skips_and_lists_bad_entries(tmp_path):
    training = [
        *vatex_entries(0, 2),
        {"videoID": vatex_name(2)},
        {"videoID": 3, "enCap": ["a"]},
        "x",
        {"videoID": vatex_name(0), "enCap": ["again"]},
        {"videoID": vatex_name(4), "enCap": ["fine", None, " ", 7]},
        {"videoID": vatex_name(5), "enCap": []},
    ]
    leaked = {"videoID": vatex_name(1), "enCap": ["leaks"]}
    options = write_vatex(tmp_path, training, [*vatex_entries(100, 2), leaked])
    out, corpus, skipped = corpus_of(tmp_path / "out", "vatex", *options)
    assert "skipped 9:" in out
    assert corpus.splits == {"train": 3, "val": 1, "test": 1}
    assert corpus.items("train")[2].captions == ("fine",)
    form, second = "not of the expected form: a video", "duplicate id; the first is kept"
    file = "vatex_training_v1.0.json"
    assert sorted(skipped) == sorted(
        [
            (f"{file}, entry 2", f"{form} whose enCap is missing or no list"),
            (f"{file}, entry 3", f"{form} whose videoID is missing or no string"),
            (f"{file}, entry 4", f"{form} that is not an object"),
            (f"id {vatex_name(0)}, {file}, entry 5", second),
            (f"id {vatex_name(1)}, vatex_validation_v1.0.json, entry 2", second),
            (f"id {vatex_name(4)}, caption 2", "a caption that is not a string"),
            (f"id {vatex_name(4)}, caption 4", "a caption that is not a string"),
            (f"id {vatex_name(4)}, caption 3", "a caption that is empty"),
            (f"id {vatex_name(5)}", "no captions"),
        ]
    )
