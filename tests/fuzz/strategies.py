"""A strategy for each kind of file: which of its files are damaged, and how."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from fuzz.cases import Form, Kind
from fuzz.damage import archives, arrays, documents, hdf5, lines, raw, tensors

CASES = settings(
    max_examples=30,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)

_OWN: dict[Form, Callable[[bytes], st.SearchStrategy[bytes]]] = {
    "json": documents.damaged,
    "jsonl": documents.damaged_line,
    "lines": lambda data: lines.damaged(data, separators=b"\t "),
    "csv": lambda data: lines.damaged(data, separators=b","),
    "npy": arrays.damaged_npy,
    "npz": arrays.damaged_npz,
    "hdf5": hdf5.damaged,
    "safetensors": tensors.damaged,
    "tar": archives.damaged,
}


def cases(kind: Kind, folder: Path) -> st.SearchStrategy[dict[str, bytes]]:
    """Return a strategy for what some of the files in `folder`, those of a kind, are replaced by; one or two."""
    kept = {name: (folder / name).read_bytes() for name in kind.damaged}

    @st.composite
    def draw_files(draw: st.DrawFn) -> dict[str, bytes]:
        names = draw(st.lists(st.sampled_from(sorted(kept)), min_size=1, max_size=2, unique=True))
        return {name: draw(_damaged(kept[name], kind.damaged[name])) for name in names}

    return draw_files()


def _damaged(data: bytes, form: Form) -> st.SearchStrategy[bytes]:
    """Damage by what the file means two times of three, else by its bytes."""
    if form == "raw":
        return raw.damaged(data)
    own = _OWN[form](data)
    return st.one_of(own, own, raw.damaged(data))
