from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from polypool.infra.errors import InputError
from polypool.infra.store import StoreWriter
from polypool.infra.store.findings import (
    Findings,
    Flagged,
    Skipped,
    Tolerance,
    TooMuchSkipped,
    describe,
    wrong_id,
)


def lost(count: int, **how: object) -> Findings:
    findings = Findings()
    for number in range(count):
        findings.add(Skipped(where=f"line {number}", why="torn", **how))
    return findings


def judge(findings: Findings, folder: Path, *, rows: dict[str, int], parts: int = 0, **how: bool) -> None:
    findings.judge(folder, tolerance=Tolerance(**how), rows=(rows, "items"), parts=(parts, "captions"))


def test_a_twentieth_is_let_pass_and_no_more(tmp_path):
    judge(lost(5), tmp_path, rows={"train": 95})
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(TooMuchSkipped, match=r"6 of 100 items \(6\.0%\) were skipped") as caught:
        judge(lost(6), tmp_path, rows={"train": 94})
    assert caught.value.exit_code == 1
    assert "6 x torn: line 0; line 1; line 2; ..." in str(caught.value)
    listed = [json.loads(line) for line in (tmp_path / "refused.jsonl").read_text().splitlines()]
    assert listed == [{"where": f"line {number}", "why": "torn"} for number in range(6)]
    judge(lost(6), tmp_path, rows={"train": 94}, allow_skipped=True)
    findings = lost(6)
    findings.close(tmp_path, prefix="corpus.")
    assert [path.name for path in tmp_path.iterdir()] == ["corpus.skipped.jsonl"]


def test_a_small_split_may_not_be_lost_in_a_large_data_set(tmp_path):
    judge(lost(2, split="test"), tmp_path, rows={"train": 1000, "test": 38})
    with pytest.raises(TooMuchSkipped, match=r"3 of 40 items of test \(7\.5%\)"):
        judge(lost(3, split="test"), tmp_path, rows={"train": 1000, "test": 37})
    with pytest.raises(TooMuchSkipped, match=r"3 of 3 items of val \(100\.0%\)"):
        judge(lost(3, split="val"), tmp_path, rows={"train": 1000})


def test_parts_are_counted_for_themselves_and_what_nothing_asked_for_not_at_all(tmp_path):
    judge(lost(5, part=True), tmp_path, rows={"train": 5}, parts=95)
    with pytest.raises(TooMuchSkipped, match=r"6 of 100 captions \(6\.0%\)"):
        judge(lost(6, part=True), tmp_path, rows={"train": 1000}, parts=94)
    for part in (False, True):
        findings = lost(50, wanted=False, part=part)
        judge(findings, tmp_path, rows={"train": 1}, parts=1)
        assert findings.skipped["count"] == 50


def test_strictness_refuses_what_is_flagged(tmp_path):
    findings = Findings()
    findings.add(Flagged(where="id 1", why="odd"))
    judge(findings, tmp_path, rows={"train": 1})
    with pytest.raises(
        InputError, match=r"--strict refuses warnings; warnings 1:\n  1 x odd: id 1"
    ) as caught:
        judge(findings, tmp_path, rows={"train": 1}, strict=True)
    assert caught.value.exit_code == 2
    assert (tmp_path / "refused.jsonl").read_text() == '{"where": "id 1", "why": "odd"}\n'
    assert findings.close(tmp_path) == (findings.skipped, findings.flagged)
    assert [path.name for path in tmp_path.iterdir()] == ["warnings.jsonl"]
    judge(lost(0), tmp_path, rows={"train": 1}, strict=True)


def test_what_cannot_be_printed_is_shown_as_an_escape():
    findings = Findings()
    findings.add(Skipped(where="a\udcff\x1b[2J\n é", why="torn"))
    assert describe(findings.skipped) == "skipped 1:\n  1 x torn: a\\udcff\\x1b[2J é"


@pytest.mark.parametrize(
    ("id", "why"),
    [
        ("a b-7 é 漢", None),
        ("x" * 1000, None),
        ("", "an id that is empty"),
        ("caf\udce9", "an id that is not valid UTF-8"),
        ("a\nb", "an id with characters that cannot be printed"),
        ("x" * 1001, "an id of more than 1,000 characters"),
    ],
)
def test_ids(tmp_path, id, why):
    assert wrong_id(id) == why
    with StoreWriter(tmp_path, dim=2, source={}) as writer:
        assert writer.offer(id, np.ones((1, 2)), where="here") == why
        writer.offer("other", np.ones((1, 2)), where="there")
