"""Checks of what an ingest wrote: as many items as reported, all of them usable, all cases listed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fuzz.cases import expect
from polypool.infra.store import FeatureStore
from polypool.infra.store.findings import Tolerance
from polypool.tasks.datasets.corpus import Corpus, Item
from polypool.tasks.datasets.open_corpora import open_corpus

OUT = Path("out")
ALL = Tolerance(allow_skipped=True)


def corpus_of(folder: Path = OUT, *, entries: int = 0) -> int:
    """Open a corpus and return how many cases were skipped.

    Args:
        folder: of the corpus.
        entries: how many the files have, each of which must be an item or a case, at the least.
    """
    corpus, ids = open_corpus(folder), []
    for split, count in corpus.splits.items():
        items = corpus.items(split) if isinstance(corpus, Corpus) else corpus.questions(split)
        expect(len(items) == count, f"{split} has {len(items)} rows, and is said to have {count}")
        ids += [item.id for item in items]
        for item in items:
            texts = item.captions if isinstance(item, Item) else (item.question,)
            expect(bool(texts and all(texts)), f"{item.id} has no text, or an empty one")
            expect(item.id.isprintable(), f"the id {item.id!r}")
            expect(".." not in Path(item.path).parts, f"{item.id} has the path {item.path}")
    manifest = json.loads((folder / f"{corpus.name}.json").read_bytes())
    skipped = _listed(folder / f"{corpus.name}.skipped.jsonl", manifest["skipped"])
    expect(len(set(ids)) == len(ids) or not isinstance(corpus, Corpus), "ids come twice")
    expect(len(ids) + skipped >= entries, f"{entries} entries, {len(ids)} items and {skipped} cases")
    return skipped


def store_of(folder: Path = OUT, *, entries: int = 0) -> int:
    """Open a feature store, read all of it, and return how many cases were skipped."""
    store = FeatureStore.open(folder)
    store.verify()
    manifest = store.manifest
    expect(len(store.ids) == len(store) == manifest.sets, "sets are other than said")
    expect(sum(len(store[row]) for row in range(len(store))) == manifest.vectors, "vectors other than said")
    expect(all(len(store[row]) for row in range(len(store))), "an empty set")
    skipped = _listed(folder / "skipped.jsonl", manifest.skipped)
    expect(len(store) + skipped >= entries, f"{entries} entries, {len(store)} sets and {skipped} cases")
    return skipped


def _listed(path: Path, summary: dict[str, Any]) -> int:
    """Return the number of cases that a file lists, which is that of its summary."""
    cases = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    counted = sum(reason["count"] for reason in summary["reasons"].values())
    expect(len(cases) == summary["count"] == counted, f"{len(cases)} listed, {summary['count']} counted")
    return len(cases)


def in_json(path: str, *keys: str) -> int:
    """Return how many elements the lists of a JSON file have; 0 where it is of another form."""
    data = json.loads(Path(path).read_bytes())
    lists = [data.get(key) for key in keys] if isinstance(data, dict) else [data]
    return sum(len(each) for each in lists if isinstance(each, list))
