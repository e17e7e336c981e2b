"""Commands after training: search with the model, serve it, compare runs."""

from __future__ import annotations

from contextlib import suppress

from polypool.infra.errors import InputError
from polypool.infra.files import read_json
from polypool.infra.paths import absolute, home
from polypool.infra.process.output import Step
from polypool.infra.registry import TASKS, Spec
from polypool.infra.tracking import Artifacts, RunRecord, Tracker, tracking_uri
from polypool.pipelines.training.record import recorded_run
from polypool.tasks.abilities import Searchable, missing
from polypool.tasks.datasets.corpus import Corpus, open_corpus
from polypool.tasks.datasets.readers.folders import is_video
from polypool.tasks.run import Run, from_json

_LONGEST = 60  # characters of a caption in a command


def after_training(run_id: str) -> list[Step]:
    """Return the commands that search with a trained run, serve and compare it; none if MLflow does not answer."""
    try:
        tracker = Tracker.attach(tracking_uri(home()), run_id, running=False)
        run = recorded_run(tracker)
    except InputError:
        return []
    compare: Step = ("compare the runs", ("compare", "--experiment", run.experiment))
    return [*_asking(run, run_id), *([compare] if run.test else [])]


def asking(uri: str, record: RunRecord) -> list[Step]:
    """Return the commands that search with a recorded run and serve it; MLflow is not imported for local artifacts."""
    try:
        settings = read_json(Artifacts(uri).path(record, "run.json"), what="the settings of a run")
        run = from_json(settings, where=f"run.json of run {record.run_id}")
    except InputError:
        return []
    return _asking(run, record.run_id)


def _asking(run: Run, run_id: str) -> list[Step]:
    """Return the commands that search with a model and serve it; none for joint models or tasks without search."""
    steps: list[Step] = []
    searched: tuple[str, ...] = ()
    try:
        if run.members or missing(TASKS.get(Spec.parse(run.task).name), Searchable):
            return steps
    except InputError:  # a task that is not installed here
        return steps
    with suppress(InputError):
        corpus = open_corpus(absolute(run.data.corpus, home))
        split = "test" if "test" in corpus.splits else next(iter(corpus.splits))
        searched = ("--split", split) if split != "test" else ()
        if isinstance(corpus, Corpus):
            (captions,) = next(corpus.rows(split, "captions"))
            query = next((text for text in captions if len(text) <= _LONGEST), captions[0])
            steps.append(
                ("search with a caption, or words of your own", ("search", run_id, query, *searched))
            )
        else:
            id, question, path = next(corpus.rows(split, "image_id", "question", "path"))
            kind, words = (
                "video" if is_video(path) else "image",
                ("search", run_id, question, "--id", id, *searched),
            )
            steps.append((f"ask about an item; --{kind} FILE is one of your own", words))
    return [*steps, ("a page that does the same", ("serve", run_id, *searched))]
