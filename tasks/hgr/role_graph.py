"""Role graphs of captions: verbs and their arguments, HGR's file of them, slots, and alignment to other tokens.

A file, such as the authors' `sent2rolegraph.augment.json`, is `{sentence: [{id: {"role", "spans": [word, ...], ...}},
[[source id, target id, role], ...]]}`, where spans count the words of `sentence.split()`.

Source: Chen et al., "Fine-grained video-text retrieval with hierarchical graph reasoning" (HGR), CVPR 2020,
section 3.1.
"""

from __future__ import annotations

import marshal
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from polypool.infra.errors import InputError
from polypool.infra.files import existing, read_json

# Names of the roles; the index is the role's number.
ROLES = (
    *("V", "ARG1", "ARG0", "ARG2", "ARG3", "ARG4", "ARGM-LOC", "ARGM-MNR", "ARGM-TMP", "ARGM-DIR"),
    *("ARGM-ADV", "ARGM-PRP", "ARGM-PRD", "ARGM-COM", "ARGM-MOD", "NOUN"),
)
VERB, NOUN = "V", "NOUN"
_NUMBER = {name: number for number, name in enumerate(ROLES)}
_ROOT = "ROOT"
_WHAT = (
    'role graphs in HGR\'s form, {sentence: [{id: {"role", "spans", ...}}, [[source, target, role], ...]]}'
)
_OTHERS = re.compile(r"[\W_]+")  # all but letters and digits


def role_number(role: str) -> int:
    """Return the id of a role without the prefix `C-` (continues an earlier phrase) or `R-` (refers to one).

    Unknown roles have the id of NOUN.
    """
    return _NUMBER.get(re.sub("^[CR]-", "", role), _NUMBER[NOUN])


@dataclass(frozen=True, kw_only=True)
class Node:
    """A phrase and its role: `V` for a verb, another of ROLES, or an unknown one, which counts as NOUN.

    `words` are positions in the caption.
    """

    role: str
    words: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class RoleGraph:
    """Phrases of one caption, in the order in which they take slots; the sentence itself, the root, is not a node.

    `edges` are (source, target) indices of `nodes`.
    """

    words: tuple[str, ...]
    nodes: tuple[Node, ...]
    edges: tuple[tuple[int, int], ...]

    def entry(self) -> list[Any]:
        """Return the graph as an entry of HGR's file."""
        phrases = [("ROOT", tuple(range(len(self.words)))), *((node.role, node.words) for node in self.nodes)]
        nodes = {
            str(id): {"role": role, "spans": list(words), "words": [self.words[word] for word in words]}
            for id, (role, words) in enumerate(phrases)
        }
        edges = [[str(1 + source), str(1 + target), self.nodes[target].role] for source, target in self.edges]
        return [nodes, edges]


def graph_of_entry(sentence: str, entry: Any) -> RoleGraph | None:
    """Return the graph of an entry of HGR's file; None if it is malformed.

    Words outside the sentence are dropped, nodes without words are dropped with their edges, and the root is no node.
    """
    words = tuple(sentence.split())
    try:
        nodes, edges = entry
        roots = {id for id, node in nodes.items() if node["role"] == _ROOT} or {"0"}
        phrases = {
            id: Node(
                role=str(node["role"]), words=tuple(word for word in node["spans"] if 0 <= word < len(words))
            )
            for id, node in nodes.items()
            if id not in roots
        }
        number = {id: place for place, id in enumerate(id for id, node in phrases.items() if node.words)}
        ends = [(number.get(str(source)), number.get(str(target))) for source, target, _ in edges]
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    inner = tuple((source, target) for source, target in ends if source is not None and target is not None)
    return RoleGraph(words=words, nodes=tuple(phrases[id] for id in number), edges=inner)


class GraphFile:
    """The entries of a file of role graphs, packed: they take about the file's size in memory.

    Args:
        path: the file.
        cached: keep the file's content in memory for later instances (one file at a time).

    Raises:
        InputError: a missing file, or not a JSON object.
    """

    def __init__(self, path: str | Path, *, cached: bool) -> None:
        file = existing(path, what=_WHAT).resolve()
        stamp = file.stat()
        read = _packed if cached else _packed.__wrapped__
        self._entries, self._by_letters = read(file, (stamp.st_mtime_ns, stamp.st_size))

    def candidates(self, text: str) -> Iterator[tuple[str, Any]]:
        """Yield the sentence equal to a text, then sentences with the same letters and digits, each with its entry."""
        same = [text] if text in self._entries else []
        for sentence in dict.fromkeys(same + self._by_letters.get(letters_of(text), [])):
            yield sentence, marshal.loads(self._entries[sentence])


@lru_cache(maxsize=1)
def _packed(file: Path, stamp: tuple[int, int]) -> tuple[dict[str, bytes], dict[str, list[str]]]:
    """Return the entries by sentence, and the sentences by their letters; `stamp` keys the cache."""
    data = read_json(file, what=_WHAT)
    if not isinstance(data, dict):
        raise InputError(f"{file}: expected {_WHAT}")
    by_letters: dict[str, list[str]] = {}
    for sentence in data:
        by_letters.setdefault(letters_of(sentence), []).append(sentence)
    return {sentence: marshal.dumps(entry) for sentence, entry in data.items()}, by_letters


def letters_of(text: str) -> str:
    """Return the letters and digits of a text, in lower case."""
    return _OTHERS.sub("", text.lower())


@dataclass(frozen=True, kw_only=True)
class RoleSlots:
    """A graph in a fixed number of slots, verb slots first.

    Attributes:
        spans: words of each used slot, by slot.
        roles: role id of each used slot, by slot.
        edges: (target, source) as nodes of the model: 0 is the sentence, 1 + s is slot s.
    """

    spans: dict[int, tuple[int, ...]]
    roles: dict[int, int]
    edges: tuple[tuple[int, int], ...]


def cut(graph: RoleGraph, *, verbs: int, nouns: int, length: int) -> RoleSlots:
    """Put the phrases of a graph into slots, as HGR's reader does.

    Nodes of role V take the verb slots and all others the noun slots, in order. Words beyond `length` are dropped, and
    so are nodes without words or without a slot, and their edges. Every verb receives from the sentence; an edge from a
    verb to a noun becomes one in both directions; other edges are dropped.
    """
    slot_of: dict[int, int] = {}
    spans: dict[int, tuple[int, ...]] = {}
    roles: dict[int, int] = {}
    free, end = [0, verbs], (verbs, verbs + nouns)
    for number, node in enumerate(graph.nodes):
        kind = int(node.role != VERB)
        words = tuple(word for word in node.words if 0 <= word < length)
        if words and free[kind] < end[kind]:
            slot = slot_of[number] = free[kind]
            free[kind] += 1
            spans[slot], roles[slot] = words, role_number(node.role)
    edges = {(1 + slot, 0): None for slot in range(free[0])}
    for source, target in graph.edges:
        verb, other = slot_of.get(source, verbs), slot_of.get(target, -1)
        if verb < verbs <= other:
            edges |= {(1 + verb, 1 + other): None, (1 + other, 1 + verb): None}
    return RoleSlots(spans=spans, roles=roles, edges=tuple(edges))


def align(words: Sequence[str], others: Sequence[str]) -> list[tuple[int, ...]] | None:
    """Return for each of `words` the indices of `others` that share a character with it.

    Both must be tokens of one sentence: the same characters apart from white space, or, if one lacks punctuation, the
    same letters and digits (punctuation then has no counterpart). Case is ignored. None otherwise.
    """
    for counts in (lambda char: not char.isspace(), str.isalnum):
        ours, theirs = _spell(words, counts), _spell(others, counts)
        if [char for char, _ in ours] == [char for char, _ in theirs]:
            overlaps: list[dict[int, None]] = [{} for _ in words]
            for (_, one), (_, other) in zip(ours, theirs, strict=True):
                overlaps[one][other] = None
            return [tuple(numbers) for numbers in overlaps]
    return None


def _spell(words: Iterable[str], counts: Callable[[str], bool]) -> list[tuple[str, int]]:
    return [(char, number) for number, word in enumerate(words) for char in word.lower() if counts(char)]


def over_words(graph: RoleGraph, words: Sequence[str]) -> RoleGraph | None:
    """Return the graph with positions in `words`, other tokens of its caption; None if they do not align."""
    if list(graph.words) == list(words):
        return graph
    places = align(graph.words, words)
    if places is None:
        return None
    nodes = tuple(
        Node(role=node.role, words=tuple(dict.fromkeys(to for word in node.words for to in places[word])))
        for node in graph.nodes
    )
    return RoleGraph(words=tuple(words), nodes=nodes, edges=graph.edges)
