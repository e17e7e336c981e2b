"""A trained model as a service: rows of several requests go through it together."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
from anyio import to_thread

from polypool.infra.errors import AwayError, FaultError, InputError
from polypool.pipelines.models.queries import Query, QueryReader, as_file
from polypool.pipelines.models.search import AnswerSearch, RetrievalSearch
from polypool.pipelines.models.table_rows import EXAMPLE_TEXT, Row, check_servable, embedded, makes_sets
from polypool.pipelines.models.trained import TrainedModel, load
from polypool.pipelines.serving.schema import Described, ModelRequest, Route
from polypool.pipelines.serving.settings import Settings
from polypool.tasks.abilities import Answers, Searchable
from polypool.tasks.inputs.other_data import ChangedDataError
from polypool.tasks.models.retrieval_model import RetrievalModel

SENT = "the file that you sent"
SHOWN = ("rank", "score", "id", "caption")  # of a hit, whose file is a path of this machine

Answered = dict[str, Any] | InputError | FaultError
"""The columns of a row, or why there are none."""


class Service:
    """A trained model, ready for requests.

    Args:
        trained: the model.
        settings: what of it is served.

    Attributes:
        described: what is served.
        notes: what is not served, and why.

    Raises:
        InputError: the model reads no rows, or a split that was named cannot be searched.
    """

    def __init__(self, trained: TrainedModel, settings: Settings) -> None:
        check_servable(trained)
        self.trained, self.settings = trained, settings
        self.video = trained.adapter.modality == "video"
        self.sets = makes_sets(trained)
        self.notes: list[str] = []
        self.search = self._open_search()
        self.reader = self.search.reader if self.search else QueryReader(trained.adapter)
        self.described = self._describe(image=self._takes_images())

    @classmethod
    def load(cls, settings: Settings) -> Service:
        """Load the model that the settings name; raises as `load` and `Service`."""
        return cls(load(settings.source, other_data=settings.other_data, trust=settings.trust), settings)

    def warm(self) -> list[str]:
        """Encode what is searched, and answer an example, before the first request; return how it is searched."""
        if isinstance(self.search, RetrievalSearch):
            _ = self.search.items_gallery
            if self.described.features or self.described.image:
                _ = self.search.captions_gallery
        self.check()
        return self.search.about if isinstance(self.search, RetrievalSearch) else []

    def check(self) -> None:
        """Answer an example.

        Raises:
            InputError | FaultError: the model cannot.
        """
        width, route = self.trained.adapter.visual_dim, self.described.routes[0]
        if route != "embed" and not width:
            return  # it reads image files, and looks at pairs
        visual = None if route == "embed" else np.zeros((1, width), np.float32)
        (found,) = self.answer([ModelRequest(route=route, text=EXAMPLE_TEXT, features=visual)])
        if not isinstance(found, dict):
            raise found

    def answer(self, requests: Sequence[ModelRequest]) -> list[Answered]:
        """Return an answer to each row; one that fails does not affect the others."""
        found: dict[int, Answered] = {}
        for kind in {(each.route, each.k) for each in requests}:  # k of others changes what a search finds
            numbers = [number for number, each in enumerate(requests) if (each.route, each.k) == kind]
            answers = self._answer_alike([requests[number] for number in numbers])
            found |= dict(zip(numbers, answers, strict=True))
        return [found[number] for number in range(len(requests))]

    def _answer_alike(self, requests: Sequence[ModelRequest]) -> list[Answered]:
        """Answer rows of one route together; where that fails, each alone, so that a failure is one row's."""
        try:
            with ExitStack() as files:
                queries = [self._query(each, files) for each in requests]
                return self._answer(requests[0].route, queries, requests[0].k)
        except Exception as error:
            if len(requests) > 1:
                return [self._answer_alike([each])[0] for each in requests]
            if isinstance(error, InputError):
                return [error]
            logging.getLogger(__name__).exception("the model failed at a row")
            return [FaultError("the model failed at it; the log of the service says why")]

    def _query(self, request: ModelRequest, files: ExitStack) -> Query:
        file = None if request.image is None else files.enter_context(as_file(request.image, what=SENT))
        video = bool(file) and self.video
        return Query(text=request.text, id=request.id, file=file, video=video, features=request.features)

    def _answer(self, route: Route, queries: Sequence[Query], k: int) -> list[Answered]:
        if isinstance(self.search, AnswerSearch):
            return [
                {"answers": [each._asdict() for each in best]} for best in self.search.find_each(queries, k)
            ]
        if route == "search":
            assert self.search is not None
            found = self.search.find_each(queries, k)
            return [
                {"hits": [{name: getattr(hit, name) for name in SHOWN} for hit in hits]} for hits in found
            ]
        column = "embedding" if route == "embed" else "score"
        rows = [Row(self.reader.visual(query) if query.is_visual else None, query.text) for query in queries]
        made = embedded(self.trained, rows, sets=self.sets)
        for row in made:
            if not np.isfinite(row[column]).all():
                raise InputError("the model's result is not finite")
        return [{column: row[column]} for row in made]

    def _open_search(self) -> RetrievalSearch | AnswerSearch | None:
        settings, adapter = self.settings, self.trained.adapter
        answers = isinstance(adapter, Answers)
        if not settings.search and not answers:
            return None
        try:
            return self.trained.open_search(settings.split or "test", index=settings.index)
        except ChangedDataError:
            raise
        except InputError as error:
            if settings.split:
                raise
            if answers:
                return AnswerSearch(adapter, self.trained.model)
            self.notes.append(f"there is no search: {error}")
            return None

    def _takes_images(self) -> bool:
        """Whether image files are taken: by a model that reads them, or whose features can be computed here."""
        if not self.trained.adapter.visual_dim:
            return True
        if not self.settings.images:
            return False
        try:
            self.trained.as_a(Searchable, "describe images", instead="send features")
            self.reader.files.check(video=False)
        except InputError as error:
            self.notes.append(f"no images are taken, features alone: {error}")
            return False
        return True

    def _describe(self, *, image: bool) -> Described:
        run, adapter, model = self.trained.run, self.trained.adapter, self.trained.model
        routes: list[Route] = ["answer"] if isinstance(adapter, Answers) else []
        if isinstance(model, RetrievalModel):
            routes += ["embed", "score"] if model.has_embeddings else ["score"]
        searched = self.search if isinstance(self.search, RetrievalSearch) else None
        if searched:
            routes.append("search")
        return Described(
            source=self.settings.source.rstrip("/").rpartition("/")[2],  # without the folders of this machine
            title=f"{run.label} · {run.aggregator} · seed {run.seed}",
            recipe=run.recipe,
            task=run.task,
            modality=adapter.modality,
            aggregator=run.aggregator,
            similarity=str(getattr(model, "similarity", "") and type(model.similarity).__name__),
            metric=adapter.primary.name,
            protocol=run.protocol,
            routes=routes,
            page=self.settings.page and self.search is not None,
            features=adapter.visual_dim,
            image=image,
            shape=self._shape() if "embed" in routes else [],
            split=searched.split if searched else "",
            items=len(searched.items) if searched else 0,
            digests=self._digests(),
            limits={name: float(value) for name, value in vars(self.settings.limits).items()},
        )

    def _shape(self) -> list[int]:
        x = self.trained.encode_text([EXAMPLE_TEXT])[0]
        if not self.sets:
            return [*x.shape]
        return [2 if self.trained.similarity.of_distributions else -1, x.shape[-1]]

    def _digests(self) -> dict[str, str]:
        try:
            digests = self.trained.adapter.describe()
        except InputError:
            return {}
        return {name: text for name, text in digests.items() if name in ("corpus", "features", "texts")}


class RowQueue:
    """Rows that wait for the model: up to `max_batch` of them are answered together, in one thread."""

    def __init__(self, service: Service) -> None:
        self.service, self.limits = service, service.settings.limits
        self.requests = 0
        self._rows: deque[tuple[ModelRequest, asyncio.Future[Answered]]] = deque()
        self._worker: asyncio.Task[None] | None = None

    async def answer(self, rows: Sequence[ModelRequest]) -> Sequence[Answered]:
        """Return the columns of each row, or why there are none.

        Raises:
            AwayError: too many requests wait, or the answer takes too long.
        """
        if self.requests >= self.limits.max_queued:
            raise AwayError("too many ask at once; try again in a moment")
        futures = [asyncio.get_running_loop().create_future() for _ in rows]
        self._rows.extend(zip(rows, futures, strict=True))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        self.requests += 1
        try:
            return await asyncio.gather(*futures)
        finally:
            self.requests -= 1

    async def _work(self) -> None:
        while self._rows:
            batch = [self._rows.popleft() for _ in range(min(self.limits.max_batch, len(self._rows)))]
            batch = [(row, future) for row, future in batch if not future.done()]  # clients that left
            rows = [row for row, _ in batch]
            answers = await to_thread.run_sync(self.service.answer, rows, abandon_on_cancel=True)
            for (_, future), answer in zip(batch, answers, strict=True):
                if not future.done():
                    future.set_result(answer)
