"""Commands suggested after training."""

from __future__ import annotations

from dataclasses import replace

import pytest

from polypool.infra.process.output import command_line
from polypool.infra.registry import RECIPES
from polypool.infra.tracking import find_runs, tracking_uri
from polypool.pipelines.models import next_steps
from polypool.pipelines.training.record import Described
from polypool.tasks.datasets.corpus import Item, Question, write_corpus, write_questions
from polypool.tasks.run import Run


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("POLYPOOL_HOME", str(tmp_path))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return tmp_path


def steps_of(run: Run, home) -> list[str]:
    described = Described.of(run)
    tracker = described.start(tracking_uri(home), home)
    tracker.json("run.json", described.settings)
    tracker.finish()
    after = next_steps.after_training(tracker.run_id)
    (record,) = [each for each in find_runs(tracking_uri(home), "mine") if each.run_id == tracker.run_id]
    assert next_steps.asking(tracking_uri(home), record) == (after[:-1] if run.test else after)
    steps = [command_line(words) for _, words in after]
    return [step.replace(tracker.run_id, "ID").partition("polypool ")[2] for step in steps]


def own(name: str, corpus: str) -> Run:
    run = RECIPES.get(name)()
    return replace(
        run, experiment="mine", data=replace(run.data, corpus=corpus, dataset="mine", features="f")
    )


def test_suggested_search_uses_a_test_caption(home):
    items = [
        Item(id="a", split="train", captions=("of the training",)),
        Item(id="b", split="test", captions=("long " * 20, "it's a dog")),
    ]
    write_corpus(home / "corpus", items, source={})
    rest = ["serve ID", "compare --experiment mine"]
    assert steps_of(own("image_text", "corpus"), home) == ["search ID 'it'\"'\"'s a dog'", *rest]
    assert steps_of(own("image_text", "gone"), home) == rest
    write_corpus(home / "long", [Item(id="b", split="test", captions=("long" * 20,))], source={})
    assert steps_of(own("image_text", "long"), home) == [f"search ID {'long' * 20}", *rest]


def test_commands_without_test_split_name_another_split(home):
    write_corpus(home / "corpus", [Item(id="a", split="val", captions=("a dog",))], source={})
    write_questions(
        home / "asked",
        [Question(id="1", split="val", image_id="7", question="What?", path="7.jpg")],
        source={},
    )
    for name, corpus, asked in (
        ("image_text", "corpus", "search ID 'a dog' --split val"),
        ("vqa", "asked", "search ID 'What?' --id 7 --split val"),
    ):
        run = replace(own(name, corpus), test=False)
        assert steps_of(run, home) == [asked, "serve ID --split val"]
