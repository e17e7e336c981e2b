"""Model cards: the README of an exported model, with the metadata that the Hugging Face hub reads.

The metadata is `huggingface_hub.ModelCardData`; see https://huggingface.co/docs/hub/model-cards.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from polypool.encoders.backbones import recorded_spec
from polypool.infra.text_tables import Table, as_markdown
from polypool.infra.tracking import COMMAND, Tracker
from polypool.pipelines.models.trained import TrainedModel
from polypool.pipelines.training.checkpoint import ASSETS
from polypool.pipelines.training.record import PRECISION, printed
from polypool.tasks.abilities import Answers, ReadsInputs
from polypool.tasks.adapter import Metric
from polypool.tasks.corpus_task import reads_video_files
from polypool.tasks.inputs.visuals import FEATURES
from polypool.tasks.models.retrieval_model import RetrievalModel
from polypool.tasks.run import modules
from polypool.tasks.scoring.records import VERSION_TAG, metrics_from

Scores = dict[str, list[tuple[Metric, float]]]
"""Metrics and their values by protocol."""


def model_card(tracker: Tracker, trained: TrainedModel, *, name: str, license: str) -> str:
    """Return the card of a run's model.

    Args:
        tracker: tracker of the run.
        trained: its model.
        name: future name of the folder, loaded by the example.
        license: identifier of the hub; if empty, none is stated.
    """
    run, scores = trained.run, test_scores(tracker)
    stated = f"`{license}`." if license else "Not stated: whoever exported the model named none."
    pooled = (
        "" if run.text_aggregator in ("", run.aggregator) else f", `{run.text_aggregator}` those of texts"
    )
    parts = [
        f"---\n{_metadata(trained, scores, license)}\n---",
        "# A trained model of polypool",
        f"`{run.recipe or run.label}`, task `{run.task}`, data `{run.data.dataset}`, seed {run.seed}: "
        f"`{run.aggregator}` pools sets of features{pooled}.",
        f"## Use\n\n```python\n{example(trained, name)}\n```",
        "`encode_visual` and `encode_text` return embeddings, if the model has any. `run.json` is the whole run, "
        "`assets.json` has other inputs of the model, such as the vocabulary, and `digests.json` the SHA-256 of these "
        "files, which loading verifies. The weights are safetensors; nothing is unpickled.",
        *_described(tracker, trained),
        *(_score_table(protocol, of, tracker) for protocol, of in scores.items()),
        *([] if scores else ["## Scores\n\nNone were logged."]),
        as_markdown(
            Table(title="Training", header=("setting", "value"), rows=(*_training(tracker, trained),))
        ),
        _limits(trained),
        f"## Licence\n\n{stated} The terms of the training data and of the encoders' weights apply, too.",
    ]
    return "\n\n".join(parts) + "\n"


def test_scores(tracker: Tracker) -> Scores:
    """Return the scores of a run on its test split: metrics with a description in their order, then all others."""
    tags, values = tracker.all_tags(), tracker.metrics()
    names = (tag.removeprefix(VERSION_TAG) for tag in tags if tag.startswith(VERSION_TAG))
    found: Scores = {}
    for protocol in sorted(name for name in names if "/" not in name):  # others are SPLIT/PROTOCOL
        own = {
            name.removeprefix(f"{protocol}/"): value
            for name, value in values.items()
            if name.startswith(f"{protocol}/")
        }
        described = metrics_from(
            tags, protocol, run=tracker.run_id, read=lambda file: tracker.download(file).read_bytes()
        )
        known = {metric.name: metric for metric in described if metric.name in own}
        order = [*known, *(name for name in sorted(own) if name not in known)]
        found[protocol] = [(known.get(name, Metric(name=name)), own[name]) for name in order]
    return found


def example(trained: TrainedModel, folder: str) -> str:
    """Return a few lines of Python that load a model and, if it reads new inputs, use it."""
    named = modules(trained.run)
    trust = f", trust={named!r}" if named else ""
    lines = ["import polypool as pp", "", f"model = pp.load({folder!r}{trust})"]
    adapter, answers = trained.adapter, isinstance(trained.adapter, Answers)
    if not isinstance(adapter, ReadsInputs) or not (answers or isinstance(trained.model, RetrievalModel)):
        return "\n".join([*lines, "print(sorted(model.adapter.assets))", "print(model.model)"])
    visuals = '["video.mp4"]' if reads_video_files(adapter) else '["image.jpg"]'
    if adapter.visual_dim:
        lines.insert(0, "import numpy as np")
        visuals = f"[np.random.rand(36, {adapter.visual_dim})]  # features (N, F) of each image or video"
    use = "answers" if answers else "scores"
    text = "what is in the picture?" if answers else "a dog on the grass"
    return "\n".join([*lines, f"visuals = {visuals}", f'print(model.{use}(visuals, ["{text}"]))'])


def _metadata(trained: TrainedModel, scores: Scores, license: str) -> str:
    from huggingface_hub import EvalResult, ModelCardData

    run = trained.run
    task = "visual-question-answering" if isinstance(trained.adapter, Answers) else "feature-extraction"
    name, aggregator = run.task.partition("(")[0].replace("_", "-"), run.aggregator.partition("(")[0]
    results = [
        EvalResult(
            task_type=task,
            task_name=name if task == "visual-question-answering" else f"{name} retrieval",
            dataset_type=re.sub(r"[^\w.-]+", "-", run.data.dataset),
            dataset_name=run.data.dataset,
            dataset_config=protocol,
            dataset_split="test",
            metric_type=metric.name.replace("/", "_"),
            metric_name=metric.label,
            metric_value=round(value, 4),
        )
        for protocol, of in scores.items()
        for metric, value in of
        if math.isfinite(value)
    ]
    return ModelCardData(
        library_name="polypool",
        pipeline_tag=task,
        license=license or None,
        tags=[*dict.fromkeys(("polypool", name, aggregator, run.data.dataset))],
        model_name=run.label,
        eval_results=results or None,
    ).to_yaml()


def _described(tracker: Tracker, trained: TrainedModel) -> Iterator[str]:
    """Yield sentences on the model's features, and on the backbones that extract them from new inputs."""
    if features := tracker.tag("data.features"):
        yield f"It reads features like those of the store with the digest `{features}`."
    assets = trained.adapter.assets
    extractors = {
        "Images or videos": assets.get(FEATURES, {}).get("source", {}).get("extractor"),
        "Texts": assets.get("texts", {}).get("extractor"),
    }
    for what, extractor in extractors.items():
        if extractor:
            spec = recorded_spec(extractor, where=ASSETS)
            yield f"{what} are first encoded by `{spec}`, found locally or on the hub."


def _score_table(protocol: str, scores: list[tuple[Metric, float]], tracker: Tracker) -> str:
    version = tracker.tag(VERSION_TAG + protocol)
    return as_markdown(
        Table(
            title=f"Scores under {protocol}",
            legend=(
                f"one run on the test split; version {version} of the protocol; chance is an untrained model's",
            ),
            header=("metric", "value", "chance"),
            rows=tuple(
                (m.label, printed(value), "" if math.isnan(m.chance) else printed(m.chance))
                for m, value in scores
            ),
        )
    )


def _training(tracker: Tracker, trained: TrainedModel) -> Iterator[tuple[str, str]]:
    """Yield the settings of a run that are not empty."""
    run, optim, tags = trained.run, trained.run.optim, tracker.all_tags()
    falls = f"steps after epochs {', '.join(f'{x:g}' for x in optim.milestones)}"
    rows = {
        "recipe": run.recipe,
        "data set": run.data.dataset,
        "digest of the corpus": tags.get("data.corpus", ""),
        "visual encoder": run.visual,
        "text encoder": run.text,
        "adaptation of published weights": run.adapt,
        "aggregator": run.aggregator,
        "text aggregator": run.text_aggregator,
        "model": run.model,
        "cross-modal encoder": run.cross,
        "similarity": run.similarity,
        "objective": run.objective,
        "regularisers": ", ".join(run.regularisers),
        "augmentation": ", ".join(filter(None, (run.data.visual_augment, run.data.text_augment))),
        "optimiser": f"{optim.optimiser}, learning rate {optim.lr:g}, weight decay {optim.weight_decay:g}",
        "learning rate": falls if optim.schedule == "step" else optim.schedule,
        "epochs, batch": f"{optim.epochs}, {optim.batch}",
        "begun with": f"run {run.init}" if run.init else "",
        "seed": str(run.seed),
        "precision": tags.get(PRECISION, ""),
        "command": tags.get(COMMAND, ""),
        "commit of polypool": tags.get("git_commit", "")
        + (", changed" if tags.get("git_dirty") == "true" else ""),
        "versions": ", ".join(
            f"{name} {tags[name]}" for name in ("python", "torch", "transformers") if name in tags
        ),
        "machine": tags.get("machine", ""),
        "run": tracker.run_id,
    }
    return ((name, value) for name, value in rows.items() if value)


def _limits(trained: TrainedModel) -> str:
    run, named = trained.run, modules(trained.run)
    lines = [
        f"Scores are of one seed on the test split of `{run.data.dataset}`; on other data they will differ.",
        "It retrieves concepts outside its training data badly, and inherits the biases of these data.",
        "It ranks and compares; a score is no probability that a text is true of a picture."
        if isinstance(trained.model, RetrievalModel)
        else "It knows the answers of its training data alone, and gives one of them to every question.",
    ]
    if trained.adapter.assets.get(FEATURES):
        lines.append(
            "Features of another backbone, layer or preprocessing than it was trained on do not fit."
        )
    if named:
        lines.append(f"It runs code of {', '.join(named)}, which must be installed and trusted.")
    return "## Limits\n\n" + "\n".join(f"- {line}" for line in lines)
