from __future__ import annotations

import gc

import pytest

from infra.process.garbage import without_search


def test_the_search_for_garbage_goes_on_afterwards_as_before() -> None:
    assert gc.isenabled()
    with pytest.raises(ValueError, match="inside"), without_search():
        assert not gc.isenabled()
        with without_search():
            pass
        assert not gc.isenabled(), "the inner one found it off"
        raise ValueError("inside")
    assert gc.isenabled()
