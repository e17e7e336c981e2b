from __future__ import annotations

import datetime
import os
import pickle
import random

import numpy as np
import pytest

from polypool.infra.errors import InputError
from polypool.infra.untrusted_arrays import read_plain_pickle

RANDOM = np.random.default_rng(0)
X_ND = RANDOM.standard_normal((3, 4)).astype(np.float32)
PLAIN = [
    None,
    {"a": [1, 2.5, True, None], "b": ("x", b"y"), 3: {"c": "ü"}},
    {"features": X_ND, "again": X_ND, "f16": X_ND.astype(np.float16), "n": np.float32(2.5), "k": np.int64(7)},
    {"fortran": np.asfortranarray(X_ND), "view": X_ND[:, ::2], "big": X_ND.astype(">f8"), "empty": X_ND[:0]},
    [np.arange(5), np.array([True, False]), np.array(3.0)],
]


def same(ours, theirs) -> bool:
    if isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(same(ours[key], theirs[key]) for key in theirs)
    if isinstance(theirs, list | tuple):
        return type(ours) is type(theirs) and all(map(same, ours, theirs))
    if isinstance(theirs, np.ndarray | np.generic):
        return np.array_equal(ours, theirs) and ours.dtype == theirs.dtype and ours.shape == theirs.shape
    return ours == theirs


@pytest.mark.parametrize("protocol", range(3, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("value", PLAIN, ids=range(len(PLAIN)))
def test_plain_values_and_arrays_are_read(value, protocol):
    assert same(read_plain_pickle(pickle.dumps(value, protocol)), value)


def test_pickles_of_older_numpy_are_read():
    data = pickle.dumps(X_ND, 3)
    assert b"numpy._core.multiarray" in data
    assert same(read_plain_pickle(data.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")), X_ND)


class Runs:
    def __reduce__(self):
        return os.system, ("touch ran",)


class State:
    pass


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (Runs(), "it names posix.system, which is not run"),
        ({"features": [Runs()]}, "which is not run"),
        (State(), "which is not run"),
        (datetime.date(2026, 1, 1), "it names datetime.date"),
        (np.array([None]), "expected one of numbers"),
        (np.zeros(2, [("a", "f4"), ("b", "i4")]), "expected one of numbers"),
        (np.array(["text"]), "expected one of numbers"),
        (len, "it names builtins.len"),
    ],
    ids=["a call", "a call inside", "an instance", "a date", "objects", "records", "text", "a function"],
)
def test_what_is_more_than_numbers_is_refused_and_not_run(value, why, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=why):
        read_plain_pickle(pickle.dumps(value))
    assert not (tmp_path / "ran").exists()


def test_an_array_of_another_size_than_its_shape_is_refused():
    data = pickle.dumps(X_ND, 3)
    assert data.count(b"K\x03K\x04") == 1
    with pytest.raises(InputError, match="another size than its shape"):
        read_plain_pickle(data.replace(b"K\x03K\x04", b"K\x03K\x05"))


def test_damaged_pickles_are_read_or_refused():
    whole, dice, messages = pickle.dumps(PLAIN[2]), random.Random(0), []
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(dice.randint(1, 3)):
            data[dice.randrange(len(data))] = dice.randrange(256)
        try:
            read_plain_pickle(bytes(data[: dice.randint(1, len(data))]))
        except InputError as error:
            messages.append(str(error))
    assert len(messages) > 200
    assert all(message.startswith("it ") for message in messages)
