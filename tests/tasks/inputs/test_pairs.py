"""Sharding of a split over workers for evaluation."""

from typing import Any

import numpy as np
import pytest
import torch

from polypool.tasks.inputs import pairs


@pytest.mark.parametrize("workers", [1, 3])
def test_uneven_split_shards_cover_all_items(workers, monkeypatch):
    class Visual:
        def batch(self, number_B: np.ndarray, **_: Any) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.from_numpy(number_B)[:, None], torch.ones(len(number_B), 1, dtype=torch.bool)

    data: Any = pairs.Pairs(list("abcdefghij"), [["a text"]] * 10, visual=Visual(), captions=None)
    monkeypatch.setattr(pairs, "world", lambda: workers)
    parts = []
    for worker in range(workers):
        monkeypatch.setattr(pairs, "rank", lambda worker=worker: worker)
        parts.append([number_B for number_B, _ in data.items(2)])
    assert len({len(own) for own in parts}) == 1, "workers must have equally many batches, or they deadlock"
    assert {*torch.cat([number_B for own in parts for number_B in own]).tolist()} == {*range(10)}
