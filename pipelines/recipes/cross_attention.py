"""Score attention (Stefanini et al.): aggregators after a cross-modal encoder, on COCO and VQA 2.0, tables I to III.

The paper gives neither the number of epochs nor that of the encoder's layers: here they are 30 and one of each kind.

COCO: negatives are the hardest from the first step, and words are counted in the training and validation splits, as in
the paper; it prints six recalls, whose sums are below. A pair takes about 2 ms of a processor, so a fold of
`coco-1k-5fold` takes hours on one, and `coco-5k` days; `polypool evaluate RUN_ID --protocol coco-5k --rerank 100`
scores 6 of its 125 million pairs.

VQA 2.0: trained on the official training split without a twentieth of the images, which chooses the epoch, and scored
on the official validation split. The paper takes the most frequent answer as the right one and gives every answer a
binary loss: here targets are soft, as in the bottom-up-attention baseline that it follows; `--task 'vqa(targets=hard)'`
is the other reading. Gradients are not clipped.
"""

from __future__ import annotations

from polypool.infra.spec import without
from polypool.pipelines.recipes import derive, recipe, variants
from polypool.tasks.run import Data, Optim, Run


@recipe("coco_scoreattn_k1", published={"coco-1k-5fold/rsum": 486.04}, source="score attention, table III")
def coco_scoreattn_k1() -> Run:
    """Score attention with one vector a modality."""
    return Run(
        data=Data(
            dataset="coco",
            corpus="data/coco",
            captions=5,
            features="data/coco/regions",
            vocabulary=("train", "val"),
        ),
        visual="grid(width=512)",
        text="bigru(width=512, min_count=5)",
        cross="cross_modal(heads=8, dropout=0.1)",
        protocol="coco-1k-5fold",
        aggregator="score_attention(k=1, heads=8)",
        objective="triplet(margin=0.2, warmup_epochs=0)",
        optim=Optim(epochs=30, batch=64, lr=7e-5, weight_decay=0.0, milestones=(10, 20), clip=2.0),
    )


_CLS = {"aggregator": "cls", "cross": "cross_modal(heads=8, dropout=0.1, cls=True)"}
_POOLINGS = {
    "mean": ("averages instead of score attention", {"aggregator": "mean"}),
    "max": ("maxima instead of score attention", {"aggregator": "max"}),
    "logsumexp": (
        "log-sum-exp instead of score attention, a sum as in the paper",
        {"aggregator": "logsumexp(average=False)"},
    ),
    "conv1d": ("a convolution as long as the sequence instead of score attention", {"aggregator": "conv1d"}),
    "cls": ("a [CLS] token instead of score attention", _CLS),
}


def score_attention(run: Run, k: int) -> Run:
    """Return a run with score attention of k vectors a modality."""
    return derive(run, aggregator=f"score_attention(k={k}, heads=8)")


variants(
    "score attention, table III",
    {
        f"coco_scoreattn_k{k}": (
            f"Score attention with {number} vectors a modality.",
            score_attention(coco_scoreattn_k1(), k),
            {"coco-1k-5fold/rsum": rsum},
        )
        for k, number, rsum in ((2, "two", 487.40), (3, "three", 486.78), (4, "four", 485.94))
    },
)
_RSUMS = {"mean": 483.94, "max": 484.69, "logsumexp": 473.27, "conv1d": 475.20, "cls": 487.05}
variants(
    "score attention, table III",
    {
        f"coco_cross_{name}": (
            f"The same cross-modal encoder with {about}.",
            derive(coco_scoreattn_k1(), **changes),
            {"coco-1k-5fold/rsum": _RSUMS[name]},
        )
        for name, (about, changes) in _POOLINGS.items()
    },
)


def accuracies(local: float, test_dev: float) -> dict[str, float]:
    """Return published accuracies, on the validation split and on test-dev."""
    return {"vqa/accuracy": local, "test-dev/vqa/accuracy": test_dev}


@recipe("vqa2_scoreattn_k1", published=accuracies(60.73, 62.05), source="score attention, table I")
def vqa2_scoreattn_k1() -> Run:
    """Score attention with one vector a modality; words start from GloVe, others at zero."""
    return Run(
        task="vqa",
        data=Data(dataset="vqa2", corpus="data/vqa2", features="data/vqa2/regions", max_words=14),
        visual="grid(width=512)",
        text="bigru(width=512, min_count=1, ends=False, split=questions, glove='data/glove.6B.300d.txt', start=zero)",
        cross="cross_modal(heads=8, dropout=0.1)",
        protocol="vqa",
        aggregator="score_attention(k=1, heads=8)",
        objective="bce",
        optim=Optim(epochs=30, batch=64, lr=5e-4, weight_decay=0.0, milestones=(10, 20), clip=0.0),
    )


for _k, _number, _source, _local, _test_dev in (
    (2, "two", "table I", 60.76, 62.06),
    (3, "three", "table I", 60.50, 61.80),
    (5, "five", "tables I and II", 60.99, 62.17),
    (7, "seven", "tables I and II", 60.95, 62.43),
    (10, "ten", "table I", 59.94, 61.16),
):
    _about = f"Score attention with the mean of {_number} vectors a modality."
    _row = _about, score_attention(vqa2_scoreattn_k1(), _k), accuracies(_local, _test_dev)
    variants(f"score attention, {_source}", {f"vqa2_scoreattn_k{_k}": _row})
_ACCURACIES = {
    "mean": (54.87, 56.05),
    "max": (56.73, 57.95),
    "logsumexp": (54.61, 55.68),
    "conv1d": (56.87, 57.79),
    "cls": (58.31, 59.40),
}
variants(
    "score attention, table I",
    {
        f"vqa2_{name}": (
            f"The same model with {about}.",
            derive(vqa2_scoreattn_k1(), **changes),
            accuracies(*_ACCURACIES[name]),
        )
        for name, (about, changes) in _POOLINGS.items()
    },
)
for _k, _number, _fixed, _learned in ((5, "Five", 60.98, 59.29), (7, "Seven", 61.13, 59.23)):
    _run = score_attention(vqa2_scoreattn_k1(), _k)
    variants(
        "score attention, table II",
        {
            f"vqa2_scoreattn_k{_k}_fixed": (
                f"{_number} vectors; words keep the vectors of GloVe.",
                derive(_run, optim={"lr_factors": (("text.encoder.embed", 0.0),)}),
                {"vqa/accuracy": _fixed},
            ),
            f"vqa2_scoreattn_k{_k}_learned": (
                f"{_number} vectors; words start from random vectors.",
                derive(_run, text=without(_run.text, "glove", "start")),
                {"vqa/accuracy": _learned},
            ),
        },
    )
