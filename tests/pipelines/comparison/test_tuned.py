"""Runs with settings tuned by a sweep: one table for each budget and search space."""

from dataclasses import replace

from records import VIDEO, blocks_of, read, run, vqa

from polypool.infra.spec import split_values
from polypool.infra.text_tables import as_text
from polypool.infra.tracking import RunRecord
from polypool.pipelines.comparison import tables as score_tables
from polypool.pipelines.comparison.choice import Choice
from polypool.pipelines.comparison.cross_task import tables_of
from polypool.pipelines.comparison.documents import rendered
from polypool.pipelines.comparison.grouping import arranged
from polypool.pipelines.comparison.results import groups_of, results
from polypool.pipelines.training.record import Tuned

SPACE = (("aggregator.lr", ("0.1", "1.0")), ("optim.lr", ("0.001", "0.002")))
WORDS = "tuned by 6 trials each over aggregator.lr=0.1,1.0; optim.lr=0.001,0.002"


def tuned(
    made: RunRecord, *, chosen: str = "optim.lr=0.002", lr: str = "0.002", **changes: object
) -> RunRecord:
    """Return a copy of a run with tuned settings."""
    values = {
        "aggregator": made.tags["aggregator"].partition("(")[0],
        "budget": 6,
        "space": SPACE,
        "own": (),
        "early_stop": False,
        "chosen": tuple(tuple(pair.strip().split("=", 1)) for pair in split_values(chosen, chosen)),
        "sweep": "s",
    }
    own = {"optim.lr": lr, "optim.lr_factors": f"{lr} too", "published": '{"whole/rsum": 60.0}'}
    record = Tuned(**values | changes)
    run_id = f"{made.run_id}-{record.budget}"
    return replace(made, run_id=run_id, tags={**made.tags, **record.tag()}, params={**made.params, **own})


def over_tasks(name: str, rsum: float) -> list[RunRecord]:
    return [run(name, rsum=rsum), run(name, rsum=2 * rsum, **VIDEO), vqa(name, 0, rsum / 2)]


def test_tables_separate_tuning_budgets_and_spaces():
    other = (("optim.lr", ("0.001", "0.004")),)
    runs = [run("gpo"), run("mean"), tuned(run("gpo")), tuned(run("mean", rsum=50.0))]
    runs += [tuned(run("gpo"), budget=12), tuned(run("gpo"), space=other), tuned(run("gpo"), early_stop=True)]
    titles = {group.title: [row.label for row in group.rows] for group in blocks_of(*runs)}
    start = "image_text · coco_mini · whole"
    assert titles == {
        start: ["gpo", "mean"],
        f"{start} · tuned by 12 trials each over aggregator.lr=0.1,1.0; optim.lr=0.001,0.002": ["gpo"],
        f"{start} · {WORDS}": ["gpo", "mean"],
        f"{start} · {WORDS}, the worse half stopped early": ["gpo"],
        f"{start} · tuned by 6 trials each over optim.lr=0.001,0.004": ["gpo"],
    }
    assert not [
        note
        for note in arranged(runs, experiment="x", read=read)[1]
        if "table each for the protocols" in note
    ]


def test_rows_show_chosen_settings_in_own_column():
    own = (("kmax.k", ("1", "5")),)
    runs = [tuned(run("gpo", seed), chosen="optim.lr=0.001", lr="0.001") for seed in (0, 1)]
    runs += [tuned(run("kmax(k=5)", seed), chosen="optim.lr=0.002, kmax.k=5", own=own) for seed in (0, 1)]
    runs[3] = replace(runs[3], params={**runs[3].params, "optim.epochs": "9"})
    (group,) = blocks_of(*runs)
    chosen = {"gpo": "optim.lr=0.001", "kmax": "optim.lr=0.002, kmax.k=5"}
    assert {row.label: (row.variant, row.chosen) for row in group.rows} == {
        "gpo": ("gpo", chosen["gpo"]),
        "kmax (kmax.k=1,5)": ("kmax (kmax.k=1,5)", chosen["kmax"]),
        "kmax (kmax.k=1,5), optim.epochs=9": ("kmax (kmax.k=1,5), optim.epochs=9", chosen["kmax"]),
    }
    shown = score_tables.scores(group)
    assert shown.header[-1] == "chosen"
    assert {row[0].partition(" ")[0]: row[-1] for row in shown.rows} == chosen
    again = tuned(run("gpo", 2), chosen="optim.lr=0.004", lr="0.004")
    (group,) = blocks_of(*runs, again)
    assert {row.label for row in group.rows if row.aggregator == "gpo"} == {
        "gpo, chosen optim.lr=0.001",
        "gpo, chosen optim.lr=0.004",
    }
    assert not any(row.published for row in group.rows), (
        "tuned rows must not show the recipe's published numbers"
    )


def test_chosen_values_may_contain_commas():
    chosen = "optim.optimiser=adamw(beta1=0.8, beta2=0.95), optim.milestones=(1, 2)"
    runs = [tuned(of, chosen=chosen) for name in ("gpo", "mean") for of in over_tasks(name, 60.0)]
    (table,) = tables_of(blocks_of(*runs))
    shown = score_tables.front(table)
    assert shown.rows[0][-1] == "optimiser adamw(beta1=0.8, beta2=0.95); milestones (1, 2)"


def test_cross_task_order_ignores_chosen_settings():
    untuned = [*over_tasks("gpo", 60.0), *over_tasks("mean", 50.0)]
    runs = [
        tuned(of, lr=str(at))
        for at, of in enumerate([*over_tasks("kmax(k=1)", 70.0), *over_tasks("mean", 80.0)])
    ]
    groups = blocks_of(*untuned, *runs)
    plain, apart = tables_of(groups)
    assert (plain.complete, plain.tuned) == (("gpo", "mean"), "")
    assert (apart.complete, apart.tuned) == (("kmax", "mean"), WORDS)
    assert (plain.aggregators, apart.aggregators) == (("gpo", "mean"), ("mean", "kmax"))
    assert as_text(score_tables.across(apart)).splitlines()[0] == f"task x aggregator · {WORDS}"

    again = results(groups)
    assert [of.means for of in tables_of(groups_of(again))] == [plain.means, apart.means]
    shown = rendered(again.query("tuned != '' or task == 'vqa'"), file="r.csv")
    assert shown.count("| aggregator |") == 2, "expected a table of untuned VQA and one of three tuned tasks"


def test_labels_name_differing_text_aggregators():
    one_side = [tuned(run(name, text_aggregator="mean")) for name in ("gpo", "mean", "max")]
    both = [
        tuned(run(name, rsum=50.0, ended=1.0, text_aggregator=text))
        for name, text in (("gpo", "gpo"), ("max", ""))
    ]
    named = [tuned(run("lip", rsum=40.0, text_aggregator="mean"), aggregator="lip, text mean")]
    (group,) = blocks_of(*one_side, *both, *named)
    labels = {row.label for row in group.rows}
    assert labels == {
        "gpo",
        "mean",
        "max",
        "gpo, text_aggregator=gpo",
        "max, text_aggregator=max",
        "lip, text mean",
    }
    (group,) = blocks_of(*both)
    assert [row.label for row in group.rows] == ["gpo", "max"]


def test_choice_selects_tuned_runs_by_tuned_aggregator():
    runs = [run("gpo"), tuned(run("kmax(k=5)")), tuned(run("mean"))]
    assert Choice(aggregators=("kmax",)).of(runs) == runs[1:2]
