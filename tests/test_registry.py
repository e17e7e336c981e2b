from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from infra import registry
from infra.errors import InputError
from infra.registry import AGGREGATORS, Registry, Spec


@pytest.mark.parametrize(
    ("text", "name", "params"),
    [
        ("mean", "mean", {}),
        ("kmax(k=5)", "kmax", {"k": 5}),
        (" kmax( k = 5 , ) ", "kmax", {"k": 5}),
        (
            "hgr(global=gpo(temperature=0.1), levels=3)",
            "hgr",
            {"global": "gpo(temperature=0.1)", "levels": 3},
        ),
        (
            "a(b=(1, 2), c='x, y', d=None, e={'f': [1]})",
            "a",
            {"b": (1, 2), "c": "x, y", "d": None, "e": {"f": [1]}},
        ),
        ("my.module:Name(k=-1.5e-3)", "my.module:Name", {"k": -1.5e-3}),
    ],
)
def test_a_spec_is_read_and_written_back(text, name, params):
    spec = Spec.parse(text)
    assert spec == Spec(name, params)
    assert Spec.parse(str(spec)) == spec


@pytest.mark.parametrize(
    "text",
    [
        "",
        "kmax(",
        "kmax(5)",
        "kmax(k=)",
        "kmax(k=1, k=2)",
        "kmax(k=1))",
        "kmax(k=[1)",
        "a b",
        "x(k=1+1)",
        "x(k='a)",
    ],
)
def test_a_broken_spec_is_refused(text):
    with pytest.raises(InputError, match="spec"):
        Spec.parse(text)


def test_nothing_in_a_spec_is_evaluated():
    with pytest.raises(InputError):
        AGGREGATORS.build("kmax(k=__import__('os').system('true'))", 4)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("gpoo", "Did you mean 'gpo'"),
        ("nothing_like_it", "Choices: .*gpo.*mean"),
        ("kmax(kk=3)", "Did you mean 'k'"),
        ("mean(k=3)", "unknown parameter"),
        ("kmax(k=0)", "at least 1"),
        ("no.such.module:Thing", "cannot load"),
        ("aggregators.gpo:Missing", "cannot load"),
    ],
)
def test_a_wrong_name_or_parameter_says_what_is_right(spec, message):
    with pytest.raises(InputError, match=message):
        AGGREGATORS.build(spec, 4)


def test_a_part_is_found_by_its_module():
    assert AGGREGATORS.build("aggregators.kmax:KMax(k=2)", 4).k == 2


def test_two_parts_of_one_name_are_an_error():
    parts = Registry("part", package="tests")
    parts.register("twin")(dict)
    parts.register("twin")(dict)  # the same one again, as when a module is reloaded
    with pytest.raises(InputError, match="two parts are called 'twin'"):
        parts.register("twin")(list)


@pytest.fixture
def plugged(monkeypatch):
    """A registry into which entry points can be put."""

    def make(*points: tuple[str, str]) -> Registry:
        found = [EntryPoint(name=name, value=value, group="polypool.parts") for name, value in points]
        monkeypatch.setattr(
            registry, "entry_points", lambda group: found if group == "polypool.parts" else []
        )
        parts = Registry("part", package="aggregators.max")
        parts.register("own")(list)
        return parts

    return make


def test_an_entry_point_is_loaded_when_it_is_used(plugged):
    parts = plugged(("outside", "collections:OrderedDict"), ("broken", "no_such_package:Thing"))
    assert parts.names() == ["broken", "outside", "own"]
    assert parts.get("outside").__name__ == "OrderedDict"
    assert parts.get("own") is list
    with pytest.raises(InputError, match=r"plugged in as 'broken'.*ModuleNotFoundError"):
        parts.get("broken")


def test_an_entry_point_cannot_take_a_name_in_use(plugged):
    with pytest.raises(InputError, match="two parts are called 'own'"):
        plugged(("own", "collections:OrderedDict")).names()
