import pytest

from polypool.infra.errors import InputError
from polypool.tasks.datasets.own.gathering import Gathering
from polypool.tasks.datasets.splits import RandomSplits


def test_rows_come_together_in_the_order_in_which_ids_begin():
    ids = ["c", "a", "b", "a", "\udcff", "c", "a"]
    with Gathering(lambda id: id.encode(errors="surrogatepass")) as gathering:
        for number, id in enumerate(ids):
            gathering.add(id, (id, number, (f"text {number}", "\x00")))
        assert gathering.rank() == 4
        groups = [(rank, [row[1] for row in rows]) for rank, rows in gathering.groups()]
    assert groups == [(2, [0, 5]), (0, [1, 3, 6]), (1, [2]), (3, [4])]


def test_a_row_that_finds_no_room_is_a_message(monkeypatch):
    monkeypatch.setattr("polypool.tasks.datasets.own.gathering._MAKE", ("pragma max_page_count = 2",))
    with pytest.raises(InputError, match=r"no room for the rows of the table .* TMPDIR"):
        Gathering(RandomSplits(split="1/1/1", seed=0).key).add("a", ("x" * 100_000,))
