"""Ablations of VSE-infinity on COCO: tables 6, 7, 8, 12 and 13, which print four recalls and no RSUM."""

from __future__ import annotations

from polypool.pipelines.recipes import derive, recipe
from polypool.pipelines.recipes.coco import coco_region_bert, coco_region_bigru
from polypool.tasks.run import Run


def recalls(**pairs: tuple[float, float]) -> dict[str, float]:
    """Return the metrics of R@1 and R@5 in each direction, such as `i2t=(67.7, 92.6)`."""
    return {
        f"coco-1k-5fold/{direction}/R{k}": value
        for direction, values in pairs.items()
        for k, value in zip((1, 5), values, strict=True)
    }


@recipe(
    "coco_table6_mean_cls",
    published=recalls(i2t=(67.7, 92.6), t2i=(54.8, 85.1)),
    source="VSE-infinity, table 6",
)
def coco_table6_mean_cls() -> Run:
    """Regions by their average, BERT by its [CLS], with size augmentation."""
    return derive(coco_region_bert(), aggregator="mean", text_aggregator="cls")


@recipe(
    "coco_table6_mean_gpo",
    published=recalls(i2t=(71.7, 93.8), t2i=(57.5, 87.6)),
    source="VSE-infinity, table 6",
)
def coco_table6_mean_gpo() -> Run:
    """Regions by their average, BERT by learned pooling."""
    return derive(coco_region_bert(), aggregator="mean", text_aggregator="gpo")


@recipe(
    "coco_table6_gpo_cls",
    published=recalls(i2t=(73.8, 94.8), t2i=(59.2, 88.0)),
    source="VSE-infinity, table 6",
)
def coco_table6_gpo_cls() -> Run:
    """Regions by learned pooling, BERT by its [CLS]; both learned: `coco_region_bert`."""
    return derive(coco_region_bert(), text_aggregator="cls")


@recipe(
    "coco_table7_no_augment",
    published=recalls(i2t=(74.6, 95.0), t2i=(60.6, 89.1)),
    source="VSE-infinity, table 7",
)
def coco_table7_no_augment() -> Run:
    """Regions and a BiGRU without size augmentation."""
    return derive(coco_region_bigru(), data={"visual_augment": "", "text_augment": ""})


@recipe(
    "coco_table7_visual_augment",
    published=recalls(i2t=(75.4, 95.5), t2i=(61.4, 89.5)),
    source="VSE-infinity, table 7",
)
def coco_table7_visual_augment() -> Run:
    """Size augmentation of the regions alone; of both: `coco_region_bigru`."""
    return derive(coco_region_bigru(), data={"text_augment": ""})


@recipe(
    "coco_table8_transformer",
    published=recalls(i2t=(77.4, 95.4), t2i=(61.4, 90.1)),
    source="VSE-infinity, table 8",
)
def coco_table8_transformer() -> Run:
    """Pooling weights from a transformer instead of the BiGRU."""
    return derive(coco_region_bigru(), aggregator="gpo(decoder=transformer)")


@recipe(
    "coco_table12_per_channel",
    published=recalls(i2t=(76.5, 95.9), t2i=(61.2, 89.6)),
    source="VSE-infinity, table 12",
)
def coco_table12_per_channel() -> Run:
    """Separate pooling weights for every channel."""
    return derive(coco_region_bigru(), aggregator="gpo(per_channel=True)")


@recipe(
    "coco_table13_conditioned",
    published=recalls(i2t=(78.0, 96.2), t2i=(61.8, 90.2)),
    source="VSE-infinity, table 13",
)
def coco_table13_conditioned() -> Run:
    """Pooling weights from the features, not from ranks alone."""
    return derive(coco_region_bigru(), aggregator="gpo(feature_conditioned=True)")
