"""The two sides of a released VSE-infinity model: the specs, names and assets that their weights are read by."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from polypool.encoders.text.bert import Bert
from polypool.encoders.text.tokenizers import SPECIALS
from polypool.infra.errors import InputError, unknown
from polypool.infra.files import read_json
from polypool.infra.registry import AGGREGATORS, ENCODERS, Registry, Spec
from polypool.pipelines.models.released_file import Release

REGIONS = {
    "encoder.fc.": "fc.",
    "encoder.down.": "mlp.layers.0.",
    "encoder.norm.": "mlp.bns.0.",
    "encoder.up.": "mlp.layers.1.",
    "aggregator.": "gpool.",
}
CNN = {
    "encoder.fc.": "image_encoder.fc.",
    "encoder.cnn.conv1.": "backbone.base.0.",
    "encoder.cnn.bn1.": "backbone.base.1.",
    "encoder.cnn.layer1.": "backbone.base.4.",
    "encoder.cnn.layer2.": "backbone.base.5.",
    "encoder.cnn.layer3.": "backbone.base.6.",
    "encoder.cnn.layer4.": "backbone.top.0.",
    "aggregator.": "image_encoder.gpool.",
}
BIGRU = {"encoder.embed.": "embed.", "encoder.rnn.": "rnn.", "aggregator.": "gpool."}
BERT = {"encoder.bert.": "bert.", "encoder.linear.": "linear.", "aggregator.": "gpool."}
"""Beginnings of our parameters' names, and of theirs."""
NETWORKS = {
    "detector": {"name": "resnet101_caffe"},
    "imagenet_res152": {"name": "resnet152", "layout": "caffe"},
    "wsl": {"name": "resnext101_32x8d"},
    "imagenet_resnext": {"name": "resnext101_32x8d"},
}
"""The network of a `--backbone_source`; the code runs ResNets of torchvision in the layout of Caffe."""
SPLIT = "treebank"
"""How the code splits captions into words: by nltk."""
SIDE = 256
"""Pixels of an image's side where `--input_scale_factor` is 1."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """One modality of a released model: specs, assets, names, and weights that had to be changed."""

    encoder: str
    aggregator: str
    assets: dict[str, Any]
    names: Mapping[str, str]
    changed: dict[str, Tensor] = field(default_factory=dict)


def regions_side(release: Release) -> Side:
    """Return the visual side of a model of stored regions."""
    width, dim = release.shape("img_enc.fc.weight")
    hidden = release.shape("img_enc.mlp.layers.0.weight")[0]
    return Side(
        encoder=_spec(ENCODERS, "regions", width=width, hidden=None if hidden == width // 2 else hidden),
        aggregator=_gpo(release, "img_enc.gpool"),
        assets={"dim": dim, "statistics": None},
        names=REGIONS,
    )


def cnn_side(release: Release) -> Side:
    """Return the visual side of a model of images, with its network."""
    source = release.options.get("backbone_source")
    if source not in NETWORKS:
        raise unknown(f"--backbone_source of {release.path}:", source, NETWORKS)
    width = release.shape("img_enc.image_encoder.fc.weight")[0]
    size = int(SIDE * release.options.get("input_scale_factor", 1))
    return Side(
        encoder=_spec(ENCODERS, "cnn", width=width, size=size, **NETWORKS[source]),
        aggregator=_gpo(release, "img_enc.image_encoder.gpool"),
        assets={},
        names=CNN,
    )


def bert_side(release: Release, name: str) -> Side:
    """Return the text side of a model with BERT, whose tokenizer is read from `name`."""
    width = release.shape("txt_enc.linear.weight")[0]
    return Side(
        encoder=_spec(ENCODERS, "bert", width=width, name=name),
        aggregator=_gpo(release, "txt_enc.gpool"),
        assets=Bert.prepare([], name=name),
        names=BERT,
    )


def bigru_side(release: Release, vocab: Path | None) -> Side:
    """Return the text side of a model with a BiGRU, its words in the order of our vocabularies."""
    if vocab is None:
        raise InputError(
            f"{release.path} has a BiGRU, whose words are in a file of their own: give SCAN's coco_precomp_vocab.json "
            "or f30k_precomp_vocab.json with --vocab"
        )
    rows, embedding = release.shape("txt_enc.embed.weight")
    row = _rows(vocab, rows, where=release.path)
    order = [row.pop(word) for word in SPECIALS]
    words = sorted(row, key=row.__getitem__)
    weight = release.weights["txt_enc.embed.weight"][order + [row[word] for word in words]]
    width = release.shape("txt_enc.rnn.weight_hh_l0")[1]
    return Side(
        encoder=_spec(ENCODERS, "bigru", width=width, embedding=embedding, split=SPLIT),
        aggregator=_gpo(release, "txt_enc.gpool"),
        assets={"words": words, "split": SPLIT},
        names=BIGRU,
        changed={"txt_enc.embed.weight": weight},
    )


def _rows(vocab: Path, rows: int, *, where: Path) -> dict[str, int]:
    """Return the embedding's row of every word of SCAN's JSON; the code appends `<mask>` to it."""
    held = read_json(vocab, what="SCAN's vocabulary")
    row = held.get("word2idx") if isinstance(held, dict) else None
    if not isinstance(row, dict) or sorted(row.values(), key=str) != sorted(range(len(row)), key=str):
        raise InputError(
            f"{vocab} is no vocabulary of SCAN: expected `word2idx`, words with the numbers from 0"
        )
    row.setdefault("<mask>", len(row))
    if missing := [word for word in SPECIALS if word not in row]:
        raise InputError(f"{vocab} is no vocabulary of SCAN: it lacks {', '.join(missing)}")
    if len(row) != rows:
        raise InputError(
            f"{vocab} has {len(row):,} words with <mask>, and {where} knows {rows:,}: it was trained with another "
            "vocabulary; COCO's has 11,354, Flickr30K's 8,482"
        )
    return row


def _gpo(release: Release, name: str) -> str:
    positions, hidden = (
        release.shape(f"{name}.{part}")[1] for part in ("gru.weight_ih_l0", "gru.weight_hh_l0")
    )
    return _spec(AGGREGATORS, "gpo", positions=positions, hidden=hidden)


def _spec(registry: Registry, name: str, /, **params: Any) -> str:
    """Return the spec of a part, with the parameters that are not its defaults."""
    usual = inspect.signature(registry.get(name)).parameters
    return str(Spec(name, {key: value for key, value in params.items() if value != usual[key].default}))
