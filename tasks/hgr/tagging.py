"""Part-of-speech tags and noun phrases of captions, by rules.

Tags: D determiner, N noun, adjective or number, R pronoun, P preposition, T `to`, S subordinator, C conjunction,
A adverb, M modal, X auxiliary, V verb in an active form, G verb in -ing, E passive participle, O anything else; and v,
while tagging, a word that can be a form of a verb.
"""

from __future__ import annotations

from collections.abc import Sequence

from polypool.tasks.hgr.lexicon import (
    BASE,
    CLOSED,
    FORMS,
    ING,
    NO_ADVERBS,
    NOT_VERBS,
    NOUNISH,
    PARTICIPLE,
    PAST,
    PLURALS,
    STATES,
    THIRD,
    bag,
)

Span = tuple[int, int]  # first word, and the word after the last

# Nouns that show things and seldom act.
MEDIA = bag(
    """video videos clip clips scene scenes footage picture pictures photo photos image images slideshow film
    movie trailer commercial ad advertisement animation cartoon montage part shot shots view series
    demonstration"""
)
# Words that may begin a clause, besides conjunctions and subordinators.
OPENERS = frozenset(["then", "before", "after", "until", "since"])
_SIDES = frozenset(["inside", "outside", "past", "back", "first", "well", "fast"])


def tag(words: Sequence[str]) -> list[str]:
    """Return a tag for each of the lower-case words."""
    tags = [_class(word) for word in words]
    _clitics(words, tags)
    reading = _Reading(words, tags)
    for i in range(len(words)):
        if tags[i] == "v":
            tags[i] = reading.verb(i)
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
    if word.endswith("ly") and len(word) > 4 and word not in NO_ADVERBS:
        return "A"
    if word.endswith(("ing", "ed")) and len(word) > 5 and word not in NOT_VERBS and word.isalpha():
        return "v"
    return "N" if any(char.isalnum() for char in word) else "O"


def _clitics(words: Sequence[str], tags: list[str]) -> None:
    """Tell apart `it 's` and `a woman 's hand`, `the inside` and `inside a box`, `next to` and `next`."""
    for i, word in enumerate(words):
        before, after = tags[i - 1] if i else "", tags[i + 1] if i + 1 < len(words) else ""
        if word in ("'s", "s"):
            tags[i] = "X" if before == "R" or (i and word == "'s" and after in ("D", "A")) else "N"
        elif i and tags[i] in "PA" and word in _SIDES and tags[i - 1] == "D":
            tags[i] = "N" if after not in ("N", "v") or tags[i] == "P" else "A"
        elif word == "next":
            tags[i] = "P" if words[i + 1 : i + 2] == ["to"] else "N"


def _clause_follows(words: Sequence[str], tags: Sequence[str], i: int) -> bool:
    """Whether a noun phrase and then a verb, or a verb in -ing, begins at `i`."""
    start = i
    while i < len(tags) and (tags[i] in "DNRA" or words[i] == "of"):
        i += 1
    return i < len(tags) and ((tags[i] in "XMV" and i > start) or tags[i] == "G")


class _Reading:
    """The state of tagging from left to right, which decides whether a word that can be a verb is one."""

    def __init__(self, words: Sequence[str], tags: list[str]) -> None:
        self.words, self.tags = words, tags
        self.before, self.at = "", -1  # the last tag and word that count, adverbs left out
        self.last = -1  # the last verb
        self.going = False  # whether the clause has a verb
        self.due = 1  # finite verbs that may still come
        self.joined = False  # whether the subject is several things

    def past(self, i: int) -> None:
        """Update the state by a word whose tag is final."""
        tag, word = self.tags[i], self.words[i]
        if tag == "S" and self.before:
            self.due += 1
        elif tag == "C" or word in OPENERS:
            self.due, self.joined = max(self.due, 1), self.before == "N"
        elif tag == "P":
            self.joined = False
        elif self._finite(tag, word):
            self.due -= 1
        if tag in "VGE":
            self.last, self.going, self.joined = i, True, False
        elif tag in "SC" or word in OPENERS:
            self.going = False
        if tag not in "AO":
            self.before, self.at = tag, i

    def _finite(self, tag: str, word: str) -> bool:
        if tag == "X":
            return not word.endswith("ing") and self.before not in ("X", "T")
        return tag == "M" or (tag == "V" and self.before not in ("X", "M", "T"))

    def verb(self, i: int) -> str:
        """Return the tag of a word that can be a form of a verb; one in no list is judged by its ending."""
        word = self.words[i]
        forms = FORMS[word][0] if word in FORMS else ING if word.endswith("ing") else PAST | PARTICIPLE
        after = self.tags[i + 1] if i + 1 < len(self.tags) else ""
        if self.before == "X":
            return self._helped(word, forms)
        if self.before in ("M", "T"):
            return "V" if forms & BASE else "G" if forms & ING else "E" if forms & PARTICIPLE else "N"
        if forms & ING:
            return "N" if self.before == "D" else "G"  # the building
        if forms & THIRD:
            return "V" if self._third(i, after) else "N"
        if forms & BASE:
            return "V" if self._bare(i, after) else "N"
        return self._done(i, forms, after)

    def _helped(self, word: str, forms: int) -> str:
        """Return the tag of a word after an auxiliary."""
        helper = self.words[self.at]
        if forms & ING:
            return "G"
        if forms & (PARTICIPLE | PAST):
            return "V" if helper in ("has", "have", "had", "'ve", "having") else "E"
        return "V" if helper in ("do", "does", "did") or word not in NOUNISH else "N"

    def _subject(self) -> bool:
        return self.before in ("N", "R")

    def _third(self, i: int, after: str) -> bool:
        """Whether a form in -s is a verb."""
        if self.before == "S":
            return True
        if self.before == "C":
            return self.last >= 0 or after in ("D", "R", "P", "T")
        if not self._subject():
            return not self.before and after in ("D", "R", "")
        noun = self.before == "N" and FORMS[self.words[i]][1] in NOUNISH
        return after not in ("X", "M") and (self.due > 0 or (not noun and after in ("D", "R")))

    def _bare(self, i: int, after: str) -> bool:
        """Whether a bare form is a verb."""
        noun = self.words[i] in NOUNISH
        if self.before == "C":
            alike = self.last >= 0 and FORMS.get(self.words[self.last], (0,))[0] & BASE
            return after in ("D", "R") or (self.last >= 0 and (not noun or bool(alike and after != "N")))
        if not self._subject() or self.due <= 0 or after in ("M", "X") or (noun and after == "v"):
            return False
        owner = self.words[self.at]
        plural = owner in PLURALS or (owner.endswith("s") and not owner.endswith(("ss", "us")))
        return self.before == "R" or self.joined or plural or not noun or after in ("D", "R")

    def _done(self, i: int, forms: int, after: str) -> str:
        """Return the tag of a past or a participle."""
        if self.before == "C" and self.last >= 0:
            return "V"
        if self.words[i + 1 : i + 2] == ["by"]:
            return "E"
        if (self.before != "S" and not self._subject()) or (after == "N" and (self.going or self.due <= 0)):
            return "N"
        if self.words[i] in STATES and after not in ("D", "R"):
            return "E"
        if self.words[i] not in FORMS and after not in ("D", "P"):
            return "N"
        if self.due > 0 and (after in ("D", "R") or forms & PAST):
            return "V"
        return "E" if forms & PARTICIPLE else "V"


class Phrases:
    """Noun phrases of a caption of lower-case words; `tags` has an O after the last word's tag."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words, self.tags = list(words), [*tag(words), "O"]

    def chunk(self, i: int) -> int:
        """Return the end of the noun phrase that begins at `i`, without what is joined to it."""
        start, noun = i, False
        while True:
            kind = self.tags[i]
            inner = kind == "A" and i > start and not noun and self.tags[i + 1] in "NA"
            if kind == "R" and not noun:
                return i + 1
            if not (kind == "N" or inner or (kind == "D" and not noun)):
                return max(i, start + 1)
            noun = noun or kind == "N"
            i += 1

    def phrase(self, i: int, *, subject: bool) -> tuple[int, Span]:
        """Return the end of a noun phrase with `of ...` and `and ...`, and what in it can act: a video of [a man].

        A `subject` takes all of `and ...`; other phrases leave it to the next clause where a verb follows it.
        """
        end, actor = self.chunk(i), i
        while True:
            if self.words[end : end + 1] == ["of"] and self.tags[end + 1] in "DNR":
                actor = end + 1 if self.words[end - 1] in MEDIA else actor
                end = self.chunk(end + 1)
                continue
            after = end
            while self.tags[after] == "C":
                after += 1
            if after == end or self.tags[after] not in "DNR":
                break
            other = self.chunk(after)
            if not subject and self.predicate(other, "XMVGE"):
                break
            end = other
        return end, (actor, end)

    def predicate(self, i: int, kinds: str) -> bool:
        """Whether a verb of these kinds comes at `i`, after adverbs at most."""
        while self.tags[i] == "A":
            i += 1
        return self.tags[i] in kinds

    def chunks(self) -> list[Span]:
        """Return the noun phrases of a caption without a verb, `a clip` and `a football game`."""
        spans, i = [], 0
        while i < len(self.words):
            end = self.chunk(i) if self.tags[i] in "DNR" else i + 1
            if self.tags[i] in "DNR":
                spans.append((i, end))
            i = end
        return spans
