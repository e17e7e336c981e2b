"""`python -m pipelines.analyse RUN_ID`: how the codes of a trained run lie, and what the elements of its sets do.

Alignment and uniformity for any run with codes; for sets also their circular variance, and the scores with one element
alone or left out. The numbers are kept in the run, as metrics named `analysis/...`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import tyro

from infra.errors import InputError, command
from pipelines.evaluate import Trained, load
from tasks.codes import Codes
from tasks.geometry import alignment, uniformity
from tasks.set_analysis import ablated, variance_of

_SIDES = ("visual", "text", "joint")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to analyse."""

    run_id: tyro.conf.Positional[str]
    """A trained run."""
    split: str = "test"
    """The split whose codes are looked at."""
    protocol: str = ""
    """Protocol of the scores with fewer elements; the run's own where none is given."""
    elements: bool = True
    """Score elements of sets alone and left out: for sets of K, the work of about 2K + 1 evaluations."""


def codes_of(trained: Trained, split: str) -> Codes:
    """Encode a split.

    Raises:
        InputError: the model only scores pairs.
    """
    score = trained.adapter.scorer(trained.model, split)
    if not isinstance(score, Codes):
        raise InputError(
            f"run {trained.tracker.run_id} scores pairs of an image and a caption; it has no codes to analyse"
        )
    return score


def geometry(codes: Codes, trained: Trained, split: str) -> dict[str, float]:
    """Return alignment and uniformity, and the variance of each modality that has sets."""
    owner_G = trained.adapter.data(split).owner_G
    found = {"alignment/joint": alignment(codes.visual, codes.text, owner_G)}
    found |= {f"uniformity/{side}": value for side, value in uniformity(codes.visual, codes.text).items()}
    for side, code in (("visual", codes.visual), ("text", codes.text)):
        if code.ndim == 3:
            found |= {f"{name}/{side}": value for name, value in variance_of(code).items()}
    return found


def elements(codes: Codes, trained: Trained, split: str, protocol: str) -> dict[str, float]:
    """Return the main score with the whole sets, `all`, and with fewer elements of one modality."""
    adapter = trained.adapter

    def score(of: Codes) -> float:
        return adapter.judge(of, split, protocol).metrics[adapter.primary.name]

    whole = score(codes)
    fewer = {f"{kept}/{side}": score(some) for side, kept, some in ablated(codes)}
    return {f"all/{name.partition('/')[2]}": whole for name in fewer} | fewer


def table(numbers: dict[str, float], *, digits: int) -> Iterator[str]:
    """Yield the lines of a table of numbers that are named `row/side`."""
    named = [name.split("/") for name in numbers]
    sides = [side for side in _SIDES if any(side == column for _, column in named)]
    yield " " * 16 + "".join(f"{side:>10}" for side in sides)
    for row in dict.fromkeys(row for row, _ in named):
        cells = (numbers.get(f"{row}/{side}") for side in sides)
        texts = ("\u2013" if cell is None else f"{cell:.{digits}f}" for cell in cells)
        yield f"{row.replace('_', ' '):<16}" + "".join(f"{text:>10}" for text in texts)


@command
def main() -> None:
    """Analyse, log and print."""
    options = tyro.cli(Options, prog="python -m pipelines.analyse", description=__doc__)
    trained = load(options.run_id)
    run, split = trained.run, options.split
    prefix = "analysis" if split == "test" else f"analysis/{split}"
    codes = codes_of(trained, split)

    found = geometry(codes, trained, split)
    trained.tracker.log({f"{prefix}/{name}": value for name, value in found.items()}, step=0)
    print(f"{run.recipe} {run.aggregator} seed {run.seed}: codes of {split} (run {trained.tracker.run_id})\n")
    print(*table(found, digits=4), sep="\n")
    if codes.visual.ndim == codes.text.ndim == 2:
        print("\nimages and captions are single vectors: variance and elements are for models of sets")
    elif options.elements:
        protocol = options.protocol or run.protocol
        found = elements(codes, trained, split, protocol)
        trained.tracker.log({f"{prefix}/{protocol}/{name}": value for name, value in found.items()}, step=0)
        print(f"\n{trained.adapter.primary.name} under {protocol}, with elements of\n")
        print(*table(found, digits=1), sep="\n")


if __name__ == "__main__":
    main()
