"""Augmentations, words and modules of every recipe, compared with the papers and their code."""

import functools
import math
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from published import RUNS, SETTINGS, recipe
from torch import Tensor

from polypool.infra.registry import AGGREGATORS, AUGMENTATIONS, ENCODERS, RECIPES, Spec
from polypool.infra.spec import changed
from polypool.pipelines.recipes import load
from polypool.pipelines.recipes.arguments import read_config
from polypool.pipelines.recipes.load import named_run
from polypool.tasks.inputs.augmentations import draw_for


def test_element_dropout_matches_papers():
    for name in RUNS:
        run, setting, _ = recipe(name)
        wanted, spec = setting["dropped"], run.data.visual_augment
        assert bool(wanted) == bool(spec), name
        if wanted:
            share, whole = dropped(spec, wanted["of"])
            assert share == pytest.approx(wanted["share"], abs=0.003), name
            assert whole == pytest.approx(wanted["whole"], abs=0.02), name


@functools.cache
def dropped(spec: str, size: int) -> tuple[float, float]:
    """Return the share of elements that an augmentation drops and the share of sets that it leaves whole."""
    stay = AUGMENTATIONS.build(spec)(np.full(8000, size), np.arange(8000), draw_for(0, 0, 0))
    kept = np.array([set_N.mean() for set_N in stay])
    return 1 - kept.mean(), (kept == 1).mean()


def test_caption_augmentation_matches_papers():
    for name in RUNS:
        run, setting, _ = recipe(name)
        words, elements = setting["words_augmented"], setting.get("texts_dropped", {})
        spec = run.data.text_augment
        assert bool(words or elements) == bool(spec), name
        if words:
            assert word_fates(spec) == pytest.approx(words, abs=0.002), name
        if elements:
            share, whole = dropped(spec, elements["of"])
            assert share == pytest.approx(elements["share"], abs=0.003), name
            assert whole == pytest.approx(elements["whole"], abs=0.02), name


@functools.cache
def word_fates(spec: str) -> dict[str, float]:
    """Return the shares of words that an augmentation masks, replaces and deletes."""
    captions, words = 20_000, 10
    caption_P, word_P = (x.ravel() for x in np.indices((captions, words)))
    old_P = np.full(captions * words, 2**30, np.int32)
    new_P, stay_P = AUGMENTATIONS.build(spec)(
        old_P, word_P, caption_P, draw_for(0, 0, 1), mask_subword=-1, vocabulary=2**20
    )
    masked_P, other_P = new_P == -1, (new_P != old_P) & (new_P != -1)
    return {
        "masked": float((masked_P & stay_P).mean()),
        "replaced": float((other_P & stay_P).mean()),
        "deleted": float((~stay_P).mean()),
    }


# ------------------------------------------------------------------------------------------ words and modules

QUOTED = {
    "treebank": ["``", "can", "not", "''", "5:50", "?"],
    "captions": ['"', "cannot", '"', "5", ":", "50", "?"],
    "questions": ['"cannot"', "5:50"],
}
STARTS: dict[str, Callable[[Tensor], bool]] = {
    "uniform": lambda x_VE: 0.099 < x_VE.abs().max() <= 0.1,
    "scaled": lambda x_VE: 0.99 < x_VE.abs().max() * math.sqrt(300) <= 1.000001,
    "normal": lambda x_VE: abs(x_VE.std() - 1) < 0.01 and x_VE.abs().max() > 3,
    "zero": lambda x_VE: not x_VE.any(),
}


@pytest.mark.parametrize("name", [name for name in RUNS if SETTINGS.get(name, {}).get("words")])
def test_tokenizer_and_word_vectors_match_papers(name):
    run, setting, _ = recipe(name)
    words, spec = setting["words"], Spec.parse(run.text)
    encoder = ENCODERS.get(spec.name)
    assert (list(run.data.vocabulary), run.data.max_words) == (words["counted"], words["longest"])
    often = [" ".join(["dog"] * words["least"] + ["cat"] * (words["least"] - 1))]
    assets = encoder.prepare(often, **spec.params)
    assert assets["words"] == ["dog"]
    tokenizer = encoder.tokenizer(assets)
    assert tokenizer.ends == words["ends"]
    assert tokenizer.split('"cannot" 5:50?') == QUOTED[words["split"]]
    torch.manual_seed(0)
    small = changed(run.text, width=4, glove="")
    weight_VE = ENCODERS.build(small, {"words": [f"w{n}" for n in range(200)]}).embed.weight.detach()
    assert weight_VE.shape[1] == 300
    assert STARTS[words["start"]](weight_VE)


def test_dropout_shapes_and_logsumexp_match_papers():
    for name in RUNS:
        run, setting, (model, shapes) = recipe(name)
        for module, share in setting.get("dropout", {}).items():
            assert model.get_submodule(module).p == share, (name, module)
        for parameter, shape in setting.get("shapes", {}).items():
            assert shapes[parameter] == shape, (name, parameter)
        if "logsumexp" in setting:
            pool = AGGREGATORS.build(run.aggregator, 1)
            pooled = pool(torch.zeros(1, 3, 1), torch.ones(1, 3, dtype=torch.bool))
            wanted = math.log(3) if setting["logsumexp"] == "sum" else 0.0
            assert float(pooled.vectors) == pytest.approx(wanted), name


def offered(doc: str) -> list[str]:
    return shlex.split(" ".join(re.findall(r"^# {5}(--.*)$", doc, flags=re.MULTILINE)))


@pytest.mark.parametrize("name", ["msrvtt_vse_infinity", "vatex_vse_infinity"])
def test_documented_flags_train_videos_like_vse_infinity(name):
    videos = Path(load.__file__).with_name("videos.yaml").read_text()
    run, images = read_config(name, offered(videos)), named_run("coco_region_bigru")
    assert (run.optim.clip, run.optim.weight_decay) == (images.optim.clip, 1e-4)
    assert run.objective == "triplet(margin=0.2)"
    assert run.text == f"bigru(glove='{Path.cwd()}/data/glove.42B.300d.txt')"
    assert (run.visual, run.data.max_words) == ("frames(dropout=0.0)", 0)
    assert (run.optim.epochs, run.optim.batch, run.optim.lr) == (35, 128, 1e-4)


def test_documented_flags_disable_size_augmentation():
    flags = re.search(r"`(--data.visual-augment.*)`", RECIPES.get("msrvtt_vse_infinity").__doc__)[1]
    run = read_config("msrvtt_vse_infinity", shlex.split(flags))
    assert (run.data.visual_augment, run.data.text_augment) == ("", "")


def test_documented_flags_select_caffe_layout_of_resnet():
    flags = re.search(r"`(--visual .*)`", RECIPES.get("coco_resnet152_bigru").__doc__)[1]
    run = read_config("coco_resnet152_bigru", shlex.split(flags))
    assert run.visual == changed(named_run("coco_resnet152_bigru").visual, layout="caffe")
