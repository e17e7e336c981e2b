"""A trained model of retrieval and a split of its corpus: what is like a text, an image, a video."""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from infra.data import Batch
from pipelines.evaluate import Trained
from pipelines.searching.best import Best
from pipelines.searching.galleries import Gallery, Method, make_gallery
from pipelines.searching.given import GivenVisuals, asked, evenly

SAMPLE = 64  # queries on which an index that is not exact is measured
CHUNK = 64  # items or captions that go through the model at once, and are held together


@dataclass(frozen=True, kw_only=True)
class Hit:
    """One result. `file` is empty where the corpus has none."""

    rank: int
    score: float
    id: str
    file: str
    caption: str


class Finder:
    """Searches the images or videos of a split by text, and their captions by image or video.

    Args:
        trained: the run.
        split: whose items and captions are searched.
        method: how; see `make_gallery`.

    Raises:
        InputError: no such split, or items without features.
    """

    def __init__(self, trained: Trained, *, split: str = "test", method: Method = "auto") -> None:
        self.run = trained.run
        self.adapter, self.model, self.split, self.method = trained.adapter, trained.model, split, method
        self.corpus = self.adapter.corpus
        self.items = self.corpus.items(split)
        self.pairs = self.adapter.data(split)
        self.given = GivenVisuals(self.adapter)

    @cached_property
    def items_gallery(self) -> Gallery:
        """The images or videos, encoded when they are first searched."""
        return make_gallery(
            self.model,
            "visual",
            lambda: self.pairs.items(CHUNK),
            sample=lambda: self.pairs.captions.batch(evenly(len(self.pairs.texts), SAMPLE)),
            method=self.method,
        )

    @cached_property
    def captions_gallery(self) -> Gallery:
        """The captions, likewise."""

        def sample() -> Batch:
            item_B = evenly(len(self.items), SAMPLE)
            visual, mask_BN = self.pairs.visual.batch(item_B, sample_B=item_B, draw=None)
            return {"visual": visual, "visual_mask": mask_BN}

        batches = lambda: self.pairs.sentences(CHUNK)  # noqa: E731
        return make_gallery(self.model, "text", batches, sample=sample, method=self.method)

    def by_text(self, text: str, k: int) -> list[Hit]:
        """Return the images or videos that are most like a text, each with its first caption.

        Raises:
            InputError: there is no word in it.
        """
        with contextlib.redirect_stdout(io.StringIO()):  # a parser of role graphs counts what it parsed
            query = asked(self.adapter, text)
        found = self.items_gallery.top(query, k)
        return self._hits(found, [(place, self.items[place].captions[0]) for place in found.place_K.tolist()])

    def by_file(self, path: Path, k: int, *, video: bool) -> list[Hit]:
        """Return the captions that are most like a file.

        Raises:
            InputError: it is missing, does not decode, or its features cannot be made.
        """
        return self._captions(self.given.of_file(path, video=video), k)

    def by_id(self, id: str, k: int) -> list[Hit]:
        """Return the captions that are most like an item of the corpus.

        Raises:
            InputError: there is no such item.
        """
        return self._captions(self.given.of_id(id), k)

    def _captions(self, query: Batch, k: int) -> list[Hit]:
        found, owner_G = self.captions_gallery.top(query, k), self.pairs.owner_G
        places = found.place_K.tolist()
        return self._hits(found, [(int(owner_G[place]), self.pairs.texts[place]) for place in places])

    def _hits(self, found: Best, rows: list[tuple[int, str]]) -> list[Hit]:
        return [
            Hit(
                rank=rank,
                score=score,
                id=self.items[place].id,
                file=str(self.corpus.image_path(self.items[place])) if self.items[place].path else "",
                caption=caption,
            )
            for rank, (score, (place, caption)) in enumerate(
                zip(found.score_K.tolist(), rows, strict=True), start=1
            )
        ]

    def close(self) -> None:
        """End the processes that decode."""
        self.given.close()
