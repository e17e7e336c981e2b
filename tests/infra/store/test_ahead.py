"""What is fetched before it is touched, and when that is left out."""

from __future__ import annotations

import pytest

from polypool.infra.store import mapped
from polypool.infra.store.mapped import TRIAL_EVERY, Ahead


class Disk:
    """Eight parts, of which some are in memory; touching another is a wait."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.memory: set[int] = set()
        self.fetched: list[int] = []
        self.waits = 0
        self.ahead = Ahead(self._fetch)
        monkeypatch.setattr(mapped, "disk_waits", lambda: self.waits)

    def _fetch(self, part: int) -> None:
        self.fetched.append(part)
        self.memory.add(part)

    def read(self, parts: range = range(8)) -> tuple[list[int], int]:
        """Read a batch; return what was fetched for it, and how often it waited."""
        self.fetched, before, touched = [], self.waits, []
        for part in self.ahead(parts):
            self.waits += part not in self.memory
            self.memory.add(part)
            touched.append(part)
        assert touched == list(parts)
        return self.fetched, self.waits - before


def test_where_memory_holds_all_nothing_is_fetched_after_a_while(monkeypatch):
    disk = Disk(monkeypatch)
    assert [disk.read() for _ in range(TRIAL_EVERY)] == [(list(range(8)), 0)] * TRIAL_EVERY
    assert [disk.read() for _ in range(3 * TRIAL_EVERY)] == [([], 0)] * (3 * TRIAL_EVERY)


@pytest.mark.parametrize(("lost", "fetched"), [(0, 1), (1, 2), (2, 4), (3, 4), (4, 8)])
def test_what_is_left_is_fetched_once_the_disk_was_waited_for(monkeypatch, lost, fetched):
    disk = Disk(monkeypatch)
    for _ in range(TRIAL_EVERY):
        disk.read()
    disk.memory = set(range(lost))
    assert disk.read() == (list(range(fetched, 8)), fetched - lost)
    if fetched < 8:
        assert [disk.read() for _ in range(TRIAL_EVERY)] == [(list(range(8)), 0)] * TRIAL_EVERY
    assert disk.read() == ([], 0)


def test_a_system_that_counts_no_waits_has_all_fetched_always(monkeypatch):
    disk = Disk(monkeypatch)
    monkeypatch.setattr(mapped, "disk_waits", lambda: None)
    assert [disk.read() for _ in range(2 * TRIAL_EVERY)] == [(list(range(8)), 0)] * (2 * TRIAL_EVERY)


def test_an_empty_batch_has_no_parts(monkeypatch):
    assert Disk(monkeypatch).read(range(0)) == ([], 0)
