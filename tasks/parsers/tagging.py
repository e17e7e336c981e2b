"""What each word of a caption is: a small part-of-speech tagger for captions.

Tags: D determiner, N noun, adjective or number, R pronoun, P preposition, T `to`, S subordinator, C conjunction,
A adverb, M modal, X auxiliary, V verb in an active form, G verb in -ing, E passive participle, O anything else.
"""

from __future__ import annotations

from collections.abc import Sequence

from tasks.parsers.lexicon import CLOSED, FORMS, HELPED, NOT_VERBS, bag
from tasks.parsers.verb_forms import Reading

_NO_ADVERBS = bag(
    """family belly jelly lovely friendly reply elderly early daily curly silly italy bully rally butterfly
    assembly lonely chilly deadly supply apply"""
)
_SIDES = frozenset(["inside", "outside", "past", "back", "first", "well", "fast"])


def tag(words: Sequence[str]) -> list[str]:
    """Return a tag for each of the lower-case words."""
    tags = [_class(word) for word in words]
    _clitics(words, tags)
    reading = Reading(words, tags)
    for i in range(len(words)):
        if words[i] in HELPED and reading.before == "X":
            tags[i] = "G" if words[i].endswith("ing") else "E"
        elif tags[i] == "v":
            tags[i] = reading.verb(i)
        elif tags[i] == "N" and reading.unlisted(i):
            tags[i] = "V"
        reading.past(i)
    for i, word in enumerate(words):
        if word in ("as", "before", "after", "until", "since", "like"):
            tags[i] = "S" if _clause_follows(words, tags, i + 1) else "P"
    return tags


def _class(word: str) -> str:
    if word in CLOSED:
        return CLOSED[word]
    if word in FORMS:
        return "v"
    if word.endswith("ly") and len(word) > 4 and word not in _NO_ADVERBS:
        return "A"
    if word.endswith(("ing", "ed")) and len(word) > 5 and word not in NOT_VERBS and word.isalpha():
        return "v"
    return "N" if any(char.isalnum() for char in word) else "O"


def _clitics(words: Sequence[str], tags: list[str]) -> None:
    """Tell `it 's` from `a woman 's hand`, the pronoun `that` from the determiner, `next to` from `next`."""
    for i, word in enumerate(words):
        before, after = tags[i - 1] if i else "", tags[i + 1] if i + 1 < len(words) else ""
        if word in ("'s", "s"):
            verb = (
                before == "R"
                or words[i - 1] in ("there", "that", "here")
                or (word == "'s" and after in ("D", "A"))
            )
            going = word == "'s" and after == "v" and words[i + 1].endswith("ing")
            tags[i] = "X" if i and (verb or going) else "N"
        elif word == "that":
            tags[i] = (
                "D"
                if (before not in ("N", "v") and after in ("N", "v")) or (after == "X" and before != "N")
                else "S"
            )
        elif word == "its" and after == "D":
            tags[i] = "O"  # meant as it's
        elif (
            i
            and tags[i] in "PA"
            and word in _SIDES
            and words[i - 1] in ("the", "a", "an", "his", "her", "their")
        ):
            tags[i] = "N" if after not in ("N", "v") or tags[i] == "P" else "A"
        elif word == "next":
            tags[i] = "P" if i + 1 < len(words) and words[i + 1] == "to" else "N"


def _clause_follows(words: Sequence[str], tags: Sequence[str], i: int) -> bool:
    """Whether a noun phrase and then a verb, or a verb in -ing, begins at `i`."""
    start = i
    while i < len(tags) and (tags[i] in "DNRA" or words[i] == "of"):
        i += 1
    return i < len(tags) and ((tags[i] in "XMV" and i > start) or tags[i] == "G")
