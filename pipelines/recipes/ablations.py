"""What makes VSE-infinity good, taken apart on COCO: tables 6, 7, 8, 12 and 13.

The paper prints four recalls on coco-1k-5fold there, and no RSUM.
"""

from __future__ import annotations

from pipelines.recipe import derive, recipe
from pipelines.recipes.coco import coco_region_bert, coco_region_bigru
from tasks.run import Run


@recipe("coco_table6_mean_cls", published="VSE-infinity, table 6: i2t R1 67.7, R5 92.6, t2i R1 54.8, R5 85.1")
def coco_table6_mean_cls() -> Run:
    """Regions by their average, BERT by its [CLS], with size augmentation."""
    return derive(coco_region_bert(), aggregator="mean", text_aggregator="cls")


@recipe("coco_table6_mean_gpo", published="VSE-infinity, table 6: i2t R1 71.7, R5 93.8, t2i R1 57.5, R5 87.6")
def coco_table6_mean_gpo() -> Run:
    """Regions by their average, BERT by learned pooling."""
    return derive(coco_region_bert(), aggregator="mean", text_aggregator="gpo")


@recipe("coco_table6_gpo_cls", published="VSE-infinity, table 6: i2t R1 73.8, R5 94.8, t2i R1 59.2, R5 88.0")
def coco_table6_gpo_cls() -> Run:
    """Regions by learned pooling, BERT by its [CLS]; with both learned it is `coco_region_bert`."""
    return derive(coco_region_bert(), text_aggregator="cls")


@recipe(
    "coco_table7_no_augment", published="VSE-infinity, table 7: i2t R1 74.6, R5 95.0, t2i R1 60.6, R5 89.1"
)
def coco_table7_no_augment() -> Run:
    """Regions and a BiGRU without size augmentation."""
    return derive(coco_region_bigru(), data={"visual_augment": "", "text_augment": ""})


@recipe(
    "coco_table7_visual_augment",
    published="VSE-infinity, table 7: i2t R1 75.4, R5 95.5, t2i R1 61.4, R5 89.5",
)
def coco_table7_visual_augment() -> Run:
    """Size augmentation of the regions alone; of both it is `coco_region_bigru`."""
    return derive(coco_region_bigru(), data={"text_augment": ""})


@recipe(
    "coco_table8_transformer", published="VSE-infinity, table 8: i2t R1 77.4, R5 95.4, t2i R1 61.4, R5 90.1"
)
def coco_table8_transformer() -> Run:
    """Pooling weights from a transformer in the place of the BiGRU."""
    return derive(coco_region_bigru(), aggregator="gpo(decoder=transformer)")


@recipe(
    "coco_table12_per_channel", published="VSE-infinity, table 12: i2t R1 76.5, R5 95.9, t2i R1 61.2, R5 89.6"
)
def coco_table12_per_channel() -> Run:
    """Pooling weights for every channel of its own."""
    return derive(coco_region_bigru(), aggregator="gpo(per_channel=True)")


@recipe(
    "coco_table13_conditioned", published="VSE-infinity, table 13: i2t R1 78.0, R5 96.2, t2i R1 61.8, R5 90.2"
)
def coco_table13_conditioned() -> Run:
    """Pooling weights that see the features, not their ranks alone."""
    return derive(coco_region_bigru(), aggregator="gpo(feature_conditioned=True)")
