"""Augmentations, and the random numbers that they draw."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image

from polypool.encoders.text.bigru import BiGRU
from polypool.infra.compute.randomness import uniform
from polypool.infra.errors import InputError
from polypool.infra.registry import AUGMENTATIONS
from polypool.infra.store import FeatureStore, StoreWriter
from polypool.tasks.inputs.pairs import Pairs, QuestionData
from polypool.tasks.inputs.texts import Captions
from polypool.tasks.inputs.visuals import Pixels, StoredSets


def draw(sample, element, stream):
    return uniform(0, 0, stream, sample, element)


def kept_share(spec: str, size: int = 64, samples: int = 4000) -> np.ndarray:
    keep = AUGMENTATIONS.build(spec)(np.full(samples, size), np.arange(samples), draw)
    return np.array([k.mean() for k in keep])


def test_grid_drop_rate_matches_reference_code():
    share = kept_share("grid_drop(p=0.2)")
    # a fifth of the images stays whole; the dropped share is E[p r; r > p] = p (1 - p^2) / 2
    assert abs((share == 1).mean() - 0.2) < 0.05
    assert abs(1 - share.mean() - 0.2 * (1 - 0.04) / 2) < 0.005


def test_drop_keeps_an_element_and_ignores_batch_mates():
    drop = AUGMENTATIONS.build("drop(p=0.99)")
    keep = drop(np.array([1, 2, 3] * 200), np.arange(600), draw)
    assert min(k.sum() for k in keep) == 1
    assert [len(k) for k in keep[:3]] == [1, 2, 3]
    drop = AUGMENTATIONS.build("drop(p=0.5)")
    together, alone = (
        drop(np.array(sizes), np.array([4, 5][: len(sizes)]), draw) for sizes in ([9, 30], [9])
    )
    assert np.array_equal(together[0], alone[0])


def words(count: int, pieces_per_word: int = 2):
    word_P = np.repeat(np.arange(count), pieces_per_word)
    return np.arange(len(word_P), dtype=np.int32) % 50 + 10, word_P, np.zeros(len(word_P), np.int64)


def test_word_augmentation_rates_match_reference_code():
    subword_P, word_P, caption_P = words(20_000)
    augment = AUGMENTATIONS.build("mask_replace_delete(p=0.2)")
    out_P, stay_P = augment(subword_P, word_P, caption_P, draw, mask_subword=4, vocabulary=10_000)
    masked, replaced = (out_P == 4) & stay_P, (out_P != subword_P) & (out_P != 4) & stay_P
    assert abs(masked.mean() - 0.10) < 0.005
    assert abs(replaced.mean() - 0.02) < 0.003
    assert abs((~stay_P).mean() - 0.08) < 0.005
    # all subwords of a word are treated equally
    assert np.array_equal(stay_P[::2], stay_P[1::2])
    assert np.array_equal(masked[::2], masked[1::2])
    delete = AUGMENTATIONS.build("delete(p=0.2)")
    out_P, stay_P = delete(subword_P, word_P, caption_P, draw, mask_subword=4, vocabulary=99)
    assert np.array_equal(out_P, subword_P)
    assert abs((~stay_P).mean() - 0.2) < 0.01


def test_word_augmentation_ignores_batch_mates():
    subword_P, word_P, _ = words(40, 1)
    build = AUGMENTATIONS.build("mask_replace_delete(p=0.9, mask=0.2, replace=0.6)")
    augment = partial(build, mask_subword=4, vocabulary=99)
    caption_P = np.repeat([3, 8], 20)
    both_P, both_stay_P = augment(subword_P, word_P, caption_P, draw)
    second_P, second_stay_P = augment(subword_P[20:], word_P[20:], caption_P[20:], draw)
    assert np.array_equal(both_P[20:], second_P)
    assert np.array_equal(both_stay_P[20:], second_stay_P)


@pytest.mark.parametrize(
    "spec", ["drop(p=1)", "drop(p=-0.1)", "mask_replace_delete(mask=0.8, replace=0.4)", "delete(p=2)"]
)
def test_probability_out_of_range_is_refused(spec):
    with pytest.raises(InputError, match="must lie in"):
        AUGMENTATIONS.build(spec)


ITEMS, PARTS, EPOCHS = 100, 6, 10
LIMIT = 0.16  # of a correlation: five standard deviations over 1,000 independent pairs
WORDS = ["dog", "cat", "car", "tree", "boat", "bird"]
CAPTIONS = Captions([" ".join(WORDS)] * ITEMS, BiGRU.tokenizer({"words": WORDS}))
NUMBERS = CAPTIONS.batch(np.arange(1))["text"][0, 1:-1].tolist()  # without start and end tokens


class Answers:
    """Unused targets."""

    def batch(self, index_B: np.ndarray) -> torch.Tensor:
        return torch.zeros(len(index_B), 1)


class Shown:
    """A transform that returns the random numbers of the crop and flip."""

    cells = PARTS

    def __call__(self, image: Image.Image, u_4: Sequence[float]) -> np.ndarray:
        return np.array(u_4)


@pytest.fixture(scope="module")
def regions(tmp_path_factory) -> FeatureStore:
    """Sets of the numbers 1 to 6, so that a batch shows which elements were kept."""
    folder = tmp_path_factory.mktemp("regions")
    with StoreWriter(folder, dim=1, dtype="float32", source={"made": "by a test"}) as writer:
        for i in range(ITEMS):
            writer.add(str(i), np.arange(1, PARTS + 1, dtype=np.float32)[:, None])
        writer.close()
    return FeatureStore.open(folder)


@pytest.fixture(scope="module")
def picture(tmp_path_factory):
    path = tmp_path_factory.mktemp("pictures") / "1.png"
    Image.new("RGB", (2, 2)).save(path)
    return path


def drawn(data, *, seed: int = 0, epochs: range = range(EPOCHS)) -> dict[str, np.ndarray]:
    """Return the draws of each sample over some epochs: `visual`, `cells` and `words`, each `(S, parts)`."""
    batches = [data.batch(np.arange(ITEMS), seed=seed, epoch=epoch) for epoch in epochs]
    said = [[[n in row for n in NUMBERS] for row in batch["text"].tolist()] for batch in batches]
    return {
        "visual": np.concatenate([seen(batch["visual"]) for batch in batches]),
        "cells": np.concatenate([padded(batch["visual_mask"]) for batch in batches]),
        "words": np.concatenate(said),
    }


def seen(visual: torch.Tensor) -> np.ndarray:
    """Return which elements were kept, or the random numbers of crops."""
    if visual.ndim == 2:
        return visual.numpy()
    return (visual == torch.arange(1, PARTS + 1)).any(dim=1).numpy()


def padded(mask_BN: torch.Tensor) -> np.ndarray:
    return torch.nn.functional.pad(mask_BN, (0, PARTS - mask_BN.shape[1])).numpy()


def correlation(a_SP: np.ndarray, b_SQ: np.ndarray) -> float:
    """Return the largest absolute correlation between a column of each array."""
    together = np.corrcoef(a_SP.astype(float).T, b_SQ.astype(float).T)
    return np.abs(together[: a_SP.shape[1], a_SP.shape[1] :]).max()


def data_of(visual, *, words: str = "delete(p=0.5)", questions: bool = False):
    augment = AUGMENTATIONS.build(words) if words else None
    if questions:
        return QuestionData(
            np.arange(ITEMS), visual=visual, texts=CAPTIONS, targets=Answers(), augment=augment
        )
    ids = [str(i) for i in range(ITEMS)]
    return Pairs(ids, [("",)] * ITEMS, visual=visual, captions=CAPTIONS, augment=augment)


def stored(regions: FeatureStore, drop: str = "drop(p=0.5)") -> StoredSets:
    augment = AUGMENTATIONS.build(drop) if drop else None
    return StoredSets(regions, [str(i) for i in range(ITEMS)], augment=augment)


def pixels(picture, drop: str = "drop(p=0.5)") -> Pixels:
    augment = AUGMENTATIONS.build(drop) if drop else None
    return Pixels([picture] * ITEMS, transform=Shown(), augment=augment, threads=1)


@pytest.mark.parametrize(("questions", "drop"), [(False, "drop(p=0.5)"), (True, "grid_drop(p=0.8)")])
def test_crops_cells_and_words_are_drawn_independently(picture, questions, drop):
    found = drawn(data_of(pixels(picture, drop), questions=questions))
    assert 0.05 < 1 - found["cells"].mean() < 0.6
    assert correlation(found["visual"], found["cells"]) < LIMIT
    assert correlation(found["visual"], found["words"]) < LIMIT
    assert correlation(found["words"], found["cells"]) < LIMIT
    assert correlation(found["visual"][:, :1], found["visual"][:, 1:]) < LIMIT
    assert found["cells"].mean(axis=0).std() < 0.03, "the drop rate must not depend on a cell's position"


def test_epochs_and_seeds_are_drawn_independently(picture):
    data = data_of(pixels(picture))
    first = drawn(data, epochs=range(EPOCHS))
    for other in (drawn(data, epochs=range(EPOCHS, 2 * EPOCHS)), drawn(data, seed=1)):
        for name, values in first.items():
            for part in range(values.shape[1]):
                assert correlation(values[:, [part]], other[name][:, [part]]) < LIMIT, name


def test_removing_an_augmentation_keeps_other_draws(picture, regions):
    whole = drawn(data_of(pixels(picture)))
    without = {"cells": data_of(pixels(picture, "")), "words": data_of(pixels(picture), words="")}
    for missing, data in without.items():
        found = drawn(data)
        assert found[missing].all(), "nothing may be dropped without augmentation"
        for name in whole.keys() - {missing}:
            np.testing.assert_array_equal(found[name], whole[name])
    kept = drawn(data_of(stored(regions)))
    np.testing.assert_array_equal(drawn(data_of(stored(regions), words=""))["visual"], kept["visual"])
    np.testing.assert_array_equal(drawn(data_of(stored(regions, "")))["words"], kept["words"])
