from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tasks.questions.answers import normalise, trim, vocabulary_answer, with_digits, without_punctuation

STEPS = {
    "punctuation": without_punctuation,
    "digit_article": with_digits,
    "composed_2021": normalise,
    "composed_2017": normalise,
    "vocabulary_answer": vocabulary_answer,
}


@pytest.mark.parametrize("key", STEPS)
def test_the_recorded_strings_all_of_them(golden: Path, key: str) -> None:
    with np.load(golden / "vqa_normaliser.npz", allow_pickle=False) as z:
        given, expected = z["input"].tolist(), z[key].tolist()
        assert {"long_periods", "non_ascii_digit"} <= set(z.files)  # these rows are compared, too
    wrong = {
        text: STEPS[key](text) for text, to in zip(given, expected, strict=True) if STEPS[key](text) != to
    }
    assert len(given) > 1000
    assert not wrong


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("a-b", "a b"),  # a space on neither side: the mark becomes one
        ("a -b-c", "a bc"),  # next to a space somewhere: deleted everywhere
        ("1,000/2", "10002"),  # a comma between digits: every mark is deleted
        ("U.S. 3.5.", "US 3.5"),
        ("it's 5:30 #1 $2 50% r&b *", "it's 5:30 #1 $2 50% r&b *"),
        ("." * 40, "." * 8),  # 32 at most
    ],
)
def test_punctuation(answer: str, expected: str) -> None:
    assert without_punctuation(answer) == expected


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("The  Two CATS\n", "2 cats"),
        ("None of an A", "0 of"),
        ("twenty-one someone", "twenty-one someone"),
        ("dont couldnt've couldn'tve ow's'at yall'd've", "don't couldn't've couldn't've 'ow's'at y'all'd've"),
        (
            "its well were Ive id've couldntve",
            "its well were ive id've couldntve",
        ),  # in no table, or two are missing
        ("somebody'd hes she's let's", "somebodyd he's she's let's"),
    ],
)
def test_digits_articles_and_contractions(answer: str, expected: str) -> None:
    assert with_digits(answer) == expected


def test_trim_and_vocabulary() -> None:
    assert trim("\n a\tb\n") == "a b"
    assert vocabulary_answer("The 1,000 Cats!") == "1000 cats"
