from __future__ import annotations

from concurrent.futures import Future

import numpy as np

from polypool.infra.batches import announced


def test_requests_for_what_is_not_read_are_cancelled():
    requests: list[Future] = []

    class Source:
        def fetch_ahead(self, index_B: np.ndarray) -> list[Future]:
            requests.append(Future())
            return requests[-1:]

    parts = announced(Source(), np.arange(6)[:, None], ahead=2)
    next(parts)
    parts.close()
    assert [request.cancelled() for request in requests] == [False, True, True]
