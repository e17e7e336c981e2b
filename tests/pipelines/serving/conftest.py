"""Services of tiny models in this process, and servers of their search pages."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from corpora import make_corpus, make_questions
from searchable import serving, untrained, with_clips, with_pictures
from untrained_runs import export_untrained

from polypool.pipelines.serving.schema import Settings
from polypool.pipelines.serving.service import Service
from polypool.tasks.run import Run


@pytest.fixture(scope="session")
def of_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Service]:
    """Return a function that exports a run and returns its service."""

    def make(run: Run, **settings: object) -> Service:
        folder = export_untrained(run, tmp_path_factory.mktemp("exported"))
        return Service.load(Settings(source=str(folder), **settings))

    return make


@pytest.fixture(scope="session")
def pictures_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run whose features can be computed for any image."""
    return with_pictures(tmp_path_factory.mktemp("pictures"), train=8, val=4, test=12)


@pytest.fixture(scope="session")
def pictures(pictures_run: Run, of_run: Callable[..., Service]) -> Service:
    return of_run(pictures_run)


@pytest.fixture(scope="session")
def words_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run whose features cannot be computed for new images."""
    return make_corpus(tmp_path_factory.mktemp("words"))


@pytest.fixture(scope="session")
def questions(tmp_path_factory: pytest.TempPathFactory, of_run: Callable[..., Service]) -> Service:
    return of_run(make_questions(tmp_path_factory.mktemp("asked")))


@pytest.fixture(scope="module")
def page(pictures_run: Run):
    """The served search page of `pictures_run`."""
    with serving(untrained(pictures_run)) as server:
        yield server


@pytest.fixture(scope="module")
def question_page(tmp_path_factory: pytest.TempPathFactory):
    run = with_pictures(tmp_path_factory.mktemp("asked"), questions=True, train=8, val=4, test=30)
    with serving(untrained(run)) as server:
        yield server


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory):
    with serving(untrained(with_clips(tmp_path_factory.mktemp("clips")))) as server:
        yield server
