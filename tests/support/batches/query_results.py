"""Random per-query results of evaluations."""

from __future__ import annotations

import numpy as np

from polypool.pipelines.comparison.queries import Queries
from polypool.tasks.adapter import Evaluation, QueryMean, QueryMetric
from polypool.tasks.scoring.metric_specs import retrieval_arrays, retrieval_queries
from polypool.tasks.scoring.metrics import KS, Ranks, retrieval_metrics
from polypool.tasks.scoring.records import queries_from, queries_json


def retrieval(
    items: int = 30, captions: int = 3, *, modality: str = "image", seed: int = 0, shift: float = 0.0
):
    """Return the queries and metrics of a made-up retrieval run; items have between 1 and `captions` captions.

    In every third query the right answer ties with two wrong ones.
    """
    rng = np.random.default_rng(seed)
    letter, owner_T = modality[0], np.repeat(np.arange(items), 1 + np.arange(items) % captions)
    directions = f"{letter}2t", f"t2{letter}"
    ranks = [
        Ranks(
            better_Q=np.floor(np.exp(rng.normal(1.5 + shift, 1.2, n))),
            wrong_Q=np.where(np.arange(n) % 3, 0.0, 2.0),
            right_Q=np.ones(n),
        )
        for n in (items, len(owner_T))
    ]
    recalls = {f"{name}/R{k}": of.recall_Q(k) for name, of in zip(directions, ranks, strict=True) for k in KS}
    ids = np.array([f"id{number}" for number in rng.permutation(items)])
    item, caption = f"{modality}_id", f"caption_{modality}_id"
    arrays = {item: ids, "caption": np.arange(len(owner_T)), caption: ids[owner_T]}
    arrays |= retrieval_arrays({n: of.rank_Q for n, of in zip(directions, ranks, strict=True)}, recalls)
    described = retrieval_queries(dict(zip(directions, (item, caption), strict=True)), modality=modality)
    return Queries(arrays=arrays, metrics=described), retrieval_metrics(*ranks, directions=directions)


def renamed(queries: Queries, ids: np.ndarray) -> Queries:
    """Return the queries with other image ids."""
    old = queries.arrays["image_id"]
    new = dict(zip(old.tolist(), ids.tolist(), strict=True))
    captions = np.array([new[id] for id in queries.arrays["caption_image_id"].tolist()])
    return Queries(
        arrays={**queries.arrays, "image_id": ids, "caption_image_id": captions}, metrics=queries.metrics
    )


def answers(questions: int = 50, *, seed: int = 0):
    """Return the queries and the accuracy of a made-up VQA run with five questions per image."""
    accuracy_Q = np.random.default_rng(seed).choice([0, 0.3, 0.6, 0.9, 1], questions)
    arrays = {
        "question_id": np.arange(questions).astype(str),
        "image_id": np.arange(questions) // 5,
        "accuracy": accuracy_Q,
    }
    mean = QueryMean(scores=("accuracy",), units="image_id", factor=100.0)
    described = QueryMetric(name="accuracy", means=(mean,), units="images with their questions")
    return Queries(arrays=arrays, metrics=(described,)), 100 * accuracy_Q.mean()


def reproduced(evaluation: Evaluation) -> set[str]:
    """Recompute the metrics of an evaluation from its queries; return their names."""
    described = queries_from(queries_json(evaluation.query_metrics), where="here")
    queries = Queries(arrays=evaluation.per_query, metrics=described)
    for metric in described:
        queries.units(metric.name, evaluation.metrics[metric.name])
    return {metric.name for metric in described}
