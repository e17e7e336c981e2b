"""A small corpus that is made up, so that a task can be tried where no data is: sets that show what captions name."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from infra.store import StoreWriter
from pipelines.config import Data, Optim, Run
from tasks.datasets.corpus import Item, write_corpus

_NOUNS = ("dog", "cat", "car", "tree", "boat", "bird", "house", "horse")
_SPLITS = ("train",) * 48 + ("val",) * 16 + ("test",) * 16
_DIM = 12


def made_up_run(task: str, folder: Path) -> Run:
    """Write captions and features into a folder and return a run of a task on them."""
    rng = np.random.default_rng(0)
    look, items = rng.normal(size=(len(_NOUNS), _DIM)), []
    with StoreWriter(folder / "features", dim=_DIM, dtype="float32", source={"made": "up"}) as writer:
        for number, split in enumerate(_SPLITS):
            one, other = rng.choice(len(_NOUNS), 2, replace=False)
            shown_NF = look[[one, other, one, one, other][: rng.integers(2, 6)]]
            writer.add(str(number), (shown_NF + 0.1 * rng.normal(size=shown_NF.shape)).astype(np.float32))
            a, b = _NOUNS[one], _NOUNS[other]
            captions = (f"a {a} and a {b}", f"the {b} beside the {a}", f"one {a} , {b}")
            items.append(Item(id=str(number), split=split, captions=captions))
        writer.close(statistics_of=[str(number) for number in range(_SPLITS.count("train"))])
    write_corpus(folder / "corpus", items, source={"made": "up"})
    return Run(
        recipe="made_up",
        data=Data(
            dataset="made_up", corpus=str(folder / "corpus"), features=str(folder / "features"), captions=2
        ),
        task=task,
        visual="regions(width=16)",
        text="bigru(width=16, embedding=8, min_count=1)",
        protocol="whole",
        aggregator="mean",
        objective="infonce",
        optim=Optim(epochs=1, batch=16),
    )
