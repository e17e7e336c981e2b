"""Models that several files of tests serve, as exported folders, and their services in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from corpora import make_corpus, make_questions
from kept import export_run
from searchable import with_pictures
from starlette.types import ASGIApp

from pipelines.serving.application import Model, application
from pipelines.serving.service import Service
from pipelines.serving.settings import Settings
from tasks.run import Run


@pytest.fixture(scope="session")
def of_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Service]:
    """Makes the service of a run."""

    def make(run: Run, **settings: object) -> Service:
        folder = export_run(run, tmp_path_factory.mktemp("exported"))
        return Service(Settings(source=str(folder), **settings))

    return make


@pytest.fixture(scope="session")
def pictures_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run on features that a backbone at hand makes of any image."""
    return with_pictures(tmp_path_factory.mktemp("pictures"), train=8, val=4, test=12)


@pytest.fixture(scope="session")
def pictures(pictures_run: Run, of_run: Callable[..., Service]) -> Service:
    return of_run(pictures_run)


@pytest.fixture(scope="session")
def words_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run on features that nothing here makes of an image."""
    return make_corpus(tmp_path_factory.mktemp("words"))


@pytest.fixture(scope="session")
def questions(tmp_path_factory: pytest.TempPathFactory, of_run: Callable[..., Service]) -> Service:
    return of_run(make_questions(tmp_path_factory.mktemp("asked")))


@pytest.fixture(scope="session")
def over_http() -> Callable[..., ASGIApp]:
    """Makes the application of a service, which answers in a thread as a replica does."""

    def make(service: Service, settings: Settings | None = None) -> ASGIApp:
        async def answer(asked):
            return await asyncio.to_thread(service.answer, asked)

        async def check():
            await asyncio.to_thread(service.check)

        return application(service.described, settings or service.settings, Model(answer=answer, check=check))

    return make
