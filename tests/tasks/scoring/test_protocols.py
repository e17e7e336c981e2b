import numpy as np
import pytest
import torch

from polypool.infra.errors import InputError
from polypool.tasks.adapter import Score
from polypool.tasks.scoring.evaluation import RetrievalGallery, evaluate_protocol
from polypool.tasks.scoring.protocols import PROTOCOLS, ScoringProtocol, protocol_named


def blocks_of(sim_VT: torch.Tensor) -> Score:
    return lambda images, captions: sim_VT[images, captions]


@pytest.fixture(scope="module")
def recorded(golden) -> dict[str, np.ndarray]:
    with np.load(golden / "retrieval_eval.npz", allow_pickle=False) as z:
        return {key: z[key] for key in z.files if key.startswith("folds/")}


def test_five_fold_protocol_matches_recorded_outputs(recorded):
    sim_VT = torch.from_numpy(recorded["folds/sims_u16"] / 65536)
    protocol = ScoringProtocol(name="five", about="", items=100, captions=500, folds=5)
    result = evaluate_protocol(protocol, blocks_of(sim_VT), np.repeat(np.arange(100), 5), 100)
    names = [f"{direction}/{m}" for direction in ("i2t", "t2i") for m in ("R1", "R5", "R10", "medr", "meanr")]
    expected = recorded["folds/mean_metrics"]
    np.testing.assert_allclose([result.metrics[name] for name in names], expected[:10], rtol=0, atol=1e-9)
    assert result.metrics["rsum"] == pytest.approx(expected[12], abs=1e-9)
    for fold, row in enumerate(recorded["folds/fold_metrics"]):
        ranks = result.ranks_i2t[fold * 20 : fold * 20 + 20], result.ranks_t2i[fold * 100 : fold * 100 + 100]
        assert [100 * np.mean(r < k) for r in ranks for k in (1, 5, 10)] == pytest.approx(
            [*row[:3], *row[5:8]]
        )


def test_whole_protocol_matches_recorded_outputs(recorded):
    sim_VT = torch.from_numpy(recorded["folds/sims_u16"] / 65536)
    result = evaluate_protocol(protocol_named("whole"), blocks_of(sim_VT), np.repeat(np.arange(100), 5), 100)
    assert result.metrics["rsum"] == pytest.approx(float(recorded["folds/full_rsum"]))
    np.testing.assert_array_equal(result.ranks_i2t, recorded["folds/i2t_ranks"])
    np.testing.assert_array_equal(result.ranks_t2i, recorded["folds/t2i_ranks"])
    chance = RetrievalGallery.of(slice(0, 100), np.repeat(np.arange(100), 5)).chance()
    assert (result.ties, result.chance) == (0, pytest.approx(chance))


@pytest.mark.parametrize(("images", "used"), [(1014, 1000), (195, 195)])
def test_val_1k_uses_first_1000_images_or_all(images, used):
    owner_T = np.repeat(np.arange(images), 2)
    sim_VT = torch.rand(images, 2 * images, generator=torch.Generator().manual_seed(0))
    result = evaluate_protocol(protocol_named("val-1k"), blocks_of(sim_VT), owner_T, images)
    assert (len(result.ranks_i2t), len(result.ranks_t2i)) == (used, 2 * used)
    first = blocks_of(sim_VT[:used, : 2 * used])
    alone = evaluate_protocol(protocol_named("whole"), first, owner_T[: 2 * used], used)
    assert result.metrics == alone.metrics


def test_wrong_split_size_error_lists_fitting_protocols():
    with pytest.raises(
        InputError, match=r"5,000 items and 25,000 captions.*1,064 items and 5,320.*fit it: whole, distinct$"
    ):
        protocol_named("coco-5k").check(1064, 5320)
    with pytest.raises(InputError, match="fit it: f30k-1k, f8k-1k, whole"):
        evaluate_protocol(
            protocol_named("coco-1k-5fold"), blocks_of(torch.zeros(0, 0)), np.repeat(np.arange(1000), 5), 1000
        )
    fitting = [name for name in PROTOCOLS if PROTOCOLS[name].fits(5000, 25000)]
    assert fitting[:2] == ["coco-5k", "coco-1k-5fold"]


def test_distinct_gallery_holds_shared_captions_once():
    """Items 0 and 2 share a caption, item 1 has a duplicate: four distinct captions, in split order."""
    owner_T, texts = np.array([0, 0, 1, 1, 2, 2]), ["a dog", "a cat", "a car", "a car", "a dog", "a bus"]
    rng = np.random.default_rng(0)
    of_text = dict(zip(dict.fromkeys(texts), rng.random((4, 3)), strict=True))
    sim_VT = torch.from_numpy(np.stack([of_text[text] for text in texts], axis=1))
    result = evaluate_protocol(protocol_named("distinct"), blocks_of(sim_VT), owner_T, 3, texts=texts)
    assert result.caption_G.tolist() == [0, 1, 2, 5]
    right = {"a dog": {0, 2}, "a cat": {0}, "a car": {1}, "a bus": {2}}
    by_caption = [
        min(list(np.argsort(-of_text[text])).index(item) for item in items) for text, items in right.items()
    ]
    assert result.ranks_t2i.tolist() == by_caption
    for item in range(3):
        order = sorted(right, key=lambda text: -of_text[text][item])
        best = min(place for place, text in enumerate(order) if item in right[text])
        assert result.ranks_i2t[item] == best
    assert result.metrics["i2t/medr"] == np.median(result.ranks_i2t) + 1


@pytest.mark.parametrize("name", ["whole", "distinct", "folds", "first"])
def test_collapsed_model_scores_at_chance(name):
    """Items have 1 to 3 captions; items share some of them."""
    protocols = {
        "folds": ScoringProtocol(name="", about="", folds=3),
        "first": ScoringProtocol(name="", about="", first=25),
    }
    owner_T = np.repeat(np.arange(30), 1 + np.arange(30) % 3)
    texts = [f"caption {number % 41}" for number in range(len(owner_T))]
    protocol = protocols.get(name) or protocol_named(name)
    flat = blocks_of(torch.full((30, len(owner_T)), 0.25))
    result = evaluate_protocol(protocol, flat, owner_T, 30, texts=texts)
    for metric, chance in result.chance.items():
        assert result.metrics[metric] == pytest.approx(chance), metric
    assert result.metrics["rsum"] > 40
    assert result.ties == len(result.ranks_i2t) + len(result.ranks_t2i)
