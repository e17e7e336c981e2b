from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from polypool.infra.compute.randomness import uniform
from polypool.infra.errors import InputError
from polypool.infra.registry import AUGMENTATIONS


def draw(sample, element, stream):
    return uniform(0, 0, stream, sample, element)


def test_uniform_numbers_depend_on_their_coordinates_alone():
    whole = uniform(1, 2, np.arange(50)[:, None], np.arange(7))
    part = uniform(1, 2, np.arange(20, 30)[:, None], np.arange(3))
    assert np.array_equal(whole[20:30, :3], part)
    assert len(np.unique(whole)) == whole.size
    assert not np.array_equal(uniform(1, 3, np.arange(9)), uniform(2, 1, np.arange(9)))


def test_uniform_numbers_are_uniform_and_independent():
    u = uniform(7, np.arange(400)[:, None], np.arange(500))
    assert abs(u.mean() - 0.5) < 0.003
    assert np.histogram(u, 10, (0, 1))[0].std() / 20_000 < 0.02
    assert abs(np.corrcoef(u[:, :-1].ravel(), u[:, 1:].ravel())[0, 1]) < 0.01
    assert abs(np.corrcoef(u[:-1].ravel(), u[1:].ravel())[0, 1]) < 0.01


def kept_share(spec: str, size: int = 64, samples: int = 4000) -> np.ndarray:
    keep = AUGMENTATIONS.build(spec)(np.full(samples, size), np.arange(samples), draw)
    return np.array([k.mean() for k in keep])


def test_drop_keeps_eight_of_ten():
    assert abs(kept_share("drop(p=0.2)").mean() - 0.8) < 0.005


def test_grid_drop_follows_the_rule_of_the_code():
    share = kept_share("grid_drop(p=0.2)")
    # a fifth of the images is untouched by rule, and E[p r; r > p] = p (1 - p^2) / 2 is dropped
    assert abs((share == 1).mean() - 0.2) < 0.05
    assert abs(1 - share.mean() - 0.2 * (1 - 0.04) / 2) < 0.005


def test_drop_never_empties_a_set():
    keep = AUGMENTATIONS.build("drop(p=0.99)")(np.array([1, 2, 3] * 200), np.arange(600), draw)
    assert min(k.sum() for k in keep) == 1
    assert [len(k) for k in keep[:3]] == [1, 2, 3]


def test_drop_does_not_depend_on_batch_mates():
    drop = AUGMENTATIONS.build("drop(p=0.5)")
    together = drop(np.array([9, 30]), np.array([4, 5]), draw)
    alone = drop(np.array([9]), np.array([4]), draw)
    assert np.array_equal(together[0], alone[0])


def words(count: int, pieces_per_word: int = 2):
    word_P = np.repeat(np.arange(count), pieces_per_word)
    return np.arange(len(word_P), dtype=np.int32) % 50 + 10, word_P, np.zeros(len(word_P), np.int64)


def test_words_are_masked_replaced_and_deleted_in_the_shares_of_the_code():
    subword_P, word_P, caption_P = words(20_000)
    augment = AUGMENTATIONS.build("mask_replace_delete(p=0.2)")
    out_P, stay_P = augment(subword_P, word_P, caption_P, draw, mask_subword=4, vocabulary=10_000)
    masked, replaced = (out_P == 4) & stay_P, (out_P != subword_P) & (out_P != 4) & stay_P
    assert abs(masked.mean() - 0.10) < 0.005
    assert abs(replaced.mean() - 0.02) < 0.003
    assert abs((~stay_P).mean() - 0.08) < 0.005
    # the subwords of a word share its fate
    assert np.array_equal(stay_P[::2], stay_P[1::2])
    assert np.array_equal(masked[::2], masked[1::2])


def test_delete_only_deletes():
    subword_P, word_P, caption_P = words(20_000)
    out_P, stay_P = AUGMENTATIONS.build("delete(p=0.2)")(
        subword_P, word_P, caption_P, draw, mask_subword=4, vocabulary=99
    )
    assert np.array_equal(out_P, subword_P)
    assert abs((~stay_P).mean() - 0.2) < 0.01


def test_words_do_not_depend_on_batch_mates():
    subword_P, word_P, _ = words(40, 1)
    augment = partial(
        AUGMENTATIONS.build("mask_replace_delete(p=0.9, mask=0.2, replace=0.6)"),
        mask_subword=4,
        vocabulary=99,
    )
    caption_P = np.repeat([3, 8], 20)
    both_P, both_stay_P = augment(subword_P, word_P, caption_P, draw)
    second_P, second_stay_P = augment(subword_P[20:], word_P[20:], caption_P[20:], draw)
    assert np.array_equal(both_P[20:], second_P)
    assert np.array_equal(both_stay_P[20:], second_stay_P)


@pytest.mark.parametrize(
    "spec", ["drop(p=1)", "drop(p=-0.1)", "mask_replace_delete(mask=0.8, replace=0.4)", "delete(p=2)"]
)
def test_a_share_out_of_range_is_refused(spec):
    with pytest.raises(InputError, match="must lie in"):
        AUGMENTATIONS.build(spec)
