"""Turn published annotations and features into a corpus and feature stores, and published models into runs.

python -m pipelines.ingest karpathy --json dataset_coco.json --images DIR --out DIR
python -m pipelines.ingest scan --dir DIR --out DIR
python -m pipelines.ingest butd --tsv FILE [FILE ...] --out DIR
python -m pipelines.ingest hdf5 --file FILE --ids FILE --out DIR
python -m pipelines.ingest arrays --dir DIR --out DIR
python -m pipelines.ingest vse-infinity model_best.pth [--vocab FILE]
python -m pipelines.ingest verify --store DIR
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import tyro

from infra.errors import command
from infra.files import identity
from infra.manifest import Manifest
from infra.skipped import Skipped, describe
from infra.store import FeatureStore
from tasks.datasets.arrays import read_arrays
from tasks.datasets.butd import read_butd
from tasks.datasets.corpus import SKIPPED, Corpus, Summary, write_corpus
from tasks.datasets.features import Features, cross_check, write_features
from tasks.datasets.hdf5 import read_hdf5
from tasks.datasets.karpathy import read_karpathy
from tasks.datasets.scan import write_scan

DType = Literal["float16", "float32"]


def karpathy(*, json: Path, images: Path, out: Path, keep_restval: bool = False) -> None:
    """Read captions and splits from Karpathy's JSON, into a corpus.

    Args:
        json: dataset_coco.json, dataset_flickr30k.json, or a file of that form.
        images: folder of the images, or of the folders that the file names.
        out: folder of the corpus.
        keep_restval: keep restval a split of its own; by default it joins train.
    """
    items = read_karpathy(json, images=images, keep_restval=keep_restval)
    source = {"reader": "karpathy", "files": identity(json), "keep_restval": keep_restval}
    _report_corpus(out, write_corpus(out, items, source=source, images=images))


def scan(*, dir: Path, out: Path, dtype: DType = "float16") -> None:
    """Read SCAN's *_ims.npy, *_caps.txt and *_ids.txt, into a corpus and a store.

    Args:
        dir: folder of the three files of each split.
        out: folder of the corpus; the store is its subfolder regions.
        dtype: what numbers are stored as.
    """
    summary, manifest = write_scan(dir, out=out, dtype=dtype)
    _report_corpus(out, summary)
    _report_store(out / "regions", manifest)


def butd(
    *, tsv: list[Path], out: Path, dim: int = 2048, dtype: DType = "float16", corpus: Path | None = None
) -> None:
    """Read bottom-up-attention features from TSV files, into a store.

    Args:
        tsv: one or several files.
        out: folder of the store.
        dim: width of the features.
        dtype: what numbers are stored as.
        corpus: folder of a corpus to compare the ids with.
    """
    source = {"reader": "butd", "files": identity(*tsv)}
    _ingest(read_butd(tsv, dim=dim), out=out, source=source, dtype=dtype, corpus=corpus)


def hdf5(
    *,
    file: Path,
    out: Path,
    ids: Path | None = None,
    key: str = "image_features",
    channels_first: bool = False,
    dtype: DType = "float16",
    corpus: Path | None = None,
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
    """
    files = [path for path in (file, ids) if path]
    source = {"reader": "hdf5", "files": identity(*files), "key": key, "channels_first": channels_first}
    sets = read_hdf5(file, ids=ids, key=key, channels_first=channels_first)
    _ingest(sets, out=out, source=source, dtype=dtype, corpus=corpus)


def arrays(
    *,
    dir: Path,
    out: Path,
    channels_first: bool = False,
    dtype: DType = "float16",
    corpus: Path | None = None,
) -> None:
    """Read a folder of .npy or .npz files named by id, into a store.

    Args:
        dir: folder of the files; the last axis of each is the width, all others are elements of the set.
        out: folder of the store.
        channels_first: files are (D, H, W).
        dtype: what numbers are stored as.
        corpus: folder of a corpus to compare the ids with.
    """
    source = {"reader": "arrays", "folder": dir.name, "channels_first": channels_first}
    sets = read_arrays(dir, channels_first=channels_first)
    _ingest(sets, out=out, source=source, dtype=dtype, corpus=corpus)


def vse_infinity(
    checkpoint: tyro.conf.Positional[Path],
    *,
    vocab: Path | None = None,
    bert: str = "bert-base-uncased",
    corpus: str = "",
    features: str = "",
    experiment: str = "polypool",
) -> None:
    """Read a released VSE-infinity model, into a run that can be evaluated; nothing in the file is run.

    Args:
        checkpoint: a model_best.pth: regions or grid, BERT or BiGRU.
        vocab: SCAN's coco_precomp_vocab.json or f30k_precomp_vocab.json, for a BiGRU.
        bert: model on the hub, or local folder, with tokenizer and configuration, for BERT.
        corpus: folder of the corpus; data/coco or data/flickr30k where none is given.
        features: folder of a region model's store; regions in the same folder where none is given.
        experiment: MLflow experiment of the run.
    """
    from pipelines.released import read_release
    from pipelines.vse_infinity import convert, track

    release = read_release(checkpoint)
    converted = convert(
        release, vocab=vocab, bert=bert, corpus=corpus, features=features, experiment=experiment
    )
    run = converted.run
    print(f"{checkpoint}: {run.visual}, {run.text}, {run.aggregator}, epoch {release.epoch}")
    print(f"  RSUM on its development split, as its authors measured it: {release.best_rsum:.1f}")
    run_id = track(release, converted)
    print(f"run {run_id}: score it with python -m pipelines.evaluate {run_id}")


def verify(*, store: Path) -> None:
    """Check every byte of a store against its manifest.

    Args:
        store: folder of the store.
    """
    opened = FeatureStore.open(store)
    opened.verify()
    print(f"{store}: good: {_content(opened.manifest)}")


def _ingest(
    sets: Iterable[Features | Skipped], *, out: Path, source: dict[str, Any], dtype: str, corpus: Path | None
) -> None:
    reference = Corpus.open(corpus) if corpus else None
    _report_store(out, write_features(out, sets, source=source, dtype=dtype))
    if reference:
        listing = out / "unmatched.json"
        for kind, ids in cross_check(FeatureStore.open(out), reference, listing=listing).items():
            examples = f" such as {', '.join(ids[:3])}, all in {listing}" if ids else ""
            print(f"ids with {kind}: {len(ids):,}{examples}")


def _report_corpus(out: Path, summary: Summary) -> None:
    splits = ", ".join(f"{split} {count:,}" for split, count in summary.splits.items())
    print(f"{out}: {sum(summary.splits.values()):,} items ({splits}), {summary.captions:,} captions")
    _report_skipped(out / SKIPPED, summary.skipped)


def _report_store(out: Path, manifest: Manifest) -> None:
    print(f"{out}: {_content(manifest)}")
    _report_skipped(out / "skipped.jsonl", manifest.skipped)


def _content(manifest: Manifest) -> str:
    size = sum(shard.bytes for shard in manifest.shards)
    numbers = f"{manifest.vectors:,} vectors of {manifest.dim} x {manifest.dtype}"
    return f"{manifest.sets:,} sets, {numbers}, {size:,} bytes in {len(manifest.shards)} files"


def _report_skipped(listing: Path, skipped: dict[str, Any]) -> None:
    print(describe(skipped))
    if skipped["count"]:
        print(f"  all of them: {listing}")


@command
def main() -> None:
    """Run the subcommand that is named on the command line."""
    verbs = [karpathy, scan, butd, hdf5, arrays, vse_infinity, verify]
    tyro.extras.subcommand_cli_from_dict(
        {verb.__name__.replace("_", "-"): verb for verb in verbs},
        prog="python -m pipelines.ingest",
        description="Turn published annotations and features into a corpus and feature stores, and models into runs.",
    )


if __name__ == "__main__":
    main()
