"""Inputs with features copied to a device, against the same inputs read from files."""

from pathlib import Path

import numpy as np
import pytest
import torch

from polypool.infra.store import FeatureStore, StoreWriter, resident
from polypool.infra.store.feature_store import text_id
from polypool.infra.store.resident import keep_on
from polypool.tasks.inputs.augmentations import Drop, draw_for
from polypool.tasks.inputs.texts import StoredTexts
from polypool.tasks.inputs.visuals import StoredSets

CPU = torch.device("cpu")
SIZES = (3, 9, 1, 12, 7, 5, 2, 8)


@pytest.fixture
def store(tmp_path: Path, monkeypatch) -> FeatureStore:
    monkeypatch.setattr(resident, "_KEPT", {})
    rng = np.random.default_rng(0)
    with StoreWriter(tmp_path / "store", dim=4, source={"reader": "test"}) as writer:
        for number, size in enumerate(SIZES):
            writer.add(text_id(str(number)), rng.normal(size=(size, 4)).astype(np.float16))
        writer.close()
    return FeatureStore.open(tmp_path / "store")


@pytest.mark.parametrize("limit", [0, 6])
@pytest.mark.parametrize("augment", [None, Drop(p=0.5)])
def test_resident_sets_equal_sets_from_files(store, limit, augment, monkeypatch):
    monkeypatch.setattr(resident, "_ROWS", 3)
    ids = [text_id(str(number)) for number in (6, 1, 3, 0, 3, 2, 5)]  # a subset, unordered, with a duplicate
    of_files, copied = (StoredSets(store, ids, augment=augment, limit=limit) for _ in range(2))
    keep_on(CPU, [copied], most=lambda: (2 + 9 + 12 + 3 + 1 + 5) * 4 * 2)
    assert copied.sets is not store
    item_B = np.array([2, 0, 5, 4, 1, 2, 6])
    for draw in (None, draw_for(1, 2, 0)):
        found, expected = (
            inputs.batch(item_B, sample_B=10 + item_B, draw=draw) for inputs in (copied, of_files)
        )
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_resident_texts_equal_texts_from_files(store):
    of_files, copied = (StoredTexts(store, [*"4071"], corpus="data/mine") for _ in range(2))
    keep_on(CPU, [copied], most=lambda: 1e9)
    assert copied.sets is not store
    found, expected = (inputs.batch(np.array([3, 3, 0])) for inputs in (copied, of_files))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_features_above_memory_limit_stay_in_files(store):
    inputs = StoredSets(store, [text_id("1"), text_id("1"), text_id("3")])
    keep_on(CPU, [inputs], most=lambda: 21 * 4 * 2 - 1)
    assert inputs.sets is store


def test_resident_copies_are_reused_only_for_same_features(store):
    def inputs(*ids: str) -> StoredSets:
        return StoredSets(store, [text_id(each) for each in ids])

    first, again, other = inputs("1", "3"), inputs("3", "1", "1"), inputs("1", "4")
    keep_on(CPU, [first], most=lambda: 1e9)
    keep_on(CPU, [again], most=lambda: 0.0)  # another copy would not fit
    assert again.sets is first.sets
    keep_on(CPU, [other], most=lambda: 1e9)
    assert other.sets is not first.sets
    keep_on(CPU, [inputs("1", "3")], most=lambda: 0.0)
    assert not resident._KEPT
