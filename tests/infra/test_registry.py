from __future__ import annotations

import importlib
import math
import pkgutil
from collections import Counter
from importlib.metadata import EntryPoint

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import begin, end

from polypool.infra import registry
from polypool.infra import spec as spec_module
from polypool.infra.errors import InputError
from polypool.infra.registry import AGGREGATORS, KINDS, Registry, Spec
from polypool.infra.spec import changed, load_part, modules_of, trust_modules, trust_specs, without


@pytest.mark.parametrize(
    ("text", "name", "params"),
    [
        ("mean", "mean", {}),
        ("kmax(k=5)", "kmax", {"k": 5}),
        (" kmax( k = 5 , ) ", "kmax", {"k": 5}),
        ("hgr(global=gpo(t=0.1), levels=3)", "hgr", {"global": "gpo(t=0.1)", "levels": 3}),
        ("a(b=(1, 2), c='x, y', d=None)", "a", {"b": (1, 2), "c": "x, y", "d": None}),
        ("a(e={'f': [1]})", "a", {"e": {"f": [1]}}),
        ("my.module:Name(k=-1.5e-3)", "my.module:Name", {"k": -1.5e-3}),
        ("a(b=inf, c=(-inf, 1), d='inf')", "a", {"b": math.inf, "c": (-math.inf, 1), "d": "inf"}),
        (r"""a(b='it\'s "x, y"', c=' d ')""", "a", {"b": 'it\'s "x, y"', "c": " d "}),
    ],
)
def test_spec_text_round_trips(text, name, params):
    spec = Spec.parse(text)
    assert spec == Spec(name, params)
    assert Spec.parse(str(spec)) == spec


_TEXTS = st.one_of(
    st.text(alphabet="a'\" \\(),=[]{}:.\n-1", max_size=8),
    st.sampled_from(["inf", "-inf", "nan", "None", "a(b=c)", "module:Name", " a", "a ", "a(b)c(d)"]),
)
_VALUES = st.recursive(
    st.one_of(
        _TEXTS,
        st.none(),
        st.booleans(),
        st.integers(-(2**31) + 1, 2**31 - 1),
        st.floats(),
        st.text(max_size=5),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.tuples(inner, inner), st.dictionaries(_TEXTS, inner, max_size=2)
    ),
    max_leaves=4,
)


@settings(max_examples=30, derandomize=True, deadline=None, database=None)
@given(st.dictionaries(st.sampled_from(["a", "k", "of"]), _VALUES))
def test_random_spec_round_trips(params):
    spec = Spec("gpo", params)
    assert repr(Spec.parse(str(spec))) == repr(spec), "parsed and written spec differ (repr, as NaN != NaN)"


_N = 200_000


@pytest.mark.parametrize(
    "text",
    [
        "mean" + " " * _N,
        " " * _N,
        "a" * _N,
        f"gpo({'a' * _N}=1)",
        f"gpo(a={' ' * _N}x",
        "a(" + ") " * _N,
        "a:" * _N,
    ],
    ids=["spaces behind", "spaces", "name", "key", "spaces within", "brackets", "colons"],
)
def test_overlong_spec_is_refused_quickly(text):
    with pytest.raises(InputError, match="characters; at most 10,000 are allowed"):
        Spec.parse(text)
    assert not modules_of([text]) or ":" in text
    assert spec_module._SPEC.fullmatch(text + "!") is None


def test_integers_layers_and_iterations_are_bounded():
    for number in (str(10**30), f"(1, {2**31})", f"-{2**31}"):
        with pytest.raises(InputError, match="whole numbers are below 2,147,483,648"):
            Spec.parse(f"kmax(k={number})")
    for spec in ("boq(layers=1001)", "slots(iterations=1001)"):
        with pytest.raises(InputError, match=r"(layers|iterations) must be at most 1,000"):
            AGGREGATORS.build(spec, 16)
    assert AGGREGATORS.build("slots(iterations=1000)", 16).iterations == 1000


@pytest.mark.parametrize(
    "text",
    [
        *("", "kmax(", "kmax(5)", "kmax(k=)", "kmax(k=1, k=2)", "kmax(k=1))", "kmax(k=[1)", "a b"),
        *("x(k=1+1)", "x(k='a)", f"x(k={'-' * 3_000}1)", f"x(k=1{'0' * 5_000})"),
    ],
    ids=lambda text: text[:20],
)
def test_malformed_spec_is_refused_and_never_evaluated(text):
    with pytest.raises(InputError, match="spec"):
        Spec.parse(text)
    with pytest.raises(InputError):
        AGGREGATORS.build("kmax(k=__import__('os').system('true'))", 4)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("gpoo", "Did you mean 'gpo'"),
        ("nothing_like_it", r"Choices: dino_block, .* and \d+ more"),
        ("kmax(kk=3)", "Did you mean 'k'"),
        ("mean(k=3)", "unknown parameter"),
        ("kmax(k=0)", "at least 1"),
        ("kmax(k=2.5)", r"aggregator 'kmax\(k=2.5\)': k must be a whole number, not 2.5"),
        ("kmax(k=True)", "k must be a whole number, not True"),
        ("gpo(temperature=1e999)", "temperature must be a finite number, not inf"),
        ("no.such.module:Thing", "cannot load"),
        ("polypool.aggregators.ranks.gpo:Missing", "cannot load"),
    ],
)
def test_wrong_name_or_parameter_error_gives_a_hint(spec, message):
    trust_specs(spec)
    with pytest.raises(InputError, match=message):
        AGGREGATORS.build(spec, 4)


@pytest.fixture
def plugged(monkeypatch):
    """Return a function that makes a registry with the given entry points."""

    def make(*points: tuple[str, str]) -> Registry:
        found = [EntryPoint(name=name, value=value, group="polypool.parts") for name, value in points]
        monkeypatch.setattr(
            registry, "entry_points", lambda group: found if group == "polypool.parts" else []
        )
        parts = Registry("part", package="polypool.aggregators.ranks.max")
        parts.register("own")(list)
        return parts

    return make


def test_entry_point_loads_on_first_use(plugged):
    parts = plugged(("outside", "collections:OrderedDict"), ("broken", "no_such_package:Thing"))
    assert parts.names() == ["broken", "outside", "own"]
    assert parts.built_in() == []  # `own` is registered by the fixture
    assert parts.get("outside").__name__ == "OrderedDict"
    assert parts.get("own") is list
    with pytest.raises(InputError, match=r"plugged in as 'broken'.*ModuleNotFoundError"):
        parts.get("broken")
    assert [name for name, _ in parts.usable()] == ["outside", "own"]


def test_part_loads_by_module_path(tmp_path, monkeypatch):
    trust_modules("polypool.aggregators.ranks.kmax")
    assert AGGREGATORS.build("polypool.aggregators.ranks.kmax:KMax(k=2)", 4).k == 2
    monkeypatch.chdir(tmp_path)
    (tmp_path / "only_here.py").write_text("Thing = list")
    with pytest.raises(InputError, match="`python -m polypool` finds modules of the current folder"):
        load_part("only_here:Thing")


def test_duplicate_part_name_is_refused(plugged):
    twins = [("twin", "collections:OrderedDict"), ("twin", "collections:Counter")]
    parts = plugged(("own", "collections:OrderedDict"), ("other", "collections:Counter"), *twins)
    parts.register("own")(list)  # the same part again, as when a module is reloaded
    with pytest.raises(InputError, match="two parts are called 'own'"):
        parts.register("own")(dict)
    with pytest.raises(InputError, match="two parts are called 'own': builtins:list and a package"):
        parts.get("own")
    with pytest.raises(InputError, match=r"OrderedDict.* and .*Counter.*module:Name"):
        parts.get("twin")
    assert [name for name, _ in parts.usable()] == ["other"]
    trust_modules("collections")
    parts.register("counter")(Counter)
    assert parts.get("collections:Counter") is Counter
    with pytest.raises(
        InputError, match=r"two aggregators are called 'gpo': polypool.*:GPO and builtins:list"
    ):
        AGGREGATORS.register("gpo")(list)


def test_same_part_may_be_registered_and_plugged_in(plugged):
    parts = plugged(("own", "builtins:list"), ("twice", "builtins:dict"), ("twice", "builtins : dict"))
    assert parts.get("own") is list
    assert parts.get("twice") is dict


def test_listing_shows_origins_and_errors(plugged, tmp_path, monkeypatch):
    (tmp_path / "a_script.py").write_text("import sys\nsys.exit(3)\n")
    monkeypatch.syspath_prepend(tmp_path)
    parts = plugged(
        ("outside", "collections:OrderedDict"), ("script", "a_script:Mean"), ("own", "builtins:dict")
    )
    found = {listed.name: listed for listed in parts.listing()}
    assert found["outside"].origins == ("a package (collections:OrderedDict)",)
    assert found["outside"].error == ""
    assert "plugged in as 'script'" in found["script"].error
    assert "SystemExit: 3" in found["script"].error
    assert found["own"].origins == ("builtins:list", "a package (builtins:dict)")
    assert "two parts" in found["own"].error
    (gpo,) = (listed for listed in AGGREGATORS.listing() if listed.name == "gpo")
    assert (gpo.origins, gpo.error) == (("built in",), "")


def test_reading_names_does_not_import_torch():
    read = (
        "import sys; from polypool.infra.registry import KINDS; names = [r.names() for r in KINDS.values()]"
    )
    code, out, err = end(begin("-c", f"{read}; print(sum(map(len, names)) > 150, 'torch' in sys.modules)"))
    assert (code, out) == (0, "True False\n"), err


@pytest.mark.parametrize("kind", [kind for kind, parts in KINDS.items() if not parts.light])
def test_names_parsed_from_files_match_registered_names(kind):
    parts = KINDS[kind]
    fresh = Registry(parts.kind, package=parts.package, rooms=parts.rooms, decorator=parts.decorator)
    packages = [f"{parts.package}.{room}" for room in parts.rooms] or [parts.package]
    for package in packages:
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
            if module.name != "cuda":
                importlib.import_module(f"{package}.{module.name}")
    built_in = {name for name, part in parts._parts.items() if parts._built_in(part)}
    assert built_in
    assert built_in == {name for name in fresh.names() if name in fresh._files}


@pytest.mark.parametrize(
    ("spec", "params", "expected"),
    [
        ("kmax(k=5)", {"k": 3}, "kmax(k=3)"),
        ("mean", {"weights": "a/b.pth"}, "mean(weights='a/b.pth')"),
        ("a(b=gpo(k=(1, 2)), c='x), y')", {"size": 224}, "a(b=gpo(k=(1, 2)), c='x), y', size=224)"),
        ("a", {"b": "None", "c": None, "d": "gpo(k=1)"}, "a(b='None', c=None, d=gpo(k=1))"),
    ],
)
def test_changed_replaces_or_adds_parameters(spec, params, expected):
    assert changed(spec, **params) == expected
    assert Spec.parse(expected).params.items() >= params.items()


def test_without_removes_parameters():
    assert without("a(b=1, c='x, b=2')", "b", "d") == "a(c='x, b=2')"
    assert without("a(b=1)", "b") == "a"
