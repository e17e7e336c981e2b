"""Role graphs of captions: verbs and their arguments, slots for them, and alignment to other tokens.

Source: Chen et al., "Fine-grained video-text retrieval with hierarchical graph reasoning" (HGR), CVPR 2020,
section 3.1, and the form of its released graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from polypool.infra.errors import InputError

# Names of the roles; the index is the role's number.
ROLES = (
    *("V", "ARG1", "ARG0", "ARG2", "ARG3", "ARG4", "ARGM-LOC", "ARGM-MNR", "ARGM-TMP", "ARGM-DIR"),
    *("ARGM-ADV", "ARGM-PRP", "ARGM-PRD", "ARGM-COM", "ARGM-MOD", "NOUN"),
)
VERB, NOUN = "V", "NOUN"
_NUMBER = {name: number for number, name in enumerate(ROLES)}
MOST_SLOTS = 255


def plain_role(role: str) -> str:
    """Return a role without the prefix `C-` (continues an earlier phrase) or `R-` (refers to one)."""
    return role[2:] if role.startswith(("C-", "R-")) else role


def role_number(role: str) -> int:
    """Return the number of a role after `plain_role`; an unknown role has that of NOUN."""
    return _NUMBER.get(plain_role(role), _NUMBER[NOUN])


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

    def __post_init__(self) -> None:
        if any(not 0 <= end < len(self.nodes) for edge in self.edges for end in edge):
            raise ValueError(f"an edge of {self.edges} is to none of {len(self.nodes)} nodes")


def nodes_of_verbs(
    verbs: Iterable[tuple[tuple[int, ...], Iterable[tuple[str, tuple[int, ...]]]]],
) -> tuple[list[Node], list[tuple[int, int]]]:
    """Return the nodes of verbs, each followed by those of its arguments that are new, and the edges to these.

    Args:
        verbs: the words of each verb, and the roles and words of its arguments, of which modifiers are put last.
    """
    nodes: list[Node] = []
    edges: list[tuple[int, int]] = []
    places: dict[tuple[int, ...], int] = {}
    for words, arguments in verbs:
        verb = len(nodes)
        nodes.append(Node(role=VERB, words=words))
        for role, span in sorted(arguments, key=lambda one: one[0].startswith("ARGM")):
            if span not in places:
                places[span] = len(nodes)
                nodes.append(Node(role=role, words=span))
            edges.append((verb, places[span]))
    return nodes, edges


@dataclass(frozen=True, kw_only=True)
class RoleSlots:
    """A graph in a fixed number of slots, those of verbs first.

    Attributes:
        spans: words of each used slot, by slot.
        roles: role number of each used slot, by slot.
        edges: (target, source) as nodes of the model: 0 is the sentence, 1 + s is slot s.
    """

    spans: dict[int, tuple[int, ...]]
    roles: dict[int, int]
    edges: tuple[tuple[int, int], ...]


def check_slots(*, verbs: int, nouns: int) -> None:
    """Raise InputError where a number of slots is below 1, or both exceed MOST_SLOTS."""
    if min(verbs, nouns) < 1 or verbs + nouns > MOST_SLOTS:
        raise InputError(
            f"{verbs} verbs and {nouns} nouns: expected at least one slot of each and at most {MOST_SLOTS} in all"
        )


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
    """Return for each of `words` the indices of those of `others` that share a character with it.

    Both must be tokens of one sentence: the same characters apart from white space, or, where one has dropped
    punctuation, the same letters and digits (punctuation then has no counterpart). Case is ignored. None otherwise.
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
    """Return the graph with positions in `words`, other tokens of its caption; None where they do not align."""
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
