"""HGR's released role graphs: `sent2rolegraph.augment.json`.

`{sentence: [{id: {"role", "spans": [word, ...], "words": [...]}}, [[source id, target id, role], ...]]}`, where spans
count the words of `sentence.split()`. Files of hundreds of megabytes are read piece by piece.

Source: Chen et al., "Fine-grained video-text retrieval with hierarchical graph reasoning" (HGR), CVPR 2020.
"""

from __future__ import annotations

import marshal
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from polypool.infra.files import existing
from polypool.tasks.datasets.annotation_files import read_entries
from polypool.tasks.hgr.role_graph import NOUN, ROLES, VERB, Node, RoleGraph, plain_role

_WHAT = 'HGR\'s role graphs, {sentence: [{id: {"role", "spans", ...}}, [[source, target, role], ...]]}'
_ROOT = "ROOT"
_OTHERS = re.compile(r"[\W_]+")  # than letters and digits


@dataclass(frozen=True, kw_only=True)
class ReadGraph:
    """A sentence of the file, its repaired graph (None where it is not of the form), and the kinds of faults found."""

    sentence: str
    graph: RoleGraph | None
    faults: tuple[str, ...]


def read_role_graphs(path: str | Path, *, wanted: Callable[[str], bool]) -> Iterator[ReadGraph]:
    """Yield the graphs of the `wanted` sentences; a sentence that occurs twice is yielded twice.

    Repairs: words outside the sentence are dropped, nodes without any left with their edges, edges to missing nodes,
    and, in a cycle, all edges but those from a verb to another phrase. Unknown roles become NOUN. A graph without a
    verb stays as it is.

    Raises:
        InputError: there is no such file, or it is not a JSON object; the message gives the place.
    """
    for sentence, entry in read_entries(path, what=_WHAT):
        if wanted(sentence):
            yield _graph(sentence, entry)


def find_role_graphs(
    path: str | Path, texts: Sequence[str], *, wanted: Callable[[str], bool]
) -> Iterator[ReadGraph]:
    """Yield what `read_role_graphs` does, for repeated calls with a few texts each, as in search.

    The file stays in memory, at about its size, until it changes or another one is read. Only sentences with the same
    letters and digits as one of the texts are considered.
    """
    file = existing(path, what=_WHAT).resolve()
    state = file.stat()
    entries = _entries(file, (state.st_mtime_ns, state.st_size))
    for letters in dict.fromkeys(map(_letters, texts)):
        for sentence, entry in entries.get(letters, ()):
            if wanted(sentence):
                yield _graph(sentence, marshal.loads(entry))


@lru_cache(maxsize=1)
def _entries(file: Path, state: tuple[int, int]) -> dict[str, list[tuple[str, bytes]]]:
    """Return sentences and packed entries by the sentences' letters and digits; `state` keys the cache."""
    entries: dict[str, list[tuple[str, bytes]]] = {}
    for sentence, entry in read_entries(file, what=_WHAT):
        entries.setdefault(_letters(sentence), []).append((sentence, marshal.dumps(entry)))
    return entries


def _letters(text: str) -> str:
    return _OTHERS.sub("", text.lower())


def _graph(sentence: str, entry: Any) -> ReadGraph:
    words = tuple(sentence.split())
    try:
        nodes, edges = entry
        phrases = {
            str(id): (node["role"], [_index(word) for word in node["spans"]]) for id, node in nodes.items()
        }
        ends = [(str(source), str(target)) for source, target, _ in edges]
    except (KeyError, TypeError, ValueError, AttributeError):
        return ReadGraph(sentence=sentence, graph=None, faults=("not of the expected form",))
    if not words or not all(isinstance(role, str) for role, _ in phrases.values()):
        return ReadGraph(sentence=sentence, graph=None, faults=("not of the expected form",))
    roots = {id for id, (role, _) in phrases.items() if role == _ROOT} or ({"0"} & phrases.keys())
    faults: dict[str, None] = {}
    repaired: dict[str, Node] = {}
    for id, (role, span) in phrases.items():
        inside = tuple(word for word in span if 0 <= word < len(words))
        if len(inside) < len(span):
            faults["words outside the sentence (dropped)"] = None
        if id in roots or not inside:
            continue
        if plain_role(role) not in ROLES:
            faults[f"roles that are not known (taken as {NOUN})"] = None
        repaired[id] = Node(role=role, words=inside)
    if any(end not in phrases for edge in ends for end in edge):
        faults["edges to nodes that are not there (dropped)"] = None
    number = {id: place for place, id in enumerate(repaired)}
    edges = [
        (number[source], number[target]) for source, target in ends if source in number and target in number
    ]
    if _cyclic(len(repaired), edges):
        faults["edges in a cycle (only those from a verb to a noun stay)"] = None
        verb = [node.role == VERB for node in repaired.values()]
        edges = [(source, target) for source, target in edges if verb[source] and not verb[target]]
    if not any(node.role == VERB for node in repaired.values()):
        faults["no verb (kept)"] = None
    graph = RoleGraph(words=words, nodes=tuple(repaired.values()), edges=tuple(edges))
    return ReadGraph(sentence=sentence, graph=graph, faults=tuple(faults))


def _index(word: Any) -> int:
    if isinstance(word, bool) or not isinstance(word, int):
        raise TypeError("a word of a span is not a whole number")
    return word


def _cyclic(count: int, edges: list[tuple[int, int]]) -> bool:
    """Whether nodes remain after repeatedly removing those that no edge leads to."""
    left = set(range(count))
    while True:
        reached = {target for source, target in edges if source in left and target in left}
        if len(reached) == len(left):
            return bool(left)
        left &= reached
