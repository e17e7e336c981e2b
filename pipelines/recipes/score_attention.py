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
from polypool.pipelines.recipes import derive, recipe
from polypool.tasks.run import Data, Optim, Run


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
    """The same cross-modal encoder with averages instead of score attention."""
    return derive(coco_scoreattn_k1(), aggregator="mean")


@recipe("coco_cross_max", published={"coco-1k-5fold/rsum": 484.69}, source="score attention, table III")
def coco_cross_max() -> Run:
    """The same cross-modal encoder with maxima instead of score attention."""
    return derive(coco_scoreattn_k1(), aggregator="max")


@recipe("coco_cross_logsumexp", published={"coco-1k-5fold/rsum": 473.27}, source="score attention, table III")
def coco_cross_logsumexp() -> Run:
    """The same cross-modal encoder with log-sum-exp instead of score attention, a sum as in the paper."""
    return derive(coco_scoreattn_k1(), aggregator="logsumexp(average=False)")


@recipe("coco_cross_conv1d", published={"coco-1k-5fold/rsum": 475.20}, source="score attention, table III")
def coco_cross_conv1d() -> Run:
    """The same cross-modal encoder with a convolution as long as the sequence instead of score attention."""
    return derive(coco_scoreattn_k1(), aggregator="conv1d")


@recipe("coco_cross_cls", published={"coco-1k-5fold/rsum": 487.05}, source="score attention, table III")
def coco_cross_cls() -> Run:
    """The same cross-modal encoder with a [CLS] token instead of score attention."""
    return derive(coco_scoreattn_k1(), aggregator="cls", cross="cross_modal(heads=8, dropout=0.1, cls=True)")


FIXED = (("text.encoder.embed", 0.0),)


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


@recipe("vqa2_scoreattn_k2", published=accuracies(60.76, 62.06), source="score attention, table I")
def vqa2_scoreattn_k2() -> Run:
    """Score attention with the mean of two vectors a modality."""
    return derive(vqa2_scoreattn_k1(), aggregator="score_attention(k=2, heads=8)")


@recipe("vqa2_scoreattn_k3", published=accuracies(60.50, 61.80), source="score attention, table I")
def vqa2_scoreattn_k3() -> Run:
    """Score attention with the mean of three vectors a modality."""
    return derive(vqa2_scoreattn_k1(), aggregator="score_attention(k=3, heads=8)")


@recipe("vqa2_scoreattn_k5", published=accuracies(60.99, 62.17), source="score attention, tables I and II")
def vqa2_scoreattn_k5() -> Run:
    """Score attention with the mean of five vectors a modality."""
    return derive(vqa2_scoreattn_k1(), aggregator="score_attention(k=5, heads=8)")


@recipe("vqa2_scoreattn_k7", published=accuracies(60.95, 62.43), source="score attention, tables I and II")
def vqa2_scoreattn_k7() -> Run:
    """Score attention with the mean of seven vectors a modality."""
    return derive(vqa2_scoreattn_k1(), aggregator="score_attention(k=7, heads=8)")


@recipe("vqa2_scoreattn_k10", published=accuracies(59.94, 61.16), source="score attention, table I")
def vqa2_scoreattn_k10() -> Run:
    """Score attention with the mean of ten vectors a modality."""
    return derive(vqa2_scoreattn_k1(), aggregator="score_attention(k=10, heads=8)")


@recipe("vqa2_mean", published=accuracies(54.87, 56.05), source="score attention, table I")
def vqa2_mean() -> Run:
    """The same model with averages instead of score attention."""
    return derive(vqa2_scoreattn_k1(), aggregator="mean")


@recipe("vqa2_max", published=accuracies(56.73, 57.95), source="score attention, table I")
def vqa2_max() -> Run:
    """The same model with maxima instead of score attention."""
    return derive(vqa2_scoreattn_k1(), aggregator="max")


@recipe("vqa2_logsumexp", published=accuracies(54.61, 55.68), source="score attention, table I")
def vqa2_logsumexp() -> Run:
    """The same model with log-sum-exp instead of score attention, a sum as in the paper."""
    return derive(vqa2_scoreattn_k1(), aggregator="logsumexp(average=False)")


@recipe("vqa2_conv1d", published=accuracies(56.87, 57.79), source="score attention, table I")
def vqa2_conv1d() -> Run:
    """The same model with a convolution as long as the sequence instead of score attention."""
    return derive(vqa2_scoreattn_k1(), aggregator="conv1d")


@recipe("vqa2_cls", published=accuracies(58.31, 59.40), source="score attention, table I")
def vqa2_cls() -> Run:
    """The same model with a [CLS] token instead of score attention."""
    return derive(vqa2_scoreattn_k1(), aggregator="cls", cross="cross_modal(heads=8, dropout=0.1, cls=True)")


@recipe("vqa2_scoreattn_k5_fixed", published={"vqa/accuracy": 60.98}, source="score attention, table II")
def vqa2_scoreattn_k5_fixed() -> Run:
    """Five vectors; words keep the vectors of GloVe."""
    return derive(vqa2_scoreattn_k5(), optim={"lr_factors": FIXED})


@recipe("vqa2_scoreattn_k5_learned", published={"vqa/accuracy": 59.29}, source="score attention, table II")
def vqa2_scoreattn_k5_learned() -> Run:
    """Five vectors; words start from random vectors."""
    run = vqa2_scoreattn_k5()
    return derive(run, text=without(run.text, "glove", "start"))


@recipe("vqa2_scoreattn_k7_fixed", published={"vqa/accuracy": 61.13}, source="score attention, table II")
def vqa2_scoreattn_k7_fixed() -> Run:
    """Seven vectors; words keep the vectors of GloVe."""
    return derive(vqa2_scoreattn_k7(), optim={"lr_factors": FIXED})


@recipe("vqa2_scoreattn_k7_learned", published={"vqa/accuracy": 59.23}, source="score attention, table II")
def vqa2_scoreattn_k7_learned() -> Run:
    """Seven vectors; words start from random vectors."""
    run = vqa2_scoreattn_k7()
    return derive(run, text=without(run.text, "glove", "start"))
