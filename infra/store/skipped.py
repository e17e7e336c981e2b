"""What an ingest left out: every case in a file, counts and examples by reason in the manifest."""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.files import atomic

_IN_MEMORY = 8 << 20  # bytes of cases; beyond, they wait in a temporary file
_EXAMPLES = 3
_REASONS = 50


@dataclass(frozen=True, kw_only=True)
class Skipped:
    """A row, file or id that was left out.

    Args:
        where: the file and the row, line or id.
        why: the reason, in the same words for every such case, so that cases can be counted by it.
    """

    where: str
    why: str


class SkipLog:
    """Collects the cases of one job; `close` writes them to a file and returns the counts."""

    def __init__(self) -> None:
        self._cases = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115 (lives as long as the job)
        self._reasons: dict[str, dict[str, Any]] = {}

    def add(self, case: Skipped) -> None:
        """Count a case and keep it."""
        self._cases.write(json.dumps({"where": case.where, "why": case.why}).encode() + b"\n")
        why = case.why if case.why in self._reasons or len(self._reasons) < _REASONS else "other reasons"
        reason = self._reasons.setdefault(why, {"count": 0, "examples": []})
        reason["count"] += 1
        if len(reason["examples"]) < _EXAMPLES:
            reason["examples"].append(case.where)

    def summary(self) -> dict[str, Any]:
        """Return `{"count", "reasons": {why: {"count", "examples": [where, ...]}}}`, most frequent first."""
        reasons = dict(sorted(self._reasons.items(), key=lambda pair: -pair[1]["count"]))
        return {"count": sum(reason["count"] for reason in reasons.values()), "reasons": reasons}

    def close(self, path: Path) -> dict[str, Any]:
        """Write the cases to `path`, a JSON object a line, or remove an old file; return `summary()`."""
        if not self._reasons:
            path.unlink(missing_ok=True)
            return self.summary()
        self._cases.seek(0)
        with atomic(path) as file:
            shutil.copyfileobj(self._cases, file)
        return self.summary()


def describe(skipped: dict[str, Any]) -> str:
    """Return a `SkipLog.summary()` as text: a line for each reason, with examples."""
    if not skipped["count"]:
        return "nothing skipped"
    lines = [f"skipped {skipped['count']:,}:"]
    for why, reason in skipped["reasons"].items():
        more = ", ..." if reason["count"] > len(reason["examples"]) else ""
        lines.append(f"  {reason['count']:,} x {why}: {', '.join(reason['examples'])}{more}")
    return "\n".join(lines)
