"""What evaluations say of their single queries, drawn at random."""

from __future__ import annotations

import numpy as np

from tasks.scoring.metrics import retrieval_metrics


def retrieval(
    items: int = 30, captions: int = 3, *, modality: str = "image", seed: int = 0, shift: float = 0.0
):
    """Return the arrays and metrics of a made-up retrieval run; items have between 1 and `captions` captions."""
    rng = np.random.default_rng(seed)
    letter, owner_G = modality[0], np.repeat(np.arange(items), 1 + np.arange(items) % captions)
    ranks = [np.floor(np.exp(rng.normal(1.5 + shift, 1.2, n))) for n in (items, len(owner_G))]
    directions = f"{letter}2t", f"t2{letter}"
    arrays = {
        f"{modality}_id": np.array([f"id{number}" for number in rng.permutation(items)]),
        "caption": np.arange(len(owner_G)),
        f"caption_{modality}": owner_G,
        **{f"{name}_rank": rank for name, rank in zip(directions, ranks, strict=True)},
    }
    return arrays, retrieval_metrics(*ranks, directions=directions)


def answers(questions: int = 50, *, seed: int = 0):
    accuracy_Q = np.random.default_rng(seed).choice([0, 0.3, 0.6, 0.9, 1], questions)
    return {"question_id": np.arange(questions).astype(str), "accuracy": accuracy_Q}, 100 * accuracy_Q.mean()
