"""Damaged files of every kind end in a message, are counted, or are read, the same ones each time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given

from fuzz.kinds import KINDS
from fuzz.strategies import CASES, cases
from fuzz.worker import Worker


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker() as running:
        yield running


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_damaged_files_end_well(kind, worker, tmp_path):
    kind.make(tmp_path)
    whole = worker.run(kind, tmp_path, {})
    assert whole.outcome == "accepted", whole.detail

    @CASES
    @given(cases(kind, tmp_path))
    def attempt(files: dict[str, bytes]) -> None:
        verdict = worker.run(kind, tmp_path, files)
        assert verdict.good, f"{verdict.outcome}: {verdict.detail}\n{files!r:.2000}"

    attempt()
