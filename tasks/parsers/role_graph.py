"""The role graph of a caption: its verbs, their arguments, and what is left of it when it is cut into slots.

Source: Chen et al., "Fine-grained video-text retrieval with hierarchical graph reasoning" (HGR), CVPR 2020,
section 3.1, and the form of its released graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from infra.errors import InputError

ROLES = (
    *("V", "ARG1", "ARG0", "ARG2", "ARG3", "ARG4", "ARGM-LOC", "ARGM-MNR", "ARGM-TMP", "ARGM-DIR"),
    *("ARGM-ADV", "ARGM-PRP", "ARGM-PRD", "ARGM-COM", "ARGM-MOD", "NOUN"),
)
"""Names of the roles; a role's number is its place."""
VERB, NOUN = "V", "NOUN"
_NUMBER = {name: number for number, name in enumerate(ROLES)}
MOST_SLOTS = 255


def plain_role(role: str) -> str:
    """Return a role without `C-` (goes on from an earlier phrase) or `R-` (refers to one)."""
    return role[2:] if role.startswith(("C-", "R-")) else role


def role_number(role: str) -> int:
    """Return the number of a role, after `plain_role`; that of NOUN where there is no such role."""
    return _NUMBER.get(plain_role(role), _NUMBER[NOUN])


@dataclass(frozen=True, kw_only=True)
class Node:
    """A phrase and what it is to its verb.

    Attributes:
        role: `V` for a verb; one of ROLES, or another, which counts as NOUN.
        words: numbers of its words in the caption.
    """

    role: str
    words: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class RoleGraph:
    """One caption's phrases. The sentence as a whole, the root, is not among the nodes.

    Attributes:
        words: the caption's words.
        nodes: in the order in which they take slots.
        edges: (source, target), numbers of nodes.
    """

    words: tuple[str, ...]
    nodes: tuple[Node, ...]
    edges: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        if any(not 0 <= end < len(self.nodes) for edge in self.edges for end in edge):
            raise ValueError(f"an edge of {self.edges} is to none of {len(self.nodes)} nodes")


@dataclass(frozen=True, kw_only=True)
class RoleSlots:
    """A graph cut to so many verb slots and noun slots. Slots count from 0, the verbs' first.

    Attributes:
        spans: the words of each used slot, by slot.
        roles: the role number of each used slot, by slot.
        edges: (target, source) as nodes of the model: 0 is the sentence, 1 + s is slot s.
    """

    spans: dict[int, tuple[int, ...]]
    roles: dict[int, int]
    edges: tuple[tuple[int, int], ...]


def check_slots(*, verbs: int, nouns: int) -> None:
    """Refuse numbers of slots that cannot be.

    Raises:
        InputError: one is below 1, or there are more than MOST_SLOTS in all.
    """
    if min(verbs, nouns) < 1 or verbs + nouns > MOST_SLOTS:
        raise InputError(
            f"{verbs} verbs and {nouns} nouns: expected at least one slot of each and at most {MOST_SLOTS} in all"
        )


def cut(graph: RoleGraph, *, verbs: int, nouns: int, length: int) -> RoleSlots:
    """Put the phrases of a graph into slots, as HGR's reader does.

    Nodes of role V take the verb slots and all others the noun slots, first come, first served. A node whose first
    word is beyond the caption's end is left out; so are single words beyond it, nodes that find no slot, and
    their edges. The sentence speaks to every verb; a verb and a noun that an edge leads to speak to each other; other
    edges say nothing.

    Args:
        graph: of the whole caption.
        verbs: number of verb slots.
        nouns: number of noun slots.
        length: words of the caption that are read.
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
    """Return, for each of `words`, the numbers of those of `others` that share a character with it.

    Both are splittings of one sentence: without white space they spell the same; or they do so in letters and digits,
    where one has dropped punctuation, which then shares with nothing. Case is ignored. None where they spell two
    different things.
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
    """Return the graph with its phrases counted in `words`, another splitting of its caption; None if it is not one."""
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
