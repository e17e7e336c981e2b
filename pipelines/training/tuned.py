"""The record of how a run's settings were tuned, kept in a tag of the run."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from polypool.infra.errors import InputError
from polypool.infra.fields import from_plain

TUNED = "tuned"
"""The tag of a run whose settings a tuned sweep chose."""
FACTOR = "aggregator.lr"
"""The setting that multiplies the learning rate of the aggregators' own weights, by `optim.lr_factors`."""

Listed = tuple[tuple[str, tuple[str, ...]], ...]
"""Values by setting, as text."""


def listed(values: Listed) -> str:
    """Return lists of values as text, such as `optim.lr=0.001,0.002; aggregator.lr=0.3,1.0`."""
    return "; ".join(f"{name}={','.join(of)}" for name, of in values)


def text_of(chosen: Iterable[tuple[str, str]]) -> str:
    """Return a value for each setting as text, such as `optim.lr=0.001, kmax.k=2`."""
    return ", ".join(f"{name}={value}" for name, value in chosen)


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """How settings were chosen.

    Attributes:
        aggregator: its spec without the options that were chosen, and the text's.
        budget: trials of each aggregator.
        space: by setting, the values that all aggregators could have.
        own: by option of the aggregator, the values that it could have.
        early_stop: whether the worse half of an aggregator's trials was stopped early.
        chosen: by setting and option, the value that was best on `val`.
        sweep: the run of the sweep.
        seed: of the sample of each aggregator's space; None if the sample was not stratified.
    """

    aggregator: str
    budget: int
    space: Listed
    own: Listed
    early_stop: bool
    chosen: tuple[tuple[str, str], ...]
    sweep: str
    seed: int | None = None

    @property
    def identity(self) -> tuple[str, ...]:
        """What two runs have in common that were tuned alike, whatever was chosen."""
        return self.named, self.words

    @property
    def named(self) -> str:
        """The aggregator with the values of its own options."""
        return self.aggregator + (f" ({listed(self.own)})" if self.own else "")

    @property
    def words(self) -> str:
        """The tuning as in the title of a table, equal for all aggregators of a sweep."""
        stopped = ", the worse half stopped early" if self.early_stop else ""
        over = f" over {listed(self.space)}" if self.space else ""
        drawn = f", sample {self.seed}" if self.seed is not None else ""
        return f"tuned by {self.budget} trial{'s' * (self.budget > 1)} each{over}{drawn}{stopped}"

    @property
    def settings(self) -> tuple[str, ...]:
        """The settings of a run that tuning changes, beside its aggregators."""
        return tuple("optim.lr_factors" if name == FACTOR else name for name, _ in self.space)

    def tag(self) -> dict[str, str]:
        return {TUNED: json.dumps(dataclasses.asdict(self))}


def inherited(tags: Mapping[str, str]) -> dict[str, str]:
    """Return the tag of a run that others of its weights or settings have, too, so that tables keep them apart."""
    return {TUNED: tags[TUNED]} if tags.get(TUNED) else {}


def tuned_of(tags: Mapping[str, str], *, run: str) -> Tuned | None:
    """Return how a run was tuned; None for one that was not.

    Args:
        tags: of the run.
        run: its id, for the message.

    Raises:
        InputError: the tag is damaged, or of another version.
    """
    if not (text := tags.get(TUNED)):
        return None
    where = f"tag {TUNED!r} of run {run}"
    try:
        values = json.loads(text)
    except ValueError:
        raise InputError(f"{where}: {text[:80]!r} is no JSON; delete the run, or correct it") from None
    return from_plain(Tuned, values, where=where)
