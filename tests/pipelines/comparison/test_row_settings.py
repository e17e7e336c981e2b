"""Rows of one table differ in nothing that their names do not say."""

from __future__ import annotations

from dataclasses import replace

from records import blocks_of, grid, run, vqa

from polypool.infra.text_tables import as_text
from polypool.infra.tracking import RunRecord
from polypool.pipelines.comparison.grouping import arranged
from polypool.pipelines.comparison.tables import score_tables as tables


def given(aggregator: str, seed: int = 0, rsum: float = 60.0, *, tags=(), **params: str) -> RunRecord:
    made = run(aggregator, seed, rsum)
    changed = {"optim.epochs": "10", "objective": "triplet", "cpus": "2"}
    changed |= {name.replace("__", "."): value for name, value in params.items()}
    return replace(
        made,
        run_id=f"{made.run_id}-{'-'.join(params.values())}",
        params={**made.params, **changed},
        tags={**made.tags, **dict(tags)},
    )


def labels(*runs: RunRecord) -> list[str]:
    (group,) = blocks_of(*runs)
    return sorted(row.label for row in group.rows)


def test_a_run_of_one_epoch_and_another_objective_have_rows_of_their_own() -> None:
    runs = [given(name, seed) for name in ("gpo", "mean") for seed in (0, 1)]
    runs += [given("gpo", 2, 30.0, optim__epochs="1"), given("max", 0, objective="infonce(temperature=0.05)")]
    (group,) = blocks_of(*runs)
    assert {row.label: row.seeds for row in group.rows} == {
        "gpo": ("0", "1"),
        "mean": ("0", "1"),
        "gpo, optim.epochs=1": ("2",),
        "max, objective=infonce(temperature=0.05)": ("0",),
    }
    assert group.usual == ("where a row does not say otherwise, objective=triplet, optim.epochs=10",)
    assert group.usual[0] in as_text(tables.scores(group)).replace("\n", " ")


def test_a_setting_without_a_majority_is_named_in_every_row() -> None:
    (group,) = blocks_of(given("gpo"), given("max", optim__epochs="1"))
    assert sorted(row.label for row in group.rows) == ["gpo, optim.epochs=10", "max, optim.epochs=1"]
    assert group.usual == ()


def test_what_changes_no_result_is_not_named_and_a_younger_setting_has_its_default() -> None:
    alike = [given("gpo"), given("max", cpus="8", log_every="1", published="{}", source="a paper")]
    assert labels(*alike) == ["gpo", "max"]
    runs = [given("gpo"), given("max", fusion="concat"), given("mean", fusion="product")]
    assert labels(*runs) == ["gpo", "max", "mean, fusion=product"]


def test_data_are_told_apart_by_what_is_there_and_not_by_where() -> None:
    here = {"data.corpus": "a" * 64, "data.features": "b" * 64}
    there = here | {"data.features": "c" * 64}
    same = [given("gpo", tags=here, data__features="x"), given("max", tags=here, data__features="y")]
    assert labels(*same) == ["gpo", "max"]
    other = [*same, given("mean", tags=there, data__features="x")]
    assert labels(*other) == ["gpo", "max", "mean, data.features=cccccccccccc"]
    unnoted = [*same, given("mean", data__features="z")]
    assert labels(*unnoted) == ["gpo, data.features=x", "max, data.features=y", "mean, data.features=z"]


def test_versions_of_a_protocol_have_rows_of_their_own() -> None:
    runs = [given(name, tags={"protocol_version.whole": "2"}) for name in ("gpo", "max")]
    assert labels(*runs, given("mean")) == ["gpo", "max", "mean, protocol version=1"]


def test_recipes_are_held_to_their_own_usual_settings() -> None:
    runs = [given(name, tags={"recipe": "long"}) for name in ("gpo", "max")]
    runs += [given(name, tags={"recipe": "short"}, optim__epochs="2") for name in ("gpo", "max")]
    runs = [replace(made, run_id=f"{made.run_id}-{made.tags['recipe']}") for made in runs]
    assert labels(*runs) == ["gpo, long", "gpo, short", "max, long", "max, short"]
    odd = given("mean", tags={"recipe": "short"}, optim__epochs="1")
    (group,) = blocks_of(*runs, odd)
    assert "mean, short, optim.epochs=1" in {row.label for row in group.rows}
    assert group.usual == ("where a row of short does not say otherwise, optim.epochs=2",)


def test_variants_have_lines_of_their_own_over_tasks_and_no_published_numbers() -> None:
    runs = [given(name) for name in ("gpo", "max", "mean")] + [given("gpo", 1, optim__epochs="1")]
    found = grid(*runs, *(vqa(name, 0, 30.0) for name in ("gpo", "max", "mean")))
    assert set(found.aggregators) == {"gpo", "gpo, optim.epochs=1", "max", "mean"}
    assert found.complete == ("gpo", "max", "mean")
    shown = " ".join(as_text(tables.across(found)).split())
    assert "image_text · coco_mini · whole: where a row does not say otherwise, optim.epochs=10" in shown


def test_what_members_have_of_their_joint_run_is_no_setting_of_their_own() -> None:
    own = {"members__a__aggregator": "gpo", "members__a__optim__lr": "0.1", "members__a__text": "bert"}
    other = {"members__a__aggregator": "max", "members__a__optim__lr": "0.2", "members__a__text": "bert"}
    assert labels(given("gpo", **own), given("max", **other)) == ["gpo", "max"]
    third = given("mean", **own | {"members__a__text": "bigru"})
    assert labels(given("gpo", **own), given("max", **other), third) == [
        "gpo",
        "max",
        "mean, members.a.text=bigru",
    ]


def test_other_code_and_other_packages_are_said() -> None:
    first = {"git_commit": "1" * 40, "torch": "2.6.0", "python": "3.11.7"}
    later = {"git_commit": "2" * 40, "git_dirty": "true", "torch": "2.13.0", "python": "3.11.7"}
    runs = [given("gpo", tags=first), given("gpo", 1, tags=first), given("max", tags=later)]
    _, notes = arranged(runs, experiment="x")
    title = "image_text · coco_mini · whole: its runs"
    assert notes[-2:] == (
        f"{title} are of 2 states of the code, whose changes no row shows: 1111111111 (2), 2222222222 with changes (1)",
        f"{title} used torch 2.13.0 and 2.6.0",
    )
    assert arranged(runs[:2], experiment="x")[1] == ()


def test_a_run_of_before_a_setting_was_renamed_shares_the_row_of_later_ones() -> None:
    old = given("gpo", 0, **{"optim__amsgrad": "False"})
    later = given("gpo", 1, **{"optim__optimiser": "adamw"})
    assert labels(old, later, given("gpo", 2, **{"optim__amsgrad": "True"})) == [
        "gpo",
        "gpo, optim.optimiser=adamw(amsgrad=True)",
    ]
