"""`make fuzz`: damaged files of every kind for a given time, and a table of the outcomes.

python tests/fuzz/campaign.py --minutes 30
"""

from __future__ import annotations

import hashlib
import os
import pickle
import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import tyro
from hypothesis import HealthCheck, Phase, given, seed, settings

os.environ["TQDM_DISABLE"] = "1"
_TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(_TESTS.parent), str(_TESTS), str(_TESTS / "support"), str(_TESTS / "support" / "files")]

from fuzz.cases import BAD, GOOD, Kind, Verdict  # noqa: E402 (found where the line above looks)
from fuzz.kinds import KINDS  # noqa: E402
from fuzz.strategies import cases  # noqa: E402
from fuzz.worker import Worker  # noqa: E402

_ROUND = 50  # cases of a kind, before the next kind has its turn
_PLACE = re.compile(r'File "(.*?)", line (\d+)')


class Campaign:
    """Counts how cases end, and keeps the first of each way in which one ended badly."""

    def __init__(self, found: Path) -> None:
        self.found = found
        self.ends = {name: Counter[str]() for name in KINDS}
        self.known: Counter[tuple[str, str]] = Counter()

    def add(self, kind: Kind, files: dict[str, bytes], verdict: Verdict) -> None:
        """Count a case; keep it where it ended badly in a way not seen before."""
        self.ends[kind.name][verdict.outcome] += 1
        if verdict.good:
            return
        way = (kind.name, _way(verdict))
        self.known[way] += 1
        if self.known[way] > 1:
            return
        digest = hashlib.sha256(pickle.dumps(files)).hexdigest()[:8]
        folder = self.found / f"{re.sub('[^a-z0-9]+', '-', kind.name.lower())}-{digest}"
        for name, data in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
        (folder / "ended.txt").write_text(f"{verdict.outcome}\n{verdict.detail}", errors="backslashreplace")
        print(f"{kind.name}: {verdict.outcome}: {way[1]} ({folder})", flush=True)

    def table(self) -> str:
        """Return the counts as Markdown."""
        columns = ("tried", *GOOD[::-1], *BAD)
        total = sum(self.ends.values(), Counter())
        rows = [*((name, ends) for name, ends in self.ends.items()), ("all", total)]
        lines = [f"| kind | {' | '.join(columns)} |", f"|---|{'---:|' * len(columns)}"]
        for name, ends in rows:
            if not ends:
                continue
            lines.append(
                f"| {name} | {ends.total():,} | " + " | ".join(f"{ends[end]:,}" for end in columns[1:]) + " |"
            )
        return "\n".join(lines)


def _way(verdict: Verdict) -> str:
    """Return what tells two bad ends apart: the kind of error and where it was raised, else what was wrong."""
    last = verdict.detail.strip().splitlines()[-1:] or [""]
    places = _PLACE.findall(verdict.detail)
    if places:
        return f"{last[0].partition(':')[0]:.80} {Path(places[-1][0]).name}:{places[-1][1]}"
    return re.sub("[0-9]+", "0", last[0])[:80]


def main(*, minutes: float = 30.0, found: Path = Path("fuzz-found"), only: tuple[str, ...] = ()) -> None:
    """Fuzz every reader.

    Args:
        minutes: how long.
        found: folder that cases which end badly are kept in.
        only: kinds; all by default.
    """
    end, number = time.monotonic() + 60 * minutes, 0
    campaign = Campaign(found)
    with tempfile.TemporaryDirectory() as scratch, Worker() as worker:
        folders = {}
        for number, name in enumerate(only or KINDS):
            folders[name] = Path(scratch) / str(number)
            folders[name].mkdir()
            KINDS[name].make(folders[name])
        while time.monotonic() < end:
            number += 1
            for name, folder in folders.items():
                if time.monotonic() < end:
                    _round(KINDS[name], folder, worker, campaign, number=number)
    print(campaign.table())
    sys.exit(1 if campaign.known else 0)


def _round(kind: Kind, folder: Path, worker: Worker, campaign: Campaign, *, number: int) -> None:
    @seed(number)
    @settings(
        max_examples=_ROUND,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases(kind, folder))
    def attempt(files: dict[str, bytes]) -> None:
        campaign.add(kind, files, worker.run(kind, folder, files))

    attempt()


if __name__ == "__main__":
    tyro.cli(main)
