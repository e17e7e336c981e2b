"""Cost of a step with many workers, computed by hand."""

import pytest

from benchmarks.training.many_workers import Cluster, bytes_a_score, table


def test_bytes_and_seconds_are_those_of_the_arithmetic():
    cluster = Cluster(workers=4, width=8, gbit=8e-6, teraflops=1e-9, bandwidth_gb=1e-6)
    assert cluster.received(100) == 2 * 75 * 8 * 4  # 75 of others, two sides, 8 numbers of 4 bytes
    # three products of 8 multiplications and additions at 1,000 a second; three passes of 10 bytes at 1,000 a second
    assert cluster.loss_seconds(100.0, 10.0) == pytest.approx(100 * 3 * 16 / 1000 + 3 * 100 * 10 / 1000)
    row = cluster.row(100, 10.0)
    assert row[2] == f"{1000 * 4800 / 1000:,.1f} ms"
    assert row[7] == f"{2 * 1000 * 4800 / 1000:,.1f} ms"
    assert row[4] == "780 s"
    assert row[6] == "195 s", "a quarter of the rows"


@pytest.mark.slow
def test_a_score_takes_its_matrix_and_what_is_kept_of_it():
    each = bytes_a_score("triplet(negatives=all)", batch=1500)
    assert 12 < each < 80, "scores and their gradient, of 4 bytes, and a mask, at least"
    said = table(Cluster(batches=(64,), workers=2))
    assert "2 workers, embeddings of width 1024" in said
    assert len(said.splitlines()) == 6
