"""A trained model as a service: validation of rows, and batches over concurrent requests."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from anyio import to_thread

from polypool.infra.errors import AwayError, FaultError, InputError
from polypool.infra.fields import is_unicode
from polypool.pipelines.models.search import AnswerSearch, Query, QueryReader, RetrievalSearch, as_file
from polypool.pipelines.models.table_rows import (
    EXAMPLE_TEXT,
    FEATURES,
    IMAGE,
    TEXT,
    check_servable,
    decode_image,
    embedded,
    makes_sets,
    matrix,
)
from polypool.pipelines.models.table_rows import Row as ModelRow
from polypool.pipelines.models.trained import TrainedModel, load
from polypool.pipelines.serving.schema import Limits, ModelInfo, Route, Row, Settings
from polypool.tasks.abilities import Answers, Searchable
from polypool.tasks.inputs.other_data import ChangedDataError
from polypool.tasks.models.retrieval_model import RetrievalModel

SENT = "the file that you sent"
SHOWN = ("rank", "score", "id", "caption")  # not the file, a path of this machine

RowResult = dict[str, Any] | InputError | FaultError
"""The columns of a row, or an error."""


@dataclass(frozen=True, kw_only=True)
class ModelRequest:
    """A validated row.

    Attributes:
        route: the endpoint.
        features: `(N, F)` of an image or video.
        image: content of an image file, or of a video file for a model of videos.
        id: id of an item in the corpus.
        text: a caption or question.
        k: number of results.
    """

    route: Route
    features: np.ndarray | None = None
    image: bytes | None = None
    id: str = ""
    text: str | None = None
    k: int = 1


def read_row(route: Route, row: Row, described: ModelInfo, limits: Limits, *, k: int) -> ModelRequest:
    """Validate a row of a request.

    Raises:
        InputError: a missing, superfluous, too large or invalid column.
    """
    given = [name for name in (FEATURES, IMAGE, TEXT) if getattr(row, name) is not None]
    taken = [FEATURES] * bool(described.features) + [IMAGE] * described.image
    visual, has = " or ".join(map(repr, taken)), " and ".join(map(repr, given)) or "nothing"
    if route in ("score", "answer"):
        if len(given) != 2 or TEXT not in given:
            what = "a question is about an image" if route == "answer" else "an image or video is compared"
            raise InputError(f"{what}; give {visual}, and {TEXT!r}, not {has}")
    elif len(given) != 1:
        raise InputError(f"give one of {visual} and {TEXT!r}, not {has}")
    for name in given:
        if name != TEXT and name not in taken:
            raise InputError(f"the model accepts no {name!r} here; give {visual}")
    if row.text is not None:
        check_text(row.text, limits)
    x_NF = None if row.features is None else matrix(row.features)
    if x_NF is not None:
        if x_NF.ndim != 2 or x_NF.shape[1] != described.features:
            raise InputError(
                f"{FEATURES!r} have shape {x_NF.shape}; expected (elements, {described.features})"
            )
        if len(x_NF) > limits.max_elements:
            raise InputError(
                f"{FEATURES!r} have {len(x_NF):,} elements; the limit is {limits.max_elements:,}"
            )
        if not np.isfinite(x_NF).all():
            raise InputError(f"{FEATURES!r} hold numbers that are too large for float32")
    image = None if row.image is None else decode_image(row.image)
    return ModelRequest(route=route, features=x_NF, image=image, text=row.text, k=k)


def check_text(text: str, limits: Limits) -> None:
    """Refuse a text that is too long, has no word, or is invalid Unicode."""
    if len(text) > limits.max_characters:
        raise InputError(f"a text of {len(text):,} characters; the limit is {limits.max_characters:,}")
    if not is_unicode(text):
        raise InputError("a text with half a surrogate pair; send valid Unicode")
    if not any(map(str.isalnum, text)):
        raise InputError("a text without a word; give one such as 'a dog on the grass'")


class Service:
    """A trained model, ready for requests.

    Args:
        trained: the model.
        settings: settings of the service.

    Attributes:
        described: description of the model.
        notes: unavailable features, and the reasons.

    Raises:
        InputError: the model reads no rows, the requested split cannot be searched, or its data have changed.
    """

    def __init__(self, trained: TrainedModel, settings: Settings) -> None:
        check_servable(trained)
        self.trained, self.settings = trained, settings
        self.video = trained.adapter.modality == "video"
        self.sets = makes_sets(trained)
        self.notes: list[str] = []
        self.search = self._open_search()
        self.reader = self.search.reader if self.search else QueryReader(trained.adapter)
        self.described = self._describe()

    @classmethod
    def load(cls, settings: Settings) -> Service:
        """Load the model that the settings name; raises as `load` and `Service`."""
        return cls(load(settings.source, other_data=settings.other_data, trust=settings.trust), settings)

    def warm(self) -> list[str]:
        """Encode the galleries and answer an example before the first request; return descriptions of the indices."""
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
            return  # a model of pixels that scores pairs
        visual = None if route == "embed" else np.zeros((1, width), np.float32)
        (found,) = self.answer([ModelRequest(route=route, text=EXAMPLE_TEXT, features=visual)])
        if not isinstance(found, dict):
            raise found

    def answer(self, requests: Sequence[ModelRequest]) -> list[RowResult]:
        """Return the answer to each row; an error affects only its row."""
        found: dict[int, RowResult] = {}
        for kind in {(each.route, each.k) for each in requests}:
            numbers = [number for number, each in enumerate(requests) if (each.route, each.k) == kind]
            answers = self._answer_batch([requests[number] for number in numbers])
            found |= dict(zip(numbers, answers, strict=True))
        return [found[number] for number in range(len(requests))]

    def _answer_batch(self, requests: Sequence[ModelRequest]) -> list[RowResult]:
        """Answer rows of one route and k as a batch; if that fails, one by one, to isolate the failing row."""
        try:
            with ExitStack() as files:
                queries = []
                for each in requests:
                    file = None if each.image is None else files.enter_context(as_file(each.image, what=SENT))
                    video = bool(file) and self.video
                    queries.append(
                        Query(text=each.text, id=each.id, file=file, video=video, features=each.features)
                    )
                return self._answer(requests[0].route, queries, requests[0].k)
        except Exception as error:
            if len(requests) > 1:
                return [self._answer_batch([each])[0] for each in requests]
            if isinstance(error, InputError):
                return [error]
            logging.getLogger(__name__).exception("the model failed at a row")
            return [FaultError("the model failed at it; see the log of the service")]

    def _answer(self, route: Route, queries: Sequence[Query], k: int) -> list[RowResult]:
        if isinstance(self.search, AnswerSearch):
            return [
                {"answers": [each._asdict() for each in best]} for best in self.search.find_each(queries, k)
            ]
        if route == "search":
            assert self.search is not None
            return [
                {"hits": [{name: getattr(hit, name) for name in SHOWN} for hit in hits]}
                for hits in self.search.find_each(queries, k)
            ]
        column = "embedding" if route == "embed" else "score"
        rows = [
            ModelRow(self.reader.visual(query) if query.is_visual else None, query.text) for query in queries
        ]
        made = embedded(self.trained, rows, sets=self.sets)
        if not all(np.isfinite(row[column]).all() for row in made):
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
            self.notes.append(f"search is unavailable: {error}")
            return None

    def _takes_images(self) -> bool:
        """Whether image files are accepted: by a model of pixels, or if features can be extracted here."""
        if not self.trained.adapter.visual_dim:
            return True
        if not self.settings.images:
            return False
        try:
            self.trained.as_a(Searchable, "describe images", instead="send features")
            self.reader.files.check(video=False)
        except InputError as error:
            self.notes.append(f"images are not accepted, only features: {error}")
            return False
        return True

    def _describe(self) -> ModelInfo:
        run, adapter, model = self.trained.run, self.trained.adapter, self.trained.model
        routes: list[Route] = ["answer"] if isinstance(adapter, Answers) else []
        if isinstance(model, RetrievalModel):
            routes += ["embed", "score"] if model.has_embeddings else ["score"]
        searched = self.search if isinstance(self.search, RetrievalSearch) else None
        if searched:
            routes.append("search")
        shape: list[int] = []
        if "embed" in routes:
            x = self.trained.encode_text([EXAMPLE_TEXT])[0]
            size = 2 if self.trained.similarity.of_distributions else -1
            shape = [size, x.shape[-1]] if self.sets else [*x.shape]
        digests: Mapping[str, str] = {}
        with suppress(InputError):  # the data are elsewhere
            digests = adapter.describe()
        return ModelInfo(
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
            image=self._takes_images(),
            shape=shape,
            split=searched.split if searched else "",
            items=len(searched.items) if searched else 0,
            digests={name: digests[name] for name in ("corpus", "features", "texts") if name in digests},
            limits={name: float(value) for name, value in vars(self.settings.limits).items()},
        )


class RowQueue:
    """A queue of rows, answered in batches of up to `max_batch` in one thread."""

    def __init__(self, service: Service) -> None:
        self.service, self.limits = service, service.settings.limits
        self.requests = 0
        self._rows: deque[tuple[ModelRequest, asyncio.Future[RowResult]]] = deque()
        self._worker: asyncio.Task[None] | None = None

    async def answer(self, rows: Sequence[ModelRequest]) -> Sequence[RowResult]:
        """Return the columns of each row, or its error.

        Raises:
            AwayError: the queue is full, or the answer takes too long.
        """
        if self.requests >= self.limits.max_queued:
            raise AwayError("too many requests; try again in a moment")
        patience = self.limits.patience
        futures = [asyncio.get_running_loop().create_future() for _ in rows]
        self._rows.extend(zip(rows, futures, strict=True))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        self.requests += 1
        try:
            return await asyncio.wait_for(asyncio.gather(*futures), patience)
        except TimeoutError as error:
            raise AwayError(f"no answer in {patience:g} seconds; try again in a moment") from error
        finally:
            self.requests -= 1

    async def _work(self) -> None:
        while self._rows:
            batch = [self._rows.popleft() for _ in range(min(self.limits.max_batch, len(self._rows)))]
            batch = [(row, future) for row, future in batch if not future.done()]  # still awaited
            if not batch:
                continue
            rows = [row for row, _ in batch]
            answers = await to_thread.run_sync(self.service.answer, rows, abandon_on_cancel=True)
            for (_, future), answer in zip(batch, answers, strict=True):
                if not future.done():
                    future.set_result(answer)
