from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from urllib.parse import quote_plus

import pytest
from markupsafe import escape
from searchable import ids, serving, text_page, untrained, with_clips, with_pictures

from polypool.pipelines.models.search import AnswerSearch

EVIL = "\"><script>alert('dog')</script><img src=x onerror=alert(1)>&lt;{{ 7 * 7 }}' autofocus onfocus=alert(2) \u2028"
USED = ("modality", "corpus", "store", "text_inputs", "visual_inputs", "probabilities")
"""Attributes that the page reads of a question-answering adapter."""
KINDS = {
    "image": lambda folder: with_pictures(folder, train=8, val=4, test=4),
    "video": with_clips,
    "vqa": lambda folder: with_pictures(folder, questions=True, train=8, val=4, test=4),
}


@pytest.fixture(scope="module", params=KINDS)
def evil(request, tmp_path_factory):
    """A page with `EVIL` in captions, answers and all ids but the first."""
    run = replace(KINDS[request.param](tmp_path_factory.mktemp(request.param)), recipe="<b>tiny</b>")
    trained = untrained(run)
    searched = trained.open_search()
    for number, item in enumerate(searched.items):
        captions = {"captions": (EVIL,)} if hasattr(item, "captions") else {}
        searched.items[number] = replace(item, id=f"{item.id}{EVIL if number else ''}", **captions)
    object.__setattr__(searched.corpus, "some", lambda _, numbers: [searched.items[n] for n in numbers])
    if isinstance(searched, AnswerSearch):
        answers = [f"{answer} {EVIL}" for answer in searched.adapter.choices]
        searched.adapter = SimpleNamespace(
            **{name: getattr(searched.adapter, name) for name in USED}, choices=answers
        )
    else:
        searched.pairs.texts = [f"{text} {EVIL}" for text in searched.pairs.texts]
    with serving(trained) as server:
        yield server


def is_text(html: str) -> bool:
    """Return whether no part of `EVIL` became a tag, an attribute or a template expression."""
    became = ("<script", "<img src=x", "'dog'", "lt;49", "' autofocus onfocus")  # 49 may be part of a score
    return not any(found in html for found in became)


@pytest.mark.parametrize(
    "query",
    [{"q": EVIL}, {"id": EVIL}, {"id": EVIL, "q": "what?"}, {"page": EVIL}, {EVIL: EVIL}],
    ids=["text", "id", "question", "page", "name"],
)
def test_markup_in_url_is_escaped(evil, query):
    status, html = text_page(evil, **query)
    assert status in (200, 400, 404)
    assert is_text(html)
    assert status != 200 or "&lt;b&gt;tiny" in html.partition("</title>")[0]


def test_markup_in_results_is_escaped(evil):
    searched = evil.search
    first, other = searched.items[0].id, searched.items[1].id
    if isinstance(searched, AnswerSearch):
        shown, found = text_page(evil), text_page(evil, id=first, q="how many things?")
    else:
        shown, found = text_page(evil, q="a dog"), text_page(evil, id=first)
    assert (shown[0], found[0]) == (200, 200)
    assert other in ids(shown[1]), "ids must be shown as text"
    assert f"id={quote_plus(other)}" in shown[1], "image URLs must contain the quoted id"
    assert escape(EVIL) in found[1], "captions and answers must be escaped"
    assert is_text(shown[1])
    assert is_text(found[1])
