"""Score attention (Stefanini et al.), table III: every pair of image and caption goes through a cross-modal encoder.

The paper gives neither the number of epochs nor that of the encoder's layers: here they are 30 and one of each kind.
Negatives are the hardest from the first step, and words are counted in the training and validation splits, as there.
Sums of its six recalls stand below, since it prints none.

A pair takes about 2 ms of a processor, so a fold of `coco-1k-5fold` takes hours on one, and `coco-5k` days;
`python -m pipelines.evaluate RUN_ID --protocol coco-5k --rerank 100` looks at 6 of its 125 million pairs.
"""

from __future__ import annotations

from pipelines.recipe import derive, recipe
from tasks.run import Data, Optim, Run


@recipe("coco_scoreattn_k1", published={"coco-1k-5fold/rsum": 486.04}, source="score attention, table III")
def coco_scoreattn_k1() -> Run:
    """Score attention with one vector a modality."""
    return Run(
        data=Data(
            dataset="coco",
            corpus="data/coco",
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


@recipe("coco_scoreattn_k2", published={"coco-1k-5fold/rsum": 487.40}, source="score attention, table III")
def coco_scoreattn_k2() -> Run:
    """Score attention with two vectors a modality."""
    return derive(coco_scoreattn_k1(), aggregator="score_attention(k=2, heads=8)")


@recipe("coco_scoreattn_k3", published={"coco-1k-5fold/rsum": 486.78}, source="score attention, table III")
def coco_scoreattn_k3() -> Run:
    """Score attention with three vectors a modality."""
    return derive(coco_scoreattn_k1(), aggregator="score_attention(k=3, heads=8)")


@recipe("coco_scoreattn_k4", published={"coco-1k-5fold/rsum": 485.94}, source="score attention, table III")
def coco_scoreattn_k4() -> Run:
    """Score attention with four vectors a modality."""
    return derive(coco_scoreattn_k1(), aggregator="score_attention(k=4, heads=8)")


@recipe("coco_cross_mean", published={"coco-1k-5fold/rsum": 483.94}, source="score attention, table III")
def coco_cross_mean() -> Run:
    """The same cross-modal encoder with averages in the place of score attention."""
    return derive(coco_scoreattn_k1(), aggregator="mean")


@recipe("coco_cross_max", published={"coco-1k-5fold/rsum": 484.69}, source="score attention, table III")
def coco_cross_max() -> Run:
    """The same cross-modal encoder with maxima in the place of score attention."""
    return derive(coco_scoreattn_k1(), aggregator="max")


@recipe("coco_cross_logsumexp", published={"coco-1k-5fold/rsum": 473.27}, source="score attention, table III")
def coco_cross_logsumexp() -> Run:
    """The same cross-modal encoder with soft maxima, sums as the paper writes them, in the place of score attention."""
    return derive(coco_scoreattn_k1(), aggregator="logsumexp(average=False)")


@recipe("coco_cross_conv1d", published={"coco-1k-5fold/rsum": 475.20}, source="score attention, table III")
def coco_cross_conv1d() -> Run:
    """The same cross-modal encoder with a convolution as long as the sequence in the place of score attention."""
    return derive(coco_scoreattn_k1(), aggregator="conv1d")


@recipe("coco_cross_cls", published={"coco-1k-5fold/rsum": 487.05}, source="score attention, table III")
def coco_cross_cls() -> Run:
    """The same cross-modal encoder with a token that reads the set in the place of score attention."""
    return derive(coco_scoreattn_k1(), aggregator="cls", cross="cross_modal(heads=8, dropout=0.1, cls=True)")
