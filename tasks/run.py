"""The complete description of a run: recipes return one, the command line changes it, MLflow stores it as JSON."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import os
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import tyro

from polypool.infra import paths
from polypool.infra.errors import InputError
from polypool.infra.fields import NOT_EMPTY, Rule, above, at_least, below, from_plain, hints, validate
from polypool.infra.paths import FilePath, absolute, here
from polypool.infra.registry import (
    ADAPTATIONS,
    AGGREGATORS,
    AUGMENTATIONS,
    CROSS_ENCODERS,
    ENCODERS,
    FUSIONS,
    MODELS,
    OBJECTIVES,
    OPTIMISERS,
    ORIGINS,
    REGULARISERS,
    SIMILARITIES,
    TASKS,
    Registry,
    origins,
    without_origins,
)
from polypool.infra.spec import LARGEST_NUMBER, Spec, changed, modules_of, refuse_untrusted
from polypool.infra.storage import Url, place

AUTO = "auto"
"""Value of a setting that is derived from the corpus."""


def short(flag: str) -> Any:
    """Return the annotation of a setting with a command-line flag that omits its group."""
    return tyro.conf.arg(aliases=(flag,))


def folder_name(corpus: str) -> str:
    """Return the last part of a corpus's folder or URL; empty without one."""
    return os.path.basename(os.path.normpath(str(absolute(corpus, here)))) if corpus else ""


def features_name(features: str, visual: str) -> str:
    """Return the folder name of a feature store, or the visual encoder without one."""
    return folder_name(features) or (Spec.parse(visual).name if visual else "")


T = TypeVar("T")
Count = Annotated[int, at_least(0), below(LARGEST_NUMBER)]
Positive = Annotated[int, at_least(1), below(LARGEST_NUMBER)]
NonNegative = Annotated[float, at_least(0)]
PositiveFloat = Annotated[float, above(0)]
Epochs = Annotated[
    tuple[PositiveFloat, ...],
    Rule("in ascending order", lambda epochs: all(a < b for a, b in itertools.pairwise(epochs))),
]
Decay = Annotated[PositiveFloat, Rule("at most 1", lambda factor: factor <= 1)]
Splits = Annotated[
    tuple[Literal["train", "val"], ...],
    Rule("different splits, at least one", lambda splits: 0 < len(splits) == len({*splits})),
]
Seed = Annotated[int, at_least(0), Rule("below 2**63", lambda seed: seed < 2**63)]
Name = Annotated[str, NOT_EMPTY]


_SPEC = Rule("a spec", lambda text: not text or bool(Spec.parse(text)))
NO_DEFAULT = tyro.conf.arg(help_behavior_hint="(default: none)")
"""Default in the help of a list that is empty by default."""
Part = Annotated[str, _SPEC]
"""A spec such as `kmax(k=5)`; empty for none."""
ByPrefix = Annotated[
    tuple[tuple[str, NonNegative], ...],
    NO_DEFAULT,
    Rule("pairs with each prefix once", lambda pairs: len({prefix for prefix, _ in pairs}) == len(pairs)),
]
"""Numbers by prefix of parameter names; the longest matching prefix applies."""


PLACES = ("corpus", "features", "texts")
"""Fields of `Data` that are folders or URLs."""


@dataclass(frozen=True, kw_only=True)
class Data:
    """The data, and how training samples are made from it.

    Corpora and stores may be in object storage: `s3://bucket/data/coco`, `gs://...` or `hf://...`.
    """

    dataset: Name = AUTO
    """Name of the data set, a tag of the run; `auto` takes the name of the corpus's folder."""
    corpus: Annotated[str, short("--corpus")]
    """Folder of an ingested corpus, or its URL: ids, splits, captions."""
    features: Annotated[str, short("--features")] = ""
    """Folder of a feature store, or its URL; not used if the visual encoder reads pixels."""
    extractor: Part = ""
    """Backbone of the recipe's features, such as `resnet(size=224)`, or the reader of published ones, such as `butd`.
    `train` prints a note and tags the run if `extract` made the store with another backbone; empty for any."""
    texts: Annotated[str, short("--texts")] = ""
    """Folder of a store of text features, or its URL; not used if the text encoder reads words."""
    missing: Literal["error", "skip"] = "error"
    """Pictures and videos of the corpus without features (or without files, if the model reads files): an error before
    training, or skip them in all splits, and count them in every table."""
    captions: Count = 0
    """Use the first captions of each item, at most this many; all papers use five for COCO. 0 for no limit."""
    visual_augment: Part = ""
    """Augmentation of the visual sets in training, such as `drop(p=0.2)`; empty for none."""
    max_frames: Count = 0
    """Maximum elements of a stored set, or frames of a video file, evenly spaced. 0 for no limit."""
    on_device: Literal["auto", "off"] = "auto"
    """`auto` copies the stored features of the training and validation splits to the GPU once, where each fits 60 % of
    its free memory."""
    max_words: Count = 0
    """Maximum words of a caption; longer ones are truncated. 0 for no limit."""
    sample: Literal["caption", "image"] = "caption"
    """Samples of a batch: captions, each with its image, or images, each with all its captions."""
    text_augment: Part = ""
    """Augmentation of the captions in training, such as `mask_replace_delete(p=0.2)` of words, or `drop(p=0.2)` of
    stored features; empty for none."""
    vocabulary: Splits = ("train",)
    """Splits for building the vocabulary; SCAN's, used by most papers on COCO, is from `train` and `val`."""

    def __post_init__(self) -> None:
        validate(self, prefix="--data.")
        for name in PLACES:
            place(getattr(self, name))
        if self.dataset == AUTO:
            object.__setattr__(self, "dataset", folder_name(self.corpus) or AUTO)

    def used(self, captions: Sequence[T]) -> Sequence[T]:
        """Return the used captions, or ids of captions, of an item."""
        return captions[: self.captions or None]


@dataclass(frozen=True, kw_only=True)
class Optim:
    """Optimiser, learning rate schedule (in steps or epochs), precision and batches."""

    epochs: Count = 25
    """Passes over the training split; 0 scores the pretrained weights without training."""
    batch: Positive = 128
    """Samples in the global batch, over all workers."""
    chunk: Count = 0
    """Samples per forward pass of a worker, with the gradient of the whole batch, so that a large batch fits a small
    device; 0 for all. Not for models with batch normalisation."""
    lr: PositiveFloat = 5e-4
    """Learning rate."""
    weight_decay: NonNegative = 1e-4
    """Weight decay of the optimiser, on every parameter, as in the published codes."""
    optimiser: Annotated[Part, NOT_EMPTY] = "adamw"
    """Optimiser, such as `lion` or `adamw(amsgrad=True)`."""
    lr_factors: ByPrefix = ()
    """Pairs of a parameter-name prefix and a learning rate factor; the longest prefix applies; 0 freezes."""
    freeze: ByPrefix = ()
    """Pairs of a parameter-name prefix and a number of epochs to freeze it for; the longest prefix applies."""
    schedule: Literal["step", "cosine", "constant"] = "step"
    """Learning rate schedule."""
    milestones: Epochs = (15,)
    """Epochs after which the `step` schedule multiplies the learning rate by `decay`."""
    decay: Decay = 0.1
    """See `milestones`."""
    warmup_steps: Count = 0
    """Steps of linear warm-up from 0; reduced to a tenth of the training if more than a fifth."""
    warmup_start: NonNegative = 0.0
    """Epochs at the full learning rate before the warm-up; 1 for VSE-infinity's grids."""
    clip: NonNegative = 2.0
    """Maximum norm of the gradient over all parameters (gradient clipping); 0 for no clipping."""
    ema: Annotated[NonNegative, below(1)] = 0.0
    """Decay of a moving average of the weights, such as 0.999, which is scored and stored; 0 for none."""
    keep: Literal["best", "last"] = "best"
    """Epoch to store and score: the best on `val`, or the last, as VSE+2AD and DivE report."""
    recompute: bool = False
    """Recompute activations of published encoders in the backward pass: less memory, a third more time."""
    drop_last: bool = True
    """Whether to drop an epoch's last batch if it is incomplete."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """`auto` is bfloat16 on GPUs that support it in hardware, and on such CPUs if measured to be faster."""
    capture: Literal["auto", "off"] = "auto"
    """`auto` runs each training step on a GPU as one CUDA graph, where its operations allow it."""

    def __post_init__(self) -> None:
        validate(self, prefix="--optim.")


@dataclass(frozen=True, kw_only=True)
class Run:
    """Everything a run is. Parts are named by specs such as `gpo(temperature=0.1)`.

    A run without a recipe, on the corpus of the example of `polypool.tasks.datasets.corpus.write_corpus`::

        from polypool.tasks.run import Data, Optim, Run

        run = Run(
            data=Data(corpus="data/mine", features="data/mine-features", captions=2),
            visual="regions(width=32)",
            text="bigru(width=32, embedding=16, min_count=1)",
            aggregator="gpo",
            protocol="whole",
            optim=Optim(epochs=2, batch=16),
        )

    `polypool.train(run)` trains it, as `polypool train RECIPE` trains a recipe.

    Raises:
        InputError: a setting has the wrong type or an impossible value.
    """

    recipe: tyro.conf.Suppress[str] = ""
    """Recipe of this run."""
    data: Data
    visual: Part
    """Visual encoder."""
    text: Part = ""
    """Text encoder; `auto` is a BiGRU over words, or an MLP over the features of `data.texts`, as wide as the visual
    encoder; empty for tasks without texts."""
    adapt: Part = ""
    """Adaptation of encoders with published weights, such as `lora(r=16)` or `frozen`; empty to train all weights."""
    protocol: Name
    """Protocol of the test split, which is scored once, with the best epoch on `val`."""
    test: bool = True
    """Score the test split at the end; otherwise the run reads only `val`, for tuning."""
    task: Annotated[Part, NOT_EMPTY] = "image_text"
    """Task adapter."""
    aggregator: Part = "gpo"
    """Aggregator of both modalities."""
    text_aggregator: Part = ""
    """Aggregator of the text, if different."""
    model: Part = ""
    """Model composed of the parts, such as `hgr`; if empty, a dual encoder, or a model of pairs if the aggregators or a
    cross-modal encoder need one."""
    cross: Part = ""
    """Cross-modal encoder, with attention between image and caption; empty for none."""
    similarity: Part = ""
    """Similarity of embeddings; if empty, chosen by the aggregators' outputs, such as `cosine` for single vectors and
    `smooth_chamfer` for sets of one size."""
    fusion: Part = "concat"
    """Fusion of the embeddings of image and question, for question answering."""
    objective: Part = "triplet"
    """Loss function."""
    regularisers: Annotated[tuple[Annotated[Part, NOT_EMPTY], ...], NO_DEFAULT] = ()
    """Terms added to the objective, such as `mmd(weight=0.01)`."""
    optim: Optim = field(default_factory=Optim)
    init: str = ""
    """Run whose best weights initialise this one, where name and shape match."""
    seed: Seed = 0
    """Random seed of initial weights, sample order and augmentation."""
    experiment: Name = "polypool"
    """MLflow experiment that the run belongs to."""
    name: str = ""
    """Name of the run in MLflow, which verbs accept instead of its id; if empty, its aggregator, task, data, features
    and seed."""
    workers: Positive = 1
    """Ray Train workers; each holds batch / workers samples."""
    min_workers: Count = 0
    """Minimum number of workers if machines are lost or not yet available; 0 for all. Training uses as many as fit;
    every number must divide the batch; results differ only by rounding."""
    cpus: Positive = 2
    """Cores per worker, at most its share of the cluster."""
    retries: Count = 1
    """Number of restarts of failed workers by Ray, from the last checkpoint."""
    log_every: Positive = 10
    """Steps between logged losses."""
    checkpoint_every: Count = 0
    """Steps between checkpoints within an epoch, in addition to one after every epoch."""
    figures: bool = True
    """Draw the aggregators' pooling weights and pages of examples at the end of the run."""
    published: tyro.conf.Suppress[Mapping[str, float]] = field(default_factory=dict, hash=False)
    """Published numbers that the recipe aims at, by protocol and metric, such as `{"coco-5k/rsum": 421.9}`."""
    source: tyro.conf.Suppress[str] = ""
    """Source of the published numbers."""
    members: tyro.conf.Suppress[Mapping[str, Run]] = field(default_factory=dict, hash=False)
    """Jointly trained runs by name; see `tasks.joint` and `member_runs`."""
    jointly: tyro.conf.Suppress[str] = ""
    """Task of the joint run that this run was a member of; such a run is a record and cannot be trained."""

    def __post_init__(self) -> None:
        validate(self)
        if self.optim.batch % self.workers:
            raise InputError(
                f"a batch of {self.optim.batch} cannot be shared evenly by {self.workers} workers"
            )
        if self.min_workers > self.workers:
            raise InputError(
                f"--min-workers must be at most --workers, which is {self.workers}, not {self.min_workers}"
            )
        if odd := [count for count in self.worker_counts if self.optim.batch % count]:
            even = math.lcm(*self.worker_counts)
            raise InputError(
                f"--min-workers {self.min_workers}: a batch of {self.optim.batch} cannot be shared evenly by {odd[0]} "
                f"workers; choose a batch that each number of workers shares, such as {even}"
            )
        if self.text == AUTO and self.data.corpus:
            words = "bigru(embedding=128, min_count=1, dropout=0.3)"
            spec = "stacked_regions(standardise=auto)" if self.data.texts else words
            width = Spec.parse(self.visual).params.get("width", 1024)
            object.__setattr__(self, "text", changed(spec, width=width))
        at = place(self.data.corpus)
        if self.protocol == AUTO and (
            isinstance(at, Url) or at.is_absolute()
        ):  # once `located` has resolved it
            from polypool.tasks.datasets.corpus import answers_of_corpus
            from polypool.tasks.questions.accuracy import protocol_for

            with suppress(InputError):  # opening it reports the reason
                object.__setattr__(self, "protocol", protocol_for(answers_of_corpus(at)))

    @property
    def task_name(self) -> str:
        """Its task without parameters."""
        return self.task.partition("(")[0]

    @property
    def features(self) -> str:
        """The name of its features: the folder of its store, or the visual encoder if that reads files."""
        if self.members:
            return "+".join(dict.fromkeys(run.features for run in self.members.values()))
        return features_name(self.data.features, self.visual)

    @property
    def label(self) -> str:
        """Its recipe; with task and data set if the recipe is not named after its data: `image_text mine`."""
        if self.members or self.recipe.startswith(self.data.dataset):
            return self.recipe
        return " ".join(dict.fromkeys(filter(None, (self.task_name, self.recipe, self.data.dataset))))

    @property
    def worker_counts(self) -> tuple[int, ...]:
        """The allowed numbers of workers, ascending."""
        return tuple(range(self.min_workers or self.workers, self.workers + 1))

    @property
    def epoch_unit(self) -> int:
        """An epoch has a multiple of this many samples, for every allowed number of workers."""
        return self.optim.batch if self.optim.drop_last else math.lcm(*self.worker_counts)


WITHOUT_EFFECT = (
    "experiment",
    "name",
    "published",
    "source",
    "cpus",
    "min_workers",
    "retries",
    "log_every",
    "checkpoint_every",
    "figures",
)
"""Settings that do not affect a run's result."""


OF_THE_JOINT_RUN = ("aggregator", "text_aggregator", "test", "optim", "seed", "workers", *WITHOUT_EFFECT)
"""Settings that member runs take from the joint run; published numbers are of single-task runs."""


def member_runs(run: Run) -> dict[str, Run]:
    """Return the members of a joint run, with its aggregators and training settings.

    Their recipe is the joint run's, so that tables separate them from single-task runs.
    """
    shared = {name: getattr(run, name) for name in OF_THE_JOINT_RUN} | {
        "recipe": run.recipe or "joint",
        "published": {},
        "source": "",
        "init": "",
    }
    return {
        name: dataclasses.replace(member, **shared, jointly=run.task) for name, member in run.members.items()
    }


def specs(of: Run | Data | Optim, *, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield every spec in a run with its field, such as `data.visual_augment`; including empty ones."""
    for name, hint in hints(type(of)).items():
        value = getattr(of, name)
        if isinstance(value, Data | Optim):
            yield from specs(value, prefix=f"{prefix}{name}.")
        elif _SPEC in getattr(hint, "__metadata__", ()):
            yield prefix + name, value
        elif any(_SPEC in getattr(kind, "__metadata__", ()) for kind in typing.get_args(hint)):
            yield from ((f"{prefix}{name}[{number}]", spec) for number, spec in enumerate(value))
        elif name == "members":
            for member, run in value.items():
                yield from specs(run, prefix=f"{prefix}members.{member}.")


REGISTRIES: Mapping[str, Registry] = {
    "task": TASKS,
    "visual": ENCODERS,
    "text": ENCODERS,
    "adapt": ADAPTATIONS,
    "aggregator": AGGREGATORS,
    "text_aggregator": AGGREGATORS,
    "model": MODELS,
    "cross": CROSS_ENCODERS,
    "similarity": SIMILARITIES,
    "fusion": FUSIONS,
    "objective": OBJECTIVES,
    "regularisers": REGULARISERS,
    "data.visual_augment": AUGMENTATIONS,
    "data.text_augment": AUGMENTATIONS,
    "optim.optimiser": OPTIMISERS,
}
"""Kinds of parts by setting of a run."""


def named_encoder(spec: str, side: str) -> str:
    """Return the spec of the encoder of a side, `visual` or `text`.

    Raises:
        InputError: the run names none.
    """
    if not spec:
        raise InputError(f"the task needs a {side} encoder, and the run names none; name one by --{side}")
    return spec


def refuse_incomplete(run: Run) -> None:
    """Raise InputError for a run with settings that depend on a missing corpus."""
    for each in (run, *run.members.values()):
        if not each.data.corpus and AUTO in (each.data.dataset, each.text, each.protocol):
            raise InputError(
                f"{each.recipe or each.task} trains on your own data, and no corpus is given: add --corpus DIR, the "
                "folder that `polypool ingest` wrote, and --features DIR, a store of its pictures or videos that "
                "`polypool extract` or `polypool ingest` wrote"
            )


def located(run: Run, start: Callable[[], Path]) -> Run:
    """Return a run with absolute paths of its data and its parts (`FilePath` and `ModelName`).

    Args:
        run: its settings.
        start: returns the folder of relative paths: `polypool.infra.paths.here` for typed paths, `home` for recipes.
    """
    return _with_paths(run, lambda path, kind: paths.located(path, kind, start))


def portable(run: Run, home: str | Path) -> Run:
    """Return a run with its paths below a home made relative to it, for recipes and other machines."""
    return _with_paths(run, lambda path, _: path.removeprefix(f"{home}/" if home else ""))


def files(run: Run) -> list[str]:
    """Return the files and folders of a run: its corpus and stores, and files of its parts, such as weights."""
    found: list[str] = []

    def note(path: str, kind: Any) -> str:
        if kind is FilePath:
            found.append(path)
        return path

    _with_paths(run, note)
    return found


def _with_paths(run: Run, change: Callable[[str, Any], str]) -> Run:
    def part(name: str, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(part(name, spec) for spec in value)
        return REGISTRIES[name].with_paths(value, change)

    own: dict[str, Any] = {"data": {}, "optim": {}}
    for name in REGISTRIES:
        of, _, inside = name.rpartition(".")
        if of:
            own[of][inside] = part(name, getattr(getattr(run, of), inside))
        else:
            own[name] = part(name, getattr(run, name))
    places = {name: getattr(run.data, name) for name in PLACES}
    own["data"] |= {name: change(path, FilePath) for name, path in places.items() if path}
    own |= {name: dataclasses.replace(getattr(run, name), **own[name]) for name in ("data", "optim")}
    members = {name: _with_paths(member, change) for name, member in run.members.items()}
    return dataclasses.replace(run, **own, members=members)


def modules(run: Run) -> tuple[str, ...]:
    """Return the modules that a run names by `module:Name`, which must be trusted to load it."""
    return modules_of(spec for _, spec in specs(run))


def to_json(run: Run) -> dict[str, Any]:
    """Return a run as plain JSON."""
    return dataclasses.asdict(run)


TRAINING_DATA = "training_data"
"""Key in a model's `run.json` with its adapter's description of the training data."""


def to_record(run: Run, digests: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the content of `run.json`: the run as plain JSON, with the packages of plugged-in parts.

    Args:
        run: the settings.
        digests: of the training data of a model; see `training_data`.
    """
    found = origins(spec for _, spec in specs(run))
    return (
        to_json(run)
        | ({ORIGINS: found} if found else {})
        | ({TRAINING_DATA: dict(digests)} if digests else {})
    )


def training_data(record: Any, *, where: str) -> dict[str, str]:
    """Return the digests of the training data in a record of `to_record`; empty if it has none.

    Raises:
        InputError: the digests are invalid.
    """
    held = record.get(TRAINING_DATA, {}) if isinstance(record, dict) else {}
    return from_plain(dict[str, str], held, where=f"{where}: {TRAINING_DATA}")


def to_params(run: Run) -> dict[str, Any]:
    """Return a run as MLflow parameters; `published` is one of them, as JSON."""
    members = {name: to_params(member) for name, member in member_runs(run).items()}
    return to_json(run) | {"published": json.dumps(dict(run.published)), "members": members}


def from_json(values: Any, *, where: str = "run.json") -> Run:
    """Return a run from the JSON of `to_record` or `to_json`.

    Args:
        values: parsed JSON.
        where: the file, for messages.

    Raises:
        InputError: an unknown or missing setting, as from another version, an invalid value, a part whose package is
            not installed, or an untrusted module (see `polypool.infra.spec`).
    """
    values = without_origins(values, where=where)
    if isinstance(values, dict):
        values = {name: value for name, value in values.items() if name != TRAINING_DATA}
    run = from_plain(Run, values, where=where)
    for field_name, spec in specs(run):
        refuse_untrusted(spec, where=f"{where}: {field_name}")
    return run
