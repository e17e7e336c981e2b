"""Video retrieval through adapter, training loop and model; test_image_text.py covers shared code."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from corpora import hgr, make_corpus
from toy import trainer_of

from polypool.infra.registry import TASKS
from polypool.infra.video import choose_frames
from polypool.pipelines.recipes.load import derive

WORDS = "bigru(width=16, embedding=8, min_count=1, ends=False)"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    run = make_corpus(tmp_path_factory.mktemp("tiny"))
    return derive(
        run, task="video_text", text=WORDS, protocol="distinct", data={"text_augment": "", "max_frames": 3}
    )


def test_training_on_tiny_video_corpus_beats_chance(run, tmp_path):
    sets = "slots(k=2, heads=2, head_width=8, iterations=2)"
    run = replace(run, aggregator=sets, model=hgr(verbs=2, nouns=4), figures=False)
    trainer = trainer_of(run, tmp_path)
    adapter, log = trainer.adapter, trainer.log
    trainer.train()
    metrics = log.rows[-2][1] | log.rows[-1][1]
    assert metrics["distinct/rsum"] > 1.5 * metrics["test/chance"]
    ranks = np.load(tmp_path / "per_query" / "distinct.npz", allow_pickle=False)
    assert ranks["video_id"].tolist() == [str(i) for i in range(64, 84)]
    assert np.mean(ranks["t2v_rank"] < 1) * 100 == pytest.approx(metrics["distinct/t2v/R1"])
    texts = adapter.data("test").texts
    assert len(ranks["t2v_rank"]) == len(set(texts)) < len(texts)
    assert [texts[place] for place in ranks["caption"]] == list(dict.fromkeys(texts))


def test_shared_caption_is_correct_for_both_videos(run):
    adapter = TASKS.build(run.task, run)
    pairs = adapter.data("test")
    owners: dict[str, list[int]] = {}
    for text, owner in zip(pairs.texts, pairs.owner_T.tolist(), strict=True):
        owners.setdefault(text, []).append(owner)
    shared = next(text for text, videos in owners.items() if len(set(videos)) > 1)
    second = owners[shared][-1]

    def score(items: slice, captions: slice) -> torch.Tensor:
        """Score the last video of each caption highest."""
        sim = torch.rand(20, len(pairs.texts), generator=torch.Generator().manual_seed(0))
        sim[torch.tensor([owners[text][-1] for text in pairs.texts]), torch.arange(len(pairs.texts))] = 2.0
        return sim[items, captions]

    found = adapter.evaluate_scores(score, "test", "distinct")
    place = list(owners).index(shared)
    assert found.per_query["t2v_rank"][place] == 0
    assert found.per_query["v2t_rank"][second] == 0
    assert found.metrics["t2v/R1"] == 100


def test_frames_above_the_limit_are_subsampled_evenly(run):
    plain = derive(run, data={"visual_augment": ""})
    runs = derive(plain, data={"max_frames": 0}), plain
    full, thin = (
        TASKS.build(each.task, each).data("train").batch(np.arange(96), seed=0, epoch=0) for each in runs
    )
    for row in range(96):
        x_ND = full["visual"][row][full["visual_mask"][row]]
        assert torch.equal(thin["visual"][row][thin["visual_mask"][row]], x_ND[choose_frames(len(x_ND), 3)])


def test_frame_choice_matches_recorded_outputs(golden):
    with np.load(golden / "hgr_graph_inputs.npz", allow_pickle=False) as recorded:
        for count, expected in enumerate(recorded["frame_select"], start=1):
            assert choose_frames(count, 20).tolist() == expected[expected >= 0].tolist()


def test_image_and_video_tasks_score_identically(run):
    """The same features give the same scores under both tasks; only the metric names differ."""
    found = []
    for each in (run, derive(run, task="image_text")):
        adapter = TASKS.build(each.task, each)
        torch.manual_seed(0)
        found.append(adapter.evaluate(adapter.model(), "test", "whole").metrics)
    assert (found[0]["v2t/R5"], found[0]["rsum"]) == (found[1]["i2t/R5"], found[1]["rsum"])
