"""How a run is named: by its id, a beginning of it, its name, or as the latest."""

import re

import pytest

from polypool.infra.errors import AbsentError, InputError
from polypool.infra.tracking import Tracker, resolve_run, tracking_uri


@pytest.fixture(scope="module")
def runs(home) -> list[Tracker]:
    """Trained runs of two experiments, so many that two ids begin alike, and three of other kinds after them."""
    uri, made = tracking_uri(home), []
    for number in range(17):
        name = {3: "mine", 4: "it's", 5: "twice", 6: "twice"}.get(number, f"run {number}")
        start = {"uri": uri, "home": home, "name": name, "params": {}}
        made.append(Tracker.start(f"of {number % 2}", tags={"kind": "train"}, **start))
    for tags in ({"kind": "train", "joint": made[-1].run_id}, {"kind": "transfer"}, {}):
        made.append(Tracker.start("of 0", uri=uri, home=home, name="other", tags=tags, params={}))
    return made


def beginning(run: Tracker, among: list[Tracker]) -> str:
    """Return the shortest beginning of an id that no other run has."""
    others = [other.run_id for other in among if other is not run]
    lengths = range(1, 33)
    return next(run.run_id[:n] for n in lengths if not any(id.startswith(run.run_id[:n]) for id in others))


def test_a_run_is_found_by_what_names_it_alone(runs, home):
    uri = tracking_uri(home)
    assert resolve_run(uri, "latest") == runs[16].run_id, "no member of a joint run, and no other kind"
    assert resolve_run(uri, "mine") == runs[3].run_id
    assert resolve_run(uri, "it's") == runs[4].run_id
    for run in runs:
        assert resolve_run(uri, run.run_id) == run.run_id
        assert resolve_run(uri, beginning(run, runs)) == run.run_id


def test_several_runs_are_listed_to_choose_from(runs, home):
    uri = tracking_uri(home)
    with pytest.raises(
        InputError, match=r"^'twice' means 2 runs at .*; write more of the id of one:\n"
    ) as several:
        resolve_run(uri, "twice")
    assert all(f"\n  {run.run_id}  twice" in str(several.value) for run in runs[5:7])
    first = next(run.run_id[0] for run in runs if sum(of.run_id[0] == run.run_id[0] for of in runs) > 1)
    with pytest.raises(InputError, match=f"^'{first}' means "):
        resolve_run(uri, first)


@pytest.mark.parametrize("named", ["", "none", "12%", "a'b\"c", "latest "])
def test_none_is_refused_with_the_latest(runs, home, named):
    said = f"no run {named!r} at" if named else "no run is named: give an id, its beginning, or 'latest'"
    with pytest.raises(InputError, match=f"^{re.escape(said)}") as refused:
        resolve_run(tracking_uri(home), named)
    assert runs[-1].run_id in str(refused.value)


def test_without_runs_that_is_what_is_said(new_home):
    with pytest.raises(AbsentError, match="no runs are recorded"):
        resolve_run(tracking_uri(new_home), "latest")
