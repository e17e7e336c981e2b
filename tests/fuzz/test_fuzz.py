"""Damaged files of every kind end in a message, are counted, or are read, the same ones each time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given

from fuzz.campaign import Campaign
from fuzz.cases import Verdict
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


class Hanging:
    """A worker in which every damaged file hangs."""

    def run(self, kind: object, folder: object, files: dict[str, bytes]) -> Verdict:
        return Verdict(outcome="hang", detail=f"after {len(files)} s")


def test_a_campaign_counts_all_cases_and_keeps_one_of_those_that_end_alike(tmp_path):
    (tmp_path / "scratch").mkdir()
    kind = "ids, ids.txt"
    campaign = Campaign([kind], scratch=tmp_path / "scratch", found=tmp_path / "found", worker=Hanging())
    campaign.round(kind, number=1)
    assert campaign.ends[kind]["hang"] > 10
    (kept,) = (tmp_path / "found").iterdir()
    assert (kept / "ended.txt").read_text().startswith("hang\nafter")
