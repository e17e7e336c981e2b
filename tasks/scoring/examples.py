"""Retrieval examples for pages: a few queries in both directions, their results, and the right answers.

They are records; `polypool.pipelines.figures.pages` draws them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest

import numpy as np
from torch import Tensor

from polypool.tasks.adapter import PictureRecord, Score
from polypool.tasks.datasets.corpus import PicturedItem
from polypool.tasks.inputs.pairs import Pairs
from polypool.tasks.scoring.evaluation import ProtocolResult, RetrievalGallery
from polypool.tasks.scoring.metrics import Positives
from polypool.tasks.scoring.protocols import ScoringProtocol

HITS = 5
QUERIES = {"image": 12, "video": 8}  # queries of each direction; videos take longer to decode


@dataclass(frozen=True, kw_only=True)
class RankedQueries:
    """The ranked queries of a split, and the right answers in the whole split.

    Attributes:
        caption_G: the captions of the gallery, as indices in the split, ascending.
        of_items: the right captions of each item of the split, as indices in `caption_G`.
        of_captions: the right items of each caption in `caption_G`.
        item_Q, item_rank_Q: the ranked items, and their 0-based ranks; NaN without a right answer.
        caption_Q, caption_rank_Q: the ranked captions, as indices in the split, and their ranks.
    """

    caption_G: np.ndarray
    of_items: Positives
    of_captions: Positives
    item_Q: np.ndarray
    item_rank_Q: np.ndarray
    caption_Q: np.ndarray
    caption_rank_Q: np.ndarray


@dataclass(frozen=True, kw_only=True)
class ExampleHit:
    """A result: the index of an item or a caption in the split, its rank from 1, its score."""

    number: int
    rank: int
    score: float
    right: bool


@dataclass(frozen=True, kw_only=True)
class RetrievalExample:
    """A query and its results.

    Attributes:
        query: index of a caption or an item in the split.
        hits: the best results, in order; ties in the order of the split.
        best: the best right answer, which may be among them.
        right: number of right answers.
    """

    query: int
    hits: tuple[ExampleHit, ...]
    best: ExampleHit
    right: int


@dataclass(frozen=True, kw_only=True)
class RetrievalExamples(PictureRecord):
    """Captions as queries for images or videos, and images or videos as queries for captions.

    Attributes:
        split: its name.
        modality: of its items: `image` or `video`.
        protocol: by which right and wrong queries were chosen.
        gallery: numbers of searched items and captions.
        ranked_items: number of items that the protocol ranks; fewer than searched if it takes the first ones.
        items: the items in the examples, by index.
        texts: the captions in the examples, by index.
        of_captions: queries by caption.
        of_items: queries by item.
    """

    split: str
    modality: str
    protocol: ScoringProtocol
    gallery: tuple[int, int]
    ranked_items: int
    items: Mapping[int, PicturedItem]
    texts: Mapping[int, str]
    of_captions: tuple[RetrievalExample, ...]
    of_items: tuple[RetrievalExample, ...]


def choose(right_Q: np.ndarray, *, count: int, type_Q: Sequence[str] | None = None) -> list[int]:
    """Return the indices of up to `count` queries, alternating right and wrong ones while both last.

    A random choice that is the same each time.

    Args:
        right_Q: whether each query is answered correctly.
        count: maximum number of queries.
        type_Q: types of queries, to include as many types as possible, the most frequent first.
    """
    groups: dict[bool, dict[str, list[int]]] = {True: defaultdict(list), False: defaultdict(list)}
    for number in np.random.default_rng(0).permutation(len(right_Q)).tolist():
        groups[bool(right_Q[number])][type_Q[number] if type_Q else ""].append(number)
    pairs = zip_longest(_in_turn(groups[True]), _in_turn(groups[False]))
    return list(islice((number for pair in pairs for number in pair if number is not None), count))


def _in_turn(groups: dict[str, list[int]]) -> Iterator[int]:
    """Yield one of each group in turn, the largest group first."""
    largest_first = sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))
    for turn in zip_longest(*(numbers for _, numbers in largest_first)):
        yield from (number for number in turn if number is not None)


def ranked_queries(pairs: Pairs, protocol: ScoringProtocol, result: ProtocolResult) -> RankedQueries:
    """Return the queries of a split that was ranked by its own pairs."""
    whole = RetrievalGallery.of(
        slice(0, len(pairs.item_ids)), pairs.owner_T, texts=pairs.texts if protocol.distinct else None
    )
    of_items, of_captions = whole.positives()
    return RankedQueries(
        caption_G=whole.column_G,
        of_items=of_items,
        of_captions=of_captions,
        item_Q=np.arange(len(result.ranks_i2t)),
        item_rank_Q=result.ranks_i2t,
        caption_Q=result.caption_G,
        caption_rank_Q=result.ranks_t2i,
    )


def retrieval_examples(
    score: Score,
    queries: RankedQueries,
    *,
    texts: Sequence[str],
    pictured: Callable[[int], PicturedItem],
    split: str,
    modality: str,
    protocol: ScoringProtocol,
) -> RetrievalExamples:
    """Return examples of a split; every worker calls this, because a score may need all workers.

    Args:
        score: of blocks of the split.
        queries: the ranked queries and right answers.
        texts: the captions of the split.
        pictured: returns an item of the split by index.
        split: its name.
        modality: of its items.
        protocol: by which the queries were ranked.
    """
    of_captions, of_items = find_examples(score, queries, count=QUERIES[modality])
    items = {hit.number for example in of_captions for hit in (*example.hits, example.best)}
    captions = {hit.number for example in of_items for hit in (*example.hits, example.best)}
    return RetrievalExamples(
        split=split,
        modality=modality,
        protocol=protocol,
        gallery=(len(queries.of_items), len(queries.caption_G)),
        ranked_items=len(queries.item_Q),
        items={number: pictured(number) for number in sorted(items | {it.query for it in of_items})},
        texts={number: texts[number] for number in sorted(captions | {it.query for it in of_captions})},
        of_captions=tuple(of_captions),
        of_items=tuple(of_items),
    )


def find_examples(
    score: Score, queries: RankedQueries, *, count: int
) -> tuple[list[RetrievalExample], list[RetrievalExample]]:
    """Return up to `count` queries by caption, and as many by item.

    Half of them have a right answer as their first result, if there are enough. Results are from the whole split, one
    row or column of scores at a time. Every worker makes the same calls of the score.

    Args:
        score: of blocks of the split.
        queries: candidate queries, and right answers.
        count: maximum number per direction.
    """
    items, captions = len(queries.of_items), int(queries.caption_G[-1]) + 1
    number_N = np.arange(items)
    of_captions = [
        _example(
            query,
            score(slice(0, items), slice(query, query + 1))[:, 0],
            queries.of_captions,
            at=int(np.searchsorted(queries.caption_G, query)),
            number_G=number_N,
        )
        for query in _chosen(queries.caption_Q, queries.caption_rank_Q, among=queries.caption_G, count=count)
    ]
    of_items = [
        _example(
            query,
            score(slice(query, query + 1), slice(0, captions))[0, queries.caption_G],
            queries.of_items,
            at=query,
            number_G=queries.caption_G,
        )
        for query in _chosen(queries.item_Q, queries.item_rank_Q, among=number_N, count=count)
    ]
    return of_captions, of_items


def _chosen(query_Q: np.ndarray, rank_Q: np.ndarray, *, among: np.ndarray, count: int) -> list[int]:
    selected_Q = np.isfinite(rank_Q) & np.isin(query_Q, among)
    query_Q, rank_Q = query_Q[selected_Q], rank_Q[selected_Q]
    return [int(query_Q[number]) for number in choose(rank_Q == 0, count=count)]


def _example(
    query: int, score_G: Tensor, positives: Positives, *, at: int, number_G: np.ndarray
) -> RetrievalExample:
    """Return the example of query `at` of `positives` in a gallery with these indices."""
    score_G = score_G.double().cpu().numpy()
    right_P = positives.item_P[positives.start_Q1[at] : positives.start_Q1[at + 1]]

    def hit(place: int, rank: int) -> ExampleHit:
        return ExampleHit(
            number=int(number_G[place]), rank=rank, score=float(score_G[place]), right=place in right_P
        )

    order = np.argsort(-score_G, kind="stable")[:HITS].tolist()
    best = int(right_P[np.argmax(score_G[right_P])])
    above = np.count_nonzero(score_G > score_G[best]) + np.count_nonzero(score_G[:best] == score_G[best])
    return RetrievalExample(
        query=query,
        hits=tuple(hit(place, rank) for rank, place in enumerate(order, start=1)),
        best=hit(best, 1 + int(above)),
        right=len(right_P),
    )
