"""Pages of search that several files ask."""

from __future__ import annotations

import pytest
from searchable import serving, untrained, with_clips, with_pictures


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    with serving(untrained(with_pictures(folder, train=8, val=4, test=12)).open_search()) as server:
        yield server


@pytest.fixture(scope="module")
def questions(tmp_path_factory):
    run = with_pictures(tmp_path_factory.mktemp("asked"), questions=True, train=8, val=4, test=30)
    with serving(untrained(run).open_search()) as server:
        yield server


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    with serving(untrained(with_clips(tmp_path_factory.mktemp("clips"))).open_search()) as server:
        yield server
