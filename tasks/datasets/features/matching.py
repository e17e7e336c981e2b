"""Ids of features matched with those of a corpus: by one rule for all of them, which is one to one."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from polypool.infra.errors import InputError
from polypool.infra.store.findings import Skipped
from polypool.tasks.datasets import Features, Reader
from polypool.tasks.datasets.corpus import Corpus
from polypool.tasks.datasets.questions import QuestionCorpus
from polypool.tasks.datasets.splits import SPLITS

_DECIDE = 1000  # ids after which a rule is chosen that fits at least half of them
_ENDING = re.compile(r"(\.(?=\d*[A-Za-z])\w{1,5})+$")
_NUMBER = re.compile(r"0*(\d+)$")
_AMBIGUOUS = ""


def _base(id: str) -> str:
    return id.rpartition("/")[2]


def _bare(id: str) -> str:
    return _ENDING.sub("", id) or id


def _number(id: str) -> str | None:
    found = _NUMBER.search(_bare(id))
    return found.group(1) if found else None


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What an id of features and an image or video of a corpus have in common.

    Attributes:
        name: for messages.
        key: of an id; None where it has none.
        of_path: whether the path of the corpus's file is compared, or its id.
    """

    name: str
    key: Callable[[str], str | None]
    of_path: bool = False

    def ids(self, named: Sequence[tuple[str, str]]) -> dict[str, str]:
        """Return ids of a corpus, each with the path of its file, by their keys; `_AMBIGUOUS` for a key of several."""
        found: dict[str, str] = {}
        for id, path in named:
            key = self.key(path if self.of_path else id)
            if key and found.setdefault(key, id) != id:
                found[key] = _AMBIGUOUS
        return found


_KEYS: dict[str, Callable[[str], str | None]] = {
    "equal": str,
    "equal but for endings such as .jpg": _bare,
    "equal base names": _base,
    "equal base names but for endings such as .jpg": lambda id: _bare(_base(id)),
    "equal numbers at the end": _number,
}
RULES = [
    Rule(name=f"{name} ({'file' if of_path else 'id'})", key=key, of_path=of_path)
    for name, key in _KEYS.items()
    for of_path in (False, True)
]
"""In the order in which they are preferred."""


class IdMatch:
    """Features named as in a corpus, by the rule that fits most of them.

    Args:
        reader: of the features; some of them, or all where few fit, are read here to choose the rule.
        corpus: has the ids.
        min_matched: share of the images or videos that must have features, in each of train, val and test, and in
            other splits in which any has.

    Raises:
        InputError: no rule fits any id.
    """

    def __init__(self, reader: Reader, corpus: Corpus | QuestionCorpus, *, min_matched: float) -> None:
        self._corpus, self._min_matched = corpus, min_matched
        named = [(id, path) for split in corpus.splits for id, path, _ in corpus.paths(split)]
        ids = [rule.ids(named) for rule in RULES]
        hits, seen = Counter[int](), list[str]()
        for entry in reader.read().rows:
            if not isinstance(entry, Features):
                continue
            seen.append(entry.id)
            hits.update(n for n, rule in enumerate(RULES) if ids[n].get(rule.key(entry.id) or ""))
            if len(seen) >= _DECIDE and max(hits.values(), default=0) * 2 >= len(seen):
                break
        if seen and not hits:
            raise InputError(
                f"{corpus.folder}: no features of its images or videos, whose ids are called "
                f"{_few(corpus.ids.to_pylist())}, where those of the features are called {_few(seen)}: neither they "
                "nor paths of files are equal, nor base names, with or without endings, nor numbers at their ends. "
                "Name the column that has the features' ids by `ingest table --id-column`, or rename the features"
            )
        best = max(range(len(RULES)), key=lambda n: hits[n])  # the first of those that fit as many
        self.rule, self._ids = RULES[best], ids[best]
        self._named: dict[str, str] = {}  # ids of features by those of the corpus

    def renamed(self, sets: Iterable[Features | Skipped]) -> Iterator[Features | Skipped]:
        """Yield sets by the ids of the corpus; what it does not have keeps its own id.

        Raises:
            InputError: two sets are of one image or video, or one may be of two; or, at the end, too few have features.
        """
        for entry in sets:
            key = self.rule.key(entry.id) if isinstance(entry, Features) else None
            if not isinstance(entry, Features) or key is None or (id := self._ids.get(key)) is None:
                yield entry
                continue
            other = self._named.setdefault(id, entry.id)
            if id == _AMBIGUOUS or other != entry.id:
                twins = (
                    "is of several images or videos"
                    if id == _AMBIGUOUS
                    else f"and {other!r} are of the same one"
                )
                raise InputError(
                    f"{entry.where}: by {self.rule.name}, {entry.id!r} {twins}; give each image or video an id of its "
                    "own, which its features have, too (`ingest table --id-column`)"
                )
            yield replace(entry, id=id)
        self._check()

    def _check(self) -> None:
        """Raise InputError where too few images or videos have features."""
        shares, lacking = dict[str, float](), list[str]()
        for split in self._corpus.splits:
            ids = dict.fromkeys(id for id, *_ in self._corpus.paths(split))
            without = [id for id in ids if id not in self._named]
            if split in SPLITS or len(without) < len(ids):
                shares[split] = 1 - len(without) / len(ids)
                lacking += without
        if any(share < self._min_matched for share in shares.values()):
            found = ", ".join(f"{split} {share:.1%}" for split, share in shares.items())
            accepted = math.floor(100 * min(shares.values())) / 100
            raise InputError(
                f"{self._corpus.folder}: {self} ({found}); none of {_few(lacking)}. Ingest features of all; "
                f"or --min-matched {accepted:g} takes those that there are, and `train --data.missing skip` leaves out "
                "what has none"
            )

    def __str__(self) -> str:
        example = next(((theirs, own) for own, theirs in self._named.items() if own != theirs), None)
        shown = f", such as {example[0]!r} for {example[1]!r}" if example else ""
        return (
            f"features of {len(self._named):,} of {len(self._corpus.ids):,} images or videos, found by "
            f"{self.rule.name}{shown}"
        )


def _few(ids: Sequence[str]) -> str:
    return ", ".join(ids[:3])
