"""How each query of a run did, gathered by the units that a bootstrap draws.

Queries about one image or video hang together: it is drawn with its captions, in both directions of retrieval, and with
all questions about it where a task notes whose they are. A caption that several items share goes with the first.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from infra.errors import InputError
from infra.tracking import RunRecord, Tracker
from tasks.scoring.metrics import KS

Arrays = Mapping[str, np.ndarray]
MODALITIES = ("image", "video")


@dataclass(frozen=True, kw_only=True)
class Units:
    """What the queries of one run score, gathered.

    Attributes:
        ids: of the n units, sorted.
        sum_Pn: what the queries of each part, such as a direction of retrieval, score together.
        count_Pn: how many there are.
        kind: what the units are, such as `images with their captions`.
    """

    ids: np.ndarray
    sum_Pn: np.ndarray
    count_Pn: np.ndarray
    kind: str

    @property
    def score(self) -> float:
        """The metric over all queries."""
        return float((self.sum_Pn.sum(axis=1) / self.count_Pn.sum(axis=1)).sum())

    def same_queries(self, other: Units) -> bool:
        """Whether another run was asked the same."""
        return np.array_equal(self.ids, other.ids) and np.array_equal(self.count_Pn, other.count_Pn)


def read_arrays(uri: str, run: RunRecord, protocol: str) -> dict[str, np.ndarray]:
    """Read what a run kept of its queries.

    Raises:
        InputError: it is gone, or cannot be read.
    """
    name = f"per_query/{protocol.replace('/', '-')}.npz"
    try:
        path = Tracker.attach(uri, run.run_id, running=False).download(name)
    except InputError:
        raise InputError(f"run {run.run_id} has no artifact {name}") from None
    return load_arrays(path)


def load_arrays(path: Path) -> dict[str, np.ndarray]:
    """Read the arrays of a file, without unpickling objects."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return dict(file)
    except Exception as error:  # a file cut short raises whatever its zip, header or decompressor raises
        raise InputError(f"{path} cannot be read: {error}") from error


def mean_units(runs: Sequence[Units]) -> Units:
    """Average the runs of several seeds, query by query.

    Raises:
        InputError: they were asked different things.
    """
    first = runs[0]
    if not all(first.same_queries(other) for other in runs[1:]):
        raise InputError("its runs were scored on different queries")
    sum_Pn = np.mean([units.sum_Pn for units in runs], axis=0)
    return Units(ids=first.ids, sum_Pn=sum_Pn, count_Pn=first.count_Pn, kind=first.kind)


def units_of(arrays: Arrays, metric: str, value: float) -> Units:
    """Gather what a metric is the mean of.

    Args:
        arrays: as a run keeps them: ids, and ranks or scores a query.
        metric: `rsum`, `i2t/R1`, `i2t/meanr` and the like, or an array's name.
        value: what the run logged for it; an array may hold fractions of what is logged in per cent.

    Raises:
        InputError: the metric is no mean over queries that were kept, or these do not give its value.
    """
    if (direction := re.fullmatch(r"(\w2\w)/(R\d+|meanr)", metric)) is not None:
        parts = [_ranked(arrays, direction[1], direction[2])]
    elif metric == "rsum":
        parts = [_ranked(arrays, name, "rsum") for name in _directions(arrays)]
    else:
        parts = [_plain(arrays, metric, value)]
    units = _gathered(parts)
    if not math.isclose(units.score, value, rel_tol=1e-4, abs_tol=1e-3):
        raise InputError(f"its queries give {metric} {units.score:.2f}, and it logged {value:.2f}")
    return units


@dataclass(frozen=True, kw_only=True)
class _Part:
    """Queries of one kind: what each scores, and the unit that it belongs to."""

    score_Q: np.ndarray
    unit_Q: np.ndarray
    kind: str


def _directions(arrays: Arrays) -> tuple[str, str]:
    for letter in ("i", "v"):
        if f"{letter}2t_rank" in arrays and f"t2{letter}_rank" in arrays:
            return f"{letter}2t", f"t2{letter}"
    raise InputError("it kept no ranks of both directions")


def _ranked(arrays: Arrays, direction: str, name: str) -> _Part:
    """Return the queries of one direction of retrieval, each with the item that it is or belongs to."""
    modality = next((m for m in MODALITIES if f"{m}_id" in arrays and f"caption_{m}" in arrays), "")
    if not modality or f"{direction}_rank" not in arrays:
        raise InputError(f"it kept no ranks of {direction} with ids")
    rank_Q, id_I = arrays[f"{direction}_rank"], arrays[f"{modality}_id"]
    unit_Q = id_I if direction[0] != "t" else id_I[arrays[f"caption_{modality}"]]
    if len(rank_Q) != len(unit_Q):
        raise InputError(f"its {len(rank_Q):,} ranks of {direction} cannot be joined to {len(unit_Q):,} ids")
    if name == "meanr":
        score_Q = rank_Q + 1.0
    else:
        cuts = KS if name == "rsum" else (int(name[1:]),)
        score_Q = 100.0 * sum((rank_Q <= k - 1).astype(float) for k in cuts)
    return _Part(score_Q=score_Q, unit_Q=unit_Q, kind=f"{modality}s with their captions")


def _plain(arrays: Arrays, metric: str, value: float) -> _Part:
    """Return the queries of a metric that an array of its name holds."""
    score_Q = arrays.get(metric)
    if score_Q is None or score_Q.ndim != 1 or not np.issubdtype(score_Q.dtype, np.number):
        raise InputError(f"it kept no {metric} of single queries")
    owners = [name for name in (*(f"{m}_id" for m in MODALITIES), *arrays) if name.endswith("_id")]
    owner = next((name for name in owners if name in arrays and len(arrays[name]) == len(score_Q)), "")
    if not owner:
        raise InputError("its queries have no ids")
    thing = owner.removesuffix("_id")
    several = len(np.unique(arrays[owner])) < len(score_Q)
    kind = (
        f"{thing}s with their questions" if thing in MODALITIES and several else f"{thing}s".replace("_", " ")
    )
    percent = not math.isclose(score_Q.mean(), value, rel_tol=1e-4, abs_tol=1e-3)
    return _Part(score_Q=score_Q.astype(float) * (100.0 if percent else 1.0), unit_Q=arrays[owner], kind=kind)


def _gathered(parts: Sequence[_Part]) -> Units:
    ids, unit_Q = np.unique(np.concatenate([part.unit_Q for part in parts]), return_inverse=True)
    ends = np.cumsum([0, *(len(part.unit_Q) for part in parts)])
    sums, counts = [], []
    for number, part in enumerate(parts):
        own_Q = unit_Q[ends[number] : ends[number + 1]]
        sums.append(np.bincount(own_Q, weights=part.score_Q, minlength=len(ids)))
        counts.append(np.bincount(own_Q, minlength=len(ids)))
    return Units(ids=ids, sum_Pn=np.stack(sums), count_Pn=np.stack(counts), kind=parts[0].kind)
