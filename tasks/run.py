"""A run, described completely: recipes return one, the command line changes it, MLflow keeps it as JSON."""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import tyro

from infra.errors import InputError, unknown


@dataclass(frozen=True, kw_only=True)
class Data:
    """Where the data is and how training samples are made of it.

    Paths are relative to the project's home: the folder a command runs in, or POLYPOOL_HOME.
    """

    dataset: str
    """Name of the data set, a tag of the run."""
    corpus: str
    """Folder of an ingested corpus: ids, splits, captions."""
    features: str = ""
    """Folder of a feature store; unused where the visual encoder reads pixels."""
    captions: int = 5
    """How many captions of each item are used; all papers cut COCO's to five."""
    visual_augment: str = ""
    """Augmentation of the visual sets in training, such as `drop(p=0.2)`; empty for none."""
    max_frames: int = 0
    """Elements of a stored set, such as frames of a video; larger sets are thinned out evenly. 0 for no limit."""
    max_words: int = 0
    """Words of a caption; longer ones are cut. 0 for no limit."""
    sample: typing.Literal["caption", "image"] = "caption"
    """What a batch is made of: captions, each with its image, or images, each with all its captions."""
    text_augment: str = ""
    """Augmentation of the captions in training, such as `mask_replace_delete(p=0.2)`; empty for none."""


@dataclass(frozen=True, kw_only=True)
class Optim:
    """How the weights are found: AdamW, with the schedule of the learning rate in steps or epochs."""

    epochs: int = 25
    """Passes over the training split."""
    batch: int = 128
    """Samples in the global batch, over all workers."""
    lr: float = 5e-4
    """Learning rate."""
    weight_decay: float = 1e-4
    """AdamW's, on every parameter, as in the published codes."""
    lr_factors: tuple[tuple[str, float], ...] = ()
    """Pairs of a parameter-name prefix and a factor on the learning rate; the longest prefix wins; 0 freezes."""
    freeze: tuple[tuple[str, float], ...] = ()
    """Pairs of a parameter-name prefix and the epochs for which it stays as it is; the longest prefix wins."""
    schedule: typing.Literal["step", "cosine", "constant"] = "step"
    """How the learning rate falls."""
    milestones: tuple[float, ...] = (15,)
    """Epochs after which the `step` schedule multiplies the learning rate by `decay`."""
    decay: float = 0.1
    """See `milestones`."""
    warmup_steps: int = 0
    """Steps over which the learning rate rises linearly from 0."""
    clip: float = 2.0
    """Largest norm of the whole gradient; 0 for no clipping."""
    drop_last: bool = True
    """Whether an epoch's last batch is left out when it is not full."""
    precision: typing.Literal["auto", "float32", "bfloat16"] = "auto"
    """`auto` is bfloat16 where the device has it in hardware, float32 elsewhere."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """Everything a run is. Parts are named by specs such as `gpo(temperature=0.1)`."""

    recipe: tyro.conf.Suppress[str] = ""
    """The recipe that this run came from."""
    data: Data
    visual: str
    """Visual encoder."""
    text: str
    """Text encoder."""
    protocol: str
    """Protocol of the test split, scored once, with the epoch that was best on `val`."""
    task: str = "image_text"
    """Task adapter."""
    aggregator: str = "gpo"
    """Aggregator of both modalities."""
    text_aggregator: str = ""
    """Aggregator of the text alone, where it differs."""
    model: str = ""
    """What the parts are put together to, such as `hgr`; where empty, two branches, or a model of pairs where the
    aggregators or a cross-modal encoder ask for one."""
    cross: str = ""
    """Cross-modal encoder, in which image and caption look at each other; none where empty."""
    similarity: str = ""
    """What compares embeddings; where empty, `cosine` for single vectors and `smooth_chamfer` for sets of them."""
    fusion: str = "concat"
    """What becomes of the embeddings of image and question, where a task answers from both."""
    objective: str = "triplet"
    """What is minimised."""
    regularisers: tuple[str, ...] = ()
    """Terms added to the objective, such as `mmd(weight=0.01)`."""
    optim: Optim = field(default_factory=Optim)
    seed: int = 0
    """Decides first weights, the order of samples and their augmentation."""
    experiment: str = "polypool"
    """MLflow experiment that the run belongs to."""
    workers: int = 1
    """Ray Train workers; each holds batch / workers samples."""
    cpus: int = 2
    """Cores of a worker, or its share of the cluster where that is less."""
    retries: int = 1
    """How often a failed group of workers starts again from the last checkpoint."""
    log_every: int = 10
    """Steps between two logged losses."""
    checkpoint_every: int = 0
    """Steps between checkpoints inside an epoch; there is one after every epoch in any case."""
    figures: bool = True
    """Draw what the aggregators learnt and make pages of examples, at the end of the run."""
    published: tyro.conf.Suppress[Mapping[str, float]] = field(default_factory=dict)
    """The numbers that the recipe aims at, by protocol and metric, such as `{"coco-5k/rsum": 421.9}`."""
    source: tyro.conf.Suppress[str] = ""
    """Where they are printed."""

    def __post_init__(self) -> None:
        counts = {
            "--optim.epochs": self.optim.epochs,
            "--optim.batch": self.optim.batch,
            "--workers": self.workers,
        }
        for name, value in counts.items():
            if value < 1:
                raise InputError(f"{name} must be at least 1, not {value}")
        if self.optim.batch % self.workers:
            raise InputError(
                f"a batch of {self.optim.batch} cannot be shared evenly by {self.workers} workers"
            )


def to_json(run: Run) -> dict[str, Any]:
    """Return a run as plain JSON."""
    return dataclasses.asdict(run)


def to_params(run: Run) -> dict[str, Any]:
    """Return a run as tracking shows its settings: `published` is one of them, as JSON."""
    return to_json(run) | {"published": json.dumps(dict(run.published))}


def from_json(values: dict[str, Any]) -> Run:
    """Return the run that `to_json` wrote.

    Raises:
        InputError: a name that a run does not have, which says that another version wrote it.
    """
    return _build(Run, values)


def _build(cls: type, values: dict[str, Any]) -> Any:
    types = typing.get_type_hints(cls)
    for name in values:
        if name not in types:
            raise unknown(f"setting of a {cls.__name__}:", name, types)
    return cls(**{name: _value(types[name], value) for name, value in values.items()})


def _value(kind: Any, value: Any) -> Any:
    if dataclasses.is_dataclass(kind):
        return _build(kind, value)
    if isinstance(value, list):
        return tuple(_value(None, item) for item in value)
    return value
