"""Flickr30K with the Karpathy split: VSE-infinity and its VSE++ baselines, tables 2 and 9."""

from __future__ import annotations

from pipelines.recipe import Ensemble, derive, recipe
from pipelines.recipes import coco
from tasks.run import Run


def on_flickr30k(run: Run) -> Run:
    """Return a run of COCO on Flickr30K; warm-up lasts as many epochs as there."""
    optim = {"warmup_steps": round(run.optim.warmup_steps * 1132 / coco.GRID_WARMUP)}
    features = run.data.features.replace("data/coco", "data/flickr30k")
    data = {"dataset": "flickr30k", "corpus": "data/flickr30k", "features": features}
    return derive(run, data=data, protocol="f30k-1k", optim=optim)


@recipe("flickr30k_region_bigru", published="VSE-infinity, table 9: RSUM 498.1 on f30k-1k")
def flickr30k_region_bigru() -> Run:
    """VSE-infinity: regions and a BiGRU."""
    return on_flickr30k(coco.coco_region_bigru())


@recipe("flickr30k_grid_bigru", published="VSE-infinity, table 9: RSUM 500.2 on f30k-1k")
def flickr30k_grid_bigru() -> Run:
    """VSE-infinity: the detector's grid, fine-tuned, and a BiGRU."""
    return on_flickr30k(coco.coco_grid_bigru())


@recipe("flickr30k_region_bert", published="VSE-infinity, table 9: RSUM 513.5 on f30k-1k")
def flickr30k_region_bert() -> Run:
    """VSE-infinity: regions and BERT."""
    return on_flickr30k(coco.coco_region_bert())


@recipe("flickr30k_grid_bert", published="VSE-infinity, table 9: RSUM 522.3 on f30k-1k")
def flickr30k_grid_bert() -> Run:
    """VSE-infinity: the detector's grid, fine-tuned, and BERT."""
    return on_flickr30k(coco.coco_grid_bert())


@recipe("flickr30k_wsl_bert", published="VSE-infinity, table 9: RSUM 550.9 on f30k-1k")
def flickr30k_wsl_bert() -> Run:
    """VSE-infinity: the grid of ResNeXt-101 pretrained on Instagram, and BERT."""
    return on_flickr30k(coco.coco_wsl_bert())


@recipe("flickr30k_resnet152_bigru", published="VSE-infinity, table 9: RSUM 500.9 on f30k-1k")
def flickr30k_resnet152_bigru() -> Run:
    """VSE-infinity: the grid of ResNet-152 and a BiGRU."""
    return on_flickr30k(coco.coco_resnet152_bigru())


@recipe("flickr30k_region_bigru_vsepp", published="VSE-infinity, table 9: RSUM 442.3 on f30k-1k")
def flickr30k_region_bigru_vsepp() -> Run:
    """VSE++: averages of regions and words."""
    return on_flickr30k(coco.coco_region_bigru_vsepp())


@recipe("flickr30k_region_bert_vsepp", published="VSE-infinity, table 9: RSUM 449.7 on f30k-1k")
def flickr30k_region_bert_vsepp() -> Run:
    """VSE++: the average of regions, and BERT's [CLS]."""
    return on_flickr30k(coco.coco_region_bert_vsepp())


@recipe("flickr30k_wsl_bert_vsepp", published="VSE-infinity, table 9: RSUM 524.8 on f30k-1k")
def flickr30k_wsl_bert_vsepp() -> Run:
    """VSE++: the average of ResNeXt-101's grid, and BERT's [CLS]."""
    return on_flickr30k(coco.coco_wsl_bert_vsepp())


@recipe("flickr30k_resnet152_bigru_vsepp", published="VSE-infinity, table 9: RSUM 456.3 on f30k-1k")
def flickr30k_resnet152_bigru_vsepp() -> Run:
    """VSE++: averages of ResNet-152's grid and of words."""
    return on_flickr30k(coco.coco_resnet152_bigru_vsepp())


@recipe("flickr30k_region_grid_bigru", published="VSE-infinity, table 9: RSUM 514.8 on f30k-1k")
def flickr30k_region_grid_bigru() -> Ensemble:
    """VSE-infinity: regions and grid, BiGRU."""
    return Ensemble(members=("flickr30k_region_bigru", "flickr30k_grid_bigru"), protocol="f30k-1k")


@recipe("flickr30k_region_grid_bert", published="VSE-infinity, table 9: RSUM 532.0 on f30k-1k")
def flickr30k_region_grid_bert() -> Ensemble:
    """VSE-infinity: regions and grid, BERT."""
    return Ensemble(members=("flickr30k_region_bert", "flickr30k_grid_bert"), protocol="f30k-1k")


@recipe("flickr30k_wsl_bert_x2", published="VSE-infinity, table 9: RSUM 555.1 on f30k-1k")
def flickr30k_wsl_bert_x2() -> Ensemble:
    """VSE-infinity: two seeds of `flickr30k_wsl_bert`."""
    return Ensemble(members=("flickr30k_wsl_bert", "flickr30k_wsl_bert"), protocol="f30k-1k")
