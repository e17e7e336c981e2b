"""Trained models on other data, or on training data that have changed since.

A model keeps the vocabulary, feature statistics and answers of its training.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from polypool.infra.errors import InputError
from polypool.tasks.run import Run, folder_name, short
from polypool.tasks.scoring.records import ORIGIN

if TYPE_CHECKING:  # a verb reads these settings before torch is imported
    from polypool.infra.store import FeatureStore
    from polypool.tasks.inputs.corpus_inputs import CorpusInputs


@dataclass(frozen=True, kw_only=True)
class OtherData:
    """Data for scoring trained models, instead of the data of training; fields as in `polypool.tasks.run.Data`."""

    dataset: str = ""
    """Name of the data set in tables; if empty, the name of the corpus's folder."""
    corpus: Annotated[str, short("--corpus")] = ""
    """Folder of an ingested corpus, or its URL."""
    features: Annotated[str, short("--features")] = ""
    """Folder of a feature store of its images or videos, or its URL, extracted as for training."""
    texts: Annotated[str, short("--texts")] = ""
    """Folder of a store of its texts' features, or its URL, likewise; for models that read no words."""
    captions: int | None = None
    """Number of captions of each item; by default as in training."""
    missing: Literal["error", "skip"] | None = None
    """Items without features, or without a file: an error, or skipped; by default as in training."""

    def __post_init__(self) -> None:
        if not self.dataset:
            object.__setattr__(self, "dataset", folder_name(self.corpus))

    @property
    def given(self) -> dict[str, Any]:
        """The settings that are given."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: value for name, value in values.items() if value not in ("", None)}

    def of(self, run: Run) -> Run:
        """Return a run whose data are these.

        Raises:
            InputError: no corpus, a data set named as the training data, or a run of several tasks.
        """
        if not self.corpus:
            raise InputError("other data need --corpus, a folder that `polypool ingest` made")
        if run.members:
            raise InputError(
                f"{run.task!r} trained several tasks, each on its own data; evaluate the run of one of them"
            )
        if self.dataset == run.data.dataset:
            raise InputError(
                f"{self.dataset!r} is the name of the data that the model was trained on; give other data another name "
                "with --data.dataset, or leave --corpus out to score the model on its own"
            )
        data = {"features": "", "texts": ""} | self.given
        return dataclasses.replace(run, data=dataclasses.replace(run.data, **data))


class ChangedDataError(InputError):
    """The data of a run have changed since its training."""


def changed_data(then: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return a sentence for each difference between the present data and the data of training.

    Features with the same origin count as equal, because they differ by rounding only. Values that training did not
    record are not compared.

    Args:
        then: digests and counts of the data of training, from `TaskAdapter.describe`.
        now: digests and counts of the present data.
    """
    return [
        f"{name} is {value[:12]}, was {then[name][:12]}"
        for name, value in now.items()
        if not name.endswith(ORIGIN)
        and then.get(name, value) != value
        and not (now.get(name + ORIGIN) and now.get(name + ORIGIN) == then.get(name + ORIGIN))
    ]


def refuse_changed_data(run: Run, then: Mapping[str, str], now: Mapping[str, str], *, hint: str) -> None:
    """Raise an error if the data of a run differ from its training, as `changed_data` compares them.

    Raises:
        ChangedDataError: lists the differences, then the hint.
    """
    if differences := changed_data(then, now):
        raise ChangedDataError(
            f"{run.label} {run.aggregator} seed {run.seed} was trained on other data than {run.data.corpus or 'its'} "
            f"now holds: {'; '.join(differences)} (SHA-256 and counts). {hint}"
        )


def renamed_data(run: Run, now: Mapping[str, str]) -> Run:
    """Return a run whose data set is named `NAME@DIGEST`, for data that have changed since training.

    The digest is of `now`, the digests and counts of the present data.
    """
    digest = hashlib.sha256(json.dumps(dict(now), sort_keys=True).encode()).hexdigest()[:8]
    data = dataclasses.replace(run.data, dataset=f"{run.data.dataset}@{digest}")
    return dataclasses.replace(run, data=data)


def check_features(inputs: CorpusInputs) -> None:
    """Check before encoding that features of other data were extracted as for training.

    Args:
        inputs: of a trained model, whose run names the other data.

    Raises:
        InputError: no store, or one with another width or from another extractor.
    """
    data, assets = inputs.run.data, inputs.assets
    made = {"features": assets.get("feature_source", {}).get("source", {}), "texts": assets.get("texts", {})}
    for name, reads_store, side in (
        ("features", inputs.reads_store, "visual"),
        ("texts", not inputs.reads_words, "text"),
    ):
        if not reads_store:
            continue
        if not getattr(data, name):
            raise InputError(
                f"the model reads stored features; name a store for {data.corpus} by --{name} DIR (`polypool "
                "extract` makes them, with the backbone of training)"
            )
        store = inputs.store if name == "features" else inputs.text_store
        assert store is not None  # the model reads one
        if why := "; ".join(_differences(store, dim=assets[side]["dim"], made=made[name])):
            raise InputError(
                f"--{name} {getattr(data, name)}: not made as the features that the model was trained on: {why}"
            )


def _differences(store: FeatureStore, *, dim: int, made: dict[str, Any]) -> Iterator[str]:
    """Yield the differences of a store from the store of training, whose recorded source is `made`."""
    if store.dim != dim:
        yield f"their width is {store.dim}, expected {dim}"
    ours, theirs = (of.get("extractor") or {} for of in (made, store.manifest.source))
    for name in sorted({*ours, *theirs}):
        if ours.get(name) != theirs.get(name):
            values = (repr(of.get(name, "unknown"))[:60] for of in (theirs, ours))
            yield "{} of their extractor is {}, expected {}".format(name, *values)
