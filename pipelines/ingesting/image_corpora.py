"""Subcommands of `python -m pipelines.ingest` that write a corpus of images: with captions, or with questions."""

from __future__ import annotations

from pathlib import Path

from infra.files import identity
from infra.storage.places import place
from infra.store.findings import USUAL
from pipelines.ingesting.feature_stores import DType
from pipelines.ingesting.report import Tolerate, report_corpus, report_findings, report_store
from tasks.datasets.corpus import write_corpus
from tasks.datasets.images.karpathy import open_karpathy, read_karpathy
from tasks.datasets.images.scan import write_scan
from tasks.datasets.published import COCO, FLICKR30K, SCAN, VQA2, compare_counts
from tasks.datasets.questions import FORMAT as QUESTIONS
from tasks.datasets.questions import QuestionSummary, write_questions
from tasks.datasets.vqa.vqa2 import hold_out, read_vqa2

_KARPATHY = {"coco": COCO, "flickr30k": FLICKR30K}
_ANSWERS = "10"  # of each question, in VQA 2.0


def karpathy(
    *,
    json: Path,
    images: Path,
    out: Path,
    keep_restval: bool = False,
    tolerance: Tolerate = USUAL,
) -> None:
    """Read captions and splits from Karpathy's JSON, into a corpus.

    Args:
        json: dataset_coco.json, dataset_flickr30k.json, or a file of that form.
        images: folder of the images, or of the folders that the file names.
        out: folder of the corpus.
        keep_restval: keep restval a split of its own; by default it joins train.
        tolerance: what may be left out or odd.
    """
    file = open_karpathy(json)
    items = read_karpathy(file, images=images, keep_restval=keep_restval)
    source = {"reader": "karpathy", "files": identity(json), "keep_restval": keep_restval}
    summary = write_corpus(out, items, source=source, images=images, tolerance=tolerance)
    report_corpus(out, summary, published=[_KARPATHY[file.dataset]] if file.dataset in _KARPATHY else [])


def scan(*, dir: Path, out: Path, dtype: DType = "float16", tolerance: Tolerate = USUAL) -> None:
    """Read SCAN's *_ims.npy, *_caps.txt and *_ids.txt, into a corpus and a store.

    Args:
        dir: folder of the three files of each split.
        out: folder of the corpus; the store is its subfolder regions.
        dtype: what numbers are stored as.
        tolerance: what may be left out or odd.
    """
    summary, manifest = write_scan(dir, out=out, dtype=dtype, tolerance=tolerance)
    report_corpus(out, summary, published=SCAN)
    report_store(out / "regions", manifest)


def vqa2(
    *,
    questions: tuple[Path, ...],
    out: Path,
    annotations: tuple[Path, ...] = (),
    images: Path | None = None,
    dev: float = 0.05,
    seed: int = 0,
    split: tuple[str, ...] = (),
    tolerance: Tolerate = USUAL,
) -> None:
    """Read questions and answers in the form of VQA 2.0, into a corpus.

    train2014 becomes train, of which a part is held out as val, to choose the epoch on; val2014 becomes test;
    test-dev2015 and test2015 have no answers, and are for results files.

    Args:
        questions: v2_OpenEnded_mscoco_*_questions.json, one or several.
        out: folder of the corpus.
        annotations: v2_mscoco_*_annotations.json of those that have some.
        images: folder of the images; a question without one is left out.
        dev: the share of the training images whose questions become val.
        seed: of the draw of these.
        split: train, val, test, test-dev or test2015, of each file of questions, where the files do not say it.
        tolerance: what may be left out or odd.
    """
    source = {
        "reader": "vqa2",
        "files": identity(*questions, *annotations),
        "dev": dev,
        "seed": seed,
        **({"split": split} if split else {}),
    }
    entries = read_vqa2(questions, annotations=annotations, images=images, splits=split)
    held_out = hold_out(entries, fraction=dev, seed=seed)
    summary = write_questions(out, held_out, source=source, images=images or "", tolerance=tolerance)
    _report_questions(out, summary)


def _report_questions(out: Path, summary: QuestionSummary) -> None:
    splits = ", ".join(
        f"{split} {count:,} about {summary.images[split]:,} images" for split, count in summary.splits.items()
    )
    print(f"{place(out)}: {sum(summary.splits.values()):,} questions ({splits})")
    print(compare_counts([VQA2], summary.splits))
    irregular = {number: count for number, count in summary.answers.items() if number not in ("0", _ANSWERS)}
    if irregular:
        numbers = ", ".join(f"{count:,} with {number}" for number, count in irregular.items())
        print(
            f"{sum(irregular.values()):,} questions have not {_ANSWERS} answers ({numbers}); the accuracy of each is "
            "the mean over those there are"
        )
    report_findings(out, skipped=summary.skipped, flagged=summary.flagged, form=QUESTIONS)
