"""The pages of a query: results of a search, or answers to a question, as HTML whose every value is escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from infra.errors import InputError
from pipelines.pages.document import templates
from pipelines.searching.answers import AnswerSearch
from pipelines.searching.pictures import Pictures
from pipelines.searching.retrieval import Hit, RetrievalSearch
from pipelines.searching.uploads import Asked, as_file

LONGEST = 1000  # characters of a query
OFFERED = 24  # images to choose from, on a page
SENT = "the file that you sent"


class Page(NamedTuple):
    """An HTTP status and the HTML."""

    status: int
    html: str


@dataclass(frozen=True, kw_only=True)
class _Picture:
    """An image or video of the split, or one that was sent.

    Attributes:
        id: of the split's.
        there: whether its file is.
        video: it moves.
        data: of one that was sent, a small picture as a `data:` address.
    """

    id: str
    there: bool
    video: bool
    data: str = ""


@dataclass(frozen=True, kw_only=True)
class _Choice:
    """Images to choose from, page `page` (from 0) of `pages`."""

    images: list[_Picture]
    page: int
    pages: int


class Views:
    """Makes pages, in one thread.

    Args:
        searched: a trained model, ready for queries.
        title: of the pages.
        k: results; 10 where it is 0, and 5 answers.
    """

    def __init__(self, searched: RetrievalSearch | AnswerSearch, *, title: str, k: int = 0) -> None:
        self.searched, self.title = searched, title
        self.video = searched.adapter.modality == "video"
        self.pictures = Pictures(searched.corpus, searched.items, video=self.video)
        self.k = k or (5 if isinstance(searched, AnswerSearch) else 10)
        self._templates = templates("pipelines.searching")

    def pages(self, asked: Sequence[Asked]) -> list[Page]:
        """Return a page for each visitor; the texts that they look for go through the model together."""
        if isinstance(self.searched, AnswerSearch):
            return [self._question(self.searched, each) for each in asked]
        alone = (each.query for each in asked if not each.upload and "like" not in each.query)
        texts = dict.fromkeys(
            query["q"] for query in alone if len(query.get("q", "")) <= LONGEST and "q" in query
        )
        found = dict(zip(texts, self.searched.by_texts([*texts], self.k), strict=True)) if texts else {}
        return [self._search(self.searched, each, found) for each in asked]

    def message(self, status: int, text: str) -> Page:
        """Return a page that says why there is no other."""
        return self._rendered("page", status, alert=text)

    def _rendered(self, name: str, status: int, **values: Any) -> Page:
        template = self._templates.get_template(f"{name}.html.j2")
        return Page(status, template.render(title=self.title, longest=LONGEST, **values))

    def _search(
        self, search: RetrievalSearch, asked: Asked, found: Mapping[str, list[Hit] | InputError]
    ) -> Page:
        text, id = asked.query.get("q"), asked.query.get("like")
        values = {"text": text or "", "alert": "", "note": "", "like": None, "hits": [], "pictures": []}
        values |= {"choice": None, "upload": "video/*" if self.video else "image/*"}
        status = 200
        try:
            if asked.upload:
                values |= self._captions_of(search, asked.upload)
            elif id is not None:
                values |= self._captions_like(search, id)
            elif text is not None:
                values |= self._like_text(text, found)
            else:
                kind = search.adapter.modality
                values["note"] = (
                    f"{len(search.items):,} {kind}s of the split {search.split}: search them, or choose one to see the "
                    "captions that are most like it"
                )
                values["choice"] = self._choice(asked.query.get("page", "0"))
        except _UnknownError as error:
            status, values["alert"] = 404, str(error)
        except InputError as error:
            status, values["alert"] = 400, str(error)
        return self._rendered("search", status, **values)

    def _captions_of(self, search: RetrievalSearch, upload: bytes) -> dict[str, Any]:
        """Return the captions that are most like a file that was sent."""
        with as_file(upload, what=SENT) as path:
            hits = search.by_file(path, self.k, video=self.video)
            return {"note": f"captions most like {SENT}", "like": self._sent(path), "hits": hits}

    def _sent(self, path: Path) -> _Picture:
        return _Picture(id=SENT, there=True, video=False, data=self.pictures.sent(path))

    def _captions_like(self, search: RetrievalSearch, id: str) -> dict[str, Any]:
        picture = self._picture(id)
        hits = search.by_id(id, self.k)
        return {"note": f"captions most like {id}", "like": picture, "hits": hits}

    def _like_text(self, text: str, found: Mapping[str, list[Hit] | InputError]) -> dict[str, Any]:
        _check_length(text)
        hits = found[text]
        if isinstance(hits, InputError):
            raise hits
        pictures = [self._picture(hit.id) for hit in hits]
        lost = "the corpus has no image or video files here: scores and captions alone"
        return {"hits": hits, "pictures": pictures, "note": "" if any(it.there for it in pictures) else lost}

    def _question(self, search: AnswerSearch, asked: Asked) -> Page:
        id, text = asked.query.get("image", ""), asked.query.get("q")
        values = {"text": text or "", "alert": "", "image": None, "answers": [], "choice": None}
        status = 200
        try:
            if asked.upload:
                with as_file(asked.upload, what=SENT) as path:
                    values["image"] = self._sent(path)
                    _check_length(text or "")
                    values["answers"] = search.of_file(path, text or "", self.k)
            elif id:
                values["image"] = self._picture(id)
                if text is not None:
                    _check_length(text)
                    values["answers"] = search.of_id(id, text, self.k)
            else:
                values["choice"] = self._choice(asked.query.get("page", "0"))
                if text is not None:
                    raise InputError("choose an image first; then ask")
        except _UnknownError as error:
            status, values["alert"] = 404, str(error)
        except InputError as error:
            status, values["alert"] = 400, str(error)
        return self._rendered("question", status, **values)

    def _choice(self, number: str) -> _Choice:
        items = self.searched.items
        pages = -(-len(items) // OFFERED)
        at = min(int(number), pages - 1) if number.isascii() and number.isdigit() and len(number) < 10 else 0
        offered = items[at * OFFERED : (at + 1) * OFFERED]
        return _Choice(images=[self._picture(item.id) for item in offered], page=at, pages=pages)

    def _picture(self, id: str) -> _Picture:
        if not self.pictures.known(id):
            kind = "video" if self.video else "image"
            raise _UnknownError(f"no {kind} of this split has the id {id[:80]!r}")
        return _Picture(id=id, there=self.pictures.file(id) is not None, video=self.video)

    def close(self) -> None:
        """End the process that decodes videos."""
        self.pictures.close()


def _check_length(text: str) -> None:
    if len(text) > LONGEST:
        raise InputError(f"a query of {len(text):,} characters; at most {LONGEST:,} will do")


class _UnknownError(InputError):
    """An id that nothing has."""
