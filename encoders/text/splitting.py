"""Ways to split a text into words: `captions`, `questions`, and `treebank` as nltk does."""

from __future__ import annotations

import re
from collections.abc import Callable

_SENTENCE = re.compile(r"(?<!\S)(\S*)\.[]})\"']*\s+")
_NO_END = re.compile(
    r"[^\W\d_]|[\d.,]+|mrs?|ms|dr|st|jr|sr|prof|gen|sen|lt|maj|co|corp|inc|ltd|bros|ft|ave|vs"
    r"|[ap]\.m|u\.s|n\.y|l\.a|d\.c|ph\.d|j\.[bcjkpr]"
)

_QUOTES = re.compile(r"[\xab\u201c\u2018\u201e]|``|`")
_OPENING = re.compile(r"""^"|(?<=[ ([{<])(?:"|'')""")
_LONE_LETTER = re.compile(r"'(?=[^\Wmtsdn]\b)")
_LAST_PERIOD = re.compile(r"""(?<=[^.])\.(?=[])}>"'\xbb\u201d\u2019\s]*+$)""")
_ALONE = re.compile(r"[][(){}<>;@#$%&?!*\xbb\u201d\u2019]|\.{2,}|--|''|[:,](?!\d)")
_CLOSING = re.compile(r"(?<=[^'])'(?= )")
_CLITIC = re.compile(r"(?<=[^' ])'[smd]?(?= )")
_LONG_CLITIC = re.compile(r"(?<=[^' ])(?:'ll|'re|'ve|n't)(?= )")
_TOGETHER = re.compile(r"\b(?:cannot|gimme|lemme|gonna|gotta|d'ye|more'n|wanna(?= ))\b|(?<= )'t(?:is|was)\b")
_FIRST = {"d'ye": 1, "'tis": 2, "'twas": 2, "more'n": 4}
"""Length of the first of two words written as one, where it is not three."""
_WORD = re.compile(r"\w+(?=n't\b)|n't\b|'(?:s|re|ve|ll|d|m)\b|\w+(?:[-.&/]\w+)*|[^\w\s]")


def split_treebank(text: str) -> list[str]:
    """Lower-case a text and split it into words as nltk's `word_tokenize`, which made SCAN's vocabularies, does.

    The rules are the Penn Treebank's, as nltk 3.3 to 3.9 extend them: quotes become `` and '', `cannot` is two words,
    and `5:50` is one. They apply to one sentence at a time, because only its last period is a word. Deviation: nltk
    finds the ends of sentences with a trained model (Punkt); here a sentence ends at every period before white space,
    except those of common abbreviations, initials and numbers.
    """
    return [word for sentence in _sentences(text.lower()) for word in _words(sentence)]


def _sentences(text: str) -> list[str]:
    ends = [0]
    for found in _SENTENCE.finditer(text):
        if not _NO_END.fullmatch(found[1].lstrip("\"'([{")):
            ends.append(found.end())
    return [text[start:end].strip() for start, end in zip(ends, [*ends[1:], len(text)], strict=True)]


def _words(sentence: str) -> list[str]:
    text = _OPENING.sub(" `` ", _QUOTES.sub(r" \g<0> ", sentence))
    text = _LONE_LETTER.sub("' ", text)
    text = _LAST_PERIOD.sub(" . ", text)
    text = _CLOSING.sub(" ' ", text)
    text = _ALONE.sub(r" \g<0> ", text).replace('"', " '' ")
    text = f" {' '.join(text.split())} "
    text = _LONG_CLITIC.sub(r" \g<0>", _CLITIC.sub(r" \g<0>", text))
    return _TOGETHER.sub(_apart, text).split()


def _apart(found: re.Match[str]) -> str:
    at = _FIRST.get(found[0], 3)
    return f" {found[0][:at]} {found[0][at:]} "


def split_words(caption: str) -> list[str]:
    """Lower-case a caption and split off clitics and punctuation, much as `split_treebank` does.

    Quotes stay as they are, `cannot` is one word and `5:50` three; 0.3 % of COCO's captions differ.
    """
    return _WORD.findall(caption.lower())


def split_question(question: str) -> list[str]:
    """Lower-case a question, drop commas and question marks, split off `'s` and split at white space.

    As the bottom-up-attention baseline of visual question answering.
    """
    return question.lower().replace(",", "").replace("?", "").replace("'s", " 's").split()


SPLITS: dict[str, Callable[[str], list[str]]] = {
    "captions": split_words,
    "questions": split_question,
    "treebank": split_treebank,
}
"""Ways to split a text, by their names in specs."""
