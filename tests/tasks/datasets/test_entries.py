from __future__ import annotations

from pathlib import Path

import pytest

from polypool.infra.errors import InputError
from polypool.tasks.datasets.annotation_files import read_entries


@pytest.mark.parametrize("value", ["9" * 5_000, "[" * 50_000, "nul", '"\udcff'])
def test_a_value_that_cannot_be_read_ends_in_one_message(tmp_path: Path, value: str) -> None:
    path = tmp_path / "graphs.json"
    path.write_bytes(f'{{"a": [1], "b": {value}}}'.encode("utf-8", "surrogateescape"))
    with pytest.raises(InputError, match=r"graphs.json: cannot be read at character [0-9]+"):
        list(read_entries(path, what="role graphs"))
