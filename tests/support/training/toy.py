"""A small retrieval task in memory that can be trained: sets, words, batch normalisation, augmentation."""

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import torch
from torch import Tensor, nn

from polypool.encoders.text.bigru import BiGRU
from polypool.encoders.visual.stored import Regions
from polypool.infra.compute.dist import rank
from polypool.infra.registry import AGGREGATORS, AUGMENTATIONS, OBJECTIVES, TASKS
from polypool.pipelines.training.checkpoint import Snapshot
from polypool.pipelines.training.loop.trainer import Trainer
from polypool.tasks.adapter import Evaluation, Metric, TaskAdapter
from polypool.tasks.inputs.augmentations import draw_for
from polypool.tasks.inputs.texts import Captions
from polypool.tasks.models.branch import Branch
from polypool.tasks.models.dual_encoder import DualEncoder
from polypool.tasks.run import Data, Optim, Run, from_json
from polypool.tasks.similarities.similarity import Cosine

WORDS = [f"w{i}" for i in range(20)]


def toy_run(**changes: Any) -> Run:
    optim = {"epochs": 3, "batch": 8, "lr": 1e-2, "schedule": "cosine", "warmup_steps": 2}
    optim = Optim(**optim | changes.pop("optim", {}))
    base = {"aggregator": "gpo", "objective": "triplet", "log_every": 2, "figures": False}
    data = Data(
        dataset="toy", corpus="", features="", visual_augment="drop", text_augment="mask_replace_delete"
    )
    return Run(recipe="toy", data=data, visual="", text="", protocol="whole", optim=optim, **(base | changes))


class ToyData:
    """42 pairs of 30 images; an image's elements are centred at the number of its caption's first word."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.item_B = np.arange(42) % 30
        numbers = rng.integers(0, 20, (30, 4))
        self.sets = [
            rng.normal(size=(n, 6)).astype(np.float32) + numbers[i, :1]
            for i, n in enumerate(rng.integers(3, 9, 30))
        ]
        texts = [" ".join(WORDS[n] for n in numbers[item]) for item in self.item_B]
        self.captions = Captions(texts, BiGRU.tokenizer({"words": WORDS}))

    def __len__(self) -> int:
        return len(self.item_B)

    def batch(self, index_B: np.ndarray, *, seed: int, epoch: int) -> dict[str, Tensor]:
        sets = [self.sets[item] for item in self.item_B[index_B]]
        size_B = np.array([len(x) for x in sets])
        keep = AUGMENTATIONS.build("drop")(size_B, index_B, draw_for(seed, epoch, 0))
        sets = [torch.from_numpy(x[k]) for x, k in zip(sets, keep, strict=True)]
        captions = self.captions.batch(
            index_B, augment=AUGMENTATIONS.build("mask_replace_delete"), draw=draw_for(seed, epoch, 1)
        )
        visual = nn.utils.rnn.pad_sequence(sets, batch_first=True)
        mask = torch.arange(visual.shape[1]) < torch.tensor([len(x) for x in sets])[:, None]
        item = torch.from_numpy(self.item_B[index_B])
        row = torch.arange(len(item))
        return {"visual": visual, "visual_mask": mask, **captions, "item": item, "row": row}


class Toy(TaskAdapter):
    """The task adapter; its dev score is the mean score of matching pairs minus the mean of all scores."""

    primary = Metric(name="score")
    dev_protocol = "dev"

    def __init__(self, run: Run) -> None:
        self.run, self.assets = run, {}
        self._data = ToyData()

    def describe(self) -> Mapping[str, str]:
        return {}

    def data(self, split: str) -> ToyData:
        return self._data

    def model(self, *, pretrained: bool = True) -> DualEncoder:
        text = BiGRU({"words": WORDS}, width=16, embedding=8, dropout=0.2)
        encoders = Regions({"dim": 6}, width=16), text
        branches = (Branch(encoder, AGGREGATORS.build(self.run.aggregator, 16)) for encoder in encoders)
        return DualEncoder(*branches, Cosine(), OBJECTIVES.build(self.run.objective))

    def loss(self, model: nn.Module, batch: dict[str, Tensor], *, epoch: float) -> dict[str, Tensor]:
        return model(batch, epoch=epoch)

    def evaluate(self, model: nn.Module, split: str, protocol: str) -> Evaluation:
        model.eval()
        with torch.no_grad():
            batch = self._data.batch(np.arange(30), seed=9, epoch=9)
            sim = model.score(model.encode_visual(batch), model.encode_text(batch))
        metrics = {"score": float(sim.diagonal().mean() - sim.mean())}
        per_query = {"query": np.arange(30)}
        return Evaluation(protocol=protocol, metrics=metrics, primary=self.primary, per_query=per_query)


class FolderLog:
    """A training log that is kept in a folder and a list."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.rows, self.tagged, self.members = folder, [], {}, {}

    def log(self, metrics: dict[str, float], *, step: int) -> None:
        self.rows.append((step, dict(metrics)))

    def artifact(self, path: Path, folder: str = "") -> None:
        target = self.folder / folder
        if path.is_dir():
            shutil.copytree(path, target, dirs_exist_ok=True)
        else:
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)

    def tags(self, tags: dict[str, str]) -> None:
        self.tagged = {**self.tagged, **tags}

    def history(self, name: str) -> list[tuple[int, float]]:
        return [(step, row[name]) for step, row in self.rows if name in row]

    def download(self, artifact_path: str) -> Path:
        return self.folder / artifact_path

    def member(self, name: str, described: Mapping[str, Any]) -> "FolderLog":
        self.members[name] = FolderLog(self.folder / "members" / name)
        return self.members[name]


class FolderReport:
    """Keeps every checkpoint; can fail after a number of reports, as a killed run does."""

    def __init__(self, *, fail_after: int | None = None) -> None:
        self._kept = tempfile.TemporaryDirectory()
        self.folder, self.count, self.fail_after = Path(self._kept.name), 0, fail_after

    def __call__(self, metrics: dict[str, Any], snapshot: Snapshot | None) -> None:
        if snapshot is not None:
            (self.folder / str(self.count)).mkdir()
            snapshot.write(self.folder / str(self.count))
        self.count += 1
        if self.count == self.fail_after:
            raise KeyboardInterrupt

    @property
    def last(self) -> Path:
        return self.folder / str(self.count - 1)


def trainer_of(
    run: Run,
    folder: Path,
    report: FolderReport | None = None,
    *,
    adapter: TaskAdapter | None = None,
    log: Any = None,
) -> Trainer:
    """Return a trainer on the CPU that logs into a folder; without an adapter, runs of the toy task get `Toy`."""
    if adapter is None:
        adapter = Toy(run) if run.recipe == "toy" else TASKS.build(run.task, run)
    log, report = log or FolderLog(folder), report or FolderReport()
    return Trainer(run, adapter, log=log, report=report, device=torch.device("cpu"), bar=MagicMock)


def train_undisturbed(description: str, folder: str) -> None:
    """Train a run, given as JSON, without faults; rank 0 writes its model and its losses to a folder."""
    run = from_json(json.loads(description))
    trainer = trainer_of(run, Path(folder), report=lambda metrics, snapshot: None)
    log = trainer.log
    if rank() > 0:
        trainer.log = None
    trainer.train()
    if rank() == 0:
        (Path(folder) / "loss.json").write_text(json.dumps(log.history("train/loss")))


def same_weights(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> bool:
    """Return whether two models have equal weights, bit for bit."""
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], x) for name, x in theirs.items())
