from __future__ import annotations

import json

import pytest

from polypool.infra.errors import InputError
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


@pytest.mark.parametrize(
    ("count", "how", "rows", "parts", "message"),
    [
        (5, {}, {"train": 95}, 0, None),
        (6, {}, {"train": 94}, 0, r"6 of 100 items \(6\.0%\) were skipped"),
        (2, {"split": "test"}, {"train": 1000, "test": 38}, 0, None),
        (3, {"split": "test"}, {"train": 1000, "test": 37}, 0, r"3 of 40 items of test \(7\.5%\)"),
        (3, {"split": "val"}, {"train": 1000}, 0, r"3 of 3 items of val \(100\.0%\)"),
        (5, {"part": True}, {"train": 5}, 95, None),
        (6, {"part": True}, {"train": 1000}, 94, r"6 of 100 captions \(6\.0%\)"),
        (50, {"wanted": False}, {"train": 1}, 1, None),
        (50, {"wanted": False, "part": True}, {"train": 1}, 1, None),
    ],
)
def test_skipping_over_five_percent_is_refused(tmp_path, count, how, rows, parts, message):
    findings = lost(count, **how)
    given = {"rows": (rows, "items"), "parts": (parts, "captions")}
    if message:
        with pytest.raises(TooMuchSkipped, match=message) as caught:
            findings.judge(tmp_path, tolerance=Tolerance(), **given)
        assert caught.value.exit_code == 1
        assert f"{count} x torn: line 0; line 1; line 2" in str(caught.value)
        listed = [json.loads(line) for line in (tmp_path / "refused.jsonl").read_text().splitlines()]
        assert listed == [{"where": f"line {number}", "why": "torn"} for number in range(count)]
    findings.judge(tmp_path, tolerance=Tolerance(allow_skipped=bool(message)), **given)
    assert findings.skipped["count"] == count
    findings.close(tmp_path, prefix="corpus.")
    assert [path.name for path in tmp_path.iterdir()] == ["corpus.skipped.jsonl"]


def test_strict_refuses_warnings(tmp_path):
    findings, rows = Findings(), ({"train": 1}, "items")
    findings.add(Flagged(where="id 1", why="odd"))
    findings.judge(tmp_path, tolerance=Tolerance(), rows=rows)
    with pytest.raises(
        InputError, match=r"--strict refuses warnings; warnings 1:\n  1 x odd: id 1"
    ) as caught:
        findings.judge(tmp_path, tolerance=Tolerance(strict=True), rows=rows)
    assert caught.value.exit_code == 2
    assert (tmp_path / "refused.jsonl").read_text() == '{"where": "id 1", "why": "odd"}\n'
    assert findings.close(tmp_path) == (findings.skipped, findings.flagged)
    assert [path.name for path in tmp_path.iterdir()] == ["warnings.jsonl"]
    lost(0).judge(tmp_path, tolerance=Tolerance(strict=True), rows=rows)


def test_unprintable_characters_are_escaped():
    findings = Findings()
    findings.add(Skipped(where="a\udcff\x1b[2J\n é", why="torn"))
    assert describe(findings.skipped) == "skipped 1:\n  1 x torn: a\\udcff\\x1b[2J é"


@pytest.mark.parametrize(
    ("id", "why"),
    [
        ("a b-7 é 漢", None),
        ("x" * 1000, None),
        (7, "an id that is not a string"),
        ("", "an id that is empty"),
        ("caf\udce9", "an id that is not valid UTF-8"),
        ("a\nb", "an id with characters that cannot be printed"),
        ("x" * 1001, "an id of more than 1,000 characters"),
    ],
)
def test_wrong_id_explains_invalid_ids(id, why):
    assert wrong_id(id) == why
