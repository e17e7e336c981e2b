"""VSE-infinity and its VSE++ baselines on COCO and Flickr30K with the Karpathy split; ablations on COCO.

Tables 2, 9 and 10; of ablations 6, 7, 8, 12 and 13, which print four recalls and no RSUM. Words of BiGRUs are split as
nltk does and counted in the training and validation splits, as in SCAN's lists.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath

from polypool.pipelines.recipes import Ensemble, derive, recipe, variants
from polypool.tasks.run import Data, Optim, Run

EPOCH, FLICKR30K_EPOCH = 4426, 1133  # steps, of 128 captions each, the last of fewer


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
            captions=5,
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


def on_flickr30k(run: Run) -> Run:
    """Return a run of COCO on Flickr30K; warm-up, where there is one, lasts an epoch."""
    folder, data = PurePosixPath("data/flickr30k"), run.data
    features = data.features and str(folder / PurePosixPath(data.features).relative_to(data.corpus))
    return derive(
        run,
        data={"dataset": "flickr30k", "corpus": str(folder), "features": features},
        protocol="f30k-1k",
        optim={"warmup_steps": FLICKR30K_EPOCH if run.optim.warmup_steps else 0},
    )


Row = tuple[str, Run | tuple[str, ...], Mapping[str, float], float | None]
"""What is shown of a recipe; its run on COCO, or the members of an ensemble, without the data set in their names; and
its published numbers on COCO and Flickr30K."""


def on_both(rows: Mapping[str, Row], *, coco: str, flickr30k: str) -> None:
    """Register `coco_NAME` and `flickr30k_NAME` for each row, with the source of their numbers.

    A recipe that has a function of its own on COCO, and so the same name, is registered on Flickr30K alone.
    """
    for name, (about, config, numbers, rsum) in rows.items():
        if isinstance(config, Run):
            here, there = config, on_flickr30k(config)
        else:
            here, there = (
                Ensemble(members=tuple(f"{data}_{member}" for member in config), protocol=protocol)
                for data, protocol in (("coco", "coco-5k"), ("flickr30k", "f30k-1k"))
            )
        if here.recipe != f"coco_{name}":
            variants(coco, {f"coco_{name}": (about, here, numbers)})
        variants(
            flickr30k, {f"flickr30k_{name}": (about, there, {} if rsum is None else {"f30k-1k/rsum": rsum})}
        )


@recipe("coco_region_bert", published=rsums(527.5, 434.3), source="VSE-infinity, tables 9, 10")
def coco_region_bert() -> Run:
    """VSE-infinity: regions and BERT; batch statistics are of the whole batch, the authors' of each of four GPUs."""
    return with_bert(coco_region_bigru())


@recipe("coco_wsl_bert", published=rsums(545.4, 468.9), source="VSE-infinity, tables 9, 10")
def coco_wsl_bert() -> Run:
    """VSE-infinity: the grid of ResNeXt-101 pretrained on Instagram, and BERT."""
    return with_grid(coco_region_bert(), "wsl")


_RESNET152 = with_grid(coco_region_bigru(), "resnet152")
_LAYOUT = "ResNet-152, in torchvision's layout instead of Caffe's,"
on_both(
    {
        "region_bigru": ("VSE-infinity: regions and a BiGRU.", coco_region_bigru(), {}, 498.1),
        "grid_bigru": (
            "VSE-infinity: the detector's grid, fine-tuned, and a BiGRU.",
            with_grid(coco_region_bigru(), "detector"),
            rsums(521.5, 423.7),
            500.2,
        ),
        "region_grid_bigru": (
            "VSE-infinity: regions and grid, BiGRU.",
            ("region_bigru", "grid_bigru"),
            rsums(528.8, 437.5),
            514.8,
        ),
        "region_bert": ("VSE-infinity: regions and BERT.", coco_region_bert(), {}, 513.5),
        "grid_bert": (
            "VSE-infinity: the detector's grid, fine-tuned, and BERT.",
            with_grid(coco_region_bert(), "detector"),
            rsums(531.6, 440.0),
            522.3,
        ),
        "region_grid_bert": (
            "VSE-infinity: regions and grid, BERT.",
            ("region_bert", "grid_bert"),
            rsums(537.4, 451.8),
            532.0,
        ),
        "wsl_bert": (
            "VSE-infinity: the grid of ResNeXt-101 pretrained on Instagram, and BERT.",
            coco_wsl_bert(),
            {},
            550.9,
        ),
        "wsl_bert_x2": (
            "VSE-infinity: two seeds of `wsl_bert`.",
            ("wsl_bert", "wsl_bert"),
            rsums(548.1, 474.8),
            555.1,
        ),
        "resnet152_bigru": (
            f"VSE-infinity: the grid of {_LAYOUT} and a BiGRU.",
            _RESNET152,
            rsums(519.6, 419.9),
            500.9,
        ),
        "region_bigru_vsepp": (
            "VSE++: averages of regions and words.",
            as_vsepp(coco_region_bigru()),
            rsums(490.5, 370.2),
            442.3,
        ),
        "region_bert_vsepp": (
            "VSE++: the average of regions, and BERT's [CLS].",
            as_vsepp(coco_region_bert(), text_aggregator="cls"),
            rsums(488.9, 364.7),
            449.7,
        ),
        "wsl_bert_vsepp": (
            "VSE++: the average of ResNeXt-101's grid, and BERT's [CLS].",
            as_vsepp(coco_wsl_bert(), text_aggregator="cls"),
            rsums(528.7, 439.2),
            524.8,
        ),
        "resnet152_bigru_vsepp": (
            f"VSE++: averages of the grid of {_LAYOUT} and of words.",
            as_vsepp(_RESNET152),
            rsums(500.6, 387.6),
            456.3,
        ),
    },
    coco="VSE-infinity, tables 9, 10",
    flickr30k="VSE-infinity, table 9",
)


def recalls(**pairs: tuple[float, float]) -> dict[str, float]:
    """Return the metrics of R@1 and R@5 in each direction, such as `i2t=(67.7, 92.6)`."""
    return {
        f"coco-1k-5fold/{direction}/R{k}": value
        for direction, values in pairs.items()
        for k, value in zip((1, 5), values, strict=True)
    }


_ABLATIONS = {
    "table6_mean_cls": (
        "Regions by their average, BERT by its [CLS], with size augmentation.",
        derive(coco_region_bert(), aggregator="mean", text_aggregator="cls"),
        recalls(i2t=(67.7, 92.6), t2i=(54.8, 85.1)),
    ),
    "table6_mean_gpo": (
        "Regions by their average, BERT by learned pooling.",
        derive(coco_region_bert(), aggregator="mean", text_aggregator="gpo"),
        recalls(i2t=(71.7, 93.8), t2i=(57.5, 87.6)),
    ),
    "table6_gpo_cls": (
        "Regions by learned pooling, BERT by its [CLS]; both learned: `coco_region_bert`.",
        derive(coco_region_bert(), text_aggregator="cls"),
        recalls(i2t=(73.8, 94.8), t2i=(59.2, 88.0)),
    ),
    "table7_no_augment": (
        "Regions and a BiGRU without size augmentation.",
        derive(coco_region_bigru(), data={"visual_augment": "", "text_augment": ""}),
        recalls(i2t=(74.6, 95.0), t2i=(60.6, 89.1)),
    ),
    "table7_visual_augment": (
        "Size augmentation of the regions alone; of both: `coco_region_bigru`.",
        derive(coco_region_bigru(), data={"text_augment": ""}),
        recalls(i2t=(75.4, 95.5), t2i=(61.4, 89.5)),
    ),
    "table8_transformer": (
        "Pooling weights from a transformer instead of the BiGRU.",
        derive(coco_region_bigru(), aggregator="gpo(decoder=transformer)"),
        recalls(i2t=(77.4, 95.4), t2i=(61.4, 90.1)),
    ),
    "table12_per_channel": (
        "Separate pooling weights for every channel.",
        derive(coco_region_bigru(), aggregator="gpo(per_channel=True)"),
        recalls(i2t=(76.5, 95.9), t2i=(61.2, 89.6)),
    ),
    "table13_conditioned": (
        "Pooling weights from the features, not from ranks alone.",
        derive(coco_region_bigru(), aggregator="gpo(feature_conditioned=True)"),
        recalls(i2t=(78.0, 96.2), t2i=(61.8, 90.2)),
    ),
}
for _name, _row in _ABLATIONS.items():
    _table = _name.partition("_")[0].removeprefix("table")
    variants(f"VSE-infinity, table {_table}", {f"coco_{_name}": _row})
