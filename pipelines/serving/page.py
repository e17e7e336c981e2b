"""The page: what it shows for a query, made in the process of the model, and small pictures of the corpus's files."""

from __future__ import annotations

import io
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import PIL.Image
from anyio import CapacityLimiter, to_thread
from cachetools import LRUCache

from polypool.infra.errors import AwayError, InputError
from polypool.pipelines.figures.pages.document import data_address
from polypool.pipelines.figures.pages.thumbnails import Thumbnails
from polypool.pipelines.models.search.queries import as_file
from polypool.pipelines.models.search.searches import AnswerSearch
from polypool.pipelines.serving.schema import ModelRequest, check_text
from polypool.pipelines.serving.service import SENT, Answered, Service
from polypool.tasks.datasets.open_corpora import media_file

OFFERED = 24  # images to choose from, on a page
FRAMES, PAUSE = 8, 400  # of a video, and milliseconds between two
KEPT = 64 << 20  # bytes of pictures
DECODED = 4  # pictures made at once


@dataclass(frozen=True, kw_only=True)
class PageRequest:
    """The fields of an address or a form, and the bytes of an uploaded file, if any."""

    fields: Mapping[str, str] = field(default_factory=dict)
    upload: bytes = b""


class PageContent(NamedTuple):
    """An HTTP status, and the values of the page's template."""

    status: int
    values: dict[str, Any]


class _UnknownIdError(InputError):
    """An id that is not in the split."""


class PageBuilder:
    """Makes the contents of pages.

    Args:
        service: the model, which is searched or answers questions.
        answer: answers rows, when it is their turn.
    """

    def __init__(
        self, service: Service, answer: Callable[[Sequence[ModelRequest]], Awaitable[Sequence[Answered]]]
    ) -> None:
        self.service, self.answer, self.limits = service, answer, service.settings.limits
        self.search: Any = service.search  # there is no page where it is None
        self.questions = isinstance(service.search, AnswerSearch)
        self.pictures = Pictures(service)

    async def content(self, request: PageRequest) -> PageContent:
        """Return what the page shows for a request: results, an alert, or images to choose from."""
        text, id = request.fields.get("q"), request.fields.get("id", "")
        values: dict[str, Any] = {"text": text or "", "questions": self.questions, "alert": "", "note": ""}
        values |= {"subject": None, "results": [], "choice": None, "upload": ""}
        if self.service.settings.images:
            values["upload"] = "video/*" if self.service.video else "image/*"
        try:
            if request.upload:
                values["subject"] = await to_thread.run_sync(self._uploaded, request.upload)
            elif id:
                values["subject"] = self._picture(id)
            if self.questions and not values["subject"]:
                values["choice"] = self._choice(request.fields.get("page", ""))
                values["note"] = "choose an image to ask about, or ask about one of your own"
                if text is not None:
                    raise InputError("choose an image first; then ask")
            elif text is not None or (values["subject"] and not self.questions) or request.upload:
                values |= await self._results(request, text or "")
            elif not values["subject"]:
                kind, split = self.search.adapter.modality, self.search.split
                values["choice"] = self._choice(request.fields.get("page", ""))
                values["note"] = (
                    f"{len(self.search.items):,} {kind}s of the split {split}: search them, or choose one to see the "
                    "captions that are most like it"
                )
        except InputError as error:
            if isinstance(error, AwayError):
                raise
            values["alert"] = str(error)
            return PageContent(status=404 if isinstance(error, _UnknownIdError) else 400, values=values)
        return PageContent(status=200, values=values)

    async def _results(self, request: PageRequest, text: str) -> dict[str, Any]:
        id = "" if request.upload else request.fields.get("id", "")
        by_text = self.questions or not (request.upload or id)
        if by_text:
            check_text(text, self.limits)
        row = ModelRequest(
            route="answer" if self.questions else "search",
            text=text if by_text else None,
            image=request.upload or None,
            id=id,
            k=self._k(request.fields.get("k", "")),
        )
        (found,) = await self.answer([row])
        if isinstance(found, Exception):
            raise found
        if self.questions:
            return {"results": found["answers"]}
        hits = found["hits"]
        if not by_text:
            return {"results": hits, "note": f"captions most like {id or SENT}"}
        pictures = [self._picture(hit["id"]) for hit in hits]
        lost = "the corpus has no image or video files here: scores and captions alone"
        note = "" if any(picture["there"] for picture in pictures) else lost
        return {
            "results": [hit | {"picture": it} for hit, it in zip(hits, pictures, strict=True)],
            "note": note,
        }

    def _k(self, text: str) -> int:
        most = self.limits.max_k
        if not text:
            return min(most, 5 if self.questions else 10)
        if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= most):
            raise InputError(f"k must be a whole number from 1 to {most}")
        return int(text[:9])

    def _choice(self, page: str) -> dict[str, Any] | None:
        """Return a page of images to choose from; None where the corpus is not at hand."""
        try:
            items = self.search.items
        except InputError:
            return None
        pages = -(-len(items) // OFFERED)
        at = min(int(page), pages - 1) if page.isascii() and page.isdigit() and len(page) < 10 else 0
        offered = items[at * OFFERED : (at + 1) * OFFERED]
        return {"images": [self._picture(item.id) for item in offered], "page": at, "pages": pages}

    def _picture(self, id: str) -> dict[str, Any]:
        if not self.pictures.known(id):
            kind = "video" if self.service.video else "image"
            raise _UnknownIdError(f"no {kind} of this split has the id {id[:80]!r}")
        there = self.pictures.has_file(id)
        return {"id": id, "there": there, "video": self.service.video, "data": ""}

    def _uploaded(self, data: bytes) -> dict[str, Any]:
        with as_file(data, what=SENT) as path:
            images = self.pictures.thumbnails.images(path, at_most=1)
        address = data_address(images[0], quality=85) if images else ""
        return {"id": SENT, "there": True, "video": False, "data": address}

    def close(self) -> None:
        """End the process that decodes videos."""
        self.pictures.thumbnails.close()


class Pictures:
    """Small pictures of the items of a split, made when first requested; no other file can be requested.

    Attributes:
        kept: what was made, by id and form, while there is room; the least recently used go first.
    """

    def __init__(self, service: Service) -> None:
        self.search: Any = service.search
        self.video = service.video
        self.waiting = service.settings.limits.max_queued
        self.thumbnails = Thumbnails(video=self.video)
        self.kept: LRUCache[tuple[str, bool], bytes] = LRUCache(KEPT, getsizeof=len)
        self._numbers: dict[str, int] = {}
        self._decoders = CapacityLimiter(DECODED)

    def known(self, id: str) -> bool:
        """Whether the split has an item of this id."""
        if not self._numbers:
            self._numbers = {item.id: number for number, item in enumerate(self.search.items)}
        return id in self._numbers

    def has_file(self, id: str) -> bool:
        """Whether an item has a file, inside the corpus."""
        return media_file(self.search.corpus, self.search.items[self._numbers[id]]) is not None

    async def picture(self, id: str, *, moving: bool) -> bytes | None:
        """Return a JPEG of an image or of a video's middle, or an animated WebP of a video; None if it cannot be made.

        Raises:
            AwayError: too many wait.
        """
        if data := self.kept.get((id, moving)):
            return data
        if not self.known(id) or (moving and not self.video):
            return None
        if self._decoders.statistics().tasks_waiting >= self.waiting:
            raise AwayError("too many ask at once; try again in a moment")
        data = await to_thread.run_sync(self._moving if moving else self._still, id, limiter=self._decoders)
        if data and len(data) <= self.kept.maxsize:
            self.kept[id, moving] = data
        return data

    def _images(self, id: str, at_most: int) -> list[PIL.Image.Image]:
        file = media_file(self.search.corpus, self.search.items[self._numbers[id]])
        return self.thumbnails.images(file, at_most=at_most)

    def _still(self, id: str) -> bytes | None:
        images = self._images(id, 1)
        return _encoded(images[0], "JPEG", quality=85) if images else None

    def _moving(self, id: str) -> bytes | None:
        first, *others = self._images(id, FRAMES) or [None]
        if first is None:
            return None
        return _encoded(
            first, "WEBP", save_all=True, append_images=others, duration=PAUSE, loop=0, quality=75
        )


def _encoded(image: PIL.Image.Image, format: str, **options: Any) -> bytes:
    data = io.BytesIO()
    image.save(data, format, **options)
    return data.getvalue()
