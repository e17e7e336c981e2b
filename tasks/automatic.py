"""Settings of a run that follow from its corpus and stores, once these are given; and their short flags."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import tyro

from polypool.infra.errors import InputError
from polypool.infra.paths import absolute, here
from polypool.infra.spec import Spec, changed
from polypool.infra.storage import Url, place

if TYPE_CHECKING:
    from polypool.tasks.run import Run

AUTO = "auto"
"""A setting that is still to follow."""


def short(flag: str) -> Any:
    """Return the annotation of a setting that the command line also knows by a flag without its group."""
    return tyro.conf.arg(aliases=(flag,))


def folder_name(corpus: str) -> str:
    """Return the name of a corpus's folder or URL; empty where there is none."""
    return os.path.basename(os.path.normpath(str(absolute(corpus, here)))) if corpus else ""


def features_name(features: str, visual: str) -> str:
    """Return the name of the folder of a feature store, or of the visual encoder where there is none."""
    return folder_name(features) or (Spec.parse(visual).name if visual else "")


def text_encoder(visual: str, *, stored: bool) -> str:
    """Return a text encoder as wide as a visual one: of stored features, or of words."""
    spec = "stacked_regions(standardise=auto)" if stored else "bigru(embedding=128, min_count=1, dropout=0.3)"
    return changed(spec, width=Spec.parse(visual).params.get("width", 1024))


def question_protocol(corpus: str) -> str:
    """Return the protocol for a corpus of questions; `AUTO` for a relative path, or where opening it will say why."""
    from polypool.tasks.datasets.questions import answers_of_corpus
    from polypool.tasks.questions.accuracy import protocol_for

    at = place(corpus)
    with suppress(InputError):
        if isinstance(at, Url) or at.is_absolute():  # once `located` has resolved it
            return protocol_for(answers_of_corpus(at))
    return AUTO


def refuse_incomplete(run: Run) -> None:
    """Raise InputError for a run whose settings are to follow from a corpus that is not given."""
    for each in (run, *run.members.values()):
        if not each.data.corpus and AUTO in (each.data.dataset, each.text, each.protocol):
            raise InputError(
                f"{each.recipe or each.task} trains on your own data, and no corpus is given: add --corpus DIR, the "
                "folder that `polypool ingest` wrote, and --features DIR, a store of its pictures or videos that "
                "`polypool extract` or `polypool ingest` wrote"
            )
