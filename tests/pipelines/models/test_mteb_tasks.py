"""mteb's runner on in-memory tasks: its metrics equal ours where the definitions agree."""

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from searchable import with_pictures
from untrained_runs import export_untrained

from polypool.pipelines.models.mteb import MtebModel, mteb_model
from polypool.tasks.datasets.corpus import Item, write_corpus
from polypool.tasks.run import Run

mteb = pytest.importorskip("mteb", reason="not installed (pip install 'polypool[mteb]')")
datasets = pytest.importorskip("datasets", reason="datasets is not installed (mteb requires it)")

NONE = ("reference", "date", "domains", "task_subtypes", "license", "annotations_creators", "dialect")


@pytest.fixture(autouse=True)
def offline(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))


def task(name: str, category: str, modalities: list[str], data: dict[str, Any]) -> Any:
    """Return an mteb retrieval task with in-memory data."""
    from mteb.abstasks.retrieval import AbsTaskRetrieval
    from mteb.abstasks.task_metadata import TaskMetadata

    what = {"name": name, "description": "held in memory", "dataset": {"path": "held", "revision": "1"}}
    what |= {"type": "Any2AnyRetrieval", "category": category, "modalities": modalities}
    how = {"eval_splits": ["test"], "eval_langs": ["eng-Latn"], "main_score": "ndcg_at_10"}
    how |= {
        "prompt": {"query": "Find what belongs to this."},
        "sample_creation": "created",
        "bibtex_citation": "",
    }

    class Held(AbsTaskRetrieval):
        metadata = TaskMetadata(**what, **how, **dict.fromkeys(NONE))

        def load_data(self, **_: Any) -> None:
            self.dataset = {"default": {"test": data | {"top_ranked": None}}}
            self.data_loaded = True

    return Held()


def both_directions(model: MtebModel) -> list[Any]:
    """Return the test split of the run's corpus as two tasks, from images or videos to texts and back."""
    adapter, kind = model.trained.adapter, model.modality
    items, pairs = adapter.corpus.items("test"), adapter.data("test")
    paths = [str(adapter.corpus.image_path(item)) for item in items]
    feature = datasets.Video() if kind == "video" else datasets.Image()
    visual = datasets.Dataset.from_dict({"id": [f"v{item.id}" for item in items], kind: paths})
    visual = visual.cast_column(kind, feature)
    text = datasets.Dataset.from_dict(
        {"id": [f"t{number}" for number in range(len(pairs.texts))], "text": list(pairs.texts)}
    )
    of_visual, of_text = defaultdict(dict), {}
    for number, owner in enumerate(pairs.owner_T.tolist()):
        of_visual[f"v{items[owner].id}"][f"t{number}"] = 1
        of_text[f"t{number}"] = {f"v{items[owner].id}": 1}
    letter = kind[0]
    to_text = {"queries": visual, "corpus": text, "relevant_docs": dict(of_visual)}
    to_visual = {"queries": text, "corpus": visual, "relevant_docs": of_text}
    return [
        task("ToText", f"{letter}2t", [kind, "text"], to_text),
        task("ToVisual", f"t2{letter}", [kind, "text"], to_visual),
    ]


def evaluated(model: MtebModel, cache: Any = None) -> list[dict[str, float]]:
    results = mteb.evaluate(model, both_directions(model), cache=cache, show_progress_bar=False)
    return [result.scores["test"][0] for result in results.task_results]


def distinct(run: Run, folder: Path) -> Run:
    """Return a run on the same images, each with unique captions."""
    from polypool.tasks.datasets.corpus import open_corpus

    corpus = open_corpus(run.data.corpus)
    words = ["dog", "cat", "car", "tree", "boat", "bird", "house", "horse"]
    items = []
    for split in corpus.splits:
        for number, item in enumerate(corpus.items(split)):
            first, second = words[number % 8], words[(number // 8 + 1 + number) % 8]
            captions = (f"a {first} and a {second}", f"the {second} beside the {first}")
            items.append(Item(id=item.id, split=split, captions=captions, path=item.path))
    images = corpus.image_path(items[0]).parent
    write_corpus(folder / "distinct", items, source={"made": "by a test"}, images=str(images))
    return replace(run, data=replace(run.data, corpus=str(folder / "distinct")))


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({}, "dense"),
        ({"aggregator": "late", "similarity": "maxsim"}, "late-interaction"),
        ({"aggregator": "probabilistic", "similarity": "csd"}, "dense"),
    ],
    ids=["vectors", "sets of any size", "distributions"],
)
def test_mteb_hit_rates_equal_our_recalls(tmp_path, change, kind):
    run = distinct(with_pictures(tmp_path, train=8, val=4, test=16), tmp_path)
    model = mteb_model(export_untrained(replace(run, **change), tmp_path))
    assert (model.mteb_model_meta.model_type, model.mteb_model_meta.embed_dim) == ([kind], 16)
    ours = model.trained.evaluate("whole").metrics
    assert ours["ties"] == 0
    for direction, scores in zip(("i2t", "t2i"), evaluated(model), strict=True):
        for k in (1, 5, 10):
            assert 100 * scores[f"hit_rate_at_{k}"] == pytest.approx(ours[f"{direction}/R{k}"], abs=1e-3)
        found = [scores[f"recall_at_{k}"] == scores[f"hit_rate_at_{k}"] for k in (1, 5, 10)]
        assert found == [direction == "t2i"] * 3
        assert scores["recall_at_20"] == 1.0 or direction == "i2t"


def test_mteb_cache_depends_on_settings_and_weights(tmp_path):

    run = distinct(with_pictures(tmp_path, train=8, val=4, test=16), tmp_path)
    folders = [tmp_path / name for name in ("first", "again", "other")]
    for folder, seed in zip(folders, (0, 0, 1), strict=True):
        folder.mkdir()
        export_untrained(replace(run, seed=seed), folder)
    first, again, other = (mteb_model(folder) for folder in folders)
    changed = mteb_model(folders[0])
    next(iter(changed.trained.model.parameters())).data.add_(1)
    told = MtebModel(replace(first.trained, run=replace(run, seed=7)))
    revisions = [of.mteb_model_meta.revision for of in (first, other, changed, told)]
    assert len({*revisions, again.mteb_model_meta.revision}) == 4
    cache = mteb.ResultCache(cache_path=tmp_path / "results")
    kept, fresh = ([scores["ndcg_at_10"] for scores in evaluated(model, cache)] for model in (first, other))
    assert kept != fresh
    again.encode = None  # a cache hit must not encode
    assert [scores["ndcg_at_10"] for scores in evaluated(again, cache)] == kept
