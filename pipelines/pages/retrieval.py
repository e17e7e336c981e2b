"""What an evaluation of retrieval leaves to look at: a page of examples, right and wrong."""

from __future__ import annotations

import numpy as np

from infra.dist import rank
from pipelines.pages.retrieval_examples import HITS, RankedQueries, find_examples
from pipelines.pages.retrieval_page import Shown, examples_page
from pipelines.pages.thumbnails import Thumbnails
from tasks.datasets.corpus import Corpus
from tasks.inputs.pairs import Pairs
from tasks.scoring.gallery import Gallery
from tasks.scoring.protocols import Protocol, ProtocolResult
from tasks.scoring.scores import Score

IMAGES, VIDEOS = 12, 8  # queries of each direction; videos take longer to decode


def ranked_queries(pairs: Pairs, protocol: Protocol, result: ProtocolResult) -> RankedQueries:
    """Return the queries of a split that was ranked by its own pairs."""
    whole = Gallery.of(
        slice(0, len(pairs.item_ids)), pairs.owner_G, texts=pairs.texts if protocol.distinct else None
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


def retrieval_pictures(
    score: Score,
    queries: RankedQueries,
    *,
    pairs: Pairs,
    corpus: Corpus,
    split: str,
    modality: str,
    protocol: Protocol,
) -> dict[str, bytes]:
    """Return a page of examples by file name; every worker calls this, and rank 0 alone gets it.

    Args:
        score: of blocks of the split.
        queries: its queries, and what is right.
        pairs: its items and captions.
        corpus: which has their files.
        split: its name.
        modality: what its items are.
        protocol: by which it was queries.
    """
    video = modality == "video"
    of_captions, of_items = find_examples(score, queries, count=VIDEOS if video else IMAGES)
    if rank() > 0:
        return {}
    with Thumbnails(corpus, corpus.items(split), video=video) as thumbnails:
        shown = Shown(
            modality=modality,
            item_ids=pairs.item_ids,
            texts=pairs.texts,
            owner_G=pairs.owner_G,
            thumbnails=thumbnails,
        )
        about = _about(protocol, queries, split=split, modality=modality)
        html = examples_page(f"Retrieval in the split {split}", about, shown, of_captions, of_items)
    return {f"{protocol.name}_{split}_examples.html": html.encode()}


def _about(protocol: Protocol, queries: RankedQueries, *, split: str, modality: str) -> str:
    items, captions = len(queries.of_items), len(queries.caption_G)
    kind = "distinct captions" if protocol.distinct else "captions"
    about = (
        f"Queries drawn at random, right ones and wrong ones by the protocol {protocol.name} in turn, and what they "
        f"found among the {items:,} {modality}s or the {captions:,} {kind} of the whole split {split}: rank, score and, "
        f"with a dashed border, the best right one beyond the first {HITS}."
    )
    parts = f"{protocol.folds} parts of it, one by one" if protocol.folds > 1 else ""
    if len(queries.item_Q) < items:
        parts = f"its first {len(queries.item_Q):,} {modality}s alone"
    if parts:
        about += f" The protocol looks in {parts}, so its ranks are better or the same."
    if protocol.crisscrossed:
        about += " Right is also what people rated so."
    return about
