import re
from dataclasses import replace
from functools import cache, partial

import pytest
from corpora import make_corpus, make_questions
from tiny_models import save_bert, save_vit
from verbs import exit_code

from polypool.infra.checks import Check, Outcome, run_checks, summary
from polypool.infra.errors import InputError
from polypool.pipelines.commands import check as module
from polypool.pipelines.training.train import prepare
from polypool.testing import checks, kind_of, listing, outcomes, task_checks


@cache
def failures(name: str, **options) -> list[str]:
    return [f"{o.what}: {o.message}" for o in outcomes(name, **options) if not o.passed]


BUILT_IN = """
    bigru(width=16, embedding=8) | words(embedding=8) | regions(width=16, standardise=True) | pooled_grid
    stored_text(width=16, standardise=True) | smooth_chamfer | aligned_mean | csd | pcmepp | vib(weight=1e-4)
    triplet | infonce(learned=True) | adopt | mmd(weight=1.0) | coco_mini | coco_wsl_bert_x2 | karpathy
    vqa2 | image_text | video_text | vqa | template_task:CaptionWord
"""


@pytest.mark.parametrize("name", re.split(r"\s*[|\n]\s*", BUILT_IN.strip()))
def test_built_in_parts_pass_their_checks(name):
    assert failures(name) == []


def test_ambiguous_name_requires_kind():
    with pytest.raises(InputError, match="choose one: --kind backbone or objective"):
        list(outcomes("siglip"))
    assert failures("siglip", kind="objective") == []
    assert failures("hgr(verbs=3)", kind="model") == failures("hgr", kind="reader") == []


def test_transformers_encoders_are_checked_from_folder(tmp_path):
    bert, vit = save_bert(tmp_path / "bert"), save_vit(tmp_path / "vit")
    with pytest.raises(InputError, match=r"several parts; .* --kind encoder or backbone"):
        failures(f"bert(width=6, name={bert!r})")
    assert failures(f"bert(width=6, name={bert!r})", kind="encoder") == []
    assert failures(f"patches(width=6, size=32, name={vit!r})") == []
    (missing, *rest) = outcomes(f"bert(name={str(tmp_path / 'none')!r})", kind="encoder")
    assert "Give the name of a model on the hub" in missing.message
    assert {outcome.passed for outcome in rest} == {None}


def test_task_checks_use_recipe_parts_and_data(tmp_path):
    run = make_questions(tmp_path)
    assert [o for o in run_checks(task_checks(run)) if not o.passed] == []
    wrong = replace(run, optim=replace(run.optim, batch=4), aggregator="gpo(tempreature=1)")
    found = [*run_checks(task_checks(wrong))]
    assert [o.passed for o in found] == [True] * 4 + [False] + [None] * 12
    assert "Did you mean 'temperature'" in found[4].message


@pytest.mark.parametrize("check", checks("cosine"), ids=str)
def test_checks_can_run_as_parametrised_tests(check):
    check()


BROKEN = r"""
    Summing         under the mask change nothing: more padding changes the result. To do: mask
    Unbuilt         it is built: RuntimeError: no room for 8 \(.*broken_parts\.py, line \d+, which is `raise
    Exits           per set: SystemExit: 3 \(.*broken_parts\.py, line \d+, which is `raise
    Padded          under the mask change nothing: more padding changes the set. To do: mask
    Halfway         before_affine and its map .*: the map of before_affine differs
    Mates           batch mates change nothing: batch mates change
    Mates           gradients are .*: no gradient reaches idle.weight, idle.bias. To do
    Tensors         assets are plain JSON: TypeError: Object of type Tensor .* To do: make them of dicts
    Relative        independent of the other pairs: a block of the scores differs
    HiddenLayers    every parameter: layers requires a gradient but is not a registered parameter
    LateWeight      in every epoch: no gradient reaches late, in epoch 0. To do
    IdleTerm        reach every parameter: no gradient reaches idle. To do
    Backwards       gradient descent lowers it: 20 steps took the loss from .* To do
    Unseeded        the same samples have another `visual`.*infra\.compute\.randomness
    Flipped         Scores\): evaluate and evaluate_scores differ
    Whole           Scores\): score\(slice\(0, 3\), slice\(0, 2\)\) has shape \(16, \d+\), expected \(3, 2\)
    Unnamed         Searchable\): it derives from polypool\.tasks\.abilities\.Searchable and has no visual_dim
    Forgetful       ReadsInputs\): the score of a pair depends on the other pairs
    Short           consistent tensors: `visual_mask` is torch\.int64, expected torch\.bool
    NotANumber      finite scalars: `loss` is nan
    At              can be logged: MLflow refuses characters in the metric 'R@1'
    Unjoined        none of right has a unique value for each query
    Nameless        word_recall is not among its metrics recall
    Chanceless      query: the chance value of word_recall is unknown\. To do: set the best
    Unnoted         query: word_recall does not follow from its single queries; metrics that do: none\. To do
    Inverted        word_recall, lower is better: its best value 100 is no better than chance, 1\. To do
    Hungry          without its data: .*nowhere/corpus
"""


@pytest.mark.parametrize(
    ("name", "message"), [line.split(maxsplit=1) for line in BROKEN.strip().splitlines()]
)
def test_broken_part_fails_with_advice(name, message):
    found = "\n".join(failures(f"broken_parts:{name}"))
    assert re.search(message, found), found


@pytest.mark.parametrize(
    ("kind", "base"),
    [
        ("encoder", "polypool.encoders.encoder.Encoder"),
        ("similarity", "polypool.tasks.similarities.similarity.Similarity"),
        ("objective", "polypool.tasks.objectives.objective.Objective"),
        ("regulariser", "polypool.tasks.objectives.regularisers.Regulariser"),
    ],
)
def test_part_must_derive_from_base_of_its_kind(kind, base):
    with pytest.raises(InputError, match=f"is the class Identity, expected a class that derives from {base}"):
        list(outcomes("torch.nn:Identity", kind=kind))


def test_failed_vital_check_skips_remaining_checks():
    def fails() -> None:
        raise AssertionError("so it is")

    few = [
        Check(what="a", run=lambda: "seen"),
        Check(what="b", run=fails, vital=True),
        Check(what="c", run=fails),
    ]
    assert [str(o).split() for o in run_checks(few)] == [
        ["ok", "a:", "seen"],
        ["FAILED", "b:", "so", "it", "is"],
        ["not", "checked", "c"],
    ]


@pytest.mark.parametrize(
    ("passed", "expected"),
    [
        ([True, True], ""),
        ([True, False, True, False], "2 of 4 checks failed"),
        (
            [False, False, None, None],
            "2 of 4 checks failed; 2 were not run because they require that 'check 1' holds",
        ),
    ],
)
def test_summary_counts_failed_and_skipped_checks(passed, expected):
    found = [Outcome(what=f"check {number}", passed=each) for number, each in enumerate(passed)]
    assert summary(found) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpo", "aggregator"),
        ("regions(width=4)", "encoder"),
        ("broken_parts:Summing", "aggregator"),
        ("broken_parts:Mates", "encoder"),
        ("broken_parts:Task(place=2)", "task"),
        ("polypool.tasks.objectives.infonce:InfoNCE", "objective"),
        ("polypool.tasks.hgr.hgr:HGR", "model"),
    ],
)
def test_kind_is_inferred_from_name(name, expected):
    assert kind_of(name) == expected


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("gpoo", {}, "unknown name 'gpoo'. Did you mean 'gpo'"),
        ("gpo", {"kind": "agregator"}, "Did you mean 'aggregator'"),
        ("collections:Counter", {}, "--kind"),
        ("no_such_package:Thing", {}, "cannot load"),
        ("gpo", {"recipe": "coco_mini"}, "leave --recipe out"),
        ("image_text", {"recipe": "coco_mni"}, "Did you mean 'coco_mini'"),
        ("image_text", {"recipe": "coco_wsl_bert_x2"}, "is an ensemble"),
        ("gpo", {"kind": "encoder"}, "unknown encoder 'gpo'"),
    ],
)
def test_invalid_check_arguments_are_refused(name, options, message):
    with pytest.raises(InputError, match=message):
        list(outcomes(name, **options))


def test_check_command_prints_results_and_exits_0_or_2(capsys):
    verb = partial(exit_code, module.main)
    assert verb("mean") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 26
    assert all(line.startswith("ok ") for line in lines)
    assert verb("broken_parts:Summing") == 2
    captured = capsys.readouterr()
    assert "FAILED       padding and" in captured.out
    assert "Summing: 8 of 26 checks failed\n" in captured.err
    assert verb("broken_parts:Short") == 2
    message = "1 of 17 checks failed; 14 were not run because they require that 'two batches of consistent"
    own_data = "a task that reads data of its own is checked with --recipe RECIPE"
    err = capsys.readouterr().err
    assert (message in err, own_data in err) == (True, True), err
    for words, message in (([], "--list"), (["mean", "--seed", "1"], "'--seed' is no option")):
        assert verb(*words) == 2
        assert message in capsys.readouterr().err
    assert verb("--list", "--kind", "fusion") == 0
    assert capsys.readouterr().out == "fusions (--kind fusion)\n  concat   built in\n  product  built in\n"


def test_list_covers_every_kind():
    found = listing()
    names = "image_text bigru gpo cosine adopt mmd drop hgr coco_mini vit"
    for name in names.split(" "):
        assert f"\n  {name} " in found
    assert re.search(r"^  gpo +built in$", found, re.MULTILINE)
    with pytest.raises(InputError, match="Did you mean 'miner'"):
        listing("miners")


def test_task_without_adapter_base_is_refused(tmp_path):
    with pytest.raises(InputError, match="give its kind: --kind"):
        kind_of("broken_parts:Underived")
    refused = r"'broken_parts:Underived' is the class Underived, expected .* derives from polypool.tasks.adapter.Task"
    with pytest.raises(InputError, match=refused):
        list(outcomes("broken_parts:Underived", kind="task"))
    with pytest.raises(InputError, match=refused):
        prepare(replace(make_corpus(tmp_path), task="broken_parts:Underived"))
