"""Subcommands of `python -m pipelines.ingest` that write a feature store, or check one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from infra.files import existing_folder, identity
from infra.storage.places import place
from infra.store import FeatureStore
from infra.store.findings import USUAL, Skipped, Tolerance
from pipelines.ingesting.report import Tolerate, content, report_store
from tasks.datasets.features.arrays import read_arrays
from tasks.datasets.features.butd import read_butd
from tasks.datasets.features.hdf5 import read_hdf5
from tasks.datasets.features.lmdb import read_lmdb
from tasks.datasets.features.to_store import Features, cross_check, write_features
from tasks.datasets.open_corpus import open_corpus
from tasks.datasets.videos.hgr import read_hgr_features

DType = Literal["float16", "float32"]


def butd(
    *,
    tsv: list[Path],
    out: Path,
    dim: int = 2048,
    dtype: DType = "float16",
    corpus: Path | None = None,
    tolerance: Tolerate = USUAL,
) -> None:
    """Read bottom-up-attention features from TSV files, into a store.

    Args:
        tsv: one or several files.
        out: folder of the store.
        dim: width of the features.
        dtype: what numbers are stored as.
        corpus: folder of a corpus to compare the ids with.
        tolerance: what may be left out or odd.
    """
    source = {"reader": "butd", "files": identity(*tsv)}
    _write(read_butd(tsv, dim=dim), out=out, source=source, dtype=dtype, corpus=corpus, tolerance=tolerance)


def hdf5(
    *,
    file: Path,
    out: Path,
    ids: Path | None = None,
    key: str = "image_features",
    channels_first: bool = False,
    dtype: DType = "float16",
    corpus: Path | None = None,
    tolerance: Tolerate = USUAL,
) -> None:
    """Read features from an HDF5 file, into a store.

    Args:
        file: the HDF5 file.
        out: folder of the store.
        ids: .json with {id: row} or a list of ids, .npy or .txt of ids; by default the dataset image_ids.
        key: the dataset of features.
        channels_first: rows are (D, H, W).
        dtype: what numbers are stored as.
        corpus: folder of a corpus to compare the ids with.
        tolerance: what may be left out or odd.
    """
    files = [path for path in (file, ids) if path]
    source = {"reader": "hdf5", "files": identity(*files), "key": key, "channels_first": channels_first}
    sets = read_hdf5(file, ids=ids, key=key, channels_first=channels_first)
    _write(sets, out=out, source=source, dtype=dtype, corpus=corpus, tolerance=tolerance)


def lmdb(
    *,
    dir: Path,
    out: Path,
    dtype: DType = "float16",
    corpus: Path | None = None,
    tolerance: Tolerate = USUAL,
) -> None:
    """Read regions from an LMDB of mmf or ViLBERT, into a store; nothing in it is run.

    Args:
        dir: folder of the LMDB, with data.mdb.
        out: folder of the store.
        dtype: what numbers are stored as.
        corpus: folder of a corpus to compare the ids with.
        tolerance: what may be left out or odd.
    """
    source = {
        "reader": "lmdb",
        "files": identity(existing_folder(dir, what="the folder of an LMDB") / "data.mdb"),
    }
    _write(read_lmdb(dir), out=out, source=source, dtype=dtype, corpus=corpus, tolerance=tolerance)


def arrays(
    *,
    dir: Path,
    out: Path,
    channels_first: bool = False,
    dtype: DType = "float16",
    corpus: Path | None = None,
    tolerance: Tolerate = USUAL,
) -> None:
    """Read a folder of .npy or .npz files named by id, into a store.

    Args:
        dir: folder of the files; the last axis of each is the width, all others are elements of the set.
        out: folder of the store.
        channels_first: files are (D, H, W).
        dtype: what numbers are stored as.
        corpus: folder of a corpus to compare the ids with.
        tolerance: what may be left out or odd.
    """
    source = {"reader": "arrays", "folder": dir.name, "channels_first": channels_first}
    sets = read_arrays(dir, channels_first=channels_first)
    _write(sets, out=out, source=source, dtype=dtype, corpus=corpus, tolerance=tolerance)


def hgr_features(
    *,
    dir: Path,
    splits: Path,
    out: Path,
    dtype: DType = "float16",
    corpus: Path | None = None,
    tolerance: Tolerate = USUAL,
) -> None:
    """Read HGR's ordered features, SA or MP, into a store.

    Args:
        dir: ordered_feature/SA/<kind> with trn_ft.hdf5, ..., or ordered_feature/MP/<kind> with trn_ft.npy, ...
        splits: public_split, with trn_names.npy, val_names.npy and tst_names.npy.
        out: folder of the store.
        dtype: what numbers are stored as.
        corpus: folder of a corpus to compare the ids with.
        tolerance: what may be left out or odd.
    """
    dir = existing_folder(dir, what="ordered_feature/SA/<kind> or ordered_feature/MP/<kind>")
    files = [path for path in sorted(dir.glob("???_ft.*")) if path.is_file()]
    source = {"reader": "hgr-features", "kind": "/".join(dir.parts[-2:]), "files": identity(*files)}
    _write(
        read_hgr_features(dir, splits=splits),
        out=out,
        source=source,
        dtype=dtype,
        corpus=corpus,
        tolerance=tolerance,
    )


def verify(*, store: Path) -> None:
    """Check every byte of a store against its manifest.

    Args:
        store: folder of the store.
    """
    opened = FeatureStore.open(store)
    opened.verify()
    print(f"{opened.folder}: good: {content(opened.manifest)}")
    if not opened.manifest.checked:
        print(
            "a store of version 1, without checks: later damage is noticed by `verify` only; write it anew to have them"
        )


def _write(
    sets: Iterable[Features | Skipped],
    *,
    out: Path,
    source: dict[str, Any],
    dtype: str,
    corpus: Path | None,
    tolerance: Tolerance,
) -> None:
    """Write a store and say what it holds; where a corpus is given, compare the ids with its own."""
    out, reference = place(out), open_corpus(corpus) if corpus else None
    report_store(out, write_features(out, sets, source=source, dtype=dtype, tolerance=tolerance))
    if reference:
        listing = out / "unmatched.json"
        for kind, ids in cross_check(FeatureStore.open(out), reference, listing=listing).items():
            examples = f" such as {', '.join(ids[:3])}, all in {listing}" if ids else ""
            print(f"ids with {kind}: {len(ids):,}{examples}")
