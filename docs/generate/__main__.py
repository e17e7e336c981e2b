"""Write the generated sections of the documentation into its Markdown files, where GitHub shows them, too.

`python -m docs.generate` fills every `<!-- generated: NAME -->` of `PAGES` with `SECTIONS[NAME]`; `--check`
writes nothing and exits with 1 if a file is out of date.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from docs.generate.tasks import ROOT, SECTIONS

PAGES = [ROOT / "README.md", ROOT / "aggregators/README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SECTION = re.compile(r"(<!-- generated: (\S+) -->)(\n?).*?(<!-- end of generated -->)", re.DOTALL)


def outdated() -> Iterator[tuple[Path, str]]:
    """Yield each file whose sections differ from the code, with its new text."""
    for page in PAGES:
        text = page.read_text()
        new = SECTION.sub(_filled, text)
        if new != text:
            yield page, new


def _filled(section: re.Match[str]) -> str:
    begin, name, block, end = section.groups()
    body = SECTIONS[name]()
    return f"{begin}\n\n{body}\n\n{end}" if block else f"{begin}{body}{end}"


if __name__ == "__main__":
    found = dict(outdated())
    for page, text in found.items():
        print(
            f"{page.relative_to(ROOT)} is out of date"
            if "--check" in sys.argv
            else f"wrote {page.relative_to(ROOT)}"
        )
        if "--check" not in sys.argv:
            page.write_text(text)
    sys.exit(bool(found) and "--check" in sys.argv)
