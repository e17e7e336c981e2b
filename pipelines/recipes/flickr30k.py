"""Flickr30K with the Karpathy split: VSE-infinity and its VSE++ baselines, tables 2 and 9."""

from __future__ import annotations

from pathlib import PurePosixPath

from polypool.pipelines.recipes import Ensemble, coco, derive, recipe
from polypool.tasks.run import Run

FOLDER = PurePosixPath("data/flickr30k")
EPOCH = 1133  # steps, of 128 captions each, the last of fewer


def on_flickr30k(run: Run) -> Run:
    """Return a run of COCO on Flickr30K; warm-up, where there is one, lasts an epoch."""
    optim = {"warmup_steps": EPOCH if run.optim.warmup_steps else 0}
    features = run.data.features and str(
        FOLDER / PurePosixPath(run.data.features).relative_to(run.data.corpus)
    )
    data = {"dataset": "flickr30k", "corpus": str(FOLDER), "features": features}
    return derive(run, data=data, protocol="f30k-1k", optim=optim)


@recipe("flickr30k_region_bigru", published={"f30k-1k/rsum": 498.1}, source="VSE-infinity, table 9")
def flickr30k_region_bigru() -> Run:
    """VSE-infinity: regions and a BiGRU."""
    return on_flickr30k(coco.coco_region_bigru())


@recipe("flickr30k_grid_bigru", published={"f30k-1k/rsum": 500.2}, source="VSE-infinity, table 9")
def flickr30k_grid_bigru() -> Run:
    """VSE-infinity: the detector's grid, fine-tuned, and a BiGRU."""
    return on_flickr30k(coco.coco_grid_bigru())


@recipe("flickr30k_region_bert", published={"f30k-1k/rsum": 513.5}, source="VSE-infinity, table 9")
def flickr30k_region_bert() -> Run:
    """VSE-infinity: regions and BERT."""
    return on_flickr30k(coco.coco_region_bert())


@recipe("flickr30k_grid_bert", published={"f30k-1k/rsum": 522.3}, source="VSE-infinity, table 9")
def flickr30k_grid_bert() -> Run:
    """VSE-infinity: the detector's grid, fine-tuned, and BERT."""
    return on_flickr30k(coco.coco_grid_bert())


@recipe("flickr30k_wsl_bert", published={"f30k-1k/rsum": 550.9}, source="VSE-infinity, table 9")
def flickr30k_wsl_bert() -> Run:
    """VSE-infinity: the grid of ResNeXt-101 pretrained on Instagram, and BERT."""
    return on_flickr30k(coco.coco_wsl_bert())


@recipe("flickr30k_resnet152_bigru", published={"f30k-1k/rsum": 500.9}, source="VSE-infinity, table 9")
def flickr30k_resnet152_bigru() -> Run:
    """VSE-infinity: the grid of ResNet-152, in torchvision's layout instead of Caffe's, and a BiGRU."""
    return on_flickr30k(coco.coco_resnet152_bigru())


@recipe("flickr30k_region_bigru_vsepp", published={"f30k-1k/rsum": 442.3}, source="VSE-infinity, table 9")
def flickr30k_region_bigru_vsepp() -> Run:
    """VSE++: averages of regions and words."""
    return on_flickr30k(coco.coco_region_bigru_vsepp())


@recipe("flickr30k_region_bert_vsepp", published={"f30k-1k/rsum": 449.7}, source="VSE-infinity, table 9")
def flickr30k_region_bert_vsepp() -> Run:
    """VSE++: the average of regions, and BERT's [CLS]."""
    return on_flickr30k(coco.coco_region_bert_vsepp())


@recipe("flickr30k_wsl_bert_vsepp", published={"f30k-1k/rsum": 524.8}, source="VSE-infinity, table 9")
def flickr30k_wsl_bert_vsepp() -> Run:
    """VSE++: the average of ResNeXt-101's grid, and BERT's [CLS]."""
    return on_flickr30k(coco.coco_wsl_bert_vsepp())


@recipe("flickr30k_resnet152_bigru_vsepp", published={"f30k-1k/rsum": 456.3}, source="VSE-infinity, table 9")
def flickr30k_resnet152_bigru_vsepp() -> Run:
    """VSE++: averages of ResNet-152's grid, in torchvision's layout instead of Caffe's, and of words."""
    return on_flickr30k(coco.coco_resnet152_bigru_vsepp())


@recipe("flickr30k_region_grid_bigru", published={"f30k-1k/rsum": 514.8}, source="VSE-infinity, table 9")
def flickr30k_region_grid_bigru() -> Ensemble:
    """VSE-infinity: regions and grid, BiGRU."""
    return Ensemble(members=("flickr30k_region_bigru", "flickr30k_grid_bigru"), protocol="f30k-1k")


@recipe("flickr30k_region_grid_bert", published={"f30k-1k/rsum": 532.0}, source="VSE-infinity, table 9")
def flickr30k_region_grid_bert() -> Ensemble:
    """VSE-infinity: regions and grid, BERT."""
    return Ensemble(members=("flickr30k_region_bert", "flickr30k_grid_bert"), protocol="f30k-1k")


@recipe("flickr30k_wsl_bert_x2", published={"f30k-1k/rsum": 555.1}, source="VSE-infinity, table 9")
def flickr30k_wsl_bert_x2() -> Ensemble:
    """VSE-infinity: two seeds of `flickr30k_wsl_bert`."""
    return Ensemble(members=("flickr30k_wsl_bert", "flickr30k_wsl_bert"), protocol="f30k-1k")
