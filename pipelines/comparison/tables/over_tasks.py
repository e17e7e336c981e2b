"""Table of means over tasks: scores, ranks and the rows that may be the best, with their intervals."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from polypool.infra.text_tables import Table
from polypool.pipelines.comparison.statistics.intervals import Difference
from polypool.pipelines.comparison.statistics.simultaneous import with_best
from polypool.pipelines.comparison.statistics.task_means import intervals, mean_of, rank_intervals, sample_of
from polypool.pipelines.comparison.tables.cross_task import CrossTaskTable
from polypool.pipelines.comparison.tables.differences import ONE_SEED, interval_text, with_sign

_FEWEST = 2  # tasks


def over_tasks(cross_task: CrossTaskTable) -> Table | None:
    """Return the means over tasks; None for one task, or where the table has no `joints`."""
    joints = cross_task.joints
    if len(joints) < _FEWEST:
        return None
    these = mean_of(joints)
    others = sample_of(these.labels, np.stack([joint.value_R for joint in joints]))
    means, ranks, leads = intervals(these), rank_intervals(joints), intervals(others)
    lead = dict(zip(others.labels, others.value_R.tolist(), strict=True))
    best, best_of_others = with_best(these), with_best(others)
    rows = [
        (
            name,
            f"{cross_task.mean(name):.1f}",
            interval_text(means[name], "{:.1f}".format),
            _may_be(best[name]),
            f"{cross_task.mean_ranks[name]:.1f}",
            interval_text(ranks[name], "{:.1f}".format),
            with_sign(lead[name], 1),
            interval_text(leads[name], lambda x: with_sign(x, 1)),
            _may_be(best_of_others[name]),
        )
        for name in cross_task.aggregators
        if name in these.labels
    ]
    tasks = len(joints)
    over = (
        "seeds and queries"
        if these.over_seeds
        else f"queries, and seeds in tasks with rows of two ({ONE_SEED})"
    )
    return Table(
        title=" · ".join(part for part in ("over tasks", cross_task.tuned) if part),
        legend=(
            f"of these {tasks} columns: mean chance-normalised score and mean rank, with 95 % intervals over {over}",
            f"of other tasks, of which these {tasks} are taken as a sample: lead over the mean of all aggregators, "
            "with a 95 % interval over tasks, seeds and queries",
        ),
        header=(
            "aggregator",
            "chance-\nnormalised",
            "95 % interval",
            "may be\nbest",
            "rank",
            "95 % interval",
            "other tasks:\nlead",
            "95 % interval",
            "may be\nbest",
        ),
        rows=tuple(rows),
        notes=(
            _set("these tasks", f"over {over}", best),
            _set("other tasks like these", "over tasks, seeds and queries", best_of_others),
        ),
    )


def _may_be(difference: Difference) -> str:
    return "no" if difference.found else "yes"


def _set(of: str, over: str, best: Mapping[str, Difference]) -> str:
    names = [name for name, difference in best.items() if not difference.found]
    return (
        f"confidence set of the best of {of} (95 %, {over}): {len(names)} of {len(best)}: {', '.join(names)}"
    )
