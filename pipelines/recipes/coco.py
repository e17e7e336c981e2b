"""COCO with the Karpathy split: VSE-infinity and its VSE++ baselines, tables 2, 9 and 10.

Words of BiGRUs are split as nltk does and counted in the training and validation splits, as in SCAN's lists.
"""

from __future__ import annotations

from pipelines.recipe import Ensemble, derive, recipe
from tasks.run import Data, Optim, Run

EPOCH = 4426  # steps, of 128 captions each, the last of fewer


@recipe(
    "coco_region_bigru",
    published={"coco-1k-5fold/rsum": 520.8, "coco-5k/rsum": 421.9},
    source="VSE-infinity, tables 9, 10",
)
def coco_region_bigru() -> Run:
    """VSE-infinity: regions and a BiGRU.

    The weight decay is that of the code, 0.01.
    """
    return Run(
        data=Data(
            dataset="coco",
            corpus="data/coco",
            features="data/coco/regions",
            visual_augment="drop(p=0.2)",
            text_augment="mask_replace_delete(p=0.2)",
            vocabulary=("train", "val"),
        ),
        visual="regions",
        text="bigru(split=treebank)",
        protocol="coco-5k",
        aggregator="gpo",
        objective="triplet(margin=0.2, warmup_epochs=1)",
        optim=Optim(epochs=25, batch=128, lr=5e-4, weight_decay=1e-2, milestones=(15,), clip=2.0),
    )


def with_bert(run: Run) -> Run:
    """Return a run with BERT for its text, which learns at a tenth of the rate; weight decay of the code."""
    factors = (*run.optim.lr_factors, ("text.encoder.bert", 0.1))
    optim = {"weight_decay": 1e-4, "lr_factors": factors}
    return derive(run, text="bert", data={"vocabulary": ("train",)}, optim=optim)


def with_cnn(run: Run, *, name: str, weights: str, factor: float) -> Run:
    """Return a run whose grid comes from a CNN that is fine-tuned after one frozen epoch; the code's rule for grids.

    The first epoch, of all negatives, has the whole learning rate; over the second one, the first of the CNN and of the
    hardest negatives, it rises linearly (appendix A.1; the code multiplies the loss instead, which AdamW undoes).
    """
    return derive(
        run,
        visual=f"cnn(name={name}, weights={weights!r})",
        data={"features": "", "visual_augment": "grid_drop(p=0.2)"},
        optim={
            "weight_decay": 1e-4,
            "lr_factors": (*run.optim.lr_factors, ("visual.encoder.cnn", factor)),
            "freeze": (("visual.encoder.cnn", 1.0),),
            "warmup_steps": EPOCH,
            "warmup_start": 1.0,
            "drop_last": False,
        },
    )


def with_detector_grid(run: Run) -> Run:
    """Return a run with the grid of the detector's ResNet-101."""
    weights = "data/weights/original_updown_backbone.pth"
    return with_cnn(run, name="resnet101_caffe", weights=weights, factor=0.01)


def with_wsl_grid(run: Run) -> Run:
    """Return a run with the grid of ResNeXt-101 32x8d, pretrained on Instagram."""
    weights = "data/weights/ig_resnext101_32x8.pth"
    return with_cnn(run, name="resnext101_32x8d", weights=weights, factor=0.01)


def with_resnet152_grid(run: Run) -> Run:
    """Return a run with the grid of ResNet-152, pretrained on ImageNet; it learns at a tenth of the rate.

    Deviation: the network has the layout of torchvision, in which the weights were trained. The authors ran the same
    weights in Caffe's, with strides in the first convolution of a block and a stem that pools without padding:
    `--visual "cnn(name=resnet152, weights='data/weights/resnet152.pth', layout=caffe)"`.
    """
    return with_cnn(run, name="resnet152", weights="data/weights/resnet152.pth", factor=0.1)


def as_vsepp(run: Run, *, text_aggregator: str = "mean") -> Run:
    """Return a run with the averages of VSE++ in the place of learned pooling, without size augmentation."""
    return derive(
        run,
        aggregator="mean",
        text_aggregator=text_aggregator,
        data={"visual_augment": "", "text_augment": ""},
    )


@recipe(
    "coco_grid_bigru",
    published={"coco-1k-5fold/rsum": 521.5, "coco-5k/rsum": 423.7},
    source="VSE-infinity, tables 9, 10",
)
def coco_grid_bigru() -> Run:
    """VSE-infinity: the detector's grid, fine-tuned, and a BiGRU."""
    return with_detector_grid(coco_region_bigru())


@recipe(
    "coco_region_grid_bigru",
    published={"coco-1k-5fold/rsum": 528.8, "coco-5k/rsum": 437.5},
    source="VSE-infinity, tables 9, 10",
)
def coco_region_grid_bigru() -> Ensemble:
    """VSE-infinity: regions and grid, BiGRU."""
    return Ensemble(members=("coco_region_bigru", "coco_grid_bigru"), protocol="coco-5k")


@recipe(
    "coco_region_bert",
    published={"coco-1k-5fold/rsum": 527.5, "coco-5k/rsum": 434.3},
    source="VSE-infinity, tables 9, 10",
)
def coco_region_bert() -> Run:
    """VSE-infinity: regions and BERT.

    The authors trained on four GPUs with batch statistics for each; here they are those of the whole batch.
    """
    return with_bert(coco_region_bigru())


@recipe(
    "coco_grid_bert",
    published={"coco-1k-5fold/rsum": 531.6, "coco-5k/rsum": 440.0},
    source="VSE-infinity, tables 9, 10",
)
def coco_grid_bert() -> Run:
    """VSE-infinity: the detector's grid, fine-tuned, and BERT."""
    return with_detector_grid(coco_region_bert())


@recipe(
    "coco_region_grid_bert",
    published={"coco-1k-5fold/rsum": 537.4, "coco-5k/rsum": 451.8},
    source="VSE-infinity, tables 9, 10",
)
def coco_region_grid_bert() -> Ensemble:
    """VSE-infinity: regions and grid, BERT."""
    return Ensemble(members=("coco_region_bert", "coco_grid_bert"), protocol="coco-5k")


@recipe(
    "coco_wsl_bert",
    published={"coco-1k-5fold/rsum": 545.4, "coco-5k/rsum": 468.9},
    source="VSE-infinity, tables 9, 10",
)
def coco_wsl_bert() -> Run:
    """VSE-infinity: the grid of ResNeXt-101 pretrained on Instagram, and BERT."""
    return with_wsl_grid(coco_region_bert())


@recipe(
    "coco_wsl_bert_x2",
    published={"coco-1k-5fold/rsum": 548.1, "coco-5k/rsum": 474.8},
    source="VSE-infinity, tables 9, 10",
)
def coco_wsl_bert_x2() -> Ensemble:
    """VSE-infinity: two seeds of `coco_wsl_bert`."""
    return Ensemble(members=("coco_wsl_bert", "coco_wsl_bert"), protocol="coco-5k")


@recipe(
    "coco_resnet152_bigru",
    published={"coco-1k-5fold/rsum": 519.6, "coco-5k/rsum": 419.9},
    source="VSE-infinity, tables 9, 10",
)
def coco_resnet152_bigru() -> Run:
    """VSE-infinity: the grid of ResNet-152, in torchvision's layout and not in Caffe's as theirs, and a BiGRU."""
    return with_resnet152_grid(coco_region_bigru())


@recipe(
    "coco_region_bigru_vsepp",
    published={"coco-1k-5fold/rsum": 490.5, "coco-5k/rsum": 370.2},
    source="VSE-infinity, tables 9, 10",
)
def coco_region_bigru_vsepp() -> Run:
    """VSE++ as the authors of VSE-infinity trained it: averages of regions and words."""
    return as_vsepp(coco_region_bigru())


@recipe(
    "coco_region_bert_vsepp",
    published={"coco-1k-5fold/rsum": 488.9, "coco-5k/rsum": 364.7},
    source="VSE-infinity, tables 9, 10",
)
def coco_region_bert_vsepp() -> Run:
    """VSE++: the average of regions, and BERT's [CLS]."""
    return as_vsepp(coco_region_bert(), text_aggregator="cls")


@recipe(
    "coco_wsl_bert_vsepp",
    published={"coco-1k-5fold/rsum": 528.7, "coco-5k/rsum": 439.2},
    source="VSE-infinity, tables 9, 10",
)
def coco_wsl_bert_vsepp() -> Run:
    """VSE++: the average of ResNeXt-101's grid, and BERT's [CLS]."""
    return as_vsepp(coco_wsl_bert(), text_aggregator="cls")


@recipe(
    "coco_resnet152_bigru_vsepp",
    published={"coco-1k-5fold/rsum": 500.6, "coco-5k/rsum": 387.6},
    source="VSE-infinity, tables 9, 10",
)
def coco_resnet152_bigru_vsepp() -> Run:
    """VSE++: averages of ResNet-152's grid, in torchvision's layout and not in Caffe's as theirs, and of words."""
    return as_vsepp(coco_resnet152_bigru())
