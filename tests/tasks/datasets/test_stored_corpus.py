from __future__ import annotations

from pathlib import Path

import pytest

from polypool.infra.errors import InputError
from polypool.infra.store.findings import Flagged, Skipped
from polypool.tasks.datasets.corpus import Corpus, Item, write_corpus
from polypool.tasks.datasets.open_corpora import media_file
from polypool.tasks.datasets.questions import Question, QuestionCorpus


def test_long_captions_are_cut_and_wordless_ones_named() -> None:
    exact, longer = " ".join(["word"] * 1000), " ".join(["word"] * 1001)
    given = Item(id="a", split="train", captions=("...", exact, longer, "漢 字", "?! 7"))
    *odd, kept = Corpus.clean(given)
    assert odd == [
        Flagged(where="id a, caption 1", why="a caption without a word"),
        Flagged(where="id a, caption 3", why="a caption of over 1,000 words, cut to these"),
    ]
    assert kept.captions == ("...", exact, exact, "漢 字", "?! 7")


def test_long_questions_are_cut_and_wordless_ones_named() -> None:
    def asked(text: str) -> list:
        return list(QuestionCorpus.clean(Question(id="1", split="train", image_id="2", question=text)))

    odd, kept = asked(" ??? ")
    assert (odd.why, kept.question) == ("a question without a word", "???")
    odd, kept = asked("why " * 1001)
    assert (odd.why, len(kept.question.split())) == ("a question of over 1,000 words, cut to these", 1000)


@pytest.mark.parametrize("path", ["../secret.jpg", "a/../../secret.jpg", "/etc/hostname"])
def test_a_path_that_leaves_the_folder_is_refused(tmp_path: Path, path: str) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "secret.jpg").touch()
    given = Item(id="a", split="train", captions=("a",), path=path)
    (left,) = Corpus.clean(given, images=tmp_path / "images")
    assert left == Skipped(where="id 'a'", why="a path that leaves the folder of images", split="train")
    asked = Question(id="1", split="test", image_id="2", question="what?", path=path)
    (left,) = QuestionCorpus.clean(asked, images=tmp_path / "images")
    assert (left.why, left.split) == ("a path that leaves the folder of images", "test")
    with pytest.raises(InputError, match="1 x a path that leaves the folder of images: id 'a'"):
        write_corpus(tmp_path / "out", [given], source={}, images=tmp_path / "images")


def test_a_path_within_the_folder_is_kept(tmp_path: Path) -> None:
    images = tmp_path / "images"
    (images / "a").mkdir(parents=True)
    (images / "b..jpg").touch()
    paths = ["b..jpg", "a/../b..jpg", str(images / "b..jpg")]
    items = [Item(id=str(i), split="train", captions=(f"a {i}",), path=path) for i, path in enumerate(paths)]
    write_corpus(tmp_path / "out", items, source={}, images=images)
    corpus = Corpus.open(tmp_path / "out")
    assert [media_file(corpus, each) for each in corpus.items("train")] == [images / "b..jpg"] * 3


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"id": "a\x00b"}, "an id with characters that cannot be printed"),
        ({"id": "\udcff"}, "an id that is not valid UTF-8"),
        ({"path": "caf\udce9.jpg"}, "a path that is not valid UTF-8"),
        ({"split": "\udcff"}, "a split or id of a caption that is not valid UTF-8"),
        ({"caption_ids": ("\udcff",)}, "a split or id of a caption that is not valid UTF-8"),
    ],
)
def test_an_item_that_cannot_be_written_is_skipped(changes: dict, why: str) -> None:
    (left,) = Corpus.clean(Item(**({"id": "a", "split": "train", "captions": ("a",)} | changes)))
    assert left.why == why


@pytest.mark.parametrize("field", ["id", "image_id"])
def test_a_question_whose_ids_no_store_takes_is_skipped(field: str) -> None:
    given = {"id": "1", "image_id": "2", "split": "train", "question": "what?"}
    (left,) = QuestionCorpus.clean(Question(**(given | {field: "a\nb"})))
    assert left.why == "an id with characters that cannot be printed"
