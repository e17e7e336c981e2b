"""Commands that come after a model was trained: ask it, open its page, compare it."""

from __future__ import annotations

from contextlib import suppress

from polypool.infra.errors import InputError
from polypool.infra.paths import home, resolve_place
from polypool.infra.process.output import Step
from polypool.infra.tracking import Tracker, tracking_uri
from polypool.tasks.datasets.corpus import Corpus
from polypool.tasks.datasets.open_corpora import open_corpus
from polypool.tasks.run import Run, from_json

_LONGEST = 60  # characters of a caption that is asked for


def after_training(run_id: str) -> list[Step]:
    """Return how a trained run is asked, shown as a page and compared; nothing where MLflow does not answer."""
    if (run := _run(run_id)) is None:
        return []
    return [*asking(run_id), ("compare the runs", ("compare", "--experiment", run.experiment))]


def _run(run_id: str) -> Run | None:
    with suppress(InputError):
        tracker = Tracker.attach(tracking_uri(home()), run_id, running=False)
        return from_json(tracker.read_json("run.json"), where=f"run.json of run {run_id}")
    return None


def asking(run_id: str) -> list[Step]:
    """Return how the model of a run is asked and shown as a page; nothing where it is of several tasks."""
    steps: list[Step] = []
    if (run := _run(run_id)) is None or run.members:
        return steps
    with suppress(InputError):
        corpus = open_corpus(resolve_place(run.data.corpus))
        split = "test" if "test" in corpus.splits else next(iter(corpus.splits))
        if isinstance(corpus, Corpus):
            (captions,) = next(corpus.rows(split, "captions"))
            query = next((text for text in captions if len(text) <= _LONGEST), captions[0])
            steps.append(("search with a caption, or words of your own", ("search", run_id, query)))
        else:
            id, question = next(corpus.rows(split, "image_id", "question"))
            words = ("search", run_id, question, "--id", id)
            steps.append(("ask about a picture; --image FILE is one of your own", words))
    return [*steps, ("a page that does the same", ("serve", run_id))]
