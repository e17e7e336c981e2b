"""`make pictures`: redraw the site's pictures of pages and figures from runs of the demo.

Runs and data are in build/pictures and stay there: delete the folder for new ones. Pages are drawn by Chromium through
Playwright (`playwright install chromium`, or CHROMIUM for an installed one, with its flags in CHROMIUM_FLAGS).
"""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import mlflow
from playwright.sync_api import Page, sync_playwright

import polypool as pp
from polypool.infra.tracking import to_see, tracking_uri

ROOT = Path(__file__).resolve().parents[1]
HOME, IMAGES = ROOT / "build/pictures", ROOT / "docs/images"
WIDTH = 1000
ATTENTION = "train demo --aggregator text_softmax --text-aggregator attention --experiment attention --cpus 1"
RUNS = {"demo": ["demo"], "attention": ATTENTION.split()}
QUERY = "a red circle and a white plus sign on a grey background"
PORT = 8765


def main() -> None:
    """Make missing runs, then the pictures."""
    os.environ |= {"POLYPOOL_HOME": str(HOME), "MLFLOW_TRACKING_URI": tracking_uri(HOME)}
    HOME.mkdir(parents=True, exist_ok=True)
    for experiment, words in RUNS.items():
        if mlflow.get_experiment_by_name(experiment) is None:
            subprocess.run([sys.executable, "-m", "polypool", *words], check=True)
    runs = pp.runs("demo").query("dataset == 'scenes'")
    gpo, best = str(runs.index[runs.aggregator == "gpo"][0]), str(runs["test/score"].idxmax())
    (comparison, *_), (attention, *_) = pp.runs("demo-comparisons").index, pp.runs("attention").index
    shutil.copy(artifact(comparison, "compare.png"), IMAGES / "comparison.png")
    with browser() as page:
        page.goto(artifact(gpo, "figures/whole_test_examples.html").as_uri())
        shoot(page, "examples", height=540)
        page.goto(artifact(attention, "figures/test_attention.html").as_uri())
        shoot(page, "attention", height=560)
        with serving("polypool", "serve", best, "--port", str(PORT), port=PORT):
            page.goto(f"http://127.0.0.1:{PORT}/")
            page.fill("input[name=q]", QUERY)
            page.press("input[name=q]", "Enter")
            page.wait_for_load_state("networkidle")
            shoot(page, "search", height=560)
        address = to_see(tracking_uri(HOME), "demo")[0].split()[-1]
        with serving("mlflow", "ui", "--backend-store-uri", tracking_uri(HOME), port=urlsplit(address).port):
            page.set_viewport_size({"width": 1500, "height": 500})
            page.goto(address)
            page.wait_for_selector("text=gpo")
            for close in page.get_by_label("Close", exact=True).all():
                close.click()
            page.wait_for_timeout(1_000)  # until the closed boxes have disappeared
            page.screenshot(path=IMAGES / "runs.png")


def artifact(run_id: str, path: str) -> Path:
    """Return a local copy of an artifact of a run."""
    return Path(mlflow.artifacts.download_artifacts(run_id=run_id, artifact_path=path))


@contextmanager
def browser() -> Iterator[Page]:
    """Open a page of a browser without a window."""
    flags = shlex.split(os.environ.get("CHROMIUM_FLAGS", ""))
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=os.environ.get("CHROMIUM"), args=flags)
        try:
            yield opened.new_page(viewport={"width": WIDTH, "height": 700})
        finally:
            opened.close()


def shoot(page: Page, name: str, *, height: int) -> None:
    """Save the upper part of a page as a picture of the site."""
    page.set_viewport_size({"width": WIDTH, "height": height})
    page.screenshot(path=IMAGES / f"{name}.png")


@contextmanager
def serving(module: str, *words: str, port: int | None) -> Iterator[None]:
    """Start a server, wait for its port on this machine, and end it afterwards.

    Raises:
        RuntimeError: it ended, or did not answer within two minutes.
    """
    server = subprocess.Popen([sys.executable, "-m", module, *words])
    try:
        deadline = time.monotonic() + 120
        while socket.socket().connect_ex(("127.0.0.1", port)):
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{module} {' '.join(words)} does not answer on port {port}")
            time.sleep(0.5)
        yield
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
