from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from polypool.infra.errors import InputError
from polypool.infra.fields import Rule, at_least, from_plain, read_record


@dataclass(frozen=True, kw_only=True)
class Part:
    file: str
    bytes: Annotated[int, at_least(0)]


@dataclass(frozen=True, kw_only=True)
class Record:
    version: int
    parts: tuple[Part, ...]
    pair: tuple[str, float] = ("a", 1.0)
    best: float | None = None
    words: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    numbers: Mapping[str, Annotated[float, Rule("even", lambda number: number % 2 == 0)]] = field(
        default_factory=dict
    )
    maybe: dict[str, tuple[float, ...]] | None = None
    kind: Literal["one", "two"] = "one"
    known: bool = True
    source: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.version == 9:
            raise InputError("version 9 was never written")


WHOLE = Record(
    version=1,
    parts=(Part(file="a", bytes=3), Part(file="b", bytes=0)),
    pair=("x", 2.5),
    best=0.5,
    words=["cat", "caf\u00e9"],
    counts={"train": 3},
    numbers={"a": 4},
    maybe={"mean": (1.0, 2)},
    source={"any": [None, {"thing": 1}]},
)


def written(folder: Path, values: Any) -> Path:
    path = folder / "record.json"
    path.write_text(json.dumps(values))
    return path


def test_record_round_trips(tmp_path):
    assert read_record(Record, written(tmp_path, asdict(WHOLE)), what="a record") == WHOLE
    few = read_record(Record, written(tmp_path, {"version": 1, "parts": []}), what="a record")
    assert few == Record(version=1, parts=())


WRONG = [
    ({"version": "1"}, "version must be a whole number, not '1'"),
    ({"version": True}, "version must be a whole number, not True"),
    ({"version": 9}, "version 9 was never written"),
    ({"version": None}, "version must be a whole number, not None"),
    ({"parts": {}}, "parts must be a list, not {}"),
    ({"parts": [{"file": "a"}]}, "parts[0].bytes is missing"),
    ({"parts": [{"file": "a", "bytes": 1}, 3]}, "parts[1] must be a mapping of names to values, not 3"),
    ({"parts": [{"file": "a", "bytes": -1}]}, "parts[0].bytes must be at least 0, not -1"),
    ({"parts": [{"file": "a", "bytes": 1, "byte": 1}]}, "unknown field 'parts[0].byte'. Did you mean"),
    ({"pair": ["a"]}, "pair[1] is missing"),
    ({"pair": ["a", "b"]}, "pair[1] must be a finite number, not 'b'"),
    ({"best": "0.5"}, "best must be a finite number, not '0.5'"),
    ({"best": 1e999}, "best must be a finite number, not inf"),
    ({"best": 10**400}, "best must be a finite number, not 1000"),
    ({"words": "cat"}, "words must be a list, not 'cat'"),
    ({"words": ["cat", 3]}, "words[1] must be text, not 3"),
    ({"words": ["cat", "\ud800"]}, "not valid JSON: unexpected end of hex escape"),
    ({"counts": []}, "counts must be a mapping of names to values, not []"),
    ({"counts": {"train": 1.5}}, "counts.train must be a whole number, not 1.5"),
    ({"counts": {"\ud800": 1}}, "not valid JSON: unexpected end of hex escape"),
    ({"numbers": {"a": 3}}, "numbers.a must be even, not 3"),
    ({"maybe": {"mean": [1, None]}}, "maybe.mean[1] must be a finite number, not None"),
    ({"kind": "three"}, "kind must be one of one, two, not 'three'"),
    ({"kind": []}, "kind must be one of one, two, not []"),
    ({"known": 1}, "known must be True or False, not 1"),
    ({"source": None}, "source must be a mapping of names to values, not None"),
    ({"version": "x" * 10_000}, "version must be a whole number, not 'xxx"),
    *((value, "it must be a mapping of names to values") for value in (None, [], 3, "text")),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_invalid_value_error_names_file_and_field(change, message, tmp_path):
    path = written(tmp_path, asdict(WHOLE) | change if isinstance(change, dict) else change)
    with pytest.raises(InputError) as error:
        read_record(Record, path, what="a record")
    assert str(error.value).startswith(f"{path}: {message}")
    assert len(str(error.value)) < 300


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, '{"version": 1' + "0" * 5000 + "}", "\xff"])
def test_invalid_json_and_missing_file_are_refused(text, tmp_path):
    path = tmp_path / "record.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=r"record.json: not valid JSON"):
        read_record(Record, path, what="a record")
    with pytest.raises(InputError, match="no such file; expected a record"):
        read_record(Record, tmp_path / "none.json", what="a record")


def test_error_in_list_names_the_index():
    with pytest.raises(InputError, match=r"here: \[1\].file is missing"):
        from_plain(tuple[Part, ...], [{"file": "a", "bytes": 1}, {"bytes": 2}], where="here")
