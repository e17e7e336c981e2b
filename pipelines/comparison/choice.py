"""Filters of the runs to compare; it imports neither torch nor MLflow, since commands parse their options with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from polypool.infra.errors import unknown
from polypool.infra.process.command import AllByDefault
from polypool.infra.spec import Spec
from polypool.infra.tracking import RunRecord
from polypool.pipelines.training.record import tuned_of
from polypool.tasks.run import features_name


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Filters of the runs to compare.

    Attributes:
        recipes: the only recipes.
        aggregators: the only aggregators, such as `gpo "kmax(k=2)"`; choose them before you see scores.
        data: the only data sets.
        features: the only features, by the folders of their stores, such as `regions`.
    """

    recipes: AllByDefault = ()
    aggregators: AllByDefault = ()
    data: AllByDefault = ()
    features: AllByDefault = ()

    def of(self, runs: Sequence[RunRecord]) -> Sequence[RunRecord]:
        """Return the runs that pass all filters.

        Raises:
            InputError: no run has one of the requested values.
        """
        specs = {str(Spec.parse(spec)) for spec in self.aggregators}
        wanted = {
            "recipe": self.recipes,
            "aggregator": specs,
            "dataset": self.data,
            "features": self.features,
        }
        for tag, names in wanted.items():
            if names:
                values = [_values(tag, run) for run in runs]
                known = {*chain(*values)} - {""}
                if missing := sorted({*names} - known):
                    raise unknown(f"{tag} of the experiment", missing[0], known)
                runs = [run for run, of in zip(runs, values, strict=True) if of & {*names}]
        return runs


ALL = Choice()


def _values(tag: str, run: RunRecord) -> set[str]:
    """Return the values of a tag of a run; for the aggregator of a tuned run, also the spec that was tuned."""
    if tag == "features":
        folder = run.params.get("data.features", "")
        return {run.tags.get(tag) or features_name(folder, run.params.get("visual", "")), folder}
    tuned = tuned_of(run.tags, run=run.run_id) if tag == "aggregator" else None
    return {run.tags.get(tag, "")} | ({tuned.aggregator.partition(", text ")[0]} if tuned else set())
