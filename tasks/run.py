"""A run, described completely: recipes return one, the command line changes it, MLflow keeps it as JSON."""

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
from polypool.infra.limits import LARGEST_NUMBER
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
    REGULARISERS,
    SIMILARITIES,
    TASKS,
    Registry,
)
from polypool.infra.registry.origins import ORIGINS, origins, without_origins
from polypool.infra.spec import Spec, changed, modules_of, refuse_untrusted
from polypool.infra.storage import Url, place

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
"""What help says of a list that is empty where nothing is given."""
Part = Annotated[str, _SPEC]
"""A spec such as `kmax(k=5)`; empty where there is no such part."""
ByPrefix = Annotated[
    tuple[tuple[str, NonNegative], ...],
    NO_DEFAULT,
    Rule("pairs with each prefix once", lambda pairs: len({prefix for prefix, _ in pairs}) == len(pairs)),
]
"""Numbers by prefixes of parameter names; the longest prefix of a name wins."""


PLACES = ("corpus", "features", "texts")
"""Settings of `Data` that are folders or URLs."""


@dataclass(frozen=True, kw_only=True)
class Data:
    """Where the data is and how training samples are made of it.

    Corpora and stores may be in object storage: `s3://bucket/data/coco`, `gs://...` or `hf://...`.
    """

    dataset: Name = AUTO
    """Name of the data set, a tag of the run; `auto` is the name of the corpus's folder."""
    corpus: Annotated[str, short("--corpus")]
    """Folder of an ingested corpus, or its URL: ids, splits, captions."""
    features: Annotated[str, short("--features")] = ""
    """Folder of a feature store, or its URL; unused where the visual encoder reads pixels."""
    extractor: Part = ""
    """Backbone that the recipe's features are of, such as `resnet(size=224)`, or the reader of published ones, such as
    `butd`: a store that `extract` made with another is refused; empty for any. Stores of published files are taken."""
    texts: Annotated[str, short("--texts")] = ""
    """Folder of a store of the texts' features, or its URL; unused where the text encoder reads words."""
    missing: Literal["error", "skip"] = "error"
    """What becomes of pictures and videos of the corpus that have no features, or no file where the model reads these:
    an error before training, or they are left out of all splits, and counted in every table."""
    captions: Count = 0
    """How many captions of each item are used, the first ones; all papers cut COCO's to five. 0 for no limit."""
    visual_augment: Part = ""
    """Augmentation of the visual sets in training, such as `drop(p=0.2)`; empty for none."""
    max_frames: Count = 0
    """Elements of a stored set, or frames that are read of a video file, evenly spaced. 0 for no limit."""
    max_words: Count = 0
    """Words of a caption; longer ones are cut. 0 for no limit."""
    sample: Literal["caption", "image"] = "caption"
    """What a batch is made of: captions, each with its image, or images, each with all its captions."""
    text_augment: Part = ""
    """Augmentation of the captions in training, such as `mask_replace_delete(p=0.2)` of words, or `drop(p=0.2)` of
    stored features; empty for none."""
    vocabulary: Splits = ("train",)
    """Splits whose words are counted; SCAN's lists, which most papers on COCO share, count `train` and `val`."""

    def __post_init__(self) -> None:
        validate(self, prefix="--data.")
        for name in PLACES:
            place(getattr(self, name))
        if self.dataset == AUTO:
            object.__setattr__(self, "dataset", folder_name(self.corpus) or AUTO)

    def used(self, captions: Sequence[T]) -> Sequence[T]:
        """Return the captions, or ids of captions, of an item that are used."""
        return captions[: self.captions or None]


@dataclass(frozen=True, kw_only=True)
class Optim:
    """How the weights are found: by which optimiser, with the schedule of the learning rate in steps or epochs."""

    epochs: Count = 25
    """Passes over the training split; 0 scores pretrained weights as they are."""
    batch: Positive = 128
    """Samples in the global batch, over all workers."""
    chunk: Count = 0
    """Samples of a worker that pass the model at once, with the gradient of the whole batch, so that a large batch fits
    a small device; 0 for all of them. Not for models that normalise by the batch."""
    lr: PositiveFloat = 5e-4
    """Learning rate."""
    weight_decay: NonNegative = 1e-4
    """The optimiser's, on every parameter, as in the published codes."""
    optimiser: Annotated[Part, NOT_EMPTY] = "adamw"
    """What makes steps of gradients, such as `lion` or `adamw(amsgrad=True)`."""
    lr_factors: ByPrefix = ()
    """Pairs of a parameter-name prefix and a factor on the learning rate; the longest prefix wins; 0 freezes."""
    freeze: ByPrefix = ()
    """Pairs of a parameter-name prefix and the epochs for which it stays as it is; the longest prefix wins."""
    schedule: Literal["step", "cosine", "constant"] = "step"
    """How the learning rate falls."""
    milestones: Epochs = (15,)
    """Epochs after which the `step` schedule multiplies the learning rate by `decay`."""
    decay: Decay = 0.1
    """See `milestones`."""
    warmup_steps: Count = 0
    """Steps over which the learning rate rises linearly from 0; more than a fifth of the training is cut to a tenth."""
    warmup_start: NonNegative = 0.0
    """Epochs before that, at the full learning rate: VSE-infinity's grids warm up in the second one."""
    clip: NonNegative = 2.0
    """Largest norm of the whole gradient; 0 for no clipping."""
    ema: Annotated[NonNegative, below(1)] = 0.0
    """Decay of a moving average of the weights, such as 0.999, which is scored and kept; 0 for none."""
    keep: Literal["best", "last"] = "best"
    """The epoch whose weights are kept and scored: the best on `val`, or the last, as VSE+2AD and DivE report it."""
    recompute: bool = False
    """Compute activations of published encoders again in the backward pass: less memory, a third more time."""
    drop_last: bool = True
    """Whether an epoch's last batch is left out when it is not full."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """`auto` is bfloat16 on a GPU that has it in hardware, and on a CPU that has, where it was measured faster."""

    def __post_init__(self) -> None:
        validate(self, prefix="--optim.")


@dataclass(frozen=True, kw_only=True)
class Run:
    """Everything a run is. Parts are named by specs such as `gpo(temperature=0.1)`.

    A run from nothing, without a recipe, on the corpus that `polypool.tasks.datasets.corpus.write_corpus` shows::

        from polypool.tasks.run import Data, Optim, Run

        run = Run(
            data=Data(corpus="data/mine", features="data/mine-features", captions=2),
            visual="regions(width=32)",
            text="bigru(width=32, embedding=16, min_count=1)",
            aggregator="gpo",
            protocol="whole",
            optim=Optim(epochs=2, batch=16),
        )

    `polypool.train(run)` trains it, as `polypool train RECIPE` trains what a recipe returns.

    Raises:
        InputError: a setting has the wrong type or an impossible value; raised when the run is made.
    """

    recipe: tyro.conf.Suppress[str] = ""
    """The recipe that this run came from."""
    data: Data
    visual: Part
    """Visual encoder."""
    text: Part = ""
    """Text encoder; `auto` is a BiGRU of the words, or an MLP of the features that `data.texts` names, as wide as the
    visual encoder; empty for tasks that read no texts."""
    adapt: Part = ""
    """What is trained of encoders with published weights, such as `lora(r=16)` or `frozen`; all where empty."""
    protocol: Name
    """Protocol of the test split, scored once, with the epoch that was best on `val`."""
    test: bool = True
    """Score the test split at the end; else a run reads `val` alone, as one that helps to choose settings should."""
    task: Annotated[Part, NOT_EMPTY] = "image_text"
    """Task adapter."""
    aggregator: Part = "gpo"
    """Aggregator of both modalities."""
    text_aggregator: Part = ""
    """Aggregator of the text alone, where it differs."""
    model: Part = ""
    """What the parts are put together to, such as `hgr`; where empty, two branches, or a model of pairs where the
    aggregators or a cross-modal encoder ask for one."""
    cross: Part = ""
    """Cross-modal encoder, in which image and caption look at each other; none where empty."""
    similarity: Part = ""
    """What compares embeddings; where empty, `cosine` for single vectors and `smooth_chamfer` for sets of them."""
    fusion: Part = "concat"
    """What becomes of the embeddings of image and question, where a task answers from both."""
    objective: Part = "triplet"
    """What is minimised."""
    regularisers: Annotated[tuple[Annotated[Part, NOT_EMPTY], ...], NO_DEFAULT] = ()
    """Terms added to the objective, such as `mmd(weight=0.01)`."""
    optim: Optim = field(default_factory=Optim)
    init: str = ""
    """A run whose best weights this one begins with, where name and shape are the same; others begin anew."""
    seed: Seed = 0
    """Decides first weights, the order of samples and their augmentation."""
    experiment: Name = "polypool"
    """MLflow experiment that the run belongs to."""
    name: str = ""
    """Name of the run in MLflow, which verbs take in the place of its id; where empty, its aggregator, task, data,
    features and seed."""
    workers: Positive = 1
    """Ray Train workers; each holds batch / workers samples."""
    min_workers: Count = 0
    """How few will do where machines are lost or still to come; 0 for all. As many train as there is room for, and each
    number has to share a batch evenly; the result is the same but for rounding."""
    cpus: Positive = 2
    """Cores of a worker, or its share of the cluster where that is less."""
    retries: Count = 1
    """How often Ray restarts workers that failed, from the last checkpoint."""
    log_every: Positive = 10
    """Steps between two logged losses."""
    checkpoint_every: Count = 0
    """Steps between checkpoints inside an epoch; there is one after every epoch in any case."""
    figures: bool = True
    """Draw the pooling weights of the aggregators and make pages of examples, at the end of the run."""
    published: tyro.conf.Suppress[Mapping[str, float]] = field(default_factory=dict, hash=False)
    """The numbers that the recipe aims at, by protocol and metric, such as `{"coco-5k/rsum": 421.9}`."""
    source: tyro.conf.Suppress[str] = ""
    """Where they are printed."""
    members: tyro.conf.Suppress[Mapping[str, Run]] = field(default_factory=dict, hash=False)
    """The runs whose tasks are trained together, by names of their own; see `tasks.joint` and `member_runs`."""
    jointly: tyro.conf.Suppress[str] = ""
    """The task of the joint run that this one was a member of; such a run is a record, and is not trained by itself."""

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

            with suppress(InputError):  # opening it will say why
                object.__setattr__(self, "protocol", protocol_for(answers_of_corpus(at)))

    @property
    def task_name(self) -> str:
        """Its task without parameters."""
        return self.task.partition("(")[0]

    @property
    def features(self) -> str:
        """The name of its features: the folder of its store, or the visual encoder where that reads files."""
        if self.members:
            return "+".join(dict.fromkeys(run.features for run in self.members.values()))
        return features_name(self.data.features, self.visual)

    @property
    def label(self) -> str:
        """Its recipe; task and data set, too, where the recipe is not named after its data: `image_text mine`."""
        if self.members or self.recipe.startswith(self.data.dataset):
            return self.recipe
        return " ".join(dict.fromkeys(filter(None, (self.task_name, self.recipe, self.data.dataset))))

    @property
    def worker_counts(self) -> tuple[int, ...]:
        """The numbers of workers that may train, ascending."""
        return tuple(range(self.min_workers or self.workers, self.workers + 1))

    @property
    def epoch_unit(self) -> int:
        """An epoch has a multiple of so many samples, whichever of these numbers of workers trains it."""
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
"""Settings that change nothing of a run's result."""


OF_THE_JOINT_RUN = ("aggregator", "text_aggregator", "optim", "seed", "workers", *WITHOUT_EFFECT)
"""Settings that all tasks have from the run that trains them together; published numbers are of runs alone."""
_UNNAMED = "joint"
"""The recipe that a task is compared under where the joint run came from none."""


def member_runs(run: Run) -> dict[str, Run]:
    """Return the runs that are trained together as they then are: with the joint run's aggregators and training.

    Their recipe is the joint run's, by which tables tell them from runs of the same task alone.
    """
    shared = {name: getattr(run, name) for name in OF_THE_JOINT_RUN} | {
        "recipe": run.recipe or _UNNAMED,
        "published": {},
        "source": "",
        "init": "",
    }
    return {
        name: dataclasses.replace(member, **shared, jointly=run.task) for name, member in run.members.items()
    }


def specs(of: Run | Data | Optim, *, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield every spec in a run with its field, such as `data.visual_augment`; empty ones, too."""
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
"""Kinds of the parts that the settings of a run name."""


def named_encoder(spec: str, side: str) -> str:
    """Return the spec of the encoder of a side, `visual` or `text`.

    Raises:
        InputError: the run names none.
    """
    if not spec:
        raise InputError(f"the task needs a {side} encoder, and the run names none; name one by --{side}")
    return spec


def refuse_incomplete(run: Run) -> None:
    """Raise InputError for a run whose settings are to follow from a corpus that is not given."""
    for each in (run, *run.members.values()):
        if not each.data.corpus and AUTO in (each.data.dataset, each.text, each.protocol):
            raise InputError(
                f"{each.recipe or each.task} trains on your own data, and no corpus is given: add --corpus DIR, the "
                "folder that `polypool ingest` wrote, and --features DIR, a store of its pictures or videos that "
                "`polypool extract` or `polypool ingest` wrote"
            )


def located(run: Run, start: Callable[[], Path]) -> Run:
    """Return a run whose paths are absolute: those of its data, and those of its parts, `FilePath` and `ModelName`.

    Args:
        run: its settings.
        start: returns the folder at which relative paths start: `polypool.infra.paths.here` for what a user types,
            `home` for recipes.
    """
    return _with_paths(run, lambda path, kind: paths.located(path, kind, start))


def portable(run: Run, home: str | Path) -> Run:
    """Return a run whose paths below a home are relative to it, as in recipes and as on other machines."""
    return _with_paths(run, lambda path, _: path.removeprefix(f"{home}/" if home else ""))


def files(run: Run) -> list[str]:
    """Return the files and folders that a run names: its corpus and stores, and those of its parts, such as weights."""
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
    """Return the modules that a run names by `module:Name`, which loading it again demands trust in."""
    return modules_of(spec for _, spec in specs(run))


def to_json(run: Run) -> dict[str, Any]:
    """Return a run as plain JSON."""
    return dataclasses.asdict(run)


TRAINING_DATA = "training_data"
"""The key in the `run.json` of a model with what its adapter describes of the data of training."""


def to_record(run: Run, digests: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return a run as `run.json` holds it: plain JSON, with the packages of parts that are plugged in.

    Args:
        run: the settings.
        digests: of the data that a model was trained on; see `training_data`.
    """
    found = origins(spec for _, spec in specs(run))
    return (
        to_json(run)
        | ({ORIGINS: found} if found else {})
        | ({TRAINING_DATA: dict(digests)} if digests else {})
    )


def training_data(record: Any, *, where: str) -> dict[str, str]:
    """Return the digests of the data of training in what `to_record` wrote; empty if it holds none.

    Raises:
        InputError: they are no texts by name.
    """
    held = record.get(TRAINING_DATA, {}) if isinstance(record, dict) else {}
    return from_plain(dict[str, str], held, where=f"{where}: {TRAINING_DATA}")


def to_params(run: Run) -> dict[str, Any]:
    """Return a run as tracking shows its settings: `published` is one of them, as JSON."""
    members = {name: to_params(member) for name, member in member_runs(run).items()}
    return to_json(run) | {"published": json.dumps(dict(run.published)), "members": members}


def from_json(values: Any, *, where: str = "run.json") -> Run:
    """Return the run that `to_record` or `to_json` wrote.

    Args:
        values: what was read.
        where: the file, which messages name.

    Raises:
        InputError: a setting that a run does not have or lacks, as of another version, a value that a run refuses, a
            part whose package is not installed, or a module that is not trusted (see `polypool.infra.spec`).
    """
    values = without_origins(values, where=where)
    if isinstance(values, dict):
        values = {name: value for name, value in values.items() if name != TRAINING_DATA}
    run = from_plain(Run, values, where=where)
    for field_name, spec in specs(run):
        refuse_untrusted(spec, where=f"{where}: {field_name}")
    return run
