"""Noun phrases of a tagged caption: where they end, and whether a verb follows them."""

from __future__ import annotations

from collections.abc import Sequence

from tasks.parsers.roles import bag

Span = tuple[int, int]
"""First word, and the word after the last."""

MEDIA = bag(
    """video videos clip clips scene scenes footage picture pictures photo photos image images slideshow film
    movie trailer commercial ad advertisement animation cartoon montage part shot shots view series
    demonstration"""
)
"""What shows things and seldom does anything itself."""


class Phrases:
    """The phrases of one caption.

    Args:
        words: its words.
        tags: their tags, and one that says O behind the last.
    """

    def __init__(self, words: Sequence[str], tags: Sequence[str]) -> None:
        self.words, self.tags = words, tags

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
        while True:
            if self.tags[i] != "A":
                return self.tags[i] in kinds
            i += 1

    def chunks(self) -> list[Span]:
        """Return the noun phrases of a caption without a verb, `a clip` and `a football game`."""
        spans, i = [], 0
        while i < len(self.words):
            end = self.chunk(i) if self.tags[i] in "DNR" else i + 1
            if self.tags[i] in "DNR":
                spans.append((i, end))
            i = end
        return spans
