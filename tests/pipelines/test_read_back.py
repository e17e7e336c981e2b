"""Replace each field of each stored file: values of a wrong type are refused with file and field."""

import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from corpora import make_corpus, make_questions
from pictures import noise
from tiny_models import save_bert, save_vit

from polypool.infra.digests import DIGESTS
from polypool.infra.errors import InputError
from polypool.infra.registry import TASKS
from polypool.infra.store import FeatureStore
from polypool.pipelines.models.trained import load
from polypool.pipelines.training.checkpoint import ASSETS, RUN, write_model
from polypool.tasks.adapter import Metric
from polypool.tasks.datasets.corpus import open_corpus
from polypool.tasks.run import Run
from polypool.tasks.scoring.metric_specs import retrieval_queries
from polypool.tasks.scoring.records import metrics_from, metrics_json, metrics_tag, queries_from, queries_json

SURROGATE = "\ud800"  # refused with the whole file
STRANGE = [
    *(None, True, 7, -1, 0.5, 10**400, "text", "", SURROGATE),
    *([], [None], ["a", 1], {}, {"a": None}, {"a": [1]}),
]
"""Replacement values; each field is tried with a quarter of them, in rotation."""
GONE = object()

Path_ = tuple[str | int, ...]


def places(values: Any, at: Path_ = ()) -> Iterator[Path_]:
    """Yield the path of each field of JSON values; of a list, only of the first element."""
    if at:
        yield at
    if isinstance(values, list):
        values = dict(enumerate(values[:1]))
    for key, value in values.items() if isinstance(values, dict) else ():
        yield from places(value, (*at, key))


def swapped(values: Any, at: Path_, value: Any) -> Any:
    """Return a copy of JSON values with one field replaced, or deleted if `GONE`."""
    changed = deepcopy(values)
    inside = changed
    for key in at[:-1]:
        inside = inside[key]
    if value is GONE:
        del inside[at[-1]]
    else:
        inside[at[-1]] = value
    return changed


def alike(values: Any, at: Path_, value: Any) -> bool:
    """Whether a value has the type of the field at a path, or is an allowed None."""
    for key in at:
        values = values[key]
    if isinstance(values, float):
        return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
    return type(value) is type(values) or (at[-1] in ("statistics",) and value is None)


@dataclass(frozen=True, kw_only=True)
class File:
    """A file written by a small run.

    Attributes:
        name: its name in messages.
        values: its content.
        read: reads and uses the given content instead.
        free: prefixes of fields that accept any type, such as the source of a corpus.
    """

    name: str
    values: Any
    read: Callable[[Any], object]
    free: tuple[str, ...] = ()


def written(path: Path, read: Callable[[], object]) -> Callable[[Any], object]:
    """Return a function that writes values to a file, reads it and restores it."""

    def go(values: Any) -> object:
        before = path.read_bytes()
        path.write_text(json.dumps(values))
        try:
            return read()
        finally:
            path.write_bytes(before)

    return go


def model_files(folder: Path, run: Run) -> Iterator[File]:
    folder.mkdir()
    adapter = TASKS.build(run.task, run)
    write_model(folder, adapter.model(pretrained=False), run, adapter)
    (folder / DIGESTS).unlink()  # the files are changed below

    def used() -> None:
        trained = load(folder)
        trained.adapter.text_inputs(["a dog and a cat"])
        if not trained.adapter.visual_dim:
            noise().save(folder / "a.png")
            trained.adapter.visual_inputs([folder / "a.png"])

    for name in (RUN, ASSETS):
        yield File(
            name=name,
            values=json.loads((folder / name).read_text()),
            read=written(folder / name, used),
            # transformers validates its own configurations; milestones may be fractional
            free=("text.config.", "visual.config.", "optim.milestones["),
        )


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, File]:
    home = tmp_path_factory.mktemp("home")
    few = {"train": 8, "val": 2, "test": 2}
    captions, questions = make_corpus(home / "captions", **few), make_questions(home / "questions", **few)
    pixels = make_corpus(home / "pixels", images=home / "pixels" / "images", **few)
    bert, vit = save_bert(home / "bert"), save_vit(home / "vit")
    pixels = replace(
        pixels,
        visual=f"patches(name='{vit}', width=8, size=32)",
        text=f"bert(name='{bert}', width=8)",
        data=replace(pixels.data, visual_augment="", text_augment=""),
    )
    found = {}
    for kind, run in (("words", captions), ("vqa", questions), ("pixels", pixels)):
        for file in model_files(home / f"model of {kind}", run):
            found[f"{kind} {file.name}"] = file

    def stored(path: Path, read: Callable[[Path], object], *free: str) -> None:
        whole = json.loads(path.read_text())
        found[path.name] = File(
            name=path.name, values=whole, read=written(path, lambda: read(path.parent)), free=free
        )

    def used(folder: Path) -> None:
        corpus = open_corpus(folder)
        assert {split: len(corpus.items(split)) for split in corpus.splits}
        assert isinstance(corpus.image_folder, str)

    for run, name in ((captions, "corpus"), (questions, "questions")):
        stored(Path(run.data.corpus) / f"{name}.json", used, "source", "skipped", "flagged")
    stored(
        Path(captions.data.features) / "manifest.json",
        FeatureStore.open,
        "source.",
        "statistics",
        "skipped",
        "flagged",
    )
    metric = Metric(name="mae", higher_is_better=False, best=0.0, chance=7.5, unit="years", in_tables=False)

    def described(values: object) -> None:
        text = json.dumps(values).encode()
        metrics_from(metrics_tag("whole", text), "whole", run="r", read=lambda name: text)

    found["metrics"] = File(
        name="metrics/whole.json", values=json.loads(metrics_json([metric])), read=described
    )
    of = {"i2t": "image_id", "t2i": "caption_image_id"}
    found["queries"] = File(
        name="per_query/whole.json",
        values=json.loads(queries_json(retrieval_queries(of, modality="image"))),
        read=lambda values: queries_from(json.dumps(values), where="per_query/whole.json"),
    )
    return found


NAMES = (
    *("words run.json", "words assets.json", "vqa assets.json", "pixels assets.json"),
    *("corpus.json", "questions.json", "manifest.json", "metrics", "queries"),
)


@pytest.mark.parametrize("name", NAMES)
def test_mistyped_field_is_refused_by_name(name, files):
    file, wrong, tried = files[name], [], 0
    file.read(file.values)
    for number, at in enumerate(places(file.values)):
        dotted = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in at).lstrip(".")
        free = dotted.startswith(file.free)
        for value in [STRANGE[number % len(STRANGE)]] if free else (GONE, *STRANGE[number % 4 :: 4]):
            tried += 1
            right = value is GONE or free or alike(file.values, at, value)
            case = f"{dotted} = {'nothing' if value is GONE else repr(value)[:40]}"
            try:
                file.read(swapped(file.values, at, value))
            except InputError as error:
                whole = value == SURROGATE or "changed since it was written" in str(error)
                named = file.name in str(error) and (whole or str(at[0]) in str(error))
                if not named and not right:  # a right type may break another rule
                    wrong.append(f"{case}: {error}")
            except Exception as error:
                wrong.append(f"{case}: {type(error).__name__}: {error}")
            else:
                if not right:
                    wrong.append(f"{case}: accepted")
    assert tried > 10
    assert not wrong, f"{len(wrong)} of {tried} values are mishandled:\n" + "\n".join(wrong[:60])
