"""COCO with the Karpathy split: VSE-infinity and its VSE++ baselines, tables 2, 9 and 10.

Words of BiGRUs are split as nltk does and counted in the training and validation splits, as in SCAN's lists.
"""

from __future__ import annotations

from polypool.pipelines.recipes import Ensemble, derive, recipe
from polypool.tasks.run import Data, Optim, Run

EPOCH = 4426  # steps, of 128 captions each, the last of fewer


def rsums(folds: float, whole: float) -> dict[str, float]:
    """Return published RSUMs: the mean of five folds of 1,000 images, and of all 5,000."""
    return {"coco-1k-5fold/rsum": folds, "coco-5k/rsum": whole}


@recipe("coco_region_bigru", published=rsums(520.8, 421.9), source="VSE-infinity, tables 9, 10")
def coco_region_bigru() -> Run:
    """VSE-infinity: regions and a BiGRU; weight decay of the code."""
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
    """Return a run with BERT for its text, at a tenth of the learning rate; weight decay of the code."""
    factors = (*run.optim.lr_factors, ("text.encoder.bert", 0.1))
    optim = {"weight_decay": 1e-4, "lr_factors": factors}
    return derive(run, text="bert", data={"vocabulary": ("train",)}, optim=optim)


CNNS = {
    "detector": ("resnet101_caffe", "original_updown_backbone.pth", 0.01),
    "wsl": ("resnext101_32x8d", "ig_resnext101_32x8.pth", 0.01),
    "resnet152": ("resnet152", "resnet152.pth", 0.1),
}
"""Network, weights and factor of the learning rate: the detector's ResNet-101, one of Instagram, one of ImageNet."""


def with_grid(run: Run, cnn: str) -> Run:
    """Return a run on the grid of one of `CNNS`, fine-tuned after one frozen epoch, as the code does.

    The first epoch, with all negatives, has the whole learning rate; in the second, the first of the CNN and of the
    hardest negatives, it rises linearly (appendix A.1; the code multiplies the loss instead, which AdamW undoes).

    Deviation: ResNet-152 has the layout of torchvision, in which it was trained. The authors ran the same weights in
    Caffe's, with strides in the first convolution of a block and a stem that pools without padding:
    `--visual "cnn(name=resnet152, weights='data/weights/resnet152.pth', layout=caffe)"`.
    """
    name, weights, factor = CNNS[cnn]
    return derive(
        run,
        visual=f"cnn(name={name}, weights='data/weights/{weights}')",
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


def as_vsepp(run: Run, *, text_aggregator: str = "mean") -> Run:
    """Return a run with averages instead of learned pooling, without size augmentation, as VSE++."""
    return derive(
        run,
        aggregator="mean",
        text_aggregator=text_aggregator,
        data={"visual_augment": "", "text_augment": ""},
    )


@recipe("coco_grid_bigru", published=rsums(521.5, 423.7), source="VSE-infinity, tables 9, 10")
def coco_grid_bigru() -> Run:
    """VSE-infinity: the detector's grid, fine-tuned, and a BiGRU."""
    return with_grid(coco_region_bigru(), "detector")


@recipe("coco_region_grid_bigru", published=rsums(528.8, 437.5), source="VSE-infinity, tables 9, 10")
def coco_region_grid_bigru() -> Ensemble:
    """VSE-infinity: regions and grid, BiGRU."""
    return Ensemble(members=("coco_region_bigru", "coco_grid_bigru"), protocol="coco-5k")


@recipe("coco_region_bert", published=rsums(527.5, 434.3), source="VSE-infinity, tables 9, 10")
def coco_region_bert() -> Run:
    """VSE-infinity: regions and BERT; batch statistics are of the whole batch, the authors' of each of four GPUs."""
    return with_bert(coco_region_bigru())


@recipe("coco_grid_bert", published=rsums(531.6, 440.0), source="VSE-infinity, tables 9, 10")
def coco_grid_bert() -> Run:
    """VSE-infinity: the detector's grid, fine-tuned, and BERT."""
    return with_grid(coco_region_bert(), "detector")


@recipe("coco_region_grid_bert", published=rsums(537.4, 451.8), source="VSE-infinity, tables 9, 10")
def coco_region_grid_bert() -> Ensemble:
    """VSE-infinity: regions and grid, BERT."""
    return Ensemble(members=("coco_region_bert", "coco_grid_bert"), protocol="coco-5k")


@recipe("coco_wsl_bert", published=rsums(545.4, 468.9), source="VSE-infinity, tables 9, 10")
def coco_wsl_bert() -> Run:
    """VSE-infinity: the grid of ResNeXt-101 pretrained on Instagram, and BERT."""
    return with_grid(coco_region_bert(), "wsl")


@recipe("coco_wsl_bert_x2", published=rsums(548.1, 474.8), source="VSE-infinity, tables 9, 10")
def coco_wsl_bert_x2() -> Ensemble:
    """VSE-infinity: two seeds of `coco_wsl_bert`."""
    return Ensemble(members=("coco_wsl_bert", "coco_wsl_bert"), protocol="coco-5k")


@recipe("coco_resnet152_bigru", published=rsums(519.6, 419.9), source="VSE-infinity, tables 9, 10")
def coco_resnet152_bigru() -> Run:
    """VSE-infinity: the grid of ResNet-152, in torchvision's layout instead of Caffe's, and a BiGRU."""
    return with_grid(coco_region_bigru(), "resnet152")


@recipe("coco_region_bigru_vsepp", published=rsums(490.5, 370.2), source="VSE-infinity, tables 9, 10")
def coco_region_bigru_vsepp() -> Run:
    """VSE++: averages of regions and words."""
    return as_vsepp(coco_region_bigru())


@recipe("coco_region_bert_vsepp", published=rsums(488.9, 364.7), source="VSE-infinity, tables 9, 10")
def coco_region_bert_vsepp() -> Run:
    """VSE++: the average of regions, and BERT's [CLS]."""
    return as_vsepp(coco_region_bert(), text_aggregator="cls")


@recipe("coco_wsl_bert_vsepp", published=rsums(528.7, 439.2), source="VSE-infinity, tables 9, 10")
def coco_wsl_bert_vsepp() -> Run:
    """VSE++: the average of ResNeXt-101's grid, and BERT's [CLS]."""
    return as_vsepp(coco_wsl_bert(), text_aggregator="cls")


@recipe("coco_resnet152_bigru_vsepp", published=rsums(500.6, 387.6), source="VSE-infinity, tables 9, 10")
def coco_resnet152_bigru_vsepp() -> Run:
    """VSE++: averages of ResNet-152's grid, in torchvision's layout instead of Caffe's, and of words."""
    return as_vsepp(coco_resnet152_bigru())
