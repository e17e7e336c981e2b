"""MSVD's descriptions and VATEX's JSON, with lists of the clips of each split."""

import numpy as np
from annotations import vatex_entries, vatex_name, write_msvd, write_vatex
from verbs import corpus_of, run


def test_msvd_descriptions_and_lists(tmp_path):
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


def test_vatex_without_lists_says_that_the_split_is_its_own(tmp_path):
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


def test_vatex_with_lists(tmp_path):
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


def test_vatex_skips_and_lists_what_is_bad(tmp_path):
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
