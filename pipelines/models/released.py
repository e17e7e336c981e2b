"""Released VSE-infinity models as runs: renamed, rebuilt, and logged like trained ones.

Chen et al., "Learning the best pooling strategy for visual semantic embedding", CVPR 2021. The names are those of its
code, `lib/encoders.py`, on the branches for BERT and for BiGRU.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

from polypool.encoders.visual.resnet import fill
from polypool.infra.errors import InputError
from polypool.infra.files import sha256
from polypool.infra.paths import here, home
from polypool.infra.registry import TASKS
from polypool.infra.tracking import Tracker, tracking_uri
from polypool.pipelines.models.released_parts import (
    CNN,
    Release,
    Side,
    bert_side,
    bigru_side,
    cnn_side,
    regions_side,
)
from polypool.pipelines.models.trained import TrainedModel
from polypool.pipelines.training.checkpoint import ARTIFACT, write_model
from polypool.pipelines.training.record import data_tags, tags
from polypool.tasks.run import Data, Optim, Run, located, to_params, to_record

UNUSED = re.compile(
    r"img_enc\.mlp\.bns\.1\."  # made by the code, never called
    r"|img_enc\.backbone\.resnet\."  # the CNN under its second name, and its classifier
    r"|img_enc\.backbone\..*\.num_batches_tracked$"  # its statistics are frozen
    r"|txt_enc\.bert\.(pooler\.|embeddings\.position_ids$)"  # a head that nothing reads; the numbers from 0
)
DATASETS = {"coco": ("coco", "coco-5k"), "f30k": ("flickr30k", "f30k-1k")}
"""Data set and protocol by the beginning of `--data_name`."""


def convert(
    release: Release, *, vocab: Path | None, bert: str, corpus: str, features: str, experiment: str
) -> TrainedModel:
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
    visual = (
        cnn_side(release) if "img_enc.backbone.base.0.weight" in release.weights else regions_side(release)
    )
    text = (
        bigru_side(release, vocab)
        if "txt_enc.rnn.weight_ih_l0" in release.weights
        else bert_side(release, bert)
    )
    run = located(_run(release, visual, text, corpus=corpus, features=features, experiment=experiment), here)
    adapter = TASKS.build(run.task, run, assets={"visual": visual.assets, "text": text.assets})
    if adapter.store and adapter.store.dim != visual.assets["dim"]:
        raise InputError(
            f"{release.path} reads features of width {visual.assets['dim']}, and those of {run.data.features} have "
            f"{adapter.store.dim}; name the store of bottom-up-attention regions with --features"
        )
    model = adapter.model(pretrained=False)
    names = {f"visual.{ours}": f"img_enc.{theirs}" for ours, theirs in visual.names.items()}
    names |= {f"text.{ours}": f"txt_enc.{theirs}" for ours, theirs in text.names.items()}
    weights = {**release.weights, **visual.changed, **text.changed}
    wanted = {_renamed(name, names): name for name in model.state_dict()}
    missing = wanted.keys() - weights.keys()
    unexpected = [name for name in weights.keys() - wanted.keys() if not UNUSED.match(name)]
    if missing or unexpected:
        raise release.refusal(missing=missing, unexpected=unexpected)
    fill(model, {ours: weights[theirs] for theirs, ours in wanted.items()}, where=release.path)
    return TrainedModel(run=run, adapter=adapter, model=model.eval())


def track(release: Release, converted: TrainedModel) -> str:
    """Log a converted model as a finished run that can be evaluated, and return the run's id."""
    run, adapter = converted.run, converted.adapter
    tracker = Tracker.start(
        run.experiment,
        uri=tracking_uri(home()),
        home=home(),
        name=f"{run.recipe} {run.data.dataset}, released",
        tags=tags(run) | {"kind": "released", "released.sha256": sha256(release.path)},
        params=to_params(run) | {"released": {"file": release.path.name, "opt": release.options}},
    )
    with tracker.ending():
        tracker.json("run.json", to_record(run))
        tracker.tags(data_tags(adapter))
        tracker.log({"released/best_rsum": release.best_rsum, "released/epoch": release.epoch}, step=0)
        with tempfile.TemporaryDirectory() as folder:
            write_model(Path(folder), converted.model, run, adapter)
            tracker.artifact(Path(folder), ARTIFACT)
    return tracker.run_id


def _run(release: Release, visual: Side, text: Side, *, corpus: str, features: str, experiment: str) -> Run:
    """Return the run that the authors' command line describes."""
    options = release.options
    for name in ("no_imgnorm", "no_txtnorm"):
        if options.get(name):
            raise InputError(f"{release.path} was trained with --{name}; embeddings here have unit length")
    name = str(options.get("data_name", ""))
    dataset, protocol = next((DATASETS[key] for key in DATASETS if name.startswith(key)), (name, "whole"))
    pixels = visual.names is CNN
    settings = {"epochs": "num_epochs", "batch": "batch_size", "lr": "learning_rate", "clip": "grad_clip"}
    optim = {ours: options[theirs] for ours, theirs in settings.items() if theirs in options}
    if "lr_update" in options:
        optim["milestones"] = (options["lr_update"],)
    warmup = options.get("vse_mean_warmup_epochs", 1)
    return Run(
        recipe="vse_infinity",
        data=Data(
            dataset=dataset,
            corpus=corpus or str(home() / f"data/{dataset}"),
            features="" if pixels else features or str(home() / f"data/{dataset}/regions"),
            captions=5,
            visual_augment="grid_drop(p=0.2)" if pixels else "drop(p=0.2)",
            text_augment="mask_replace_delete(p=0.2)",
        ),
        visual=visual.encoder,
        text=text.encoder,
        aggregator=visual.aggregator,
        text_aggregator="" if text.aggregator == visual.aggregator else text.aggregator,
        protocol=protocol,
        objective=f"triplet(margin={options.get('margin', 0.2)}, warmup_epochs={warmup})",
        optim=Optim(**optim),
        experiment=experiment,
    )


def _renamed(name: str, names: Mapping[str, str]) -> str:
    """Return their name of one of our parameters."""
    for ours, theirs in names.items():
        if name.startswith(ours):
            return theirs + name.removeprefix(ours)
    return name
