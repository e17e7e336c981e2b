"""Captions with role graphs, the text inputs of HGR."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from polypool.encoders.text.tokenizers import Tokenizer, WordTokenizer
from polypool.infra.compute.dist import rank
from polypool.infra.errors import InputError
from polypool.infra.extras import MissingPackageError
from polypool.infra.ragged import ragged
from polypool.tasks.hgr.parsing import parse
from polypool.tasks.hgr.role_graph import (
    GraphFile,
    RoleGraph,
    RoleSlots,
    cut,
    graph_of_entry,
    over_words,
)
from polypool.tasks.inputs.augmentations import Draw, MaskReplaceDelete
from polypool.tasks.inputs.texts import Captions

_QUERIES = 32  # at most this many texts are parsed here, such as search queries


class RoleCaptions:
    """Text inputs with role graphs from a file, matched by equal sentence, otherwise by equal letters and digits.

    If there are at most 32 distinct captions, such as queries, spaCy parses captions without a graph, if it is
    installed. Otherwise they are represented by their sentence only. Equal captions share one graph.

    Args:
        captions: texts.
        tokenizer: a `WordTokenizer`.
        verbs: maximum number of verbs of a caption; the first ones are kept.
        nouns: maximum number of other phrases.
        graphs: a file in the format of HGR's `sent2rolegraph.augment.json`; `polypool ingest graphs` writes one.
        limit: maximum number of words of a caption; 0 for no limit.

    Raises:
        InputError: a subword tokenizer, a file that cannot be read, or no graph for any of more than 32 distinct
            captions.
    """

    def __init__(
        self,
        captions: Sequence[str],
        tokenizer: Tokenizer,
        *,
        verbs: int = 4,
        nouns: int = 6,
        graphs: str = "",
        limit: int = 0,
    ) -> None:
        if not isinstance(tokenizer, WordTokenizer):
            raise InputError(
                f"role graphs are of whole words, and {type(tokenizer).__name__} splits captions into subwords; "
                f"choose a text encoder of words, such as --text 'bigru(ends=False)'"
            )
        self.verbs, self.nouns, self.limit = verbs, nouns, limit
        self.tokenizer = tokenizer
        self.captions = Captions(captions, tokenizer, limit=limit)
        number: dict[str, int] = {}
        self._graph_G = np.fromiter(
            (number.setdefault(caption, len(number)) for caption in captions), np.int32, len(captions)
        )
        self._fill(list(number), graphs)

    def _fill(self, texts: list[str], graphs: str) -> None:
        self._store = SlotStore(len(texts), self.verbs + self.nouns)
        faults: Counter[str] = Counter()
        lacking: list[int] = []
        file = GraphFile(graphs, cached=len(texts) <= _QUERIES) if graphs else None
        for number, text in enumerate(texts):
            words = self.tokenizer.split(text)
            graph = self._read(file, text, words, faults) if file else None
            if graph is None:
                lacking.append(number)
            else:
                self._put(number, graph)
        parsed = lacking if lacking and len(texts) <= _QUERIES and self._parse(texts, lacking) else []
        if len(lacking) == len(texts) > _QUERIES:
            raise InputError(
                f"{graphs or 'hgr'}: no role graph of {len(texts):,} captions, such as {texts[0]!r}; "
                "polypool ingest graphs --corpus DIR parses the captions of a corpus: --model \"hgr(graphs='FILE')\""
            )
        if rank() == 0:
            counts = {
                f"from {graphs}": len(texts) - len(lacking),
                "parsed": len(parsed),
                "without, compared by their sentence alone": len(lacking) - len(parsed),
            }
            notes = [f"{count:,} {what}" for what, count in counts.items() if count]
            notes += [f"{count:,} entries {what}" for what, count in faults.items()]
            print(f"role graphs of {len(texts):,} distinct captions: {', '.join(notes)}")

    def _read(self, file: GraphFile, text: str, words: list[str], faults: Counter[str]) -> RoleGraph | None:
        for sentence, entry in file.candidates(text):
            graph = graph_of_entry(sentence, entry)
            if graph is None:
                faults["are not of the expected form"] += 1
            elif (graph := over_words(graph, words)) is not None:
                return graph
        return None

    def _parse(self, texts: list[str], lacking: list[int]) -> bool:
        words = [self.tokenizer.split(texts[number]) for number in lacking]
        try:
            for number, graph in zip(lacking, parse(words), strict=True):
                self._put(number, graph)
        except MissingPackageError:
            return False
        return True

    def _put(self, number: int, graph: RoleGraph) -> None:
        length = min(len(graph.words), self.limit or len(graph.words))
        self._store.put(number, cut(graph, verbs=self.verbs, nouns=self.nouns, length=length))

    @property
    def notes(self) -> list[str]:
        """Notes on truncation, and on the share of unknown words."""
        return self.captions.notes

    def sizes(self) -> np.ndarray:
        """Return the number of tokens of each caption."""
        return self.captions.sizes()

    def batch(
        self, index_B: np.ndarray, *, augment: MaskReplaceDelete | None = None, draw: Draw | None = None
    ) -> dict[str, Tensor]:
        """Return `text` and `text_mask` `(B, L)`, and the graphs, with P slots, verb slots first:

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
    """Slots of `count` graphs in flat arrays, with P = `slots` slots per graph; some tens of bytes per graph."""

    def __init__(self, count: int, slots: int) -> None:
        self._role_UP = np.zeros((count, slots), np.uint8)
        self._words, self._edges = _Lists(count), _Lists(count)

    def put(self, number: int, slots: RoleSlots) -> None:
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
        """Return the pairs of some owners: rows of `number_B`, first and second integers."""
        row_W, from_W = ragged(self._begin_U[number_B], self._size_U[number_B])
        one, other = np.frombuffer(self._one, np.uint8), np.frombuffer(self._other, np.int32)
        return row_W, one[from_W].astype(np.int64), other[from_W].astype(np.int64)
