"""The page: what it shows for a query, and small pictures of the corpus's files."""

from __future__ import annotations

import io
from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import Any

from anyio import CapacityLimiter, to_thread

from polypool.infra.errors import AwayError, InputError
from polypool.pipelines.figures.pages.document import data_address
from polypool.pipelines.figures.pages.thumbnails import Thumbnails
from polypool.pipelines.models.queries import as_file
from polypool.pipelines.models.search import AnswerSearch
from polypool.pipelines.serving.schema import ModelRequest, check_text
from polypool.pipelines.serving.service import SENT, RowQueue, Service
from polypool.tasks.datasets.open_corpora import media_file

OFFERED = 24  # images to choose from, on a page
FRAMES, PAUSE = 8, 400  # of a video, and milliseconds between two
KEPT = 1024  # pictures in memory, of about 10 kB
DECODED = 4  # pictures made at once


class _UnknownIdError(InputError):
    """An id that is not in the split."""


class Page:
    """Contents of pages.

    Args:
        service: the model, which is searched or answers questions.
        queue: in which rows wait for the model.
    """

    def __init__(self, service: Service, queue: RowQueue) -> None:
        self.service, self.queue, self.limits = service, queue, service.settings.limits
        self.search: Any = service.search  # there is no page where it is None
        self.questions = isinstance(service.search, AnswerSearch)
        self.thumbnails = Thumbnails(video=service.video)
        self.decoders = CapacityLimiter(DECODED)
        self.picture = lru_cache(KEPT)(self._picture)

    async def content(self, fields: Mapping[str, str], upload: bytes) -> tuple[int, dict[str, Any]]:
        """Return an HTTP status, and the template's values: results, an alert, or images to choose from.

        Args:
            fields: of an address or a form.
            upload: the bytes of an uploaded file; empty for none.
        """
        text, id = fields.get("q"), fields.get("id", "")
        values: dict[str, Any] = {"text": text or "", "questions": self.questions, "alert": "", "note": ""}
        values |= {"subject": None, "results": [], "choice": None, "upload": ""}
        if self.service.settings.images:
            values["upload"] = "video/*" if self.service.video else "image/*"
        try:
            if upload:
                values["subject"] = await to_thread.run_sync(self._uploaded, upload)
            elif id:
                values["subject"] = self._subject(id)
            if self.questions and not values["subject"]:
                values["choice"] = self._choice(fields.get("page", ""))
                values["note"] = "choose an image to ask about, or ask about one of your own"
                if text is not None:
                    raise InputError("choose an image first; then ask")
            elif text is not None or values["subject"]:
                if text is not None or not self.questions or upload:
                    values |= await self._results(fields, upload, text or "")
            else:
                kind, split = self.search.adapter.modality, self.search.split
                values["choice"] = self._choice(fields.get("page", ""))
                values["note"] = (
                    f"{len(self.search.items):,} {kind}s of the split {split}: search them, or choose one to see the "
                    "captions that are most like it"
                )
        except AwayError:
            raise
        except InputError as error:
            values["alert"] = str(error)
            return 404 if isinstance(error, _UnknownIdError) else 400, values
        return 200, values

    async def _results(self, fields: Mapping[str, str], upload: bytes, text: str) -> dict[str, Any]:
        id = "" if upload else fields.get("id", "")
        by_text = self.questions or not (upload or id)
        if by_text:
            check_text(text, self.limits)
        row = ModelRequest(
            route="answer" if self.questions else "search",
            text=text if by_text else None,
            image=upload or None,
            id=id,
            k=self._k(fields.get("k", "")),
        )
        (found,) = await self.queue.answer([row])
        if isinstance(found, Exception):
            raise found
        if self.questions:
            return {"results": found["answers"]}
        if not by_text:
            return {"results": found["hits"], "note": f"captions most like {id or SENT}"}
        hits = [hit | {"picture": self._subject(hit["id"])} for hit in found["hits"]]
        lost = "the corpus has no image or video files here: scores and captions alone"
        return {"results": hits, "note": "" if any(hit["picture"]["there"] for hit in hits) else lost}

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
        return {"images": [self._subject(item.id) for item in offered], "page": at, "pages": pages}

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {item.id: number for number, item in enumerate(self.search.items)}

    def _file(self, id: str) -> Any:
        """Return the file of an item, inside the corpus, if it has one."""
        return media_file(self.search.corpus, self.search.items[self._numbers[id]])

    def _subject(self, id: str) -> dict[str, Any]:
        if id not in self._numbers:
            kind = "video" if self.service.video else "image"
            raise _UnknownIdError(f"no {kind} of this split has the id {id[:80]!r}")
        return {"id": id, "there": self._file(id) is not None, "video": self.service.video, "data": ""}

    def _uploaded(self, data: bytes) -> dict[str, Any]:
        with as_file(data, what=SENT) as path:
            images = self.thumbnails.images(path, at_most=1)
        address = data_address(images[0], quality=85) if images else ""
        return {"id": SENT, "there": True, "video": False, "data": address}

    def _picture(self, id: str, moving: bool) -> bytes | None:
        """Return a JPEG of an image or a video's middle, or an animated WebP of a video; None if it cannot be made."""
        if id not in self._numbers or (moving and not self.service.video):
            return None
        images = self.thumbnails.images(self._file(id), at_most=FRAMES if moving else 1)
        if not images:
            return None
        data = io.BytesIO()
        if moving:
            options = {"append_images": images[1:], "duration": PAUSE, "loop": 0, "quality": 75}
            images[0].save(data, "WEBP", save_all=True, **options)
        else:
            images[0].save(data, "JPEG", quality=85)
        return data.getvalue()
