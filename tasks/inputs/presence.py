"""What is there of a corpus: pictures and videos with features, or with files where a model reads these."""

from __future__ import annotations

from typing import TypeVar

import pyarrow as pa

from infra.errors import InputError
from infra.store import FeatureStore
from tasks.datasets.corpus import Corpus
from tasks.datasets.own.listing import Listing
from tasks.datasets.questions import QuestionCorpus

CorpusT = TypeVar("CorpusT", Corpus, QuestionCorpus)


def present(corpus: CorpusT, store: FeatureStore | None) -> CorpusT:
    """Return a corpus without what has no features; where there is no store, without what has no file."""
    return corpus.only(_with_files(corpus) if store is None else store.ids)


def left_out(whole: Corpus | QuestionCorpus, rest: Corpus | QuestionCorpus) -> dict[str, int]:
    """Return how many rows of each split a corpus lacks that another has; splits that lack none are not named."""
    lacking = {split: count - rest.splits.get(split, 0) for split, count in whole.splits.items()}
    return {split: count for split, count in lacking.items() if count}


def check_features(corpus: Corpus | QuestionCorpus, store: FeatureStore, *, modality: str) -> None:
    """Refuse, before a run starts, pictures or videos that have no features.

    Raises:
        InputError: there are some, or a split is missing.
    """
    for split in ("train", "val", "test"):
        ids = [item.id for item in corpus.items(split)]
        if lacking := [id for id, row in zip(ids, store.find(ids), strict=True) if row < 0]:
            raise InputError(
                f"{store.folder}: {len(lacking):,} of {len(ids):,} {modality}s of the split {split!r} have no "
                f"features, such as {', '.join(lacking[:5])}; extract or ingest them, or leave them out by "
                "--data.missing skip"
            )


def _with_files(corpus: Corpus | QuestionCorpus) -> pa.Array:
    listing = Listing(corpus.image_folder)
    paths = (row for split in corpus.splits for row in corpus.paths(split))
    return pa.array([id for id, path in paths if path and listing.has(path)], pa.string())
