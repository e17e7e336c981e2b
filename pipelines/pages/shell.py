"""The shell of the pages that a run keeps: one HTML file that needs nothing beside itself, in light and in dark."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable
from html import escape

from PIL import Image

QUALITY = 70  # of JPEG
_STYLE = """
:root { color-scheme: light dark; --card: 17rem; --line: #8885; --pale: #8882; --good: #1a7f37; --bad: #c0362c; }
* { box-sizing: border-box; }
body { font: 16px/1.45 system-ui, sans-serif; margin: 0 auto; max-width: 76rem; padding: 1rem; }
main { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fill, minmax(min(var(--card), 100%), 1fr)); }
article { border: 1px solid var(--line); border-radius: .6rem; min-width: 0; overflow: hidden; }
article > div { padding: .2rem .9rem .7rem; }
img { display: block; max-width: 100%; }
.none { align-content: center; background: var(--pale); opacity: .7; text-align: center; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.05rem; margin: .5rem 0; overflow-wrap: anywhere; }
p { margin: .4rem 0; overflow-wrap: anywhere; } h1 + p { margin-bottom: 1rem; } small { opacity: .7; }
.good { color: var(--good); } .bad { color: var(--bad); }
@media (prefers-color-scheme: dark) { :root { --good: #56d364; --bad: #ff7b72; } }
"""


def page(title: str, about: str, cards: Iterable[str], *, style: str = "") -> str:
    """Return a whole HTML page.

    Args:
        title: what it says at the top; escaped here.
        about: a paragraph below; escaped here.
        cards: HTML, such as `<article>` with a `<div>` in it, whose maker has escaped what others wrote. They stand in
            a grid of columns at least `--card` wide.
        style: CSS after what all pages share, such as `main { --card: 30rem; }`. Theirs are the classes `good`, `bad`
            and `none` (in the place of a picture), and the colours `--line` and `--pale`.
    """
    body = "\n".join(cards)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}{style}</style>\n</head>\n<body>\n"
        f"<h1>{escape(title)}</h1>\n<p>{escape(about)}</p>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def address(image: Image.Image | bytes, *, quality: int = QUALITY) -> str:
    """Return a picture as a `data:` address that holds it.

    Args:
        image: in mode RGB, which becomes a JPEG; or the bytes of a JPEG or a PNG, which stay as they are.
        quality: of the JPEG.
    """
    if isinstance(image, Image.Image):
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=quality)
        image = buffer.getvalue()
    kind = "png" if image.startswith(b"\x89PNG") else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(image).decode()}"
