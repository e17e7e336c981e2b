"""Overrides that docstrings of recipes offer as another reading of a paper."""

from __future__ import annotations

import re
import shlex

import pytest

from polypool.infra.registry import RECIPES
from polypool.infra.spec import changed
from polypool.pipelines.recipes import msrvtt, vse_infinity
from polypool.pipelines.recipes.arguments import read_config


def offered(doc: str) -> list[str]:
    """Return the flags of a docstring's indented lines."""
    return shlex.split(" ".join(re.findall(r"^ {4}(--.*)$", doc, flags=re.MULTILINE)))


@pytest.mark.parametrize("name", ["msrvtt_vse_infinity", "vatex_vse_infinity"])
def test_videos_may_be_trained_as_vse_infinity_trains_images(name):
    run, images = read_config(name, offered(msrvtt.__doc__)), vse_infinity.coco_region_bigru()
    assert (run.optim.clip, run.optim.weight_decay) == (images.optim.clip, 1e-4)
    assert run.objective == "triplet(margin=0.2)"
    assert run.text == "bigru(glove='data/glove.42B.300d.txt')"
    assert (run.visual, run.data.max_words) == ("frames(dropout=0.0)", 0)
    assert (run.optim.epochs, run.optim.batch, run.optim.lr) == (35, 128, 1e-4)


def test_videos_may_be_trained_without_size_augmentation():
    flags = re.search(r"`(--data.visual-augment.*)`", msrvtt.msrvtt_vse_infinity.__doc__)[1]
    run = read_config("msrvtt_vse_infinity", shlex.split(flags))
    assert (run.data.visual_augment, run.data.text_augment) == ("", "")


def test_a_resnet_of_imagenet_may_run_in_caffes_layout():
    flags = re.search(r"`(--visual .*)`", vse_infinity.with_grid.__doc__)[1]
    run = read_config("coco_resnet152_bigru", shlex.split(flags))
    assert run.visual == changed(RECIPES.get("coco_resnet152_bigru")().visual, layout="caffe")
