"""Captions with their role graphs: what HGR reads of a text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from torch import Tensor
from tqdm import tqdm

from encoders.base import Tokenizer, WordTokenizer
from infra.compute.dist import rank
from infra.errors import InputError
from infra.registry import PARSERS
from tasks.augmentations.sets import Draw
from tasks.augmentations.words import MaskReplaceDelete
from tasks.datasets.videos.role_graphs import find_role_graphs, read_role_graphs
from tasks.inputs.captions import Captions
from tasks.inputs.role_slots import SlotStore
from tasks.parsers.role_graph import RoleGraph, RoleSlots, check_slots, cut, over_words

Parser = Callable[[Sequence[str]], RoleGraph]
_FEW = 32  # captions, such as a query, that a file of graphs is not read anew for
_UNLIKE = "words that do not spell the caption (left to the parser)"


class RoleCaptions:
    """Text inputs with role graphs, released ones where there are any and those of a parser for the rest.

    A released sentence belongs to the captions that are the same string, else to those of the same lower-case words.
    Each distinct caption has one graph, and all graphs lie in a few flat arrays, so that millions fit in memory.

    Args:
        captions: the texts.
        tokenizer: what splits them, a `WordTokenizer`.
        verbs: phrases of verbs that are kept of a caption, the first ones.
        nouns: other phrases that are kept.
        parser: spec of the role parser.
        graphs: HGR's `sent2rolegraph.augment.json`; none where empty.
        limit: words after which a caption is cut; 0 for never.

    Raises:
        InputError: the tokenizer splits no words, or a parameter cannot be; or from the parser or the file.
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

    def sizes(self) -> np.ndarray:
        """Return how many tokens each caption has."""
        return self.captions.sizes()

    def _fill(self, texts: list[str], parse: Parser, *, parser: str, graphs: str) -> None:
        """Make the slots of every distinct caption."""
        store = SlotStore(len(texts), self.verbs + self.nouns)
        faults: Counter[str] = Counter()
        if graphs:
            self._read(texts, store, graphs, faults)
        released = int(store.filled_U.sum())
        left = np.flatnonzero(~store.filled_U).tolist()
        for number in tqdm(left, desc="parsing", leave=False, delay=2, disable=rank() > 0):
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
        for read in tqdm(released, desc="role graphs", leave=False, delay=2, disable=rank() > 0):
            faults.update(read.faults)
            if read.graph is None:
                continue
            same = exact.get(read.sentence, -1)
            for number in {same, *alike.get(self._key(read.sentence), ())} - {-1}:
                if store.filled_U[number] and number != same:
                    continue  # it has that of the same string, or the first of the same words
                words = self.tokenizer.split(texts[number])
                graph = over_words(read.graph, words)
                if graph is None:
                    faults[_UNLIKE] += 1
                else:
                    store.put(number, self._cut(graph, len(words)))

    def _key(self, text: str) -> str:
        """Return a text's lower-case words, without those that are only punctuation."""
        return " ".join(word for word in self.tokenizer.split(text) if any(map(str.isalnum, word))).lower()

    def _cut(self, graph: RoleGraph, length: int) -> RoleSlots:
        return cut(graph, verbs=self.verbs, nouns=self.nouns, length=min(length, self.limit or length))

    def batch(
        self, index_B: np.ndarray, *, augment: MaskReplaceDelete | None = None, draw: Draw | None = None
    ) -> dict[str, Tensor]:
        """Return `text` and `text_mask` `(B, L)`, and of P slots, the verbs' first, and the sentence as node 0:

        `text_spans` (B, P, L) bool, the words of each phrase, none in a slot that is not used; `text_roles` (B, P)
        int64, 0 there; `text_edges` (B, 1 + P, 1 + P) bool, [target, source].

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
            self._graph_G[index_B], length=batch["text"].shape[1], first=int(self.tokenizer.ends)
        )
        return batch | {"text_spans": spans, "text_roles": roles, "text_edges": edges}
