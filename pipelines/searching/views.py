"""What the page shows for a query: results of a search, or answers to a question."""

from __future__ import annotations

from collections.abc import Mapping
from threading import Lock

from infra.errors import InputError
from pipelines.searching import page
from pipelines.searching.answerer import Answerer
from pipelines.searching.finder import Finder, Hit
from pipelines.searching.pictures import Pictures

LONGEST = 1000  # characters of a query
OFFERED = 24  # images to choose from, on a page


class Views:
    """Makes the page's body.

    Args:
        asked: a trained model, ready to be asked.
        k: results; 10 where it is 0, and 5 answers.
    """

    def __init__(self, asked: Finder | Answerer, *, k: int = 0) -> None:
        self.asked, self._lock = asked, Lock()  # one query at a time goes through the model
        self.video = getattr(asked.adapter, "modality", "image") == "video"
        self.pictures = Pictures(asked.corpus, asked.items, video=self.video)
        self.k = k or (5 if isinstance(asked, Answerer) else 10)

    def body(self, query: Mapping[str, str]) -> tuple[int, str]:
        """Return the status and the HTML for the parameters of an address."""
        if isinstance(self.asked, Answerer):
            return self._question(self.asked, query)
        return self._search(self.asked, query)

    def _search(self, finder: Finder, query: Mapping[str, str]) -> tuple[int, str]:
        text, like = query.get("q"), query.get("like")
        form = page.form(text or "", placeholder="a dog on the grass", button="Search")
        try:
            if like is not None:
                return 200, form + self._captions(finder, like)
            if text is None:
                return 200, form + page.note(
                    f"{len(finder.items):,} {finder.adapter.modality}s: {finder.split}"
                )
            self._check(text)
            with self._lock:
                hits = finder.by_text(text, self.k)
        except _UnknownError as error:
            return 404, form + page.alert(str(error))
        except InputError as error:
            return 400, form + page.alert(str(error))
        there = [(hit, self.pictures.file(hit.id) is not None) for hit in hits]
        return 200, form + self._without_files(there) + page.grid(there, video=self.video)

    def _captions(self, finder: Finder, id: str) -> str:
        self._known(id)
        with self._lock:
            hits = finder.by_id(id, self.k)
        shown = page.picture(id, there=self.pictures.file(id) is not None, video=self.video, css="asked")
        return page.note(f"captions most like {id}") + shown + page.rows(hits)

    def _without_files(self, there: list[tuple[Hit, bool]]) -> str:
        if any(has for _, has in there):
            return ""
        return page.note("the corpus has no image or video files here: scores and captions alone")

    def _question(self, answerer: Answerer, query: Mapping[str, str]) -> tuple[int, str]:
        id, text = query.get("image", ""), query.get("q")
        try:
            if not id:
                if text is not None:
                    raise InputError("choose an image first; then ask")
                return 200, self._choice(answerer, query.get("page", "0"))
            self._known(id)
            form = page.form(text or "", placeholder="what colour is the car?", button="Ask", image=id)
            shown = page.picture(id, there=self.pictures.file(id) is not None, video=False, css="asked")
            if text is None:
                return 200, shown + form
            try:
                self._check(text)
                with self._lock:
                    found = answerer.of_id(id, text, self.k)
            except InputError as error:
                return 400, shown + form + page.alert(str(error))
            return 200, shown + form + page.answers(found)
        except _UnknownError as error:
            return 404, page.alert(str(error))
        except InputError as error:
            return 400, page.alert(str(error)) + self._choice(answerer, "0")

    def _choice(self, answerer: Answerer, number: str) -> str:
        pages = -(-len(answerer.items) // OFFERED)
        at = min(int(number), pages - 1) if number.isascii() and number.isdigit() and len(number) < 10 else 0
        offered = answerer.items[at * OFFERED : (at + 1) * OFFERED]
        ids = [(item.id, self.pictures.file(item.id) is not None) for item in offered]
        return page.note("choose an image to ask about") + page.choice(ids, number=at, pages=pages)

    def _known(self, id: str) -> None:
        if not self.pictures.known(id):
            raise _UnknownError(
                f"no {'video' if self.video else 'image'} of this split has the id {id[:80]!r}"
            )

    def _check(self, text: str) -> None:
        if len(text) > LONGEST:
            raise InputError(f"a query of {len(text):,} characters; at most {LONGEST:,} will do")

    def close(self) -> None:
        """End the process that decodes videos."""
        self.pictures.close()


class _UnknownError(InputError):
    """An id that nothing has."""
