"""The training loop of all tasks: batches, losses, checkpoints, evaluation."""

from __future__ import annotations

import math
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from polypool.aggregators.observe import observe
from polypool.encoders.encoder import recompute
from polypool.infra.batches import load, order_of
from polypool.infra.compute.cost import CostMeter
from polypool.infra.compute.device import free_memory, own_stream
from polypool.infra.compute.dist import broadcast_state, gather_objects, rank, world
from polypool.infra.compute.dropout import Draws, current_draws, drawn
from polypool.infra.compute.randomness import state_of
from polypool.infra.digests import refuse_damaged
from polypool.infra.errors import InputError
from polypool.infra.process.progress import resumed_bar
from polypool.infra.store.resident import keep_on
from polypool.infra.tracking import Log
from polypool.pipelines.training.checkpoint import (
    ARTIFACT,
    WEIGHTS,
    Progress,
    Snapshot,
    load_checkpoint,
    load_weights,
    snapshot,
    write_model,
)
from polypool.pipelines.training.loop.averaging import WeightAverage
from polypool.pipelines.training.loop.capture import CapturedSteps, Recorder, put_rates, why_not
from polypool.pipelines.training.loop.collapse import CollapseWatch
from polypool.pipelines.training.loop.optim import (
    chunked_gradients,
    frozen_groups,
    lr_scale,
    make_optimizer,
    ready_gradients,
    set_lr,
    warmup_steps,
)
from polypool.pipelines.training.loop.precision import autocast, precision_of
from polypool.pipelines.training.record import (
    COLLAPSED,
    GPU_LOAD,
    GPU_MEMORY,
    PRECISION,
    SCORED,
    Described,
    costs,
    log_evaluation,
    log_pictures,
    run_figures,
)
from polypool.tasks.abilities import Chunked
from polypool.tasks.adapter import Evaluation, TaskAdapter
from polypool.tasks.run import Run

Report = Callable[[dict[str, Any], Snapshot | None], None]
"""Stores metrics and a checkpoint; called by every worker, on rank 0 with the checkpoint."""


class Meter:
    """Running means, kept on the device until `flush`."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.counts: dict[str, int] = {}
        self.steps, self.samples, self.started = 0, 0, time.perf_counter()

    def add(self, values: dict[str, Tensor], samples: int) -> None:
        """Add one step's scalars."""
        for name, value in values.items():
            self.sums[name] = self.sums.get(name, 0.0) + value.detach()
            self.counts[name] = self.counts.get(name, 0) + 1
        self.steps, self.samples = self.steps + 1, self.samples + samples

    def flush(self) -> dict[str, float]:
        """Return the means since the last call, each over the steps that had it, and samples per second."""
        values = {name: float(total) / self.counts[name] for name, total in self.sums.items()}
        values["samples_per_second"] = self.samples / (time.perf_counter() - self.started)
        self.__init__()
        return values


RESIDENT = 0.6
"""Share of a GPU's free memory for the features of a split."""


class Trainer:
    """One run on one worker.

    Args:
        run: its complete description.
        adapter: the task.
        log: rank 0's log; None on other ranks.
        report: stores checkpoints.
        device: of the model.
        bar: creates the progress bar.
        stopping: whether to stop after a checkpoint; called after each step, with several workers when they log.
    """

    def __init__(
        self,
        run: Run,
        adapter: TaskAdapter,
        *,
        log: Log | None,
        report: Report,
        device: torch.device,
        bar: Callable[..., Any] = resumed_bar,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        torch.manual_seed(run.seed)
        self.run, self.adapter, self.log, self.report, self.device = run, adapter, log, report, device
        self.stopping = stopping
        self.data = adapter.data("train")
        self.order = order_of(self.data, batch=run.optim.batch, unit=run.epoch_unit, seed=run.seed)
        self.model = adapter.model().to(device)
        if run.optim.recompute:
            recompute(self.model)
        self.optimizer = make_optimizer(self.model, run.optim)
        self.average = WeightAverage(self.model, decay=run.optim.ema)
        self.watch = CollapseWatch(adapter, epoch_steps=self.order.epoch_steps)
        steps = run.optim.epochs * self.order.epoch_steps
        self.bar = (
            bar(desc=f"{run.label} {run.aggregator}", total=steps, unit="step")
            if steps and rank() == 0
            else None
        )
        self.parallel: nn.Module = self.model
        self.captured: CapturedSteps | None = None
        self.load = 0.0
        self._draw_state = None if device.type == "cpu" else torch.zeros((), dtype=torch.int64, device=device)
        # for random numbers not drawn per sample: different for each seed and worker
        torch.manual_seed(int(np.random.SeedSequence((run.seed, rank())).generate_state(1)[0]))
        (precision, *_) = gather_objects(
            precision_of(run.optim.precision, self.model, device, samples=run.optim.batch // world())
        )
        self.progress = Progress(precision=precision)

    def resume(self, folder: Path) -> None:
        """Resume from a checkpoint."""
        self.progress = load_checkpoint(folder, self.model, self.optimizer, self.average)
        self.average.step.fill_(self.step)

    @property
    def precision(self) -> torch.autocast:
        """The autocast context of the losses."""
        return autocast(self.device, self.progress.precision)

    def train(self) -> bool:
        """Train to the last epoch, keep the best on `val`, and score it on `test` once, unless `run.test` is False.

        With `optim.keep` `last`, the last epoch is kept instead of the best.

        With 0 epochs the initial model is scored.

        Returns:
            True if training is complete and logged; False after a stop request, which ends with a checkpoint.

        Raises:
            InputError: the loss became NaN or infinite, or no score on `val` was finite.
        """
        with own_stream(self.device):
            self.use_device()
            return self._train()

    def use_device(self) -> None:
        """Keep stored features on a GPU if they fit, and run further steps as CUDA graphs, or note why not."""
        if self.device.type == "cuda" and self.run.data.on_device == "auto":
            splits = [getattr(self.adapter.data(split), "stored", ()) for split in ("train", "val")]
            keep_on(self.device, [*chain(*splits)], most=lambda: RESIDENT * free_memory(self.device))
        reason = why_not(self.run.optim, self.optimizer, self.device)
        put_rates(self.optimizer, self.device, captured=not reason)
        if not reason:
            self.captured = CapturedSteps(self._update, Recorder())
        elif self.device.type == "cuda" and self.log is not None:
            _print(f"note: steps are not captured as CUDA graphs: {reason}")

    def _train(self) -> bool:
        optim, epoch_steps = self.run.optim, self.order.epoch_steps
        if self.log is not None:
            self.log.tags({PRECISION: str(self.progress.precision)})
            if optim.epochs and (steps := warmup_steps(optim, epoch_steps=epoch_steps)) < optim.warmup_steps:
                _print(
                    f"note: the warm-up is cut from {optim.warmup_steps} steps (--optim.warmup-steps) to {steps}, a "
                    f"tenth of the training's {optim.epochs * epoch_steps}"
                )
        if self.run.optim.chunk:
            broadcast_state(self.model)
        elif world() > 1:
            with warnings.catch_warnings():  # newer versions of torch have another name for the option
                warnings.simplefilter("ignore", FutureWarning)
                self.parallel = DistributedDataParallel(
                    self.model,
                    broadcast_buffers=False,
                    find_unused_parameters=not self.adapter.uses_all_weights,
                )
        if self.bar is not None:
            self.bar.update(self.step)
        while self.epoch < self.run.optim.epochs:
            if not self._train_epoch():
                return False
            with self.average.applied():
                metrics = self._validate()
            self._checkpoint(metrics)
        if not self.run.optim.epochs:  # pretrained weights as they are
            self._checkpoint(self._validate())
        if self.bar is not None:
            self.bar.close()
        if self.progress.best is None:
            raise InputError(
                f"{self.adapter.primary.name} on val was never a finite number, so that no epoch is the best: lower "
                "the learning rate (--optim.lr), or check the features with `polypool ingest verify`"
            )
        if self.run.test:
            self._test()
        if self.load and self.log is not None:
            memory = torch.cuda.max_memory_reserved() / torch.cuda.mem_get_info()[1]
            self.log.log({GPU_LOAD: self.load, GPU_MEMORY: memory}, step=self.step)
        return True

    @property
    def epoch(self) -> int:
        """Number of completed epochs."""
        return self.progress.samples // self.order.epoch_samples

    @property
    def step(self) -> int:
        """Number of completed steps."""
        epoch, offset = divmod(self.progress.samples, self.order.epoch_samples)
        return epoch * self.order.epoch_steps + offset // self.order.batch

    def _train_epoch(self) -> bool:
        """Train to the end of an epoch; return whether it was reached."""
        run, meter = self.run, Meter()
        self.model.train()
        started, seconds = time.perf_counter(), self.progress.seconds
        cost, first = CostMeter(self.device), self.step
        for size, batch in load(self.data, self.order, self.progress.samples, self.device):
            with drawn(self._draws(size)), cost.step():
                meter.add(self.train_step(batch), size)
            self.progress.samples += size
            self.progress.seconds = seconds + time.perf_counter() - started
            if self.bar is not None:
                self.bar.update(1)
            inside = self.progress.samples % self.order.epoch_samples
            stop = inside and self._to_stop()
            keep = stop or (run.checkpoint_every and inside and self.step % run.checkpoint_every == 0)
            if keep or self.step % run.log_every == 0:
                self._log_training(meter)
            if keep:
                self._count(cost, self.step - first)
                self._checkpoint({})
                cost, first = CostMeter(self.device), self.step
            if stop:
                return False
        self._count(cost, self.step - first)
        self._log_training(meter, at_end=True)
        return True

    def _draws(self, size: int) -> Draws:
        """Return the random draws of a step on this worker's part of a global batch."""
        samples = size // world()  # equally many on each worker
        if self._draw_state is not None:
            self._draw_state.fill_(state_of(self.run.seed, self.step))
        return Draws(
            seed=self.run.seed,
            step=self.step,
            first=rank() * samples,
            samples=samples,
            state=self._draw_state,
        )

    def _count(self, cost: CostMeter, steps: int) -> None:
        self.progress.cost += cost.lap()
        if cost.busy:
            self.load = cost.busy / cost.seconds
        self.progress.cost_seconds += cost.seconds
        self.progress.cost_steps += steps

    def _to_stop(self) -> bool:
        """Whether to stop now; equal on all workers."""
        if world() == 1:
            return self.stopping()
        return self.step % self.run.log_every == 0 and any(gather_objects(self.stopping()))

    def train_step(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Change the weights by a batch on the device; return the loss, its parts and the norm of the gradient."""
        optim, epoch_steps = self.run.optim, self.order.epoch_steps
        set_lr(self.optimizer, optim, lr_scale(optim, step=self.step, epoch_steps=epoch_steps))
        epoch = self.progress.samples / self.order.epoch_samples
        if self.captured is None:
            terms = self._update(batch, epoch)
        else:
            frozen = len(frozen_groups(self.optimizer, step=self.step, epoch_steps=epoch_steps))
            terms = self.captured(batch, epoch, variant=frozen)
        if self.step == 0:
            self.watch.begin(terms)
        return terms

    def _update(self, batch: dict[str, Tensor], epoch: Any) -> dict[str, Tensor]:
        """Update the weights and their average; return what `train_step` returns."""
        optim = self.run.optim
        if draws := current_draws():
            draws.count = 0
        self.optimizer.zero_grad(set_to_none=True)
        if optim.chunk:
            assert isinstance(self.adapter, Chunked)  # `prepare` refuses others
            terms = chunked_gradients(
                self.adapter, self.model, batch, epoch=epoch, chunk=optim.chunk, precision=self.precision
            )
        else:
            with self.precision:
                terms = self.adapter.loss(self.parallel, batch, epoch=epoch)
            terms["loss"].backward()
        norm = ready_gradients(self.optimizer, optim, step=self.step, epoch_steps=self.order.epoch_steps)
        self.optimizer.step()
        self.average.update()
        return {name: x.detach() for name, x in terms.items()} | {"gradient_norm": norm}

    def _log_training(self, meter: Meter, *, at_end: bool = False) -> None:
        """Log the means of the steps since the last call, after a warning if the run has collapsed.

        Means end at checkpoints and epochs, so that a resumed run logs every step once.
        """
        steps = meter.steps
        values = meter.flush() if steps else {}
        collapsed = self.watch.trained(self.model, values, steps=steps, step=self.step, at_end=at_end)
        if collapsed and self.log is not None:
            _print(f"warning: the model has collapsed: {collapsed}")
            self.log.tags({COLLAPSED: collapsed})
        if not steps:
            return
        if not math.isfinite(values["loss"]):
            raise InputError(
                f"the loss became {values['loss']} before step {self.step}: lower the learning rate (--optim.lr), "
                "or check the features with `polypool ingest verify`"
            )
        if self.log is not None:
            values["lr"] = max(float(group["lr"]) for group in self.optimizer.param_groups)
            self.log.log({f"train/{name}": value for name, value in values.items()}, step=self.step)

    def _validate(self) -> dict[str, float]:
        adapter, progress = self.adapter, self.progress
        evaluation = adapter.evaluate(self.model, "val", adapter.dev_protocol)
        value = evaluation.metrics[adapter.primary.name]
        best = None if self.run.optim.keep == "last" else progress.best
        if adapter.primary.better(value, best):
            progress.best, progress.best_epoch = value, self.epoch
            if self.log is not None:
                _log_model(self.log, self.model, self.run, self.adapter)
        metrics: dict[str, Any] = {f"dev/{name}": number for name, number in evaluation.metrics.items()}
        shown = ""
        if progress.best is not None:
            metrics |= {
                f"dev/best_{adapter.primary.name}": progress.best,
                "dev/best_epoch": progress.best_epoch,
            }
            shown = f" (best {progress.best:.1f})"
        if self.log is not None:
            if not math.isfinite(value):
                _print(f"warning: {adapter.primary.name} on val is {value} after epoch {self.epoch}")
            times = {"time/train_seconds": progress.seconds, "epoch": self.epoch}
            self.log.log({**metrics, **times}, step=self.step)
        if self.bar is not None:
            self.bar.set_description(
                f"{self.run.label} {self.run.aggregator} epoch {self.epoch}/{self.run.optim.epochs} "
                f"{adapter.primary.name} {value:.1f}{shown}"
            )
        return {**metrics, "epoch": self.epoch}

    def _test(self) -> None:
        if self.log is not None:
            best = self.log.download(ARTIFACT)
            refuse_damaged(best, then="train the run again")
            load_weights(self.model, best / WEIGHTS)
        broadcast_state(self.model)
        watch = observe(self.model) if self.run.figures else nullcontext(())
        with watch as watched:
            evaluation = self.adapter.evaluate(self.model, "test", self.run.protocol)
        if self.log is not None:
            self.log.log(costs(self.model, self.progress, steps=self.step), step=self.step)
            log_evaluation(self.log, evaluation, step=self.step)
        self._log_members(evaluation)
        if self.log is not None:
            self.log.tags({SCORED: evaluation.protocol})
        if self.run.figures:
            title = f"{self.run.label} {self.run.aggregator} seed {self.run.seed}"
            figures = run_figures(watched, self.log.history, title=title) if self.log is not None else ()
            log_pictures(self.log, *figures, *evaluation.pictures)

    def _log_members(self, evaluation: Evaluation) -> None:
        """Record each jointly trained task as a run, with its part of the model."""
        for name, member in self.adapter.members(self.model).items():
            own, log = evaluation.members[name], None
            if self.log is not None:
                log = self.log.member(name, asdict(Described.of(member.run, member.adapter.sources())))
                _log_model(log, member.model, member.run, member.adapter)
                spent = costs(member.model, self.progress, steps=0)
                times = {"time/train_seconds": self.progress.seconds, "epoch": self.progress.best_epoch}
                log.log(spent | times, step=self.step)
                log_evaluation(log, own, step=self.step)
            if self.run.figures:
                log_pictures(log, *own.pictures)

    def _checkpoint(self, metrics: dict[str, float]) -> None:
        self.report(metrics, snapshot(self.model, self.optimizer, self.progress, self.average))


def _log_model(log: Log, model: nn.Module, run: Run, adapter: TaskAdapter) -> None:
    """Log a model as the best checkpoint of a run."""
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), model, run, adapter)
        log.artifact(Path(folder), ARTIFACT)


def _print(line: str) -> None:
    """Print to standard error; Ray Train would log printed output a second time."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
