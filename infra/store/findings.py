"""Skipped rows and warnings of an ingest: every case in a file, counts and examples by reason."""

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

_IN_MEMORY = 8 << 20  # bytes of cases in memory; more are spooled to a temporary file
_EXAMPLES = 3
_REASONS = 50
_LONGEST_ID = 1000  # characters
_TOLERATED = 0.05  # share of the rows, or of their parts, that may be skipped by default


def wrong_id(id: Any, *, what: str = "an id") -> str | None:
    """Return why a value is not a valid id, None if it is; the text is the same for all such values.

    An id has 1 to 1,000 printable characters, so that it can be listed, searched for and typed.
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
    """A row, file or id that was skipped.

    Args:
        where: the file and the row, line or id.
        why: the reason, the same text for all such cases, by which they are counted.
        split: of the row, if known: a small split may be lost in a large data set.
        part: whether it is part of a kept row, such as a caption of an image.
        wanted: False for a file that no list names, such as a further video: it is listed, and not counted as a loss.
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
        why: the warning, the same text for all such cases, by which they are counted.
    """

    where: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """Limits on skipped rows and warnings of an ingest.

    Args:
        allow_skipped: tolerate any number of skipped rows; by default more than 5 % is an error.
        strict: treat warnings, such as one picture in two splits, as errors.
    """

    allow_skipped: bool = False
    strict: bool = False


USUAL = Tolerance()


class TooMuchSkipped(InputError):
    """More of the input was skipped than tolerated."""

    exit_code = 1


class _Cases:
    """Cases of one kind: stored as lines, and counted by reason."""

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
    """Collects the skipped rows and warnings of one job; `close` writes them to files in the job's output folder."""

    def __init__(self) -> None:
        self._skipped, self._flagged = _Cases(), _Cases()
        self._lost_rows, self._lost_parts = Counter[str](), 0  # rows by their split

    def add(self, case: Skipped | Flagged) -> None:
        """Count and store a case."""
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
        """Skipped rows: `{"count", "reasons": {why: {"count", "examples": [where, ...]}}}`, most frequent first."""
        return self._skipped.summary()

    @property
    def flagged(self) -> dict[str, Any]:
        """Summary of warnings, in the form of `skipped`."""
        return self._flagged.summary()

    def judge(
        self,
        folder: Path,
        *,
        tolerance: Tolerance,
        rows: tuple[Mapping[str, int], str],
        parts: tuple[int, str] = (0, "parts"),
    ) -> None:
        """Fail a job that skipped too much, or has warnings in strict mode; `refused.jsonl` lists the cases.

        Args:
            folder: output folder of the job.
            tolerance: of the job.
            rows: number of kept rows per split (or of all, as ""), and their name, such as items.
            parts: number of kept parts of rows, and their name, such as captions.

        Raises:
            TooMuchSkipped: more than a twentieth of all rows, of a split's rows, or of the parts was skipped.
            InputError: there are warnings and `tolerance` is strict.
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
                f"{folder}: {much[0]} were skipped, and at most {_TOLERATED:.0%} may be; "
                f"{describe(self.skipped)}\n  all of them: {listing}\nThe result is not used. Fix the input; or, to "
                "accept the rest, repeat the command with --allow-skipped (in Python, "
                "tolerance=Tolerance(allow_skipped=True))"
            )
        if tolerance.strict and self.flagged["count"]:
            listing = self._refuse(folder)
            raise InputError(
                f"{folder}: not used, because --strict refuses warnings; {describe(self.flagged, 'warnings')}\n"
                f"  all of them: {listing}\nFix the input, or omit --strict"
            )

    def close(self, folder: Path, *, prefix: str = "") -> tuple[dict[str, Any], dict[str, Any]]:
        """Write `<prefix>skipped.jsonl` and `<prefix>warnings.jsonl`, a JSON object per line; remove older ones.

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
    """Return `Findings.skipped` or `flagged` as text: a line per reason, with examples."""
    if not summary["count"]:
        return f"nothing {what}" if what == "skipped" else f"no {what}"
    lines = [f"{what} {summary['count']:,}:"]
    for why, reason in summary["reasons"].items():
        more = "; ..." if reason["count"] > len(reason["examples"]) else ""
        lines.append(f"  {reason['count']:,} x {why}: {'; '.join(reason['examples'])}{more}")
    return "\n".join(lines)
