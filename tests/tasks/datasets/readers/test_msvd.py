from __future__ import annotations

from pathlib import Path

import pytest
from verbs import ingested, reasons, refused

from polypool.tasks.datasets.corpus import Corpus


def write(folder: Path, lines: bytes, **lists: str) -> tuple[object, ...]:
    (folder / "AllVideoDescriptions.txt").write_bytes(lines)
    for split, names in lists.items():
        (folder / f"{split}_list.txt").write_text(names)
    return "--captions", folder / "AllVideoDescriptions.txt", "--lists", folder, "--out", folder / "out"


def test_msvd_descriptions_and_lists(tmp_path: Path) -> None:
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
    options = write(
        tmp_path,
        lines,
        train="-4wsuPCjDBc_5_15\nmute_3_4\n",
        val="__KkyLWV1HA_0_9\n-4wsuPCjDBc_5_15\n",
        test="\nbad_2_3\n",
    )
    (tmp_path / "clips").mkdir()
    for clip in ("-4wsuPCjDBc_5_15", "__KkyLWV1HA_0_9", "bad_2_3", "mute_3_4"):
        (tmp_path / "clips" / f"{clip}.avi").touch()
    out = ingested("msvd", *options, "--videos", tmp_path / "clips", "--allow-skipped")
    assert "2 items (train 1, val 1), 4 captions" in out
    corpus = Corpus.open(tmp_path / "out")
    (train,), (val,) = corpus.items("train"), corpus.items("val")
    assert train.captions == ("a squirrel is eating a peanut in it's shell", "#1: a chipmunk eats")
    assert val.captions == ("a man plays", "someone is singing")
    assert corpus.image_path(val) == (tmp_path / "clips").resolve() / "__KkyLWV1HA_0_9.avi"
    assert dict(reasons(tmp_path / "out", "corpus.skipped.jsonl")) == {
        "AllVideoDescriptions.txt, line 7": "a clip name without a caption",
        "id -4wsuPCjDBc_5_15": "duplicate id; the first is kept",
        "id mute_3_4": "no captions",
        "id bad_2_3, caption 1": "caption that is not valid UTF-8",
        "id bad_2_3": "no captions",
        "id other_1_2 (1 captions)": "captions of a clip that no list has",
    }


@pytest.mark.parametrize("missing", ["AllVideoDescriptions.txt", "test_list.txt"])
def test_msvd_needs_all_its_files(tmp_path: Path, missing: str) -> None:
    options = write(tmp_path, b"a_0_1 a cat\n", train="a_0_1", val="", test="")
    ingested("msvd", *options, "--allow-skipped")
    (tmp_path / missing).unlink()
    refused(f"{missing}: no such file", "msvd", *options)
