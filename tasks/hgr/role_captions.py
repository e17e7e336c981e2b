"""Captions with their role graphs, as HGR reads them."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from polypool.encoders.text.tokenizers import Tokenizer, WordTokenizer
from polypool.infra.compute.dist import rank
from polypool.infra.errors import InputError
from polypool.infra.process.progress import Progress
from polypool.infra.ragged import ragged
from polypool.infra.registry import PARSERS
from polypool.tasks.hgr.released_graphs import find_role_graphs, read_role_graphs
from polypool.tasks.hgr.role_graph import RoleGraph, RoleSlots, check_slots, cut, over_words
from polypool.tasks.inputs.augmentations import Draw, MaskReplaceDelete
from polypool.tasks.inputs.texts import Captions

Parser = Callable[[Sequence[str]], RoleGraph]
_FEW = 32  # captions, such as a query, for which a file of graphs is kept in memory
_UNLIKE = "words that do not spell the caption (left to the parser)"


class RoleCaptions:
    """Text inputs with role graphs: released ones where there are any, the parser's otherwise.

    A released graph is used for captions that equal its sentence, else for those of the same lower-case words. Each
    distinct caption has one graph.

    Args:
        captions: texts.
        tokenizer: a `WordTokenizer`.
        verbs: verbs kept of a caption, the first ones.
        nouns: other phrases kept.
        parser: spec of the role parser.
        graphs: HGR's `sent2rolegraph.augment.json`; empty for none.
        limit: words after which a caption is cut; 0 for no limit.

    Raises:
        InputError: the tokenizer is not of words, a parameter is out of range, or the parser or the file is refused.
    """

    def __init__(
        self,
        captions: Sequence[str],
        tokenizer: Tokenizer,
        *,
        verbs: int = 4,
        nouns: int = 6,
        parser: str = "rules",
        graphs: str = "",
        limit: int = 0,
    ) -> None:
        if not isinstance(tokenizer, WordTokenizer):
            raise InputError(
                f"role graphs are of whole words, and {type(tokenizer).__name__} splits captions into subwords; "
                f"choose a text encoder of words, such as --text 'bigru(ends=False)'"
            )
        check_slots(verbs=verbs, nouns=nouns)
        self.verbs, self.nouns, self.limit = verbs, nouns, limit
        self.tokenizer = tokenizer
        self.captions = Captions(captions, tokenizer, limit=limit)
        number: dict[str, int] = {}
        self._graph_G = np.fromiter(
            (number.setdefault(caption, len(number)) for caption in captions), np.int32, len(captions)
        )
        self._fill(list(number), PARSERS.build(parser), parser=parser, graphs=graphs)

    def __len__(self) -> int:
        return len(self.captions)

    @property
    def notes(self) -> list[str]:
        """What was cut, and what share of the words is unknown."""
        return self.captions.notes

    def sizes(self) -> np.ndarray:
        """Return the number of tokens of each caption."""
        return self.captions.sizes()

    def _fill(self, texts: list[str], parse: Parser, *, parser: str, graphs: str) -> None:
        store = SlotStore(len(texts), self.verbs + self.nouns)
        faults: Counter[str] = Counter()
        if graphs:
            self._read(texts, store, graphs, faults)
        released = int(store.filled_U.sum())
        left = np.flatnonzero(~store.filled_U).tolist()
        for number in Progress(left, desc="parsing", leave=False, disable=rank() > 0):
            words = self.tokenizer.split(texts[number])
            store.put(number, self._cut(parse(words), len(words)))
        self._store = store
        if rank() == 0:
            origin = f"{released:,} from {graphs}, {len(left):,}" if graphs else "all"
            bad = "; in the file: " + ", ".join(f"{n:,} x {why}" for why, n in faults.most_common())
            print(
                f"role graphs of {len(texts):,} distinct captions: {origin} by the parser {parser!r}"
                f"{bad if faults else ''}"
            )

    def _read(self, texts: list[str], store: SlotStore, graphs: str, faults: Counter[str]) -> None:
        exact = {text: number for number, text in enumerate(texts)}
        alike: dict[str, list[int]] = {}
        for number, text in enumerate(texts):
            alike.setdefault(self._key(text), []).append(number)
        wanted = lambda sentence: sentence in exact or self._key(sentence) in alike  # noqa: E731
        if len(texts) > _FEW:
            released = read_role_graphs(graphs, wanted=wanted)
        else:
            released = find_role_graphs(graphs, texts, wanted=wanted)
        for read in Progress(released, desc="role graphs", leave=False, disable=rank() > 0):
            faults.update(read.faults)
            if read.graph is None:
                continue
            same = exact.get(read.sentence, -1)
            for number in {same, *alike.get(self._key(read.sentence), ())} - {-1}:
                if store.filled_U[number] and number != same:
                    continue  # the graph of an equal sentence, or the first of the same words, stays
                words = self.tokenizer.split(texts[number])
                graph = over_words(read.graph, words)
                if graph is None:
                    faults[_UNLIKE] += 1
                else:
                    store.put(number, self._cut(graph, len(words)))

    def _key(self, text: str) -> str:
        """Return a text's lower-case words without punctuation."""
        return " ".join(word for word in self.tokenizer.split(text) if any(map(str.isalnum, word))).lower()

    def _cut(self, graph: RoleGraph, length: int) -> RoleSlots:
        return cut(graph, verbs=self.verbs, nouns=self.nouns, length=min(length, self.limit or length))

    def batch(
        self, index_B: np.ndarray, *, augment: MaskReplaceDelete | None = None, draw: Draw | None = None
    ) -> dict[str, Tensor]:
        """Return `text` and `text_mask` `(B, L)`, and the graphs, with P slots, those of verbs first:

        `text_spans` (B, P, L) bool, the words of each phrase, none in an unused slot; `text_roles` (B, P) int64, 0 in
        an unused slot; `text_edges` (B, 1 + P, 1 + P) bool, [target, source], where node 0 is the sentence.

        Raises:
            InputError: `augment` is given.
        """
        if augment is not None:
            raise InputError(
                "role graphs count a caption's words, so the words cannot be changed in training: leave "
                "--data.text-augment empty with this model"
            )
        batch = self.captions.batch(index_B, draw=draw)
        spans, roles, edges = self._store.batch(
            self._graph_G[index_B], length=batch["text"].shape[1], first=int(self.tokenizer.starts)
        )
        return batch | {"text_spans": spans, "text_roles": roles, "text_edges": edges}


class SlotStore:
    """Slots of `count` graphs in flat arrays, some tens of bytes each, with P = `slots` slots a graph."""

    def __init__(self, count: int, slots: int) -> None:
        self.filled_U = np.zeros(count, dtype=bool)
        self._role_UP = np.zeros((count, slots), np.uint8)
        self._words, self._edges = _Lists(count), _Lists(count)

    def put(self, number: int, slots: RoleSlots) -> None:
        """Store a graph; one stored under the same number before is replaced."""
        self.filled_U[number] = True
        self._role_UP[number] = 0
        for slot, role in slots.roles.items():
            self._role_UP[number, slot] = role
        self._words.put(number, [(slot, word) for slot, words in slots.spans.items() for word in words])
        self._edges.put(number, slots.edges)

    def batch(self, number_B: np.ndarray, *, length: int, first: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return spans `(B, P, L)`, roles `(B, P)` (int64) and edges `(B, 1 + P, 1 + P)`, [target, source].

        Args:
            number_B: numbers of graphs.
            length: number of tokens L.
            first: position of each text's first word.
        """
        slots = self._role_UP.shape[1]
        span_BPL = np.zeros((len(number_B), slots, length), dtype=bool)
        row, slot, word = self._words.of(number_B)
        span_BPL[row, slot, word + first] = True
        edge_BKK = np.zeros((len(number_B), 1 + slots, 1 + slots), dtype=bool)
        edge_BKK[self._edges.of(number_B)] = True
        role_BP = self._role_UP[number_B].astype(np.int64)
        return torch.from_numpy(span_BPL), torch.from_numpy(role_BP), torch.from_numpy(edge_BKK)


class _Lists:
    """A list of pairs of integers for each of `count` owners, in two flat arrays."""

    def __init__(self, count: int) -> None:
        self._one, self._other = array("B"), array("i")
        self._begin_U, self._size_U = np.zeros(count, np.int64), np.zeros(count, np.int32)

    def put(self, number: int, pairs: list[tuple[int, int]] | tuple[tuple[int, int], ...]) -> None:
        self._begin_U[number], self._size_U[number] = len(self._one), len(pairs)
        self._one.extend(one for one, _ in pairs)
        self._other.extend(other for _, other in pairs)

    def of(self, number_B: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the pairs of some owners: rows of `number_B`, first and second numbers."""
        row_W, from_W = ragged(self._begin_U[number_B], self._size_U[number_B])
        one, other = np.frombuffer(self._one, np.uint8), np.frombuffer(self._other, np.int32)
        return row_W, one[from_W].astype(np.int64), other[from_W].astype(np.int64)
