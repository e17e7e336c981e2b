"""A small corpus of questions about indoor photographs: trains from scratch in a minute or two on two cores."""

from __future__ import annotations

from pipelines.recipe import recipe
from tasks.run import Data, Optim, Run


@recipe("daquar")
def daquar() -> Run:
    """DAQUAR's questions in VQA 2.0's form; photographs described by `cells`, answers from the training split.

    Chosen on the validation questions, those of a share of 0.15 of the training images; the test split has 5,673.
    """
    return Run(
        task="vqa(answers=train, min_count=3)",
        data=Data(dataset="daquar", corpus="data/daquar", features="data/daquar/cells", max_words=14),
        visual="grid(width=192, standardise=True)",
        text="bigru(width=192, embedding=96, min_count=2, dropout=0.3, ends=False, split=questions)",
        protocol="vqa",
        aggregator="gpo",
        fusion="product(dropout=0.5)",
        objective="bce",
        optim=Optim(epochs=8, batch=64, lr=2e-3, weight_decay=0.05, schedule="cosine", warmup_steps=50),
    )
