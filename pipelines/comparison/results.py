"""Results of a comparison: a table with a record for each metric of each row, from groups of runs and back to groups.

They are written as CSV or Parquet, by the file's suffix. A file has one table or several named ones, such as
`results.csv#photographs`. Unknown numbers are missing values, unknown texts empty.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from polypool.infra.errors import InputError, unknown
from polypool.infra.files import atomic, existing, make_folder
from polypool.infra.tracking import COMMAND
from polypool.pipelines.comparison.cross_task import tables_of
from polypool.pipelines.comparison.grouping import DIGESTS
from polypool.pipelines.comparison.rows import SECONDS, Group, Row
from polypool.pipelines.comparison.statistics import Difference, Judged
from polypool.tasks.adapter import Metric

APART = "; "  # separates several values in one field
ENDINGS = (".csv", ".parquet")
WHAT = "results that `polypool compare --out` wrote"
COLUMNS = {
    **dict.fromkeys(("task", "dataset", "protocol"), "string"),  # of the group
    "row": "string",  # its label
    # of the runs; settings in which they differ from most others of the group
    **dict.fromkeys(("aggregator", "recipe", "model", "settings"), "string"),
    "usual": "string",  # the settings of those others, in words
    "metric": "string",
    "decides": "boolean",  # whether rows are ordered and judged by the metric
    "unit": "string",
    "higher_is_better": "boolean",
    **dict.fromkeys(("best", "chance"), "float64"),
    "own_protocol": "boolean",  # whether the runs chose this protocol, and were not only scored under it as well
    **dict.fromkeys(("seeds", "values"), "string"),  # of each run, in the same order
    **dict.fromkeys(("mean", "deviation"), "float64"),  # over runs; sample standard deviation
    # 95 % interval of the mean, over seeds and queries; over queries alone for one seed
    **dict.fromkeys(("low", "high"), "float64"),
    "chance_normalised": "float64",  # 0 for chance, 100 for the best possible
    "published": "float64",  # in the paper that the recipe follows
    "against": "string",  # the best of the other rows; empty if nothing was judged
    # from that row, with simultaneous 95 % intervals
    **dict.fromkeys(("difference", "difference_low", "difference_high"), "float64"),
    "p": "float64",  # p-value of being the best
    "over_seeds": "boolean",  # whether seeds were judged; else all of these are over queries alone
    # simultaneous 95 % interval of the row's rank; over all columns in a table of several tasks
    **dict.fromkeys(("rank_low", "rank_high"), "float64"),
    "queries": "string",  # the units of queries, such as `1,064 images with their captions`
    "weights": "float64",  # parameters of the aggregators
    # in `polypool.infra.compute.cost.UNIT`, the lowest over runs, and the highest
    **dict.fromkeys(("step_cost", "embed_cost", "query_cost"), "float64"),
    **dict.fromkeys(("most_step_cost", "most_embed_cost", "most_query_cost"), "float64"),
    "item_bytes": "float64",  # of the embeddings of an image or video
    "train_seconds": "float64",
    # of the runs; `+` after a commit marks changed files; digests of data
    **dict.fromkeys(("run_ids", "commits", "data", "command"), "string"),
    "compared_by": "string",  # the command that made this record
    "machines": "string",
    "table": "string",  # its name in a file of several tables
    "chosen": "string",  # the settings that tuning chose for the row
    # of tuning, and of the space they are from; 0 without tuning
    **dict.fromkeys(("trials", "points"), "int64"),
    "trained_on": "string",  # the data set of training, where the scores are on another one
    "tuned": "string",  # how settings were tuned, in words
    "may_be_best": "boolean",  # whether the row is in the confidence set of the best
    "baseline": "string",  # the row of `--baseline`; empty without one, and for itself
    # from that row, with simultaneous 95 % intervals
    **dict.fromkeys(("baseline_difference", "baseline_low", "baseline_high", "baseline_p"), "float64"),
}
"""The columns and their types."""
_ROW = ("aggregator", "recipe", "model", "settings", "own_protocol", "chosen", "trials", "points")
_METRIC = ("unit", "higher_is_better", "best", "chance")
_COSTS = {"weights": "weights", "bytes": "item_bytes"} | {
    most + name: f"{most}{name}_cost" for most in ("", "most_") for name in ("step", "embed", "query")
}
_GROUP = ["task", "dataset", "trained_on", "protocol", "tuned"]


def results(groups: Sequence[Group], *, compared_by: str = "") -> pd.DataFrame:
    """Return the records of groups in the order of their tables, with the columns `COLUMNS`."""
    unknown = {name: "" for name, kind in COLUMNS.items() if kind == "string"}
    ranks = {
        (id(column.group), column.rows[name].label): {"rank_low": low, "rank_high": high}
        for table in tables_of(groups)
        for column in table.counting
        for name, (low, high) in table.ranks.items()
    }
    records = [
        {**unknown, **_origin(row), **of, "compared_by": compared_by}
        for group in groups
        for row in group.rows
        for of in _records(group, row, ranks.get((id(group), row.label), {}))
    ]
    table = pd.DataFrame(records, columns=[*COLUMNS]).astype(COLUMNS)
    numbers = [name for name, kind in COLUMNS.items() if kind == "float64"]
    table[numbers] = table[numbers].map(lambda value: float(f"{value:.10g}"))
    return table


def _records(group: Group, row: Row, rank: Mapping[str, int]) -> Iterable[dict[str, Any]]:
    shared = {
        **{name: getattr(group, name) for name in _GROUP},
        "row": row.label,
        **{name: getattr(row, name) for name in _ROW},
        "usual": APART.join(group.usual),
        "seeds": APART.join(row.seeds),
        **{column: row.cost(name) for name, column in _COSTS.items()},
        "train_seconds": row.mean(SECONDS.name),
    }
    described = {metric.name: metric for metric in (group.metric, *group.metrics)}
    for name in group.columns:
        if name == SECONDS.name or name not in described:
            continue
        metric, decides = described[name], name == group.metric.name
        yield {
            **shared,
            "metric": name,
            **{field: getattr(metric, field) for field in _METRIC},
            "decides": decides,
            "values": APART.join(f"{value:.10g}" for value in row.values.get(name, ())),
            "mean": row.mean(name),
            "deviation": row.deviation(name),
            "chance_normalised": metric.chance_normalised(row.mean(name)),
            "published": row.published.get(name),
            **(_judged(group.judged, row.label) if decides and group.judged else {}),
            **(rank if decides else {}),
        }


def _judged(judged: Judged, label: str) -> dict[str, Any]:
    low, high = judged.intervals.get(label, (math.nan, math.nan))
    found = {"low": low, "high": high, "queries": judged.units}
    if of := judged.best.get(label):
        first, second, *_ = judged.labels
        found |= {"against": second if label == first else first, "difference": of.value, "p": of.p}
        found |= {"difference_low": of.low, "difference_high": of.high}
        found |= {"over_seeds": of.over_seeds, "may_be_best": not of.found}
    if of := judged.against.get(label):
        found |= {"baseline": judged.baseline, "baseline_difference": of.value, "baseline_p": of.p}
        found |= {"baseline_low": of.low, "baseline_high": of.high}
    return found


def _origin(row: Row) -> dict[str, str]:
    tags = [run.tags for run in row.runs]
    found = {
        "run_ids": [run.run_id for run in row.runs],
        "commits": [of.get("git_commit", "") + "+" * (of.get("git_dirty") == "true") for of in tags],
        "data": [
            f"{name.removeprefix('data.')}={of[name]}" for of in tags for name in DIGESTS if of.get(name)
        ],
        "command": [of.get(COMMAND, "") for of in tags],
        "machines": [of.get("machine", "") for of in tags],
    }
    return {name: APART.join(dict.fromkeys(filter(None, values))) for name, values in found.items()}


def groups_of(table: pd.DataFrame) -> tuple[Group, ...]:
    """Return the groups of records, without runs and without tests of all pairs, which are not recorded."""
    return tuple(_group(of) for _, of in table.groupby(_GROUP, sort=False))


def _group(table: pd.DataFrame) -> Group:
    metrics = {
        str(of["metric"]): Metric(name=of["metric"], **{name: of[name] for name in _METRIC})
        for of in table.drop_duplicates("metric", keep="last").to_dict("records")
    }
    deciding = table[table["decides"]]
    first = deciding.iloc[0]
    return Group(
        **{name: first[name] for name in _GROUP},
        rows=tuple(_row(of.to_dict("records")) for _, of in table.groupby("row", sort=False)),
        metric=metrics[first["metric"]],
        metrics=tuple(metrics[name] for name in table["metric"].unique()),
        usual=_several(first["usual"]),
        judged=_judged_of(deciding),
    )


def _row(records: Sequence[Mapping[str, Any]]) -> Row:
    first = records[0]
    return Row(
        label=first["row"],
        **{name: first[name] for name in _ROW},
        seeds=tuple(first["seeds"].split(APART)),
        values={of["metric"]: tuple(map(float, _several(of["values"]))) for of in records if of["values"]},
        published={of["metric"]: of["published"] for of in records if not math.isnan(of["published"])},
        costs={name: first[column] for name, column in _COSTS.items()},
    )


def _several(field: str) -> tuple[str, ...]:
    return tuple(field.split(APART)) if field else ()


def _judged_of(table: pd.DataFrame) -> Judged | None:
    compared = table[table["against"] != ""].to_dict("records")
    if not compared:
        return None
    differences = {
        of["row"]: Difference(
            value=of["difference"],
            low=of["difference_low"],
            high=of["difference_high"],
            p=of["p"],
            over_seeds=bool(of["over_seeds"]),
        )
        for of in compared
    }
    first, intervals = compared[0], table.dropna(subset=["low", "high"])
    names = {of["baseline"] for of in compared} - {""}
    return Judged(
        units=first["queries"],
        labels=tuple(differences),
        intervals=dict(
            zip(intervals["row"], zip(intervals["low"], intervals["high"], strict=True), strict=True)
        ),
        best=differences,
        ranks={
            of["row"]: (int(of["rank_low"]), int(of["rank_high"]))
            for of in compared
            if not math.isnan(of["rank_low"])
        },
        baseline=names.pop() if len(names) == 1 else "",
        against={
            of["row"]: Difference(
                value=of["baseline_difference"],
                low=of["baseline_low"],
                high=of["baseline_high"],
                p=of["baseline_p"],
                over_seeds=bool(of["over_seeds"]),
            )
            for of in compared
            if of["baseline"]
        },
    )


def refuse_ending(path: Path) -> None:
    """Raise InputError for a path of results that ends in none of `ENDINGS`."""
    path, _ = _parted(path)
    if path.suffix.lower() not in ENDINGS:
        raise InputError(f"{path}: results are written as {' or '.join(ENDINGS)}, by the end of the name")


def write_results(records: pd.DataFrame, path: Path) -> None:
    """Write results; a named table is added to the others of its file.

    Raises:
        InputError: a file that cannot be written, or is damaged and cannot be added to.
    """
    path, name = _parted(path)
    records = records.assign(table=name).astype(COLUMNS)
    if name and path.exists():
        others = _read(path)
        records = pd.concat([others[others["table"] != name], records])
        records = records.sort_values("table", kind="stable")
    make_folder(path.parent)
    with atomic(path) as file:
        if path.suffix.lower() == ".parquet":
            records.to_parquet(file, index=False)
        else:
            records.to_csv(file, index=False)


def read_results(path: Path) -> pd.DataFrame:
    """Read a table that `write_results` wrote; a file with a single table needs no name.

    Raises:
        InputError: the file or table is missing or damaged, or a file of several tables needs a name.
    """
    refuse_ending(path)
    file, name = _parted(path)
    records = _read(file)
    tables = [*records["table"].unique()]
    if name:
        if name not in tables:
            raise unknown(f"table of {file}:", name, tables)
        records = records[records["table"] == name]
    elif len(tables) > 1:
        raise InputError(
            f"{file}: has several tables; name one, such as {file.name}#{tables[0]}: {', '.join(tables)}"
        )
    if records.empty or not records.groupby(_GROUP)["decides"].any().all():
        raise InputError(f"{path}: has no results; write it again with `polypool compare --out {path}`")
    return records.reset_index(drop=True)


def _parted(path: Path) -> tuple[Path, str]:
    """Return the file, and the name of its table or an empty text."""
    name, _, table = path.name.partition("#")
    return path.with_name(name) if name else path, table


def _read(path: Path) -> pd.DataFrame:
    form, file = "Parquet" if path.suffix.lower() == ".parquet" else "CSV", existing(path, what=WHAT)
    try:
        if form == "Parquet":
            records = pd.read_parquet(file)
        else:
            missing = {name: [""] for name, kind in COLUMNS.items() if kind != "string"}
            options: dict[str, Any] = {"dtype": COLUMNS, "na_values": missing}
            records = pd.read_csv(file, keep_default_na=False, **options)
        if [*records] == [*COLUMNS]:
            for seeds, values in zip(records["seeds"], records["values"], strict=True):
                numbers = [*map(float, _several(values))]
                if len(numbers) not in (0, len(seeds.split(APART))):
                    raise ValueError(f"{len(numbers)} values for the seeds {seeds!r}, expected one for each")
            return records.astype(COLUMNS)
    except (OSError, ValueError) as error:  # of pandas and pyarrow, too
        raise InputError(f"{path}: cannot be read as {form}: {error}; expected {WHAT}") from None
    raise InputError(f"{path}: its columns are not those of {WHAT}; write it again")
