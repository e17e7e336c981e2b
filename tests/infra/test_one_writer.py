from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest
from corpora import make_corpus
from kept import keep_run

from polypool.infra.errors import InputError
from polypool.infra.locks import HeldError, Lock
from polypool.infra.store import FeatureStore, StoreWriter
from polypool.pipelines.models.exporting import export
from polypool.tasks.datasets.corpus import Corpus, Item, write_corpus


def items(prefix: str) -> Iterator[Item]:
    for split in ("train", "val", "test"):
        yield Item(id=f"{prefix}-{split}", split=split, captions=(f"a {prefix} of {split}",))


@contextmanager
def meanwhile(work: Callable[[Callable[[], None]], object]) -> Iterator[None]:
    """Begin `work` in another thread, and go on once it has called what it is given, at which it then waits."""
    begun, go_on = threading.Event(), threading.Event()

    def pause() -> None:
        begun.set()
        assert go_on.wait(30)

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(work, pause)
        try:
            assert begun.wait(30)
            yield
        finally:
            go_on.set()
        done.result()


def test_two_corpora_into_one_folder(tmp_path):
    def first(pause: Callable[[], None]) -> None:
        def slowly() -> Iterator[Item]:
            yield from items("dog")
            pause()

        write_corpus(tmp_path / "out", slowly(), source={"reader": "first"})

    with meanwhile(first), pytest.raises(HeldError, match="out: another command writes to this folder"):
        write_corpus(tmp_path / "out", items("cat"), source={"reader": "second"})
    assert Corpus.open(tmp_path / "out").ids.to_pylist() == ["dog-train", "dog-val", "dog-test"]
    write_corpus(tmp_path / "out", items("cat"), source={"reader": "second"})
    assert Corpus.open(tmp_path / "out").ids[0].as_py() == "cat-train"


def test_two_stores_into_one_folder(tmp_path):
    ones = np.ones((2, 3), np.float16)

    def first(pause: Callable[[], None]) -> None:
        with StoreWriter(tmp_path, dim=3, source={"reader": "first"}) as writer:
            writer.add("a", ones)
            pause()

    with meanwhile(first):
        for _ in range(2):  # who is refused takes nothing away
            with pytest.raises(HeldError, match="another command writes to this folder"):
                StoreWriter(tmp_path, dim=3, source={"reader": "second"})
    assert FeatureStore.open(tmp_path).ids.to_pylist() == ["a"]
    assert not (tmp_path / ".lock").exists()
    with pytest.raises(InputError, match="holds a complete store") as refused:
        StoreWriter(tmp_path, dim=3, source={"reader": "second"})
    assert not (tmp_path / ".lock").exists(), f"nobody writes there after {refused}"
    writer = StoreWriter(tmp_path / "other", dim=3, source={"reader": "third"})
    writer.add("a", ones)
    assert (tmp_path / "other" / ".lock").exists()
    writer.close()
    assert not (tmp_path / "other" / ".lock").exists()


def test_two_exports_into_one_folder(home, tmp_path):
    run_id = keep_run(make_corpus(home))

    def first(pause: Callable[[], None]) -> None:
        with Lock(tmp_path / ".model.lock", of="the first"):
            pause()

    with meanwhile(first), pytest.raises(HeldError, match="model: another export writes this folder"):
        export(run_id, tmp_path / "model")
    export(run_id, tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
