"""`train RECIPE --run-id-file FILE`: repeating the command resumes its run."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from corpora import make_corpus

from polypool.infra.errors import InputError
from polypool.infra.process.stopping import Stopped
from polypool.infra.registry import RECIPES
from polypool.infra.tracking import Tracker, find_runs, tracking_uri
from polypool.pipelines.commands.train import Resume, main, parse, take_run_id_file, train
from polypool.pipelines.training import train as training
from polypool.tasks.run import Run


@pytest.fixture(scope="module")
def run(home) -> Run:
    made = make_corpus(home, train=16, val=8, test=8)
    optim = replace(made.optim, epochs=1)
    return replace(made, cpus=1, experiment="noted", optim=optim, figures=False)


def count(home: Path) -> int:
    return len(find_runs(tracking_uri(home), "noted", finished=False))


def test_repeated_command_resumes_run(run, home, tmp_path, monkeypatch):
    file = tmp_path / "a folder" / "run id"

    def stopped(run: Run, tracker: Tracker, **_: object) -> None:
        assert file.read_text() == f"{tracker.run_id}\n", "the file must be written before training"
        raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(training, "fit", stopped)
        with pytest.raises(Stopped):
            train(run, file)
    run_id = file.read_text().strip()
    tracker = Tracker.attach(tracking_uri(home), run_id, running=False)
    assert tracker.status() == "KILLED"
    begun = count(home)
    assert train(run, file) == (run_id, "finished")
    assert tracker.status() == "FINISHED"
    assert train(run, file) == (run_id, "had finished before, and is not changed")
    assert count(home) == begun


def test_id_file_accepts_recipe_without_its_published_numbers(run, home, tmp_path):
    recipe = RECIPES.get("coco_region_bigru")()
    mine = replace(run, recipe="coco_region_bigru", published=recipe.published, source=recipe.source)
    file = tmp_path / "id"
    run_id, _ = train(mine, file)
    assert train(mine, file) == (run_id, "had finished before, and is not changed")


def test_id_file_refuses_other_settings_and_commands(run, home, tmp_path, monkeypatch, capsys):
    file = tmp_path / "id"
    run_id, _ = train(run, file)
    begun = count(home)
    other = replace(run, seed=5, optim=replace(run.optim, epochs=2))
    with pytest.raises(InputError, match=rf"{run_id} was started with other settings \(optim.epochs, seed\)"):
        train(other, file)
    for words in (["coco_wsl_bert_x2"], ["resume", run_id], ["rerun", run_id]):
        argv = ["polypool train", *words, "--run-id-file", str(tmp_path / "another")]
        monkeypatch.setattr(sys, "argv", argv)
        with pytest.raises(SystemExit):
            main()
        assert "error: --run-id-file is for" in capsys.readouterr().err
    assert count(home) == begun
    assert file.read_text().strip() == run_id
    assert not (tmp_path / "another").exists()


@pytest.mark.parametrize("held", [b"", b"run 12ab", b"\xff" * 32, b"0" * 32 + b" " * 4000 + b"1"])
def test_file_without_run_id_is_refused_unchanged(run, tmp_path, held):
    file = tmp_path / "id"
    file.write_bytes(held)
    with pytest.raises(InputError, match=r"id: holds no id of a run"):
        train(run, file)
    assert file.read_bytes() == held


def test_run_id_file_flag_is_accepted_at_any_position(home, capsys):
    for words in (["--run-id-file", "a b", "coco_mini"], ["coco_mini", "--run-id-file=a b"]):
        assert take_run_id_file(words) == (Path.cwd() / "a b", ["coco_mini"])
    rest = ["coco_mini", "--optim.lr", "-1e-4", "--seed", "1"]
    assert take_run_id_file([*rest, "--run-id-file", "/x"]) == (Path("/x"), rest)
    assert take_run_id_file(["resume", "ab"]) == (None, ["resume", "ab"])
    assert isinstance(parse(take_run_id_file(["resume", "ab"])[1]), Resume)
    with pytest.raises(SystemExit) as ended:
        take_run_id_file(["coco_mini", "--run-id-file"])
    assert ended.value.code == 2
    assert "--run-id-file" in capsys.readouterr().err
