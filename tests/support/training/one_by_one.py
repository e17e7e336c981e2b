"""The trials of a sweep in this process, one after the other: for tests of what is decided around the training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from polypool.infra.ray import Ended


def run_one_by_one(
    work: Callable[[int], Mapping[str, Any]], count: int, *, ended: Callable[[Ended], None], **_: object
) -> None:
    """Stand in for `polypool.infra.ray.run_side_by_side`; nothing is stopped early."""
    for number in range(count):
        ended(Ended(number=number, result=work(number), error=""))
