"""The space of a tuned sweep, lists of values for settings, and which points of it an aggregator tries."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import math
import random
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from polypool.infra.errors import InputError, unknown
from polypool.infra.fields import above, hints, require
from polypool.infra.registry import AGGREGATORS
from polypool.infra.spec import Spec, changed, split_values, without, written
from polypool.pipelines.training.loop.optim import longest_prefix
from polypool.pipelines.training.record import FACTOR, Listed
from polypool.tasks.run import Optim, Run

_OPTIM = "optim."

Values = Mapping[str, tuple[Any, ...]]
Point = tuple[tuple[str, Any], ...]
"""A value for each setting, such as `(("optim.lr", 0.001), ("kmax.k", 2))`."""


@dataclass(frozen=True, kw_only=True)
class Space:
    """Values by setting, in the order of names.

    Attributes:
        shared: of settings that all aggregators have: `optim.NAME`, and `aggregator.lr` for those with weights.
        own: of options of single aggregators, `NAME.OPTION`.
        sides: the settings of a run that are specs of the aggregators that are swept.
    """

    shared: Values
    own: Values
    sides: tuple[str, ...] = ("aggregator",)

    def own_of(self, run: Run) -> Values:
        """Return the values of options of a run's aggregators."""
        names = {Spec.parse(spec).name for spec in self.specs(run).values()}
        return {name: values for name, values in self.own.items() if _owner(name) in names}

    def specs(self, run: Run) -> dict[str, str]:
        """Return the specs of a run's aggregators that are swept, by side."""
        return {side: spec for side in self.sides if (spec := getattr(run, side))}

    def unchosen(self, run: Run) -> str:
        """Return the specs of a run's aggregators without the options that are to be chosen."""
        return ", text ".join(_unchosen(spec, self.own) for spec in self.specs(run).values())

    def options(self, run: Run, *, weights: bool) -> Values:
        """Return the values of all settings that change something for the aggregators of a run.

        Args:
            run: with its recipe's settings.
            weights: whether its aggregators have weights, so that `aggregator.lr` changes something.
        """
        every = {**self.shared, **self.own_of(run)}
        return {name: values for name, values in every.items() if weights or name != FACTOR}

    def points(self, run: Run, *, weights: bool, budget: int, seed: int) -> list[Point]:
        """Return the points that the aggregators of a run try: all of their space, or a sample of `budget` of it.

        The first one is nearest to the run's own settings. A sample is a Latin hypercube (McKay, Beckman and Conover,
        Technometrics 21, 1979): of each setting every value comes equally often, or once more than another one, and no
        point comes twice. Runs of equal spaces and nearest points have the same sample.

        Args:
            run: with its recipe's settings.
            weights: as of `options`.
            budget: the most points.
            seed: draws the sample.
        """
        options, settings = self.options(run, weights=weights), _settings(run, self.specs(run).values())
        first = tuple((name, _nearest(values, settings.get(name))) for name, values in options.items())
        size = math.prod(map(len, options.values()))
        return _latin_hypercube(options, first, budget=min(budget, size), size=size, seed=seed)

    def single_values(self, run: Run) -> Iterator[Point]:
        """Yield every value by itself that the aggregators of a run may have."""
        for name, values in self.options(run, weights=True).items():
            yield from (((name, value),) for value in values)

    def at(self, run: Run, point: Point, *, prefixes: Sequence[str]) -> Run:
        """Return a run with the settings of a point.

        Args:
            run: with its recipe's settings.
            point: of this space.
            prefixes: names of the modules that are the run's aggregators.
        """
        values = dict(point)
        optim = {name.removeprefix(_OPTIM): x for name, x in values.items() if name.startswith(_OPTIM)}
        optim["lr_factors"] = scaled(run.optim.lr_factors, prefixes, values.get(FACTOR, 1.0))
        specs = {side: _with_options(spec, values) for side, spec in self.specs(run).items()}
        return replace(run, optim=replace(run.optim, **optim), **specs)


def read_space(
    settings: Sequence[str],
    *,
    aggregators: Sequence[str],
    text_aggregators: Sequence[str] = (),
    read: Callable[[Sequence[str]], Run],
) -> Space:
    """Return the space of `SETTING=VALUE,VALUE` texts.

    Args:
        settings: the texts.
        aggregators: specs of the sweep.
        text_aggregators: specs of the text's, if they are swept.
        read: returns the run of some flags of `polypool train`, which reads the values of `optim.NAME`.

    Raises:
        InputError: an unknown setting, one given twice, no values, or two aggregators become one.
        SystemExit: with code 2, after a message: an unusable value of `optim.NAME`.
    """
    words = _listed_words(settings)
    options = _options([*aggregators, *text_aggregators])
    values = {
        name: tuple(dict.fromkeys(_value(name, word, options, read) for word in of))
        for name, of in words.items()
    }
    own = {name: values[name] for name in sorted(values) if name != FACTOR and not name.startswith(_OPTIM)}
    shared = {name: values[name] for name in sorted(values) if name not in own}
    sides = ("aggregator", "text_aggregator") if text_aggregators else ("aggregator",)
    for specs in (aggregators, text_aggregators):
        _refuse_equal(specs, own)
    return Space(shared=shared, own=own, sides=sides)


def _listed_words(settings: Sequence[str]) -> dict[str, list[str]]:
    """Return the listed words by setting, in the order of names."""
    found: dict[str, list[str]] = {}
    for text in settings:
        name, _, after = (part.strip() for part in text.partition("="))
        name = name.replace("-", "_") if name.startswith(_OPTIM) else name
        words = [word.strip() for word in split_values(after, f"--choose {text}")]
        if not words or not all(words):
            raise InputError(f"--choose {text!r}: expected SETTING=VALUE,VALUE, such as optim.lr=1e-3,2e-3")
        if name in found:
            raise InputError(f"--choose gives {name} twice; list all of its values once")
        found[name] = words
    return dict(sorted(found.items()))


def _value(name: str, word: str, options: Sequence[str], read: Callable[[Sequence[str]], Run]) -> Any:
    """Return a listed value of a setting as a run holds it."""
    if name == FACTOR:
        try:
            factor = float(word)
            require(above(0), **{FACTOR: factor})
        except ValueError as error:
            raise InputError(f"--choose {name}: {error}") from None
        return factor
    if name in options:
        owner, _, option = name.rpartition(".")
        return Spec.parse(f"{owner}({option}={word})").params[option]
    known = {f"{_OPTIM}{field}": field for field, hint in hints(Optim).items() if _is_single(hint)}
    if name not in known:
        why = " It takes a list of values of settings that hold one each, or an option of one aggregator of the sweep."
        raise unknown("setting of --choose:", name, [*known, FACTOR, *options], why)
    return getattr(read([f"--{name.replace('_', '-')}", word]).optim, known[name])


def _is_single(hint: Any) -> bool:
    """Whether a setting is a number or a text, rather than a list or a switch."""
    kind = hint.__origin__ if typing.get_origin(hint) is typing.Annotated else hint
    return kind in (int, float, str) or typing.get_origin(kind) is typing.Literal


def _options(aggregators: Sequence[str]) -> list[str]:
    """Return the options of all aggregators, as `NAME.OPTION`."""
    names = dict.fromkeys(Spec.parse(spec).name for spec in aggregators)
    return [
        f"{name}.{parameter.name}"
        for name in names
        for parameter in inspect.signature(AGGREGATORS.get(name)).parameters.values()
        if parameter.kind == parameter.KEYWORD_ONLY
    ]


def _owner(name: str) -> str:
    return name.rpartition(".")[0]


def _refuse_equal(aggregators: Sequence[str], own: Values) -> None:
    """Refuse specs that differ in nothing but options that are to be chosen."""
    by_rest: dict[str, str] = {}
    for spec in dict.fromkeys(aggregators):
        rest = _unchosen(spec, own)
        if rest in by_rest:
            raise InputError(
                f"{by_rest[rest]} and {spec} differ only in options that --choose chooses; name {rest} once"
            )
        by_rest[rest] = spec


def _unchosen(spec: str, own: Values) -> str:
    """Return a spec without the options that are to be chosen."""
    parsed = Spec.parse(spec)
    return without(spec, *(name.rpartition(".")[2] for name in own if _owner(name) == parsed.name))


def _settings(run: Run, specs: Iterable[str]) -> dict[str, Any]:
    """Return the settings of a run and the options of some aggregators, as far as they are known."""
    found: dict[str, Any] = {FACTOR: 1.0}
    found |= {f"{_OPTIM}{field.name}": getattr(run.optim, field.name) for field in dataclasses.fields(Optim)}
    for spec in specs:
        parsed = Spec.parse(spec)
        for parameter in inspect.signature(AGGREGATORS.get(parsed.name)).parameters.values():
            value = parsed.params.get(parameter.name, parameter.default)
            if value is not parameter.empty:
                found.setdefault(f"{parsed.name}.{parameter.name}", value)
    return found


def _latin_hypercube(values: Values, first: Point, *, budget: int, size: int, seed: int) -> list[Point]:
    """Return distinct points, beginning with `first`, in which each value of a setting comes equally often.

    Args:
        values: by setting.
        first: a point of these.
        budget: the number of points, at most `size`.
        size: the number of all points. Of more than half of these, what is left out is drawn.
        seed: draws them.
    """
    rng = random.Random(seed)
    if 2 * budget > size + 1:
        left_out = _latin_hypercube(values, first, budget=size - budget + 1, size=size, seed=seed)
        every = (tuple(zip(values, point, strict=True)) for point in itertools.product(*values.values()))
        rest = [point for point in every if point not in left_out]
        rng.shuffle(rest)
        return [first, *rest]
    while True:
        columns = []
        for name, nearest in first:
            others = [value for value in values[name] if value != nearest]
            rng.shuffle(others)  # where the budget is no multiple, the last ones come once less
            column = [*itertools.islice(itertools.cycle([nearest, *others]), budget)]
            rest = column[1:]
            rng.shuffle(rest)
            columns.append([nearest, *rest])
        for _ in range(
            100 * budget
        ):  # swaps within a setting, which keep its numbers, until no point comes twice
            points = [tuple(zip(values, point, strict=True)) for point in zip(*columns, strict=True)]
            twice = [at for at, point in enumerate(points) if point in points[:at]]
            if not twice:
                return points
            column, one, other = rng.choice(columns), rng.choice(twice), rng.randrange(1, budget)
            column[one], column[other] = column[other], column[one]


def _nearest(values: Sequence[Any], to: Any) -> Any:
    """Return the value nearest to a number, in ratio where all are above 0; of others the same one or the first."""
    for value in values:
        if value == to:
            return value
    if not all(isinstance(value, int | float) for value in (*values, to)):
        return values[0]
    if all(value > 0 for value in (*values, to)):
        return min(values, key=lambda value: abs(math.log(value / to)))
    return min(values, key=lambda value: abs(value - to))


def plain(point: Point) -> tuple[tuple[str, str], ...]:
    """Return a point with its values as text."""
    return tuple((name, written(value)) for name, value in point)


def plain_values(values: Values) -> Listed:
    """Return lists of values as text."""
    return tuple((name, tuple(map(written, of))) for name, of in values.items())


def _with_options(spec: str, values: Mapping[str, Any]) -> str:
    name = Spec.parse(spec).name
    own = {key.rpartition(".")[2]: value for key, value in values.items() if _owner(key) == name}
    return changed(spec, **own) if own else spec


def scaled(
    factors: Sequence[tuple[str, float]], prefixes: Sequence[str], by: float
) -> tuple[tuple[str, float], ...]:
    """Return factors on learning rates where those of all weights under some prefixes are multiplied."""
    if by == 1:
        return tuple(factors)
    inside = {prefix: longest_prefix(factors, prefix, default=1.0) for prefix in prefixes}
    inside |= {name: factor for name, factor in factors if name.startswith(tuple(prefixes))}
    return tuple((dict(factors) | {name: factor * by for name, factor in inside.items()}).items())
