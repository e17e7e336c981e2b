"""Commands that come after data were read or described, with the arguments that they had."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from polypool.infra.errors import InputError
from polypool.infra.process.output import Step
from polypool.infra.storage import Url, place
from polypool.infra.store.manifest import Manifest
from polypool.tasks.datasets.corpus import Corpus
from polypool.tasks.datasets.open_corpora import open_corpus
from polypool.tasks.datasets.questions import QuestionCorpus
from polypool.tasks.datasets.readers.folders import VIDEOS

_STANDARD = ("train", "val", "test")
_CORPUS, _FEATURES, _FILE = "CORPUS", "FEATURES", "FILE"
"""Placeholders for what only the user knows."""


def after_corpus(folder: Path | Url) -> list[Step]:
    """Return how features of a new corpus are made, or read where it names no pictures or videos."""
    corpus, named = open_corpus(folder), str(folder)
    features = f"{str(folder).rstrip('/')}/{'cells' if _media(corpus) else 'features'}"
    training = [_training(corpus, named, features)] if {"train", "val"} <= {*corpus.splits} else []
    if (first := _media(corpus)) is None:
        read = ("ingest", "hdf5", "--file", _FILE, "--corpus", folder, "--out", features)
        return [("features of your own; or ingest arrays --dir DIR", read), *training]
    video = ("--video",) if first.lower().endswith(VIDEOS) else ()
    what = "videos" if video else "pictures"
    made = ("extract", "--corpus", folder, *video, "--backbone", "cells", "--out", features)
    return [(f"features of the {what}; other backbones give better ones: extract --help", made), *training]


def after_store(folder: Path | Url, corpus: Path | Url | None = None, *, complete: bool = True) -> list[Step]:
    """Return how a model is trained on a new store, or what it still lacks of its corpus.

    Args:
        folder: of the store.
        corpus: of its images or videos; that of the folder that the store is in by default.
        complete: whether all of these have features.
    """
    corpus = corpus or place(folder).parent
    try:
        opened = open_corpus(corpus)
    except InputError:
        words = ("train", "image_text", "--corpus", _CORPUS, "--features", str(folder))
        return [("train on it with a corpus of captions; or video_text, or vqa", words)]
    why, training = _training(opened, str(corpus), str(folder))
    if not complete:
        return [(f"{why} without what has no features", (*training, "--data.missing", "skip"))]
    return [(why, training)]


def after_extraction(
    folder: Path | Url, corpus: Path | Url, manifest: Manifest, *, words: Iterable[object], texts: bool
) -> list[Step]:
    """Return how the splits that a store lacks are added, and how a model is trained on it.

    Args:
        folder: of the store.
        corpus: that it is of.
        manifest: of the store.
        words: of the command line without splits and limit.
        texts: whether it has texts.
    """
    opened, steps = open_corpus(corpus), list[Step]()
    lacking = [name for name in _STANDARD if name in opened.splits and name not in manifest.source["splits"]]
    if lacking:
        steps.append(("add the splits that training needs, too", ("extract", *words, "--splits", *lacking)))
    named = str(folder)
    features, more = (_FEATURES, ("--texts", named)) if texts else (named, ())
    why, training = _training(opened, str(corpus), features)
    return [*steps, (why, (*training, *more))]


def _training(corpus: Corpus | QuestionCorpus, folder: str, features: str) -> Step:
    first = _media(corpus)
    recipe = "video_text" if first and first.lower().endswith(VIDEOS) else "image_text"
    if isinstance(corpus, QuestionCorpus):
        recipe = "vqa"
    words = ("train", recipe, "--corpus", folder, "--features", features, "--aggregator", "gpo")
    return "train a model", words if "test" in corpus.splits else (*words, "--no-test")


def _media(corpus: Corpus | QuestionCorpus) -> str | None:
    """Return the path of a picture or video; None where there are none."""
    _, path, _ = next(corpus.paths(next(iter(corpus.splits))))
    return path or None
