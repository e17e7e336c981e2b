"""A few damaged files of every kind end as they may, the same ones each time; `make fuzz` tries many more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from fuzz.cases import Kind
from fuzz.kinds import KINDS
from fuzz.strategies import cases
from fuzz.worker import Worker

EXAMPLES = 12


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker() as running:
        yield running


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_damaged_files_end_in_a_message_or_are_counted_or_read(
    kind: Kind, worker: Worker, tmp_path: Path
) -> None:
    kind.make(tmp_path)
    whole = worker.run(kind, tmp_path, {})
    assert whole.outcome == "accepted", whole.detail

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases(kind, tmp_path))
    def attempt(files: dict[str, bytes]) -> None:
        verdict = worker.run(kind, tmp_path, files)
        assert verdict.good, f"{verdict.outcome}: {verdict.detail}\n{files!r:.2000}"

    attempt()
