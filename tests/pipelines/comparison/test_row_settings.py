from __future__ import annotations

from dataclasses import replace

import pytest
from records import blocks_of, grid, read, run, vqa

from polypool.infra.text_tables import as_text
from polypool.infra.tracking import RunRecord
from polypool.pipelines.comparison import tables
from polypool.pipelines.comparison.grouping import arranged


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


HERE = {"data.corpus": "a" * 64, "data.features": "b" * 64}
THERE = HERE | {"data.features": "c" * 64}
ON_HERE = [given("gpo", tags=HERE, data__features="x"), given("max", tags=HERE, data__features="y")]
OF_JOINT = [
    given(name, members__a__aggregator=name, members__a__optim__lr=lr, members__a__text="bert")
    for name, lr in (("gpo", "0.1"), ("max", "0.2"))
]

ASKED = {"gpo": "auto", "max": "bfloat16"}
IN_BFLOAT16 = [
    given(name, optim__precision=asked, tags={"precision": "bfloat16"}) for name, asked in ASKED.items()
]
IN_FLOAT32 = given("mean", optim__precision="auto", tags={"precision": "float32"})


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([given("gpo"), given("max", optim__epochs="1")], ["gpo, optim.epochs=10", "max, optim.epochs=1"]),
        ([given("gpo"), given("max", cpus="8", log_every="1", published="{}", source="p")], ["gpo", "max"]),
        (
            [given("gpo"), given("max", fusion="concat"), given("mean", fusion="product")],
            ["gpo", "max", "mean, fusion=product"],
        ),
        (ON_HERE, ["gpo", "max"]),
        (
            [*ON_HERE, given("mean", tags=THERE, data__features="x")],
            ["gpo", "max", "mean, data.features=cccccccccccc"],
        ),
        (
            [ON_HERE[0], given("mean", tags=THERE, data__features="x")],
            ["gpo, data.features=bbbbbbbbbbbb", "mean, data.features=cccccccccccc"],
        ),
        (
            [ON_HERE[0], given("mean", tags=THERE, data__features="z")],
            ["gpo, data.features=x", "mean, data.features=z"],
        ),
        (
            [given("gpo", tags=HERE, data__features="a/x"), given("mean", tags=THERE, data__features="a/z")],
            ["gpo, data.features=x", "mean, data.features=z"],
        ),
        (
            [given("gpo", tags=HERE, data__features="a/x"), given("mean", tags=THERE, data__features="b/x")],
            ["gpo, data.features=a/x", "mean, data.features=b/x"],
        ),
        (
            [*ON_HERE, given("mean", data__features="z")],
            ["gpo, data.features=x", "max, data.features=y", "mean, data.features=z"],
        ),
        (
            [*(given(name, tags={"protocol_version.whole": "2"}) for name in ("gpo", "max")), given("mean")],
            ["gpo", "max", "mean, protocol version=1"],
        ),
        (OF_JOINT, ["gpo", "max"]),
        ([*OF_JOINT, given("mean", members__a__text="bigru")], ["gpo", "max", "mean, members.a.text=bigru"]),
        (IN_BFLOAT16, ["gpo", "max"]),
        ([*IN_BFLOAT16, IN_FLOAT32], ["gpo", "max", "mean, optim.precision=float32"]),
    ],
    ids=[
        "no majority",
        "settings without effect",
        "default value",
        "two paths, one digest",
        "one path, two digests, with a majority",
        "one path, two digests",
        "a path per digest",
        "stores of one folder",
        "stores of two folders",
        "no digest",
        "protocol versions",
        "members of a joint run",
        "different members",
        "precision chosen by auto",
        "different precision",
    ],
)
def test_labels_name_differing_settings(runs, expected):
    assert labels(*runs) == expected


def test_usual_settings_are_found_per_recipe():
    runs = [given(name, tags={"recipe": "long"}) for name in ("gpo", "max")]
    runs += [given(name, tags={"recipe": "short"}, optim__epochs="2") for name in ("gpo", "max")]
    runs = [replace(made, run_id=f"{made.run_id}-{made.tags['recipe']}") for made in runs]
    assert labels(*runs) == ["gpo, long", "gpo, short", "max, long", "max, short"]
    (group,) = blocks_of(*runs, given("mean", tags={"recipe": "short"}, optim__epochs="1"))
    assert "mean, short, optim.epochs=1" in {row.label for row in group.rows}
    assert group.usual == ("where a row of short does not say otherwise, optim.epochs=2",)


def test_cross_task_table_lists_variants_separately():
    runs = [given(name) for name in ("gpo", "max", "mean")] + [given("gpo", 1, optim__epochs="1")]
    found = grid(*runs, *(vqa(name, 0, 30.0) for name in ("gpo", "max", "mean")))
    assert set(found.aggregators) == {"gpo", "gpo, optim.epochs=1", "max", "mean"}
    assert found.complete == ("gpo", "max", "mean")
    shown = " ".join(as_text(tables.across(found)).split())
    assert "image_text · coco_mini · whole: where a row does not say otherwise, optim.epochs=10" in shown


def test_features_of_same_origin_count_as_one_data_set():
    alike = {"data.features_origin": "e" * 64}
    here, there = (given(name, tags=of | alike) for name, of in (("gpo", HERE), ("max", THERE)))
    assert labels(here, there) == ["gpo", "max"]
    assert labels(here, there, given("mean", tags=HERE)) == ["gpo", "max", "mean"], (
        "a run without origin must match by digest"
    )
    other = given("mean", tags=HERE | {"data.features": "d" * 64, "data.features_origin": "f" * 64})
    assert labels(here, there, other) == ["gpo", "max", "mean, data.features=ffffffffffff"]
    title = "image_text · coco_mini · whole: "
    assert notes_of(here, there) == [
        f"{title}data.features was extracted with the same settings on several machines, and differs by rounding"
    ]
    assert notes_of(here) == []


def notes_of(*runs):
    _, notes = arranged(runs, experiment="x", read=read)
    return [note for note in notes if "machines" in note]


def test_notes_name_differing_commits_machines_packages():
    first = {"git_commit": "1" * 40, "torch": "2.6.0", "python": "3.11.7", "machine": "A"}
    later = first | {"git_commit": "2" * 40, "git_dirty": "true", "torch": "2.13.0", "machine": "B"}
    runs = [given("gpo", tags=first), given("gpo", 1, tags=first), given("max", tags=later)]
    _, notes = arranged(runs, experiment="x", read=read)
    title = "image_text · coco_mini · whole: runs"
    assert notes[-3:] == (
        f"{title} of 2 commits; rows do not show the changes: 1111111111 (2), 2222222222 with changes (1)",
        f"{title} of 2 kinds of machines; do not compare costs between them: A (2), B (1)",
        f"{title} with torch 2.13.0 and 2.6.0",
    )
    assert arranged(runs[:2], experiment="x", read=read)[1] == ()
