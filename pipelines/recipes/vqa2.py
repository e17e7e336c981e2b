"""Visual question answering on VQA 2.0 by Stefanini et al., tables I and II: aggregators of crossed regions and words.

All are trained on the official training split, of which a twentieth of the images is kept back to choose the epoch, and
score the official validation split. The paper gives no number of epochs; here they are 30. It says that the most
frequent answer is the right one and that every answer has a binary loss of its own: here targets are soft, as in the
bottom-up-attention baseline that it follows; `--task 'vqa(targets=hard)'` is the other reading. Nothing is clipped.
"""

from __future__ import annotations

from infra.spec import without
from pipelines.recipe import derive, recipe
from tasks.run import Data, Optim, Run

_GLOVE = "data/glove.6B.300d.txt"
FIXED = (("text.encoder.embed", 0.0),)


@recipe(
    "vqa2_scoreattn_k1",
    published={"vqa/accuracy": 60.73, "test-dev/vqa/accuracy": 62.05},
    source="score attention, table I",
)
def vqa2_scoreattn_k1() -> Run:
    """Score attention with one vector a modality; words start from GloVe, others at zero, and are trained on."""
    return Run(
        task="vqa",
        data=Data(dataset="vqa2", corpus="data/vqa2", features="data/vqa2/regions", max_words=14),
        visual="grid(width=512)",
        text=f"bigru(width=512, min_count=1, ends=False, split=questions, glove='{_GLOVE}', start=zero)",
        cross="cross_modal(heads=8, dropout=0.1)",
        protocol="vqa",
        aggregator="score_attention(k=1, heads=8)",
        objective="bce",
        optim=Optim(epochs=30, batch=64, lr=5e-4, weight_decay=0.0, milestones=(10, 20), clip=0.0),
    )


@recipe(
    "vqa2_scoreattn_k2",
    published={"vqa/accuracy": 60.76, "test-dev/vqa/accuracy": 62.06},
    source="score attention, table I",
)
def vqa2_scoreattn_k2() -> Run:
    """Score attention with the mean of two vectors a modality."""
    return derive(vqa2_scoreattn_k1(), aggregator="score_attention(k=2, heads=8)")


@recipe(
    "vqa2_scoreattn_k3",
    published={"vqa/accuracy": 60.50, "test-dev/vqa/accuracy": 61.80},
    source="score attention, table I",
)
def vqa2_scoreattn_k3() -> Run:
    """Score attention with the mean of three vectors a modality."""
    return derive(vqa2_scoreattn_k1(), aggregator="score_attention(k=3, heads=8)")


@recipe(
    "vqa2_scoreattn_k5",
    published={"vqa/accuracy": 60.99, "test-dev/vqa/accuracy": 62.17},
    source="score attention, tables I and II",
)
def vqa2_scoreattn_k5() -> Run:
    """Score attention with the mean of five vectors a modality."""
    return derive(vqa2_scoreattn_k1(), aggregator="score_attention(k=5, heads=8)")


@recipe(
    "vqa2_scoreattn_k7",
    published={"vqa/accuracy": 60.95, "test-dev/vqa/accuracy": 62.43},
    source="score attention, tables I and II",
)
def vqa2_scoreattn_k7() -> Run:
    """Score attention with the mean of seven vectors a modality."""
    return derive(vqa2_scoreattn_k1(), aggregator="score_attention(k=7, heads=8)")


@recipe(
    "vqa2_scoreattn_k10",
    published={"vqa/accuracy": 59.94, "test-dev/vqa/accuracy": 61.16},
    source="score attention, table I",
)
def vqa2_scoreattn_k10() -> Run:
    """Score attention with the mean of ten vectors a modality."""
    return derive(vqa2_scoreattn_k1(), aggregator="score_attention(k=10, heads=8)")


@recipe(
    "vqa2_mean",
    published={"vqa/accuracy": 54.87, "test-dev/vqa/accuracy": 56.05},
    source="score attention, table I",
)
def vqa2_mean() -> Run:
    """The same model with averages in the place of score attention."""
    return derive(vqa2_scoreattn_k1(), aggregator="mean")


@recipe(
    "vqa2_max",
    published={"vqa/accuracy": 56.73, "test-dev/vqa/accuracy": 57.95},
    source="score attention, table I",
)
def vqa2_max() -> Run:
    """The same model with maxima in the place of score attention."""
    return derive(vqa2_scoreattn_k1(), aggregator="max")


@recipe(
    "vqa2_logsumexp",
    published={"vqa/accuracy": 54.61, "test-dev/vqa/accuracy": 55.68},
    source="score attention, table I",
)
def vqa2_logsumexp() -> Run:
    """The same model with soft maxima, sums as the paper writes them, in the place of score attention."""
    return derive(vqa2_scoreattn_k1(), aggregator="logsumexp(average=False)")


@recipe(
    "vqa2_conv1d",
    published={"vqa/accuracy": 56.87, "test-dev/vqa/accuracy": 57.79},
    source="score attention, table I",
)
def vqa2_conv1d() -> Run:
    """The same model with a convolution as long as the sequence in the place of score attention."""
    return derive(vqa2_scoreattn_k1(), aggregator="conv1d")


@recipe(
    "vqa2_cls",
    published={"vqa/accuracy": 58.31, "test-dev/vqa/accuracy": 59.40},
    source="score attention, table I",
)
def vqa2_cls() -> Run:
    """The same model with a token that reads the set in the place of score attention."""
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
