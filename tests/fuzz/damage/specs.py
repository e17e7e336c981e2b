"""Damage to typed text: specs with open brackets or unknown names, and paths without a file."""

from __future__ import annotations

from hypothesis import strategies as st

_SPECS = ["mean", "kmax(k=5)", "gem(p=3.0)", "slots(k=4, heads=2)", "gpo", "gcn(then=mean)"]
_NAMES = [
    "os:system",
    "os:abort",
    "builtins:exec",
    "pathlib:Path",
    "a.b:c",
    "torch.nn:Linear",
    "sys:exit",
    ":",
    "x:",
]
_VALUES = [
    "0", "-1", "nan", "1e999", "None", "True", "'a'", "[]", "{}", "9" * 4_400, "(" * 300, "mean", "1_0", "0x10",
    "1" + "+1" * 3_000, "1j", "b'a'", "max(k=1)", "\x00", "\udc80",
]  # fmt: skip

_PATHS = [
    "", "a" * 300, "a/" * 3_000, "x" * 5_000, "a\x00b", "\udcff.json", "\x1b[2J", "/dev/null", "/dev/zero",
    "/etc/shadow", "~", "*", "-", "a\nb", "loop.json", "loop.json/x", "images/loop/loop/loop",
    "/", "..", "\udc80",
]  # fmt: skip


def paths(data: bytes) -> st.SearchStrategy[bytes]:
    """Return a strategy for one path: one of a file's, or one that is odd."""
    usual = st.sampled_from(data.decode().split("\n"))
    odd = st.one_of(st.sampled_from(_PATHS), st.text(max_size=20))
    return st.one_of(usual, odd, st.tuples(usual, odd).map("/".join)).map(
        lambda path: path.encode("utf-8", "surrogateescape")
    )


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """Change a spec, the one of a file or another."""
    spec = draw(st.sampled_from([data.decode(), *_SPECS]))
    name, _, inside = spec.partition("(")
    way = draw(st.sampled_from(["name", "value", "key", "cut", "insert", "twice"]))
    if way == "name":
        spec = draw(st.sampled_from(_NAMES)) + spec[len(name) :]
    elif way == "value" and "=" in spec:
        spec = f"{spec[: spec.rindex('=') + 1]}{draw(st.sampled_from(_VALUES))})"
    elif way == "key":
        spec = f"{name}({draw(st.sampled_from(['k', 'x', 'dim', 'self', '*']))}={draw(st.sampled_from(_VALUES))})"
    elif way == "cut":
        spec = spec[: draw(st.integers(0, len(spec)))]
    elif way == "twice":
        spec = f"{name}({inside.rstrip(')')}, {inside}" if inside else f"{spec}{spec}"
    else:
        at = draw(st.integers(0, len(spec)))
        spec = spec[:at] + draw(st.sampled_from([*"()[]{}='\",:.\\\x00 é\n", *_VALUES])) + spec[at:]
    return spec.encode("utf-8", "surrogateescape")
