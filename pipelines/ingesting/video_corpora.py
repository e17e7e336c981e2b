"""Subcommands of `python -m pipelines.ingest` that write a corpus of videos."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from infra.files import existing_folder, identity
from infra.store.findings import USUAL, Skipped, Tolerance
from pipelines.ingesting.report import Tolerate, report_corpus
from tasks.datasets.corpus import CorpusSummary, Item, write_corpus
from tasks.datasets.published import MSRVTT, MSRVTT_1KA, MSVD, VATEX, Published
from tasks.datasets.videos.hgr import read_hgr
from tasks.datasets.videos.media import with_features, with_videos
from tasks.datasets.videos.msrvtt import read_msrvtt
from tasks.datasets.videos.msrvtt_1ka import read_msrvtt_1ka
from tasks.datasets.videos.msvd import read_msvd
from tasks.datasets.videos.vatex import read_vatex


def msrvtt(
    *,
    json: list[Path],
    out: Path,
    videos: Path | None = None,
    features: Path | None = None,
    tolerance: Tolerate = USUAL,
) -> None:
    """Read MSR-VTT's captions and full splits, into a corpus.

    Args:
        json: train_val_videodatainfo.json and test_videodatainfo.json, or one merged file.
        out: folder of the corpus.
        videos: folder of the video files; an item without one is left out.
        features: folder of a store; an item without features in it is left out.
        tolerance: what may be left out or odd.
    """
    source = {"reader": "msrvtt", "files": identity(*json)}
    _write(
        out,
        read_msrvtt(*json),
        source=source,
        videos=videos,
        features=features,
        tolerance=tolerance,
        published=[MSRVTT],
    )


def msrvtt_1ka(
    *,
    json: list[Path],
    train: Path,
    test: Path,
    out: Path,
    val: int = 500,
    seed: int = 0,
    videos: Path | None = None,
    features: Path | None = None,
    tolerance: Tolerate = USUAL,
) -> None:
    """Read MSR-VTT's split 1k-A, into a corpus; some training videos are held out to choose the epoch on.

    Args:
        json: MSRVTT_data.json, or the official pair of files.
        train: MSRVTT_train.9k.csv or MSRVTT_train.7k.csv.
        test: MSRVTT_JSFUSION_test.csv.
        out: folder of the corpus.
        val: how many training videos are held out as val, as 1k-A has no validation split.
        seed: of the draw of these.
        videos: folder of the video files; an item without one is left out.
        features: folder of a store; an item without features in it is left out.
        tolerance: what may be left out or odd.
    """
    source = {"reader": "msrvtt-1ka", "files": identity(*json, train, test), "val": val, "seed": seed}
    items = read_msrvtt_1ka(*json, train=train, test=test, val=val, seed=seed)
    summary = _write(
        out, items, source=source, videos=videos, features=features, tolerance=tolerance, published=MSRVTT_1KA
    )
    held_out = summary.splits.get("val", 0)
    print(
        f"1k-A has no validation split: val is {held_out:,} videos held out of {train.name} (seed {seed}); "
        "nothing is chosen on the test set"
    )


def vatex(
    *,
    training: Path,
    validation: Path,
    out: Path,
    val_ids: Path | None = None,
    test_ids: Path | None = None,
    seed: int = 0,
    videos: Path | None = None,
    features: Path | None = None,
    tolerance: Tolerate = USUAL,
) -> None:
    """Read VATEX's English captions, into a corpus; the validation videos become val and test.

    Args:
        training: vatex_training_v1.0.json.
        validation: vatex_validation_v1.0.json.
        out: folder of the corpus.
        val_ids: .txt, .json or .npy list of the videos of val, such as HGR's val_names.npy.
        test_ids: the same of test, such as HGR's tst_names.npy.
        seed: of the draw that divides the validation videos where no list is given.
        videos: folder of the video files; an item without one is left out.
        features: folder of a store; an item without features in it is left out.
        tolerance: what may be left out or odd.
    """
    lists = [path for path in (val_ids, test_ids) if path]
    source = {"reader": "vatex", "files": identity(training, validation, *lists)}
    items = read_vatex(training, validation, val_ids=val_ids, test_ids=test_ids, seed=seed)
    if lists:
        note = f"val and test are those of {' and '.join(path.name for path in lists)}"
    else:
        source["seed"] = seed
        note = (
            f"val and test are halves of {validation.name}, drawn with seed {seed}: NOT the published split, whose "
            "lists come with HGR's features (--val-ids, --test-ids)"
        )
    _write(
        out, items, source=source, videos=videos, features=features, tolerance=tolerance, published=[VATEX]
    )
    print(note)


def msvd(
    *,
    captions: Path,
    lists: Path,
    out: Path,
    videos: Path | None = None,
    features: Path | None = None,
    tolerance: Tolerate = USUAL,
) -> None:
    """Read MSVD's captions and splits, into a corpus.

    Args:
        captions: AllVideoDescriptions.txt.
        lists: folder of train_list.txt, val_list.txt and test_list.txt.
        out: folder of the corpus.
        videos: folder of the video files; an item without one is left out.
        features: folder of a store; an item without features in it is left out.
        tolerance: what may be left out or odd.
    """
    source = {"reader": "msvd", "files": identity(captions, *_files(lists, "*_list.txt"))}
    _write(
        out,
        read_msvd(captions, lists=lists),
        source=source,
        videos=videos,
        features=features,
        tolerance=tolerance,
        published=[MSVD],
    )


def hgr(
    *,
    captions: Path,
    splits: Path,
    out: Path,
    videos: Path | None = None,
    features: Path | None = None,
    tolerance: Tolerate = USUAL,
) -> None:
    """Read the captions and splits of HGR's release, into a corpus.

    Args:
        captions: annotation/RET/ref_captions.json.
        splits: public_split, with trn_names.npy, val_names.npy and tst_names.npy.
        out: folder of the corpus.
        videos: folder of the video files; an item without one is left out.
        features: folder of a store; an item without features in it is left out.
        tolerance: what may be left out or odd.
    """
    source = {"reader": "hgr", "files": identity(captions, *_files(splits, "???_names.npy"))}
    _write(
        out,
        read_hgr(captions, splits=splits),
        source=source,
        videos=videos,
        features=features,
        tolerance=tolerance,
        published=[MSRVTT, VATEX],
    )


def _write(
    out: Path,
    items: Iterable[Item | Skipped],
    *,
    source: dict[str, Any],
    videos: Path | None,
    features: Path | None,
    tolerance: Tolerance,
    published: Sequence[Published],
) -> CorpusSummary:
    """Write the items that have what was asked for, and say how many there are."""
    if videos:
        items = with_videos(items, folder=videos)
    if features:
        items = with_features(items, store=features)
    summary = write_corpus(out, items, source=source, images=videos or "", tolerance=tolerance)
    report_corpus(out, summary, published=published)
    return summary


def _files(folder: Path, pattern: str) -> list[Path]:
    """Return the files of a folder that fit a pattern, by name."""
    return sorted(existing_folder(folder, what=f"a folder of {pattern}").glob(pattern))
