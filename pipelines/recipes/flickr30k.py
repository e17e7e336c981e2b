"""Flickr30K with the Karpathy split: VSE-infinity, table 3."""

from __future__ import annotations

from dataclasses import replace

from infra.registry import RECIPES
from pipelines.config import Run
from pipelines.recipes.coco import coco_region_bigru


@RECIPES.register("flickr30k_region_bigru")
def flickr30k_region_bigru() -> Run:
    """Regions and a BiGRU. Published RSUM: 498.1."""
    run = coco_region_bigru()
    return replace(
        run,
        recipe="flickr30k_region_bigru",
        data=replace(
            run.data, dataset="flickr30k", corpus="data/flickr30k", features="data/flickr30k/regions"
        ),
        protocol="f30k-1k",
        published="VSE-infinity: RSUM 498.1 on f30k-1k",
    )
