"""Files that this project writes and reads back: corpora, stores, journals, records of runs and evaluations."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path

import numpy as np
from corpora import make_corpus, make_questions
from stores import fill, make_sets, store_writer, write

from fuzz.cases import Kind, expect
from fuzz.kinds.results import store_of
from polypool.infra.files import read_json
from polypool.infra.store import FeatureStore
from polypool.pipelines.comparison.query_units import Queries, StoredArrays
from polypool.pipelines.recipes.load import read_run_file
from polypool.tasks.adapter import Metric, QueryMean, QueryMetric
from polypool.tasks.datasets.open_corpora import open_corpus
from polypool.tasks.datasets.questions import QuestionCorpus
from polypool.tasks.run import from_json, to_json
from polypool.tasks.scoring.records import TAG, metrics_from, metrics_json, queries_from, queries_json

_SETS = {id: x_ND for id, x_ND in make_sets(12).items() if len(x_ND)}
_KEPT = {"corpus/corpus.json": "json", "corpus/corpus.arrow": "raw"}
_ASKED = {"questions/questions.json": "json", "questions/questions.arrow": "raw"}


def _store(folder: Path) -> None:
    write(folder / "store", _SETS, dtype="float32", statistics_of=list(_SETS)[:6])


def _read_store(folder: Path) -> int:
    """Read a store as training does; what is read without a word is what was written."""
    store = FeatureStore.open(folder / "store")
    ids = store.ids.to_pylist()
    expect(sorted(ids) == sorted(_SETS) and len(ids) == len(store), f"the ids {ids} of {len(store)} sets")
    rows = store.rows(ids)
    sizes, (x_BND, mask_BN) = store.sizes(rows), store.padded(rows)
    for row, id in enumerate(ids):
        for x_ND in (store[row], x_BND[row][mask_BN[row]].numpy()):
            expect(np.array_equal(x_ND, _SETS[id]), f"{id} is not what was stored")
        expect(sizes[row] == len(_SETS[id]), f"{id} has another size")
    return 0


def _unfinished(folder: Path) -> None:
    """Leave what a writer leaves that was killed: shards and its journal."""
    writer = store_writer(folder / "store", dtype="float32")
    fill(writer, _SETS)
    writer._release()


def _goes_on(folder: Path) -> int:
    """Go on with a store; it ends whole, with all sets as they are."""
    with store_writer(folder / "store", dtype="float32") as writer:
        for id, x_ND in _SETS.items():
            writer.offer(id, x_ND, where=id)
    skipped = store_of(folder / "store")
    opened = FeatureStore.open(folder / "store")
    for row, id in enumerate(opened.ids.to_pylist()):
        expect(id in _SETS and np.array_equal(opened[row], _SETS[id]), f"{id!r} is not what was given")
    return skipped


def _corpus(folder: Path) -> None:
    make_corpus(folder, train=6, val=2, test=2)
    make_questions(folder / "more", train=4, val=2, test=2, unanswered=1)
    shutil.move(folder / "more" / "questions", folder / "questions")


def _read_corpus(folder: Path, *, name: str) -> int:
    corpus = open_corpus(folder / name)
    rows = corpus.questions if isinstance(corpus, QuestionCorpus) else corpus.items
    held = [row for split in corpus.splits for row in rows(split)]
    for split, count in corpus.splits.items():
        expect(len(rows(split)) == count, f"{split} has {len(rows(split))} rows, {count} are said")
    expect(len(held) == len(corpus._table), f"{len(held)} rows of {len(corpus._table)}")
    expect(len(corpus.ids) > 0 and corpus.digest != "", "no ids")
    Path(corpus.image_folder)
    return 0


def _run(folder: Path) -> None:
    run = make_corpus(folder / "made", train=2, val=1, test=1)
    (folder / "run.json").write_text(json.dumps(to_json(run)))


def _read_run(folder: Path) -> int:
    run = from_json(read_json(folder / "run.json", what="the settings of a run"))
    again = from_json(json.loads(json.dumps(to_json(run))))
    expect(again == run, "a run that is not itself when written and read")
    return 0


def _written_run(folder: Path) -> None:
    text = "base: demo  # mine\naggregator: kmax(k=3)\noptim:\n  lr: 1e-3\n  milestones: [2, 3]\ndata: {captions: 2}\n"
    (folder / "run.yaml").write_text(text)


def _read_written_run(folder: Path) -> int:
    run = read_run_file(folder / "run.yaml")
    again = from_json(json.loads(json.dumps(to_json(run))))
    expect(again == run, "a run that is not itself when written and read")
    return 0


_METRICS = [
    Metric(name="rsum", best=600.0, chance=3.1),
    Metric(name="medr", higher_is_better=False, unit="ranks", in_tables=False),
]
_MEAN = QueryMean(scores=("hit", "twice"), units="image", factor=100.0)
_LOGGED = 100.0
_QUERIES = [QueryMetric(name="r1", means=(_MEAN,), units="images")]


def _records(folder: Path) -> None:
    (folder / "tag.json").write_bytes(metrics_json(_METRICS))
    (folder / "queries.json").write_text(queries_json(_QUERIES))
    hits = np.array([0.0, 1.0, np.nan, 1.0, 0.0])
    np.savez(folder / "queries.npz", image=np.arange(5), hit=hits, twice=hits)


def _read_tag(folder: Path) -> int:
    metrics_from({f"{TAG}whole": _text(folder / "tag.json")}, "whole", run="a")
    return 0


def _read_queries(folder: Path) -> int:
    """Gather what queries scored, as a comparison does."""
    arrays = StoredArrays(folder / "queries.npz")
    queries = Queries(
        arrays=arrays, metrics=queries_from(_text(folder / "queries.json"), where="queries.json")
    )
    for metric in queries.metrics:
        units = queries.units(metric.name, _LOGGED)
        expect(units.sum_Pn.shape == units.count_Pn.shape, "other units are counted than scored")
    return 0


def _text(path: Path) -> str:
    return path.read_bytes().decode("utf-8", "replace")


_SHARDS = {f"store/shard-{number:05d}.arrow": "raw" for number in range(2)}

_UNFINISHED = {"store/writing.json": "json"} | _SHARDS
_SCORED = {"queries.json": "json", "queries.npz": "npz"}

KINDS = [
    Kind(name="store's manifest", make=_store, read=_read_store, damaged={"store/manifest.json": "json"}),
    Kind(name="store's shards", make=_store, read=_read_store, damaged=_SHARDS),
    Kind(name="unfinished store", make=_unfinished, read=_goes_on, damaged=_UNFINISHED),
    Kind(name="corpus", make=_corpus, read=partial(_read_corpus, name="corpus"), damaged=_KEPT),
    Kind(
        name="corpus of questions", make=_corpus, read=partial(_read_corpus, name="questions"), damaged=_ASKED
    ),
    Kind(name="run.json", make=_run, read=_read_run, damaged={"run.json": "json"}),
    Kind(name="run in YAML", make=_written_run, read=_read_written_run, damaged={"run.yaml": "raw"}),
    Kind(name="metrics of a run", make=_records, read=_read_tag, damaged={"tag.json": "json"}),
    Kind(name="results of queries", make=_records, read=_read_queries, damaged=_SCORED),
]
