"""Writers of corpora, stores and exports lock their output folder while they write."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from corpora import make_corpus
from untrained_runs import track_untrained

from polypool.infra.errors import InputError
from polypool.infra.locks import HeldError, Lock
from polypool.infra.store import FeatureStore, StoreWriter
from polypool.pipelines.models.exporting import export
from polypool.tasks.datasets.corpus import Corpus, Item, write_corpus


@contextmanager
def refused(lock: Path) -> Iterator[None]:
    """Expect a refusal while another thread holds a lock."""
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(Lock, lock, of="another").result()
        with pytest.raises(HeldError, match=r"another (command|export) writes"):
            yield
        pool.submit(held.release).result()


def test_corpus_writer_locks_its_folder(tmp_path):
    def items() -> Iterator[Item]:
        for split in ("train", "val", "test"):
            assert (tmp_path / ".lock").exists()
            yield Item(id=split, split=split, captions=(f"a dog of {split}",))

    with refused(tmp_path / ".lock"):
        write_corpus(tmp_path, items(), source={})
    write_corpus(tmp_path, items(), source={})
    assert Corpus.open(tmp_path).ids.to_pylist() == ["train", "val", "test"]
    assert not (tmp_path / ".lock").exists()


def test_store_writer_locks_its_folder(tmp_path):
    with refused(tmp_path / ".lock"):
        StoreWriter(tmp_path, dim=3, source={})
    with StoreWriter(tmp_path, dim=3, source={}) as writer:
        writer.add("a", np.ones((2, 3), np.float16))
        assert (tmp_path / ".lock").exists()
    assert not (tmp_path / ".lock").exists()
    with pytest.raises(InputError, match="holds a complete store"):
        StoreWriter(tmp_path, dim=3, source={})
    assert not (tmp_path / ".lock").exists()
    assert FeatureStore.open(tmp_path).ids.to_pylist() == ["a"]


def test_export_locks_its_output(home, tmp_path):
    run_id = track_untrained(make_corpus(home))
    with refused(tmp_path / ".model.lock"):
        export(run_id, tmp_path / "model")
    export(run_id, tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
