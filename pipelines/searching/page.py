"""The page as HTML: everything that comes from a user, a corpus or a model is escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from urllib.parse import urlencode

from pipelines.searching.answerer import Answer
from pipelines.searching.finder import Hit

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8882; --accent: #2563eb; }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; padding: 1rem; max-width: 76rem; }
h1 { font-size: 1.15rem; font-weight: 600; margin: 0 0 .75rem; overflow-wrap: anywhere; }
h1 a { color: inherit; text-decoration: none; }
form { display: flex; gap: .5rem; margin-bottom: 1rem; }
input[type=search] { flex: 1; min-width: 0; font: inherit; padding: .6rem .8rem; border: 1px solid var(--line);
  border-radius: .5rem; }
button { font: inherit; padding: .6rem 1.1rem; border: 0; border-radius: .5rem; background: var(--accent);
  color: white; }
ol, ul { list-style: none; margin: 0; padding: 0; }
.grid { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 13rem), 1fr)); }
.grid li { border: 1px solid var(--line); border-radius: .5rem; overflow: hidden; }
.grid img, .none { display: block; width: 100%; aspect-ratio: 4 / 3; object-fit: cover; background: var(--soft); }
.none { display: grid; place-items: center; font-size: .85rem; opacity: .7; }
.about { padding: .5rem .7rem; overflow-wrap: anywhere; }
.about p { margin: .15rem 0 0; }
.score { font-variant-numeric: tabular-nums; font-weight: 600; }
.rows li { padding: .5rem 0; border-top: 1px solid var(--line); overflow-wrap: anywhere; }
.asked { max-width: 24rem; width: 100%; border-radius: .5rem; display: block; margin-bottom: 1rem; }
meter { width: 100%; height: .9rem; display: block; }
[role=alert] { padding: .6rem .8rem; border-left: 4px solid #dc2626; background: var(--soft); overflow-wrap: anywhere; }
.small { font-size: .85rem; opacity: .75; }
"""


def page(title: str, body: str) -> str:
    """Return a whole page."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title>"
        '<link rel="icon" href="data:,"><link rel="stylesheet" href="/style.css"></head>'
        f'<body><h1><a href="/">{escape(title)}</a></h1>{body}</body></html>'
    )


def form(value: str, *, placeholder: str, button: str, image: str = "") -> str:
    """Return the text box; `image` is the id that a question is about."""
    hidden = f'<input type="hidden" name="image" value="{escape(image)}">' if image else ""
    return (
        f'<form action="/" method="get">{hidden}<input type="search" name="q" value="{escape(value)}" '
        f'placeholder="{escape(placeholder)}" aria-label="{escape(placeholder)}" maxlength="1000" autofocus>'
        f"<button>{escape(button)}</button></form>"
    )


def alert(message: str) -> str:
    """Return what went wrong."""
    return f'<p role="alert">{escape(message)}</p>'


def note(message: str) -> str:
    """Return a remark."""
    return f'<p class="small">{escape(message)}</p>'


def link(text: str, **query: object) -> str:
    """Return a link to the page with other parameters."""
    return f'<a href="/?{escape(urlencode(query))}">{escape(text)}</a>'


def picture(id: str, *, there: bool, video: bool, css: str = "") -> str:
    """Return an image, or a video's frames playing; they stand still for those who asked for less motion."""
    if not there:
        return '<div class="none">no file</div>'
    query = escape(urlencode({"id": id}))
    kind = f' class="{css}"' if css else ""
    still = f"/picture?{query}"
    if not video:
        return f'<img{kind} src="{still}" alt="{escape(id)}" loading="lazy">'
    calm = f'<source media="(prefers-reduced-motion: reduce)" srcset="{still}">'
    return f'<picture>{calm}<img{kind} src="/clip?{query}" alt="{escape(id)}" loading="lazy"></picture>'


def grid(hits: Sequence[tuple[Hit, bool]], *, video: bool) -> str:
    """Return results with pictures; beside each hit, whether its file is there."""
    cells = (
        f'<li data-id="{escape(hit.id)}">{picture(hit.id, there=there, video=video)}<div class="about">'
        f'<span class="score">{hit.rank}. {hit.score:.4f}</span> {link(hit.id, like=hit.id)}'
        f"<p>{escape(hit.caption)}</p></div></li>"
        for hit, there in hits
    )
    return f'<ol class="grid" id="results">{"".join(cells)}</ol>'


def rows(hits: Sequence[Hit]) -> str:
    """Return captions that are like an image or video."""
    cells = (
        f'<li data-id="{escape(hit.id)}"><span class="score">{hit.rank}. {hit.score:.4f}</span> '
        f'{escape(hit.caption)} <span class="small">{escape(hit.id)}</span></li>'
        for hit in hits
    )
    return f'<ol class="rows" id="results">{"".join(cells)}</ol>'


def answers(found: Sequence[Answer]) -> str:
    """Return answers with the model's confidence."""
    cells = (
        f'<li><span class="score">{100 * share:.1f}%</span> {escape(answer)}'
        f'<meter min="0" max="1" value="{share:.4f}"></meter></li>'
        for answer, share in found
    )
    return f'<ol class="rows" id="results">{"".join(cells)}</ol>'


def choice(ids: Sequence[tuple[str, bool]], *, number: int, pages: int) -> str:
    """Return images to choose from, page `number` (from 0) of `pages`."""
    cells = (
        f'<li data-id="{escape(id)}">{picture(id, there=there, video=False)}'
        f'<div class="about">{link(id, image=id)}</div></li>'
        for id, there in ids
    )
    ways = [link("earlier", page=number - 1)] if number else []
    ways += [link("more", page=number + 1)] if number + 1 < pages else []
    return f'<ul class="grid" id="choice">{"".join(cells)}</ul><p>{" · ".join(ways)}</p>'
