"""Rows that an ingest skipped, and its warnings: every case in a file, counts and examples by reason."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from polypool.infra.errors import InputError
from polypool.infra.fields import is_unicode
from polypool.infra.files import atomic
from polypool.infra.process.output import printable

_IN_MEMORY = 8 << 20  # bytes of cases; beyond, they wait in a temporary file
_EXAMPLES = 3
_REASONS = 50
_LONGEST_ID = 1000  # characters
_TOLERATED = 0.05  # of the rows, or of the parts of rows, may be skipped by default


def wrong_id(id: Any, *, what: str = "an id") -> str | None:
    """Return why a value cannot be an id, in the same words for every such value; None where it can.

    An id has 1 to 1,000 characters, all of them printable, so that it can be listed, searched for and typed.
    """
    if not isinstance(id, str):
        return f"{what} that is not a string"
    if not id:
        return f"{what} that is empty"
    if not is_unicode(id):
        return f"{what} that is not valid UTF-8"
    if not id.isprintable():
        return f"{what} with characters that cannot be printed"
    return f"{what} of more than {_LONGEST_ID:,} characters" if len(id) > _LONGEST_ID else None


@dataclass(frozen=True, kw_only=True)
class Skipped:
    """A row, file or id that was left out.

    Args:
        where: the file and the row, line or id.
        why: the reason, in the same words for every such case, by which cases are counted.
        split: it belongs to, where that is known: a small split may be lost in a large data set.
        part: whether it is part of a row that is kept, such as a caption of an image.
        wanted: False for what is in no list, such as a further video: it is listed, and is no loss.
    """

    where: str
    why: str
    split: str = ""
    part: bool = False
    wanted: bool = True


@dataclass(frozen=True, kw_only=True)
class Flagged:
    """A warning about a row that is used.

    Args:
        where: the file and the row, line or id.
        why: the warning, in the same words for every such case, by which cases are counted.
    """

    where: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """What an ingest tolerates.

    Args:
        allow_skipped: tolerate any number of skipped rows; by default more than 5 % is an error.
        strict: refuse warnings, such as one picture in two splits.
    """

    allow_skipped: bool = False
    strict: bool = False


USUAL = Tolerance()


class TooMuchSkipped(InputError):
    """Too much of the input was skipped."""

    exit_code = 1


class _Cases:
    """Cases of one kind: each is kept as a line, and counted by its reason."""

    def __init__(self) -> None:
        self._lines = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115 (lives as long as the job)
        self._reasons: dict[str, dict[str, Any]] = {}

    def add(self, where: str, why: str) -> None:
        self._lines.write(json.dumps({"where": where, "why": why}).encode() + b"\n")
        why = why if why in self._reasons or len(self._reasons) < _REASONS else "other reasons"
        reason = self._reasons.setdefault(why, {"count": 0, "examples": []})
        reason["count"] += 1
        if len(reason["examples"]) < _EXAMPLES:
            reason["examples"].append(printable(" ".join(where.split())))

    def summary(self) -> dict[str, Any]:
        reasons = dict(sorted(self._reasons.items(), key=lambda pair: -pair[1]["count"]))
        return {"count": sum(reason["count"] for reason in reasons.values()), "reasons": reasons}

    def write(self, file: BinaryIO) -> None:
        self._lines.seek(0)
        shutil.copyfileobj(self._lines, file)


class Findings:
    """Collects what one job skipped and flagged; `close` writes each case to a file beside what the job wrote."""

    def __init__(self) -> None:
        self._skipped, self._flagged = _Cases(), _Cases()
        self._lost_rows, self._lost_parts = Counter[str](), 0  # rows by their split

    def add(self, case: Skipped | Flagged) -> None:
        """Count a case and keep it."""
        if isinstance(case, Flagged):
            self._flagged.add(case.where, case.why)
            return
        self._skipped.add(case.where, case.why)
        if case.wanted and case.part:
            self._lost_parts += 1
        elif case.wanted:
            self._lost_rows[case.split] += 1

    @property
    def skipped(self) -> dict[str, Any]:
        """What was left out: `{"count", "reasons": {why: {"count", "examples": [where, ...]}}}`, frequent first."""
        return self._skipped.summary()

    @property
    def flagged(self) -> dict[str, Any]:
        """What is used and odd, in the form of `skipped`."""
        return self._flagged.summary()

    def judge(
        self,
        folder: Path,
        *,
        tolerance: Tolerance,
        rows: tuple[Mapping[str, int], str],
        parts: tuple[int, str] = (0, "parts"),
    ) -> None:
        """Refuse a job that skipped too much, or that has warnings where it is strict; `refused.jsonl` lists the cases.

        Args:
            folder: that the job writes.
            tolerance: of the job.
            rows: how many are kept in each split, or in all as "", and their name, such as items.
            parts: how many parts of rows are kept, and their name, such as captions.

        Raises:
            TooMuchSkipped: more than a twentieth of the rows, of those of a split, or of the parts was skipped.
            InputError: there are warnings, and `tolerance` is strict.
        """
        kept, name = rows
        losses = [
            (self._lost_rows.total(), sum(kept.values()), name),
            *(
                (lost, kept.get(split, 0), f"{name} of {split}")
                for split, lost in self._lost_rows.items()
                if split and "" not in kept
            ),
            (self._lost_parts, *parts),
        ]
        much = [
            f"{lost:,} of {lost + left:,} {of} ({lost / (lost + left):.1%})"
            for lost, left, of in losses
            if lost > _TOLERATED * (lost + left)
        ]
        if much and not tolerance.allow_skipped:
            listing = self._refuse(folder)
            raise TooMuchSkipped(
                f"{folder}: {much[0]} were left out, where up to {_TOLERATED:.0%} are let pass; "
                f"{describe(self.skipped)}\n  all of them: {listing}\nIt is not taken into use. Mend what is read; or, "
                "if what is left is what you want, give the same command with --allow-skipped (in Python, "
                "tolerance=Tolerance(allow_skipped=True))"
            )
        if tolerance.strict and self.flagged["count"]:
            listing = self._refuse(folder)
            raise InputError(
                f"{folder}: not taken into use, as --strict asks; {describe(self.flagged, 'warnings')}\n  all of them: "
                f"{listing}\nMend what is read, or leave out --strict"
            )

    def close(self, folder: Path, *, prefix: str = "") -> tuple[dict[str, Any], dict[str, Any]]:
        """Write `<prefix>skipped.jsonl` and `<prefix>warnings.jsonl`, a JSON object a line; remove those of before.

        Returns:
            `skipped` and `flagged`.
        """
        (folder / REFUSED).unlink(missing_ok=True)
        for name, cases in ((SKIPPED, self._skipped), (WARNINGS, self._flagged)):
            path = folder / f"{prefix}{name}"
            if not cases.summary()["count"]:
                path.unlink(missing_ok=True)
                continue
            with atomic(path) as file:
                cases.write(file)
        return self.skipped, self.flagged

    def _refuse(self, folder: Path) -> Path:
        with atomic(folder / REFUSED) as file:
            self._skipped.write(file)
            self._flagged.write(file)
        return folder / REFUSED


SKIPPED, WARNINGS, REFUSED = "skipped.jsonl", "warnings.jsonl", "refused.jsonl"


def describe(summary: dict[str, Any], what: str = "skipped") -> str:
    """Return the counts of `Findings.skipped` or `flagged` as text: a line for each reason, with examples."""
    if not summary["count"]:
        return f"nothing {what}" if what == "skipped" else f"no {what}"
    lines = [f"{what} {summary['count']:,}:"]
    for why, reason in summary["reasons"].items():
        more = "; ..." if reason["count"] > len(reason["examples"]) else ""
        lines.append(f"  {reason['count']:,} x {why}: {'; '.join(reason['examples'])}{more}")
    return "\n".join(lines)
