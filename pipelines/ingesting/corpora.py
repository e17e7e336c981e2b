"""Subcommands of `python -m pipelines.ingest` that write a corpus: one of each registered reader, and SCAN's arrays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import tyro

from infra.registry import READERS
from infra.store.findings import USUAL, Tolerance
from pipelines.ingesting.feature_stores import DType
from pipelines.ingesting.report import Tolerate, report_corpus, report_questions, report_store
from tasks.datasets.corpus import CorpusSummary, write_corpus
from tasks.datasets.images.scan import write_scan
from tasks.datasets.published import SCAN
from tasks.datasets.questions import QuestionSummary, write_questions
from tasks.datasets.reader import Reader


def ingest(
    reader: Reader, *, out: Path, name: str = "", tolerance: Tolerance = USUAL
) -> CorpusSummary | QuestionSummary:
    """Read annotations into a corpus, and say what it holds.

    Args:
        reader: with its options.
        out: folder of the corpus.
        name: what the reader is called, which the corpus remembers; that of its class where empty.
        tolerance: what may be left out or odd.

    Raises:
        InputError: what the reader or `write_corpus` refuses.
    """
    reading = reader.read()
    write, report = (
        (write_corpus, report_corpus) if reading.of == "captions" else (write_questions, report_questions)
    )
    for line in reading.notes:
        print(line, flush=True)
    source = {"reader": name or type(reader).__name__, **reading.source}
    summary = write(out, reading.rows, source=source, images=reading.images, tolerance=tolerance)
    report(out, summary, published=reading.published)
    for line in reader.remarks(summary):
        print(line)
    return summary


def verb_of(name: str) -> Callable[..., None]:
    """Return the subcommand of a reader, whose options are its fields.

    Raises:
        InputError: there is no such reader, or it cannot be used.
    """
    kind: type[Reader] = READERS.get(name)

    def verb(reader: Reader, *, out: Path, tolerance: Tolerate = USUAL) -> None:
        ingest(reader, out=out, name=name, tolerance=tolerance)

    verb.__annotations__["reader"] = Annotated[kind, tyro.conf.arg(name="")]
    verb.__doc__ = f"""{(kind.__doc__ or "").strip()}

    Args:
        out: folder of the corpus.
        tolerance: what may be left out or odd.
    """
    return verb


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
