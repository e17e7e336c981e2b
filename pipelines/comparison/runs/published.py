"""What the recipes of runs aim at, and which runs may be held to it."""

from __future__ import annotations

import json
from collections.abc import Sequence

from infra.errors import InputError
from infra.registry import RECIPES
from infra.tracking import RunRecord
from pipelines.recipe import Ensemble, published_text


def published_numbers(run: RunRecord) -> dict[str, float]:
    """Return the numbers that a run's recipe aims at, by protocol and metric.

    Raises:
        InputError: the run's record of them is damaged.
    """
    text = run.params.get("published") or "{}"
    try:
        numbers = json.loads(text)
        return {str(name): float(value) for name, value in numbers.items()}
    except (ValueError, TypeError, AttributeError):
        raise InputError(
            f"run {run.run_id}: its setting `published` is {text!r}, expected numbers by protocol and metric"
        ) from None


def sources(runs: Sequence[RunRecord]) -> tuple[str, ...]:
    """Say what the recipes of runs aim at and where that is printed, a sentence each."""
    lines = {
        f"{run.tags.get('recipe', '')}: {published_text(numbers, run.params.get('source', ''))}"
        for run in runs
        if (numbers := published_numbers(run))
    }
    return tuple(sorted(lines))


def follows_recipe(run: RunRecord) -> bool:
    """Whether a run has the aggregators and the model of its recipe, whose published numbers are then its to reach."""
    name = run.tags.get("recipe", "")
    if name not in RECIPES.names():
        return False
    try:
        recipe = RECIPES.get(name)()
    except InputError:  # a plug-in that can no longer be used
        return False
    if isinstance(recipe, Ensemble):
        return run.tags.get("kind") == "ensemble"
    text = recipe.text_aggregator or recipe.aggregator
    own = run.tags.get("aggregator", "")
    return (own, run.tags.get("text_aggregator", own), run.tags.get("model", "")) == (
        recipe.aggregator,
        text,
        recipe.model.partition("(")[0],
    )
