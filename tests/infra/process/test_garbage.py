from __future__ import annotations

import gc

import pytest

from infra.process.garbage import without_search


def test_the_search_for_garbage_goes_on_afterwards_as_before() -> None:
    assert gc.isenabled()
    with without_search():
        with without_search():
            assert not gc.isenabled()
        assert not gc.isenabled(), "the inner one found it off"
    assert gc.isenabled()


def test_the_search_for_garbage_goes_on_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), without_search():
        1 / 0  # noqa: B018
    assert gc.isenabled()
