"""The model behind the door: rows of several requests go through it together, and each is answered by itself."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from infra.errors import FaultError, InputError
from pipelines.exporting.columns import EMBEDDING, SCORE, check_servable, makes_sets
from pipelines.exporting.rows import Row, answered, embedded
from pipelines.models import TrainedModel, load
from pipelines.searching.retrieval import Hit, RetrievalSearch
from pipelines.searching.uploads import as_file
from pipelines.serving.asked import Asked
from pipelines.serving.schema import Described, Route
from pipelines.serving.settings import Settings
from tasks.abilities import Answers, Searchable
from tasks.models.base import RetrievalModel

if TYPE_CHECKING:
    from pipelines.extraction.files import FileFeatures

_EXAMPLE = "a dog on the grass"
_SENT = "the image"

Answered = dict[str, Any] | InputError | FaultError
"""The columns of a row, or why there are none."""


class Service:
    """A trained model, ready to be asked.

    Args:
        settings: which, and what of it is served.

    Raises:
        InputError: no such model, none that reads rows, or a split that was named cannot be searched.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.trained: TrainedModel = load(settings.source, trust=settings.trust)
        check_servable(self.trained)
        self.sets = makes_sets(self.trained)
        self.search, self.no_search = self._search()
        self.files, self.no_images = self._files()
        self.described = self._describe()

    @property
    def notes(self) -> list[str]:
        """What is not served, and why."""
        search = f"there is no search: {self.no_search}"
        images = f"no images are taken, features alone: {self.no_images}"
        return [search] * bool(self.no_search) + [images] * bool(self.no_images)

    def warm(self) -> None:
        """Encode what is searched, and answer an example, before anyone asks."""
        if self.search:
            _ = self.search.items_gallery
            if self.takes_visual:
                _ = self.search.captions_gallery
        self.check()

    def check(self) -> None:
        """Answer an example.

        Raises:
            InputError | FaultError: the model cannot.
        """
        route = self.described.routes[0]
        visual = np.zeros((1, self.trained.adapter.visual_dim or 1), np.float32)
        if route == "embed":
            (found,) = self.answer([Asked(route=route, text=_EXAMPLE)])
        elif self.trained.adapter.visual_dim:
            (found,) = self.answer([Asked(route=route, text=_EXAMPLE, features=visual)])
        else:
            return  # it reads files of images, and looks at pairs
        if not isinstance(found, dict):
            raise found

    @property
    def takes_visual(self) -> bool:
        """Whether an image or video can be sent, in any form."""
        return bool(self.described.features) or self.described.image

    def answer(self, asked: Sequence[Asked]) -> list[Answered]:
        """Return an answer to each row; one that cannot be answered spoils none beside it."""
        found: list[Answered] = [InputError("")] * len(asked)
        kinds = {(each.route, each.k) for each in asked}  # k of others changes what a search finds
        for kind in kinds:
            numbers = [number for number, each in enumerate(asked) if (each.route, each.k) == kind]
            answers = self._together([asked[number] for number in numbers])
            for number, answer in zip(numbers, answers, strict=True):
                found[number] = answer
        return found

    def _together(self, asked: Sequence[Asked]) -> list[Answered]:
        """Answer rows that ask the same; where that fails, each alone, so that a failure is one row's."""
        try:
            with ExitStack() as files:
                rows = [Row(self._visual(each, files), each.text) for each in asked]
                return self._answer(asked[0].route, rows, asked[0].k)
        except Exception as error:
            if len(asked) > 1:
                return [self._together([each])[0] for each in asked]
            if isinstance(error, InputError):
                return [error]
            logging.getLogger("ray.serve").exception("a row that the model fails at")
            return [FaultError("the model failed at it; the log of its replica says why")]

    def _visual(self, asked: Asked, files: ExitStack) -> np.ndarray | Path | None:
        if asked.image is None:
            return asked.features
        path = files.enter_context(as_file(asked.image, what=_SENT))
        return self.files.of(path, video=False) if self.files else path

    def _answer(self, route: Route, rows: Sequence[Row], k: int) -> list[Answered]:
        if route == "search":
            return self._found(rows, k)
        if route == "answer":
            return [*answered(self.trained, rows)]
        column = EMBEDDING if route == "embed" else SCORE
        made = embedded(self.trained, rows, sets=self.sets)
        for row in made:
            if not np.isfinite(row[column]).all():
                raise InputError("the model makes no numbers of it")
        return [{column: row[column]} for row in made]

    def _found(self, rows: Sequence[Row], k: int) -> list[Answered]:
        texts = [row.text for row in rows if row.text is not None]
        visuals = [row.visual for row in rows if row.text is None]
        by_text = iter(self.search.by_texts(texts, k) if texts else [])
        by_visual = iter(self.search.by_visuals(visuals, k) if visuals else [])
        found = [next(by_visual if row.text is None else by_text) for row in rows]
        return [hits if isinstance(hits, InputError) else {"hits": _plain(hits)} for hits in found]

    def _search(self) -> tuple[RetrievalSearch | None, str]:
        """Return what is searched; where that is nothing, None and why."""
        settings, adapter = self.settings, self.trained.adapter
        if not settings.search or isinstance(adapter, Answers):
            return None, ""
        try:
            found = self.trained.open_search(settings.split or "test", index=settings.index)
        except InputError as error:
            if settings.split:
                raise
            return None, str(error)
        return found, ""

    def _files(self) -> tuple[FileFeatures | None, str]:
        """Return what describes images as the model's features were made; where that is nothing, None and why."""
        from pipelines.extraction.files import FileFeatures

        if not self.settings.images or not self.trained.adapter.visual_dim:
            return None, ""  # nobody wants it, or the model reads files itself
        try:
            adapter = self.trained.as_a(Searchable, "describe images", instead="send features")
            files = FileFeatures.for_model(adapter)
            files.check(video=False)
        except InputError as error:
            return None, str(error)
        return files, ""

    def _describe(self) -> Described:
        run, adapter, model = self.trained.run, self.trained.adapter, self.trained.model
        routes: list[Route] = []
        if isinstance(adapter, Answers):
            routes.append("answer")
        if isinstance(model, RetrievalModel):
            routes += ["embed", "score"] if model.has_embeddings else ["score"]
        return Described(
            source=self.settings.source.rstrip("/").rpartition("/")[2],  # where it lies is nobody's business
            recipe=run.recipe,
            task=run.task,
            modality=adapter.modality,
            aggregator=run.aggregator,
            similarity=str(getattr(model, "similarity", "") and type(model.similarity).__name__),
            metric=adapter.primary.name,
            protocol=run.protocol,
            routes=[*routes, *(["search"] if self.search else [])],
            features=adapter.visual_dim,
            image=not adapter.visual_dim or self.files is not None,
            shape=self._shape() if "embed" in routes else [],
            split=self.search.split if self.search else "",
            items=len(self.search.items) if self.search else 0,
            digests=self._digests(),
            limits={name: float(value) for name, value in vars(self.settings.limits).items()},
        )

    def _shape(self) -> list[int]:
        x = self.trained.encode_text([_EXAMPLE])[0]
        if not self.sets:
            return [*x.shape]
        return [2 if self.trained.model.similarity.of_distributions else -1, x.shape[-1]]

    def _digests(self) -> dict[str, str]:
        """Return the digests of the data; none where it is elsewhere."""
        try:
            return {
                name: digest
                for name, digest in self.trained.adapter.describe().items()
                if name in ("corpus", "features", "texts")
            }
        except InputError:
            return {}


def _plain(hits: Sequence[Hit]) -> list[dict[str, Any]]:
    """Return hits without where their files are."""
    return [{"rank": hit.rank, "score": hit.score, "id": hit.id, "caption": hit.caption} for hit in hits]
