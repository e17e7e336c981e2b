from __future__ import annotations

import json
from dataclasses import replace

import pytest
from toy import toy_run

from polypool.infra.errors import InputError
from polypool.infra.registry import AGGREGATORS, ORIGINS
from polypool.tasks.run import from_json, to_json, to_record


@pytest.fixture
def plugged(tmp_path, monkeypatch):
    """Return a function that installs packages with the given entry points."""
    monkeypatch.syspath_prepend(tmp_path)

    def install(**packages: str) -> None:
        for name, points in packages.items():
            made = tmp_path / f"{name}-1.2.dist-info"
            made.mkdir()
            (made / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
            (made / "entry_points.txt").write_text(points)
        for name, value in {"_discovered": False, "_plugins": {}}.items():
            monkeypatch.setattr(AGGREGATORS, name, value)

    return install


def test_run_record_names_packages_of_its_plugins_only(plugged):
    run = replace(toy_run(), aggregator="middle(p=2)", text_aggregator="mean")
    plugged()
    assert to_record(run) == to_json(run)
    plugged(
        foo="[polypool.aggregators]\nmiddle = foo:Middle\n", bar="[polypool.encoders]\nother = bar:Other\n"
    )
    record = json.loads(json.dumps(to_record(run)))
    assert record[ORIGINS] == [{"kind": "aggregator", "name": "middle", "package": "foo", "version": "1.2"}]
    assert from_json(record) == run


def test_missing_plugin_error_names_its_package(plugged):
    plugged()
    origin = {"kind": "aggregator", "name": "middle", "package": "foo", "version": "1.2"}
    record = json.loads(json.dumps(to_json(replace(toy_run(), aggregator="middle"))))
    message = "run.json: the aggregator 'middle' came from the package foo 1.2, which is not installed: pip install foo"
    with pytest.raises(InputError, match=message):
        from_json(record | {ORIGINS: [origin]})
    assert from_json(record | {ORIGINS: [origin | {"kind": "of another version"}]}).aggregator == "middle"
    for wrong in (
        [origin | {"package": "foo --index-url http://elsewhere"}],
        [origin | {"more": 1}],
        {"foo": 1},
    ):
        with pytest.raises(InputError, match=r"run\.json: plugins"):
            from_json(record | {ORIGINS: wrong})
