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
from collections.abc import Iterable
from pathlib import Path

import tyro
from hypothesis import given, seed, settings

os.environ["TQDM_DISABLE"] = "1"
sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
from places import PATHS

sys.path[:0] = PATHS
from fuzz.cases import BAD, GOOD, Verdict  # noqa: E402 (found where the line above looks)
from fuzz.kinds import KINDS  # noqa: E402
from fuzz.strategies import CASES, cases  # noqa: E402
from fuzz.worker import Worker  # noqa: E402

_ROUND = 50  # cases of a kind, before the next kind has its turn


def keep(folder: Path, files: dict[str, bytes], verdict: Verdict) -> None:
    """Write a case that ended badly, and how, to a folder."""
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    (folder / "ended.txt").write_text(f"{verdict.outcome}\n{verdict.detail}", errors="backslashreplace")


class Campaign:
    """Counts how cases end, and keeps the first of each kind that ends badly with one last line."""

    def __init__(self, kinds: Iterable[str], *, scratch: Path, found: Path, worker: Worker) -> None:
        self.ends = {name: Counter[str]() for name in kinds}
        self.known: set[tuple[str, str]] = set()
        self._scratch, self._found, self._worker = scratch, found, worker
        for name in self.ends:
            (scratch / name).mkdir()
            KINDS[name].make(scratch / name)

    def round(self, name: str, *, number: int) -> None:
        """Try some cases of a kind; each `number` gives others."""
        kind, folder = KINDS[name], self._scratch / name

        @seed(number)
        @settings(CASES, max_examples=_ROUND, derandomize=False)
        @given(cases(kind, folder))
        def attempt(files: dict[str, bytes]) -> None:
            self._judge(name, files, self._worker.run(kind, folder, files))

        attempt()

    def _judge(self, name: str, files: dict[str, bytes], verdict: Verdict) -> None:
        self.ends[name][verdict.outcome] += 1
        last = re.sub("[0-9]+", "0", verdict.detail.strip().rpartition("\n")[2])[:80]
        if not verdict.good and (name, last) not in self.known:
            self.known.add((name, last))
            digest = hashlib.sha256(pickle.dumps(files)).hexdigest()[:8]
            keep(self._found / f"{re.sub('[^a-z0-9]+', '-', name.lower())}-{digest}", files, verdict)
            print(f"{name}: {verdict.outcome}: {last}", flush=True)


def main(*, minutes: float = 30.0, found: Path = Path("fuzz-found"), only: tuple[str, ...] = ()) -> None:
    """Fuzz every reader.

    Args:
        minutes: how long.
        found: folder that cases which end badly are kept in, the first of each last line that is said.
        only: kinds; all by default.
    """
    end, number = time.monotonic() + 60 * minutes, 0
    with tempfile.TemporaryDirectory() as scratch, Worker() as worker:
        campaign = Campaign(only or KINDS, scratch=Path(scratch), found=found, worker=worker)
        while time.monotonic() < end:
            number += 1
            for name in campaign.ends:
                if time.monotonic() < end:
                    campaign.round(name, number=number)
    columns = (*GOOD[::-1], *BAD)
    print(f"| kind | {' | '.join(columns)} |\n|---|{'---:|' * len(columns)}")
    for name, counts in campaign.ends.items():
        print(f"| {name} | " + " | ".join(f"{counts[end]:,}" for end in columns) + " |")
    sys.exit(1 if campaign.known else 0)


if __name__ == "__main__":
    tyro.cli(main)
