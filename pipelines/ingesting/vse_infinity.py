"""Released VSE-infinity models as runs: renamed, rebuilt, and kept like trained ones.

Chen et al., "Learning the best pooling strategy for visual semantic embedding", CVPR 2021. The names are those of its
code, `lib/encoders.py`, on the branches for BERT and for BiGRU.
"""

from __future__ import annotations

import inspect
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from encoders.text.bert import Bert
from encoders.text.vocabulary import SPECIALS
from encoders.visual.weights import fill
from infra.errors import InputError, unknown
from infra.files import read_json, sha256
from infra.paths import home
from infra.registry import AGGREGATORS, ENCODERS, TASKS, Registry, Spec
from infra.tracking import Tracker, tracking_uri
from pipelines.ingesting.release import Release
from pipelines.training.best_checkpoint import ARTIFACT, write_model
from pipelines.training.runs import tags
from tasks.base import TaskAdapter
from tasks.run import Data, Optim, Run, to_json, to_params

REGIONS = {
    "encoder.fc.": "fc.",
    "encoder.down.": "mlp.layers.0.",
    "encoder.norm.": "mlp.bns.0.",
    "encoder.up.": "mlp.layers.1.",
    "aggregator.": "gpool.",
}
CNN = {
    "encoder.fc.": "image_encoder.fc.",
    "encoder.cnn.conv1.": "backbone.base.0.",
    "encoder.cnn.bn1.": "backbone.base.1.",
    "encoder.cnn.layer1.": "backbone.base.4.",
    "encoder.cnn.layer2.": "backbone.base.5.",
    "encoder.cnn.layer3.": "backbone.base.6.",
    "encoder.cnn.layer4.": "backbone.top.0.",
    "aggregator.": "image_encoder.gpool.",
}
BIGRU = {"encoder.embed.": "embed.", "encoder.rnn.": "rnn.", "aggregator.": "gpool."}
BERT = {"encoder.bert.": "bert.", "encoder.linear.": "linear.", "aggregator.": "gpool."}
"""Beginnings of our parameters' names, and of theirs."""
UNUSED = re.compile(
    r"img_enc\.mlp\.bns\.1\."  # made by the code, never called
    r"|img_enc\.backbone\.resnet\."  # the CNN under its second name, and its classifier
    r"|img_enc\.backbone\..*\.num_batches_tracked$"  # its statistics are frozen
    r"|txt_enc\.bert\.(pooler\.|embeddings\.position_ids$)"  # a head that nothing reads; the numbers from 0
)
NETWORKS = {"detector": "resnet101_caffe", "wsl": "resnext101_32x8d", "imagenet_resnext": "resnext101_32x8d"}
"""The network of a `--backbone_source`. ResNets from ImageNet are missing: the code runs weights of torchvision in
the layout of Caffe, which no network here has."""
DATASETS = {"coco": ("coco", "coco-5k"), "f30k": ("flickr30k", "f30k-1k")}
"""Data set and protocol by the beginning of `--data_name`."""
SIDE = 256
"""Pixels of an image's side where `--input_scale_factor` is 1."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """One modality of a released model: specs, assets, names, and weights that had to be changed."""

    encoder: str
    aggregator: str
    assets: dict[str, Any]
    names: Mapping[str, str]
    changed: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Converted:
    """A released model as one of ours."""

    run: Run
    adapter: TaskAdapter
    model: nn.Module


def convert(
    release: Release, *, vocab: Path | None, bert: str, corpus: str, features: str, experiment: str
) -> Converted:
    """Rebuild a released model.

    Args:
        release: the file.
        vocab: SCAN's vocabulary, for a model with a BiGRU.
        bert: model on the hub or local folder with tokenizer and configuration, for a model with BERT.
        corpus: folder of the corpus; that of the recipes where empty.
        features: folder of the feature store of a region model; likewise.
        experiment: MLflow experiment of the run.

    Raises:
        InputError: weights are missing, unexpected or of other shapes, the vocabulary is not the model's, or the
            store holds features of another width.
    """
    visual = _cnn(release) if "img_enc.backbone.base.0.weight" in release.weights else _regions(release)
    text = _bigru(release, vocab) if "txt_enc.rnn.weight_ih_l0" in release.weights else _bert(release, bert)
    run = _run(release, visual, text, corpus=corpus, features=features, experiment=experiment)
    adapter = TASKS.build(run.task, run, assets={"visual": visual.assets, "text": text.assets})
    if adapter.store and adapter.store.dim != visual.assets["dim"]:
        raise InputError(
            f"{release.path} reads features of width {visual.assets['dim']}, and those of {run.data.features} have "
            f"{adapter.store.dim}; name the store of bottom-up-attention regions with --features"
        )
    model = adapter.model(pretrained=False)
    names = {f"visual.{ours}": f"img_enc.{theirs}" for ours, theirs in visual.names.items()}
    names |= {f"text.{ours}": f"txt_enc.{theirs}" for ours, theirs in text.names.items()}
    found = release.weights | visual.changed | text.changed
    wanted = {_renamed(name, names): name for name in model.state_dict()}
    missing = wanted.keys() - found.keys()
    unexpected = [name for name in found.keys() - wanted.keys() if not UNUSED.match(name)]
    if missing or unexpected:
        raise release.refusal(missing=missing, unexpected=unexpected)
    fill(model, {ours: found[theirs] for theirs, ours in wanted.items()}, where=release.path)
    return Converted(run=run, adapter=adapter, model=model.eval())


def track(release: Release, converted: Converted) -> str:
    """Keep a converted model as a finished run that can be evaluated, and return the run's id."""
    run, adapter = converted.run, converted.adapter
    tracker = Tracker.start(
        run.experiment,
        uri=tracking_uri(home()),
        home=home(),
        name=f"{run.recipe} {run.data.dataset}, released",
        tags=tags(run) | {"kind": "released", "released.sha256": sha256(release.path)},
        params=to_params(run) | {"released": {"file": release.path.name, "opt": release.options}},
    )
    tracker.json("run.json", to_json(run))
    tracker.tags({f"data.{name}": value for name, value in adapter.describe().items()})
    tracker.log({"released/best_rsum": release.best_rsum, "released/epoch": release.epoch}, step=0)
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), converted.model, run, adapter)
        tracker.artifact(Path(folder), ARTIFACT)
    tracker.finish()
    return tracker.run_id


def _run(release: Release, visual: Side, text: Side, *, corpus: str, features: str, experiment: str) -> Run:
    """Return the run that the authors' command line describes."""
    given = release.options
    for name in ("no_imgnorm", "no_txtnorm"):
        if given.get(name):
            raise InputError(f"{release.path} was trained with --{name}; embeddings here have unit length")
    name = str(given.get("data_name", ""))
    dataset, protocol = next((DATASETS[key] for key in DATASETS if name.startswith(key)), (name, "whole"))
    pixels = visual.names is CNN
    settings = {
        "epochs": "num_epochs",
        "batch": "batch_size",
        "lr": "learning_rate",
        "clip": "grad_clip",
    }
    optim = {ours: given[theirs] for ours, theirs in settings.items() if theirs in given}
    if "lr_update" in given:
        optim["milestones"] = (given["lr_update"],)
    warmup = given.get("vse_mean_warmup_epochs", 1)
    return Run(
        recipe="vse_infinity",
        data=Data(
            dataset=dataset,
            corpus=corpus or f"data/{dataset}",
            features="" if pixels else features or f"data/{dataset}/regions",
            visual_augment="grid_drop(p=0.2)" if pixels else "drop(p=0.2)",
            text_augment="mask_replace_delete(p=0.2)",
        ),
        visual=visual.encoder,
        text=text.encoder,
        aggregator=visual.aggregator,
        text_aggregator="" if text.aggregator == visual.aggregator else text.aggregator,
        protocol=protocol,
        objective=f"triplet(margin={given.get('margin', 0.2)}, warmup_epochs={warmup})",
        optim=Optim(**optim),
        experiment=experiment,
    )


def _regions(release: Release) -> Side:
    width, dim = release.shape("img_enc.fc.weight")
    hidden = release.shape("img_enc.mlp.layers.0.weight")[0]
    return Side(
        encoder=_spec(ENCODERS, "regions", width=width, hidden=None if hidden == width // 2 else hidden),
        aggregator=_gpo(release, "img_enc.gpool"),
        assets={"dim": dim, "statistics": None},
        names=REGIONS,
    )


def _cnn(release: Release) -> Side:
    source = release.options.get("backbone_source")
    if source not in NETWORKS:
        raise unknown(f"--backbone_source of {release.path}:", source, NETWORKS)
    width = release.shape("img_enc.image_encoder.fc.weight")[0]
    size = int(SIDE * release.options.get("input_scale_factor", 1))
    return Side(
        encoder=_spec(ENCODERS, "cnn", width=width, name=NETWORKS[source], size=size),
        aggregator=_gpo(release, "img_enc.image_encoder.gpool"),
        assets={},
        names=CNN,
    )


def _bert(release: Release, name: str) -> Side:
    width = release.shape("txt_enc.linear.weight")[0]
    return Side(
        encoder=_spec(ENCODERS, "bert", width=width, name=name),
        aggregator=_gpo(release, "txt_enc.gpool"),
        assets=Bert.prepare([], name=name),
        names=BERT,
    )


def _bigru(release: Release, vocab: Path | None) -> Side:
    if vocab is None:
        raise InputError(
            f"{release.path} has a BiGRU, whose words are in a file of their own: give SCAN's coco_precomp_vocab.json "
            "or f30k_precomp_vocab.json with --vocab"
        )
    rows, embedding = release.shape("txt_enc.embed.weight")
    row = _rows(vocab, rows, where=release.path)
    order = [row.pop(word) for word in SPECIALS]
    words = sorted(row, key=row.__getitem__)
    weight = release.weights["txt_enc.embed.weight"][order + [row[word] for word in words]]
    width = release.shape("txt_enc.rnn.weight_hh_l0")[1]
    return Side(
        encoder=_spec(ENCODERS, "bigru", width=width, embedding=embedding),
        aggregator=_gpo(release, "txt_enc.gpool"),
        assets={"words": words},
        names=BIGRU,
        changed={"txt_enc.embed.weight": weight},
    )


def _rows(vocab: Path, rows: int, *, where: Path) -> dict[str, int]:
    """Return the embedding's row of every word of SCAN's JSON; the code appends `<mask>` to it."""
    held = read_json(vocab, what="SCAN's vocabulary")
    row = held.get("word2idx") if isinstance(held, dict) else None
    if not isinstance(row, dict) or sorted(row.values(), key=str) != sorted(range(len(row)), key=str):
        raise InputError(
            f"{vocab} is no vocabulary of SCAN: expected `word2idx`, words with the numbers from 0"
        )
    row.setdefault("<mask>", len(row))
    if missing := [word for word in SPECIALS if word not in row]:
        raise InputError(f"{vocab} is no vocabulary of SCAN: it lacks {', '.join(missing)}")
    if len(row) != rows:
        raise InputError(
            f"{vocab} has {len(row):,} words with <mask>, and {where} knows {rows:,}: it was trained with another "
            "vocabulary; COCO's has 11,354, Flickr30K's 8,482"
        )
    return row


def _gpo(release: Release, name: str) -> str:
    positions, hidden = (
        release.shape(f"{name}.{part}")[1] for part in ("gru.weight_ih_l0", "gru.weight_hh_l0")
    )
    return _spec(AGGREGATORS, "gpo", positions=positions, hidden=hidden)


def _spec(registry: Registry, name: str, /, **params: Any) -> str:
    """Return the spec of a part, with the parameters that are not its defaults."""
    usual = inspect.signature(registry.get(name)).parameters
    return str(Spec(name, {key: value for key, value in params.items() if value != usual[key].default}))


def _renamed(name: str, names: Mapping[str, str]) -> str:
    """Return their name of one of our parameters."""
    for ours, theirs in names.items():
        if name.startswith(ours):
            return theirs + name.removeprefix(ours)
    return name
