"""`python -m docs.generate.results`: recompute the tables of docs/results/rows.csv, then update the pages.

A table records the command that made it. The commands that read archives of this repository are run again; tables of
runs that were not archived stay.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile

import pandas as pd

from docs.generate.__main__ import ROOT

ROWS = ROOT / "docs" / "results" / "rows.csv"


def commands() -> dict[str, list[str]]:
    """Return the words of the command behind each table of archived runs."""
    records = pd.read_csv(ROWS, usecols=["table", "compared_by"], keep_default_na=False)
    words = records.groupby("table")["compared_by"].first().map(shlex.split)
    return {str(table): of for table, of in words.items() if "--archives" in of}


def main() -> None:
    for words in commands().values():
        run(words)
    pages = ROOT / "README.md", *sorted((ROOT / "docs" / "results").glob("*.md"))
    tables = [
        str(page.relative_to(ROOT))
        for page in pages
        if re.search("\n<!-- (table|figure): ", page.read_text())
    ]
    run(["polypool", "compare", "tables", *tables])


def run(words: list[str]) -> None:
    """Run a command with an empty tracking store."""
    print(shlex.join(words), flush=True)
    with tempfile.TemporaryDirectory() as empty:
        store = os.environ | {"POLYPOOL_HOME": empty, "MLFLOW_TRACKING_URI": f"sqlite:///{empty}/none.db"}
        subprocess.run(
            [sys.executable, "-m", *words], cwd=ROOT, check=True, stdout=subprocess.DEVNULL, env=store
        )


if __name__ == "__main__":
    main()
