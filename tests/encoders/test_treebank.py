from __future__ import annotations

import json

import pytest

from polypool.encoders.text.tokenizers import SPLITS, Vocabulary, split_treebank


def test_texts_are_split_as_nltk_splits_them(golden):
    for case in json.loads((golden / "word_splitting.json").read_text())["cases"]:
        assert split_treebank(case["text"]) == case["words"], case["text"]


def test_the_last_period_of_each_sentence_stands_alone():
    assert split_treebank("A dog. Its tail.") == ["a", "dog", ".", "its", "tail", "."]
    assert split_treebank("St. Anne in the U.S. of 1.5 km") == [
        "st.",
        "anne",
        "in",
        "the",
        "u.s.",
        "of",
        "1.5",
        "km",
    ]
    assert split_treebank("Plan B. works, no. 7. too.") == [
        "plan",
        "b.",
        "works",
        ",",
        "no",
        ".",
        "7.",
        "too",
        ".",
    ]


@pytest.mark.parametrize(
    "text", ["", " \n ", "a" * 100_000, "." * 100_000, " ." * 50_000, ". " * 50_000, "'" * 100_000]
)
def test_odd_texts_of_any_length_are_split(text):
    words = split_treebank(text)
    assert "".join(words) == "".join(text.split())


def test_words_that_were_split_come_together_again():
    text = "The dog's bowl, (isn't) it; cannot & gonna [be] 50% full... or 'tis?"
    assert "".join(split_treebank(text)) == "".join(text.lower().split())


def test_a_vocabulary_splits_by_the_name_it_was_made_with():
    words = ["can", "not", "cannot"]
    numbers = {split: list(Vocabulary(words, split=split).encode(["Cannot"])) for split in SPLITS}
    assert numbers == {"captions": [[[7]]], "questions": [[[7]]], "treebank": [[[5], [6]]]}
