"""Checks for every HTML page of a run."""

from __future__ import annotations

import re
from html.parser import HTMLParser

NASTY = "<script>alert('&\"')</script>"
"""A text that a page must escape."""


def well_formed(html: str) -> bool:
    """Return whether all tags are closed in order and the page loads no other file."""
    unclosed = []

    class Tags(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list) -> None:
            if tag not in ("meta", "img", "br"):
                unclosed.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert unclosed.pop() == tag

    Tags().feed(html)
    return not unclosed and not re.search(r'(src|href)="(?!data:)|url\(|@import', html)
