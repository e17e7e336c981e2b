"""Joint training of tasks: batch order, shared modules, steps, scores, and a tracked run per task."""

import json
from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from corpora import joint_run, make_corpus, make_questions
from toy import FolderReport, trainer_of
from workers import run_workers

import polypool
from polypool.infra.batches import order_of
from polypool.infra.compute.dist import rank, world
from polypool.infra.errors import InputError
from polypool.infra.registry import TASKS
from polypool.infra.tracking import MEMBERS, Log, find_runs, tracking_uri
from polypool.pipelines.recipes.load import derive
from polypool.pipelines.training.checkpoint import load_weights
from polypool.pipelines.training.loop.trainer import Trainer
from polypool.pipelines.training.record import LOG_FOLDER, Described, run_folder, send
from polypool.pipelines.training.train import prepare
from polypool.tasks.inputs.joint_batches import MEMBER, JointOrder
from polypool.tasks.run import Run, from_json, specs, to_json, to_params

TEXT = "bigru(width=16, embedding=8, min_count=1, ends=False)"


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    folder = tmp_path_factory.mktemp("joint")
    pairs = replace(make_corpus(folder / "pairs"), text=TEXT)
    asked = replace(make_questions(folder / "asked", seed=1), text=TEXT)
    run = joint_run(pairs=(0.4, pairs), vqa=(0.6, asked), optim=replace(pairs.optim, epochs=2))
    return replace(run, recipe="tiny_joint", aggregator="gpo", log_every=1, figures=False)


def order(weights: tuple[float, ...] = (0.5, 0.3, 0.2), sizes: tuple[int, ...] = (70, 33, 18)) -> JointOrder:
    return JointOrder(size=sum(sizes), batch=8, unit=8, seed=3, weights=weights, sizes=sizes)


def member_of(index_B: np.ndarray, sizes: tuple[int, ...]) -> int:
    return int(np.searchsorted(np.cumsum(sizes), index_B[0] % sum(sizes), side="right"))


def batches(of: JointOrder, epochs: int) -> list[np.ndarray]:
    return [index_B for epoch in range(epochs) for index_B in of.batches(epoch * of.epoch_samples)]


def test_batches_hold_one_task_in_proportion_to_weights():
    joint = order()
    for epoch in range(4):
        drawn = Counter(member_of(b, joint.sizes) for b in joint.batches(epoch * joint.epoch_samples))
        assert [drawn[m] for m in range(3)] == joint.steps_of_each.tolist() == [8, 4, 3]
    assert joint.epoch_steps == 121 // 8
    for index_B in batches(joint, 4):
        assert len(index_B) == 8
        assert len({member_of(index_B[[i]], joint.sizes) for i in range(8)}) == 1
    epochs = [joint.batches(e * joint.epoch_samples) for e in (0, 1)]
    first, second = ([member_of(b, joint.sizes) for b in epoch] for epoch in epochs)
    assert first != second


def test_each_task_sees_all_samples_before_repeats():
    joint = order()
    for member, size in enumerate(joint.sizes):
        start = sum(joint.sizes[:member])
        own = [b for b in batches(joint, 9) if member_of(b, joint.sizes) == member]
        a_round = size // 8
        for round_ in range(len(own) // a_round):
            index_B = np.concatenate(own[round_ * a_round : (round_ + 1) * a_round])
            assert (index_B // joint.size == round_).all()
            place_B = index_B % joint.size - start
            assert len({*place_B.tolist()}) == a_round * 8
            assert place_B.min() >= 0
            assert place_B.max() < size


def test_resumed_order_equals_uninterrupted_order():
    joint = order()
    whole = [*joint.batches(2 * joint.epoch_samples)]
    for step in (0, 1, 7, joint.epoch_steps - 1):
        rest = [*joint.batches(2 * joint.epoch_samples + step * 8)]
        assert len(rest) == len(whole) - step
        for ours, theirs in zip(rest, whole[step:], strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_joint_batch_equals_single_task_batch(run):
    adapter = TASKS.build(run.task, run)
    data = adapter.data("train")
    joint = order_of(data, batch=16, unit=16, seed=0)
    seen = set()
    for index_B in islice((b for e in range(3) for b in joint.batches(e * joint.epoch_samples)), 30):
        batch = data.batch(index_B, seed=5, epoch=77)
        member, round_ = int(batch.pop(MEMBER)[0]), int(index_B[0]) // len(data)
        name = [*adapter.adapters][member]
        own_B = index_B % len(data) - sum(joint.sizes[:member])
        alone = adapter.adapters[name].data("train").batch(own_B, seed=5, epoch=round_)
        assert batch.keys() == alone.keys()
        assert all(torch.equal(batch[key], alone[key]) for key in batch)
        seen.add((name, round_))
    assert {("pairs", 0), ("pairs", 1), ("vqa", 0)} <= seen


def test_tasks_share_text_encoder_aggregator_and_vocabulary(run):
    adapter = TASKS.build(run.task, run)
    model = adapter.model()
    pairs, vqa = model.members.values()
    assert pairs.text is vqa.text
    assert pairs.visual.aggregator is vqa.visual.aggregator
    assert pairs.visual.encoder is not vqa.visual.encoder
    words = [{*of["text"]["words"]} for of in adapter.assets.values()]
    assert words[0] == words[1] >= {"beside", "and", "how"}
    assert len([*model.parameters()]) == len({id(p) for p in model.parameters()})
    alone = TASKS.build(run.task.replace(")", ", share='')"), run).model()
    assert alone.members["pairs"].text is not alone.members["vqa"].text


def test_step_updates_only_modules_of_its_task(run, tmp_path):
    one = trainer_of(run, tmp_path)
    index_B = next(b for b in one.order.batches(0) if member_of(b, one.order.sizes) == 1)
    batch = one.data.batch(index_B, seed=0, epoch=0)
    before = {name: p.detach().clone() for name, p in one.model.named_parameters()}
    one.model.train()
    terms = one.train_step(batch)
    moved = {name for name, p in one.model.named_parameters() if not torch.equal(p, before[name])}
    assert terms["loss"] == terms["vqa/loss"]
    assert "pairs/loss" not in terms
    assert "members.vqa.classifier.weight" in moved
    assert any(name.startswith("members.pairs.text.encoder") for name in moved)  # shared with vqa
    assert not any(name.startswith("members.pairs.visual.encoder") for name in moved)


@pytest.fixture(scope="module")
def trained(run, tmp_path_factory) -> Trainer:
    one = trainer_of(run, tmp_path_factory.mktemp("trained"))
    one.train()
    return one


def test_each_task_is_scored_logged_and_saved_separately(run, trained, tmp_path):
    test = trained.adapter.evaluate(trained.model, "test", "joint")
    shares = [of.primary.chance_normalised(of.metrics[of.primary.name]) for of in test.members.values()]
    assert test.metrics["mean"] == pytest.approx(sum(shares) / 2)
    assert test.metrics["pairs/rsum"] == test.members["pairs"].metrics["rsum"]
    assert {m.name for m in test.others} == {"pairs/rsum", "vqa/accuracy"}
    assert {*trained.log.members} == {"pairs", "vqa"}
    for name, (alone, _, _) in trained.adapter.members(trained.model).items():
        log = trained.log.members[name]
        logged = {key: value for _, row in log.rows for key, value in row.items()}
        metric = test.members[name].primary.name
        assert logged[f"{alone.protocol}/{metric}"] == test.members[name].metrics[metric]
        assert f"metrics/{alone.protocol}" in " ".join(log.tagged) or log.tagged
        kept = from_json(json.loads((log.folder / "model/run.json").read_text()))
        assert kept == alone
        assets = json.loads((log.folder / "model/assets.json").read_text())
        again = TASKS.build(kept.task, kept, assets=assets)
        other = again.model()
        load_weights(other, log.folder / "model/model.safetensors")
        assert again.evaluate(other, "test", alone.protocol).metrics == test.members[name].metrics


def test_resumed_joint_run_reaches_same_weights(run, trained, tmp_path):
    run = replace(run, checkpoint_every=4)
    report = FolderReport(fail_after=3)
    with pytest.raises(KeyboardInterrupt):
        trainer_of(run, tmp_path, report=report).train()
    again = trainer_of(run, tmp_path)
    again.resume(report.last)
    again.train()
    for name, value in trained.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], value), name


def test_joint_run_json_and_params_include_members(run):
    again = from_json(json.loads(json.dumps(to_json(run))))
    assert again == run
    assert ("members.vqa.fusion", "product") in [*specs(run)]
    params = to_params(run)
    assert params["members"]["vqa"]["aggregator"] == "gpo"
    assert params["members"]["vqa"]["jointly"] == run.task


@pytest.mark.parametrize(
    "changes",
    [{"text": "bert"}, {"adapt": "frozen"}, {"data": {"missing": "skip"}}, {"data": {"extractor": "butd"}}],
)
def test_settings_of_members_are_refused(run, changes):
    with pytest.raises(InputError, match="does not use --"):
        prepare(derive(run, **changes))


def test_members_without_test_split_train_if_none_is_scored(tmp_path):
    pairs, asked = make_corpus(tmp_path / "pairs", test=0), make_questions(tmp_path / "asked", test=0)
    run = joint_run(pairs=(0.4, pairs), vqa=(0.6, replace(asked, text=pairs.text)), optim=pairs.optim)
    with pytest.raises(InputError, match="no items in the split 'test'"):
        prepare(run)
    run = replace(run, test=False, optim=replace(run.optim, epochs=1))
    trainer = trainer_of(run, tmp_path, adapter=prepare(run))
    trainer.train()
    assert "dev/mean" in {name for _, row in trainer.log.rows for name in row}


def worker(run: Run, folder: str) -> None:
    torch.set_default_dtype(torch.float64)
    one = trainer_of(replace(run, workers=world()), Path(folder) / f"log{world()}-{rank()}")
    one.train()
    if rank() == 0:
        torch.save(one.model.state_dict(), f"{folder}/{world()}.pt")


def test_two_workers_train_same_weights_as_one(run, tmp_path):
    run = replace(run, optim=replace(run.optim, epochs=1))
    run_workers(worker, run, str(tmp_path), world=2)
    try:
        worker(run, str(tmp_path))
    finally:
        torch.set_default_dtype(torch.float32)
    one, two = (torch.load(tmp_path / f"{workers}.pt", weights_only=True) for workers in (1, 2))
    for name, expected in one.items():
        torch.testing.assert_close(two[name], expected, rtol=1e-5, atol=1e-6, msg=name)


def test_each_task_gets_one_mlflow_run(run, home, capsys):
    described = Described.of(replace(run, experiment="joint"), TASKS.build(run.task, run).sources())
    tracker = described.start(tracking_uri(home), home)
    tracker.json("run.json", described.settings)
    log = Log(run_folder(home, tracker.run_id) / LOG_FOLDER)
    short = replace(run, experiment="joint", optim=replace(run.optim, epochs=1))
    adapter = TASKS.build(run.task, short)
    trainer_of(short, home, adapter=adapter, log=log).train()
    impossible = {"R@1": 1.0}  # MLflow refuses this name; everything else must still be sent
    log.log(impossible, step=0)
    Log(log.folder / MEMBERS / "pairs").log(impossible, step=0)
    with pytest.MonkeyPatch.context() as patch:  # MLflow fails when the tasks' runs are started
        patch.setattr(Described, "start", Mock(side_effect=InputError("no answer")))
        send(tracker, "FINISHED")
    assert [run.name for run in find_runs(tracking_uri(home), "joint")] == [
        "gpo · joint · tiny_joint · seed 0"
    ]
    send(tracker)
    said = capsys.readouterr().err
    assert said.count("note: not logged: ") == 2, "expected one note for the joint run and one for a task"
    assert not log.folder.exists(), "the log folder must be deleted once all is sent"
    records = {run.tags.get("member", "joint"): run for run in find_runs(tracking_uri(home), "joint")}
    assert {*records} == {"joint", "pairs", "vqa"}
    for name, of in run.members.items():
        record = records[name]
        assert record.tags["mlflow.parentRunId"] == record.tags["joint"] == tracker.run_id
        assert (record.tags["task"], record.tags["dataset"]) == (of.task.partition("(")[0], "tiny")
        assert f"jointly with other tasks, {run.task}" in record.tags["mlflow.note.content"]
        trained = polypool.load(record.run_id)
        metric = trained.adapter.primary.name
        assert trained.evaluate().metrics[metric] == pytest.approx(record.metrics[f"{of.protocol}/{metric}"])
        joint = records["joint"].metrics
        assert joint[f"joint/{name}/{metric}"] == record.metrics[f"{of.protocol}/{metric}"]
