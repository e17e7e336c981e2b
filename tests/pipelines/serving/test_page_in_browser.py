"""The page in a browser: its scripts run and its pictures loaded."""

from __future__ import annotations

import shutil
import subprocess
from urllib.parse import urlencode

import pytest
from PIL import Image
from searchable import ids

from polypool.pipelines.models.search.queries import Query

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def dom(address, folder, size="1200,900"):
    """Return the page as the browser has it, with its scripts run and its pictures loaded."""
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine: the page is not tried in a browser")
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        f"--window-size={size}",
    ]
    shot = folder / "shot.png"
    more = [f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=5000", f"--screenshot={shot}"]
    done = subprocess.run(
        [CHROMIUM, *flags, *more, "--dump-dom", address],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout, shot


@pytest.mark.parametrize("size", ["1200,900", "500,900"], ids=["desktop", "phone"])
def test_a_browser_shows_results_and_runs_no_markup_of_a_query(page, tmp_path, size):
    finder = page.search
    query = "a dog <img src=x onerror=\"document.title='evil'\"><script>document.title='evil'</script>"
    html, shot = dom(f"{page.address}/?{urlencode({'q': query})}", tmp_path, size)
    assert ids(html) == [hit.id for hit in finder.find(Query(text=query), 10)]
    assert "<title>evil" not in html
    with Image.open(shot) as image:
        colours = image.convert("RGB").getcolors(1 << 24)
    assert len(colours) > 1000, "pictures of noise have many colours; they were not shown"


def test_a_browser_shows_answers(question_page, tmp_path):
    id = question_page.search.items[0].id
    html, _ = dom(f"{question_page.address}/?{urlencode({'id': id, 'q': 'how many things?'})}", tmp_path)
    assert html.count("<meter") == 5
