from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from corpora import make_corpus
from markup import NASTY, well_formed
from searchable import with_clips, with_pictures
from workers import run_workers

from polypool.infra.compute.dist import rank
from polypool.infra.registry import TASKS
from polypool.pipelines.figures.pages import draw
from polypool.tasks.datasets.corpus import Corpus, write_corpus
from polypool.tasks.image_text import ImageText
from polypool.tasks.models.pair_encoder import PairScores
from polypool.tasks.run import Run
from polypool.tasks.scoring.examples import HITS, RankedQueries, RetrievalExample, find_examples
from polypool.tasks.scoring.metrics import Positives


class Made:
    """A split of 30 items with 2 captions each, with duplicate captions and tied scores."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        rng = np.random.default_rng(0)
        self.owner_T = np.repeat(np.arange(30), 2)
        self.texts = [f"caption {i}" for i in rng.integers(0, 40, 60)]
        self.gallery = [g for g, text in enumerate(self.texts) if text not in self.texts[:g]]
        place = {text: at for at, text in enumerate(dict.fromkeys(self.texts))}
        pairs = [(int(self.owner_T[g]), place[text]) for g, text in enumerate(self.texts)]
        item_P, place_P = map(np.array, zip(*pairs, strict=True))
        self.right = {(item, self.gallery[at]) for item, at in pairs}
        self.score_NG = torch.from_numpy(rng.integers(0, 12, (30, 60)) / 8).to(dtype)
        for g, text in enumerate(self.texts):  # duplicate captions have equal scores
            self.score_NG[:, g] = self.score_NG[:, self.texts.index(text)]
        self.blocks: list[tuple[int, int]] = []
        self.queries = RankedQueries(
            caption_G=np.array(self.gallery),
            of_items=Positives.from_pairs(item_P, place_P, queries=30, gallery=len(place)),
            of_captions=Positives.from_pairs(place_P, item_P, queries=len(place), gallery=30),
            item_Q=np.arange(30),
            item_rank_Q=rng.integers(0, 2, 30).astype(float),
            caption_Q=np.array(self.gallery),
            caption_rank_Q=rng.integers(0, 2, len(place)).astype(float),
        )

    def score(self, items: slice, captions: slice) -> torch.Tensor:
        block = self.score_NG[items, captions]
        self.blocks.append(tuple(block.shape))
        return block


def written_out(scores: dict[int, float], right: set[int]) -> tuple[list[tuple], tuple]:
    """Return the best hits and the best correct one, as (number, rank, score, right)."""
    order = sorted(scores, key=lambda number: (-scores[number], number))
    rows = [(number, place, scores[number], number in right) for place, number in enumerate(order, start=1)]
    return rows[:HITS], next(row for row in rows if row[3])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_hits_and_ranks_match_sorted_scores(dtype):
    made = Made(dtype)
    of_captions, of_items = find_examples(made.score, made.queries, count=12)
    assert len(of_captions) == len(of_items) == 12

    def check(example: RetrievalExample, scores: dict[int, float], right: set[int]) -> None:
        hits, best = written_out(scores, right)
        assert [(hit.number, hit.rank, hit.score, hit.right) for hit in example.hits] == hits
        assert (example.best.number, example.best.rank, example.best.score, example.best.right) == best
        assert example.right == len(right)

    for example in of_captions:
        column = dict(enumerate(made.score_NG[:, example.query].double().tolist()))
        check(example, column, {item for item, g in made.right if g == example.query})
    for example in of_items:
        row = {g: float(made.score_NG[example.query, g]) for g in made.gallery}
        check(example, row, {g for item, g in made.right if item == example.query})
    assert any(example.right > 1 for example in of_captions)
    assert set(made.blocks) <= {(30, 1), (1, made.gallery[-1] + 1)}, (
        "scores must be computed one row or column at a time"
    )


def test_examples_alternate_right_and_wrong_queries():
    made = Made()
    item_rank_Q = np.where(np.arange(30) < 10, np.nan, np.arange(30) % 2 / 2)  # rank 0.5 (a tie) is wrong
    queries = replace(made.queries, item_rank_Q=item_rank_Q)
    _, of_items = find_examples(made.score, queries, count=6)
    assert [item_rank_Q[example.query] for example in of_items] == [0, 0.5] * 3
    assert find_examples(made.score, queries, count=6)[1] == of_items
    none = replace(queries, item_rank_Q=np.full(30, np.nan))
    assert find_examples(made.score, none, count=6)[1] == []


def page_of(adapter, *, protocol="whole", split="test") -> str:
    data = adapter.data(split)
    rng = torch.Generator().manual_seed(0)
    score_NG = torch.rand(len(data.item_ids), len(data.texts), generator=rng, dtype=torch.float64)
    score_NG[::2][torch.from_numpy(data.owner_T % 2 == 0).expand(len(score_NG[::2]), -1)] += 0.3
    found = adapter.evaluate_scores(lambda items, captions: score_NG[items, captions], split, protocol)
    pictures = draw(found.pictures[0]())
    assert list(pictures) == [f"{protocol}_{split}_examples.html"]
    return pictures[f"{protocol}_{split}_examples.html"].decode()


def cards(html: str) -> list[str]:
    return html.split("<article>")[1:]


@pytest.mark.parametrize("video", [False, True], ids=["images", "videos"])
def test_page_shows_both_directions_and_escapes_html(tmp_path, video):
    run = with_clips(tmp_path) if video else with_pictures(tmp_path, train=8, val=4, test=12)
    adapter = TASKS.build(run.task, run)
    html = page_of(adapter)
    assert well_formed(html)
    if video:
        assert '<img class="strip" src="data:image/jpeg' in html
    else:
        assert (len(cards(html)), "no picture" in html) == (24, False)
        for number, card in enumerate(cards(html)):
            right = card.count("&#10003; right</strong> <small>")
            images = card.count('<img class="image" src="data:image/jpeg')
            assert images in (5, 6) if number < 12 else images == 1
            assert right == 1 if number < 12 else right >= 1, "a caption query has exactly one correct image"
    corpus = adapter.corpus
    items = [
        replace(item, id=NASTY + item.id, captions=(NASTY + item.id,), path=item.path if video else "")
        for item in corpus.items("test")
    ]
    write_corpus(tmp_path / "nasty", items, source={"made": "by a test"}, images=corpus.manifest.images)
    adapter.corpus = Corpus.open(tmp_path / "nasty")
    pairs = adapter.data("test")
    pairs.item_ids = np.array([item.id for item in items])
    pairs.texts = [items[owner].captions[0] for owner in pairs.owner_T]
    html = page_of(adapter)
    assert ("<script" in html, html.count("&lt;script&gt;") > 24) == (False, True)
    assert ('alt="video &lt;script&gt;' in html) == video
    assert well_formed(html)


def test_page_handles_missing_images_and_shared_captions(tmp_path):
    run = with_pictures(tmp_path, train=8, val=4, test=6)
    adapter = TASKS.build(run.task, run)
    pairs, first = adapter.data("test"), adapter.corpus.items("test")[0]
    pairs.texts = [
        "shared" if number in (0, len(pairs.texts) - 1) else of for number, of in enumerate(pairs.texts)
    ]
    adapter.corpus.image_path(first).unlink()
    html = page_of(adapter, protocol="distinct")
    assert "<img" in html
    (card,) = [card for card in cards(html) if "<h3>shared</h3>" in card]
    assert card.count('<li class="right') == 2
    shutil.rmtree(tmp_path / "images")
    html = page_of(adapter)
    assert ("<img" in html, f"no picture: {first.captions[0]}" in html) == (False, True)
    assert well_formed(html)


class Alike:
    """Stand-in for a model that scores pairs."""

    def score(self, images, texts) -> torch.Tensor:
        return torch.einsum("ind,gmd->ig", images.x_BND, texts.x_BND)


def alike_sets(number: int) -> list[torch.Tensor]:
    rng = torch.Generator().manual_seed(0)
    return [torch.randn(2, 3, generator=rng) for _ in range(number)]


def pairs_found(adapter: ImageText) -> tuple[object, ...]:
    """Return the examples of a pair model and the record of its page."""
    sets, data = alike_sets(30 + 60), adapter.data("test")
    score = PairScores(Alike(), visual=sets[:30], text=sets[30:])
    found = find_examples(score, Made().queries, count=4)
    sets, items = alike_sets(len(data.item_ids) + len(data.texts)), len(data.item_ids)
    score = PairScores(Alike(), visual=sets[:items], text=sets[items:])
    return found, adapter.evaluate_scores(score, "test", "whole").pictures[0]()


def worker(folder: str, run: Run) -> None:
    torch.save(pairs_found(TASKS.build(run.task, run)), f"{folder}/{rank()}.pt")


@pytest.mark.slow
def test_two_workers_find_same_examples_as_one(tmp_path):
    run = make_corpus(tmp_path / "tiny", train=8, val=4, test=12)
    run_workers(worker, str(tmp_path), run)
    alone = pairs_found(TASKS.build(run.task, run))
    first, second = (torch.load(tmp_path / f"{number}.pt", weights_only=False) for number in range(2))
    assert [len(part) for part in alone[0]] == [4, 4]
    assert first == second == alone
