"""A split's scores, kept: computed for a few captions at a time, so that only the videos' embeddings are held meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from infra.device import on_device
from infra.dist import gather_uneven
from tasks.models.hgr_levels import VideoEmbeddings
from tasks.models.sets import Sets, encode_sets
from tasks.models.split_embeddings import Batch, Batches, encode

VIDEOS = 64  # of one part: their frames are padded to a common number
PAGE = 512


class ScorePages:
    """Called with two slices, it returns a block of the score matrix `(Q, G)`.

    The matrix lies in pages of a few columns each, since nobody says beforehand how many captions will come.

    Args:
        rows: how many videos there are, Q.
        device: where the scores are kept.
    """

    def __init__(self, rows: int, *, device: torch.device) -> None:
        self.rows, self.device, self.columns = rows, device, 0
        self.pages: list[Tensor] = []

    @classmethod
    def of_captions(
        cls, score: Callable[[Batch], Tensor], captions: Batches, *, rows: int, device: torch.device
    ) -> ScorePages:
        """Score all captions; every worker its share, equally many batches each, and each keeps the scores of all.

        Args:
            score: returns the `(Q, B)` scores of all videos with a batch of captions.
            captions: the batches.
            rows: how many videos there are.
            device: where `score` computes.
        """
        kept = cls(rows, device=device)
        for number_B, batch in captions:
            sim_QB = score(on_device(batch, device)).float()
            kept.add(gather_uneven(number_B.to(device)), gather_uneven(sim_QB.T).T)
        return kept

    def add(self, number_B: Tensor, sim_QB: Tensor) -> None:
        """Keep the scores of some captions, given their numbers; a caption that comes again replaces itself."""
        number_B = number_B.cpu()
        self.columns = max(self.columns, int(number_B.max()) + 1)
        while len(self.pages) * PAGE < self.columns:
            self.pages.append(torch.zeros(self.rows, PAGE, dtype=torch.float32, device=self.device))
        order_B = number_B.argsort()
        _, count = (number_B[order_B] // PAGE).unique_consecutive(return_counts=True)
        for place in order_B.split(count.tolist()):
            page = self.pages[int(number_B[place[0]]) // PAGE]
            page[:, (number_B[place] % PAGE).to(self.device)] = sim_QB[:, place.to(self.device)]

    def __call__(self, images: slice, captions: slice) -> Tensor:
        """Return the scores of images against captions, float32."""
        start, stop, step = captions.indices(self.columns)
        assert step == 1, "captions are asked for in one piece"
        first, last = start // PAGE, -(-stop // PAGE)
        block = torch.cat([page[images] for page in self.pages[first:last]], dim=1)
        return block[:, start - first * PAGE : stop - first * PAGE]


def hold_videos(
    encode_batch: Callable[[Batch], VideoEmbeddings], images: Batches, *, device: torch.device
) -> list[VideoEmbeddings]:
    """Encode the videos of a split, and return those of all workers in their order, in parts of a few."""
    whole, verb, noun = [], [], []
    for number_B, batch in images:
        embeddings = encode_batch(on_device(batch, device))
        whole.append((number_B, {"embedding": embeddings.embedding}))
        verb.append((number_B, embeddings.verb._asdict()))
        noun.append((number_B, embeddings.noun._asdict()))
    embedding = encode(lambda batch: batch["embedding"], _emptied(whole), device=device)
    levels = []
    for level in (verb, noun):
        sets = encode_sets(lambda batch: Sets(**batch), _emptied(level), device=device)
        levels.append([Sets.pad(sets[start : start + VIDEOS]) for start in range(0, len(sets), VIDEOS)])
    return [VideoEmbeddings(*part) for part in zip(embedding.split(VIDEOS), *levels, strict=True)]


def _emptied(batches: list[tuple[Tensor, Batch]]) -> Iterator[tuple[Tensor, Batch]]:
    """Yield what a list holds and let go of it, so that nothing is there twice."""
    while batches:
        yield batches.pop(0)
