"""A released VSE-infinity model (`model_best.pth`), read without running anything that it may hold, and its two sides.

A side has the specs, names and assets that its weights are read by.
"""

from __future__ import annotations

import inspect
import re
from argparse import Namespace
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.serialization import safe_globals

from polypool.encoders.text.bert import Bert
from polypool.encoders.text.tokenizers import SPECIALS
from polypool.infra.errors import InputError, unknown
from polypool.infra.files import existing, read_json
from polypool.infra.registry import AGGREGATORS, ENCODERS, Registry, Spec

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
class Release:
    """What a file holds: weights as `img_enc.*` and `txt_enc.*`, the authors' command line, how far and how good."""

    path: Path
    weights: dict[str, Tensor]
    options: dict[str, Any]
    epoch: int
    best_rsum: float

    def shape(self, name: str) -> torch.Size:
        """Return the shape of a weight that says how wide the model is."""
        if name not in self.weights:
            raise self.refusal(missing=[name])
        return self.weights[name].shape

    def refusal(self, *, missing: Iterable[str] = (), unexpected: Iterable[str] = ()) -> InputError:
        """Return the error for weights of another architecture."""
        return InputError(
            f"the weights {self.path} are those of another architecture: missing {_listed(missing)}; unexpected "
            f"{_listed(unexpected)}"
        )


def read_release(path: Path) -> Release:
    """Read a `model_best.pth`, in DataParallel or not, of old or new versions of torch.

    torch's restricted unpickler builds tensors and plain containers, and here `argparse.Namespace` too, in which the
    authors keep their command line: that class only sets attributes of its own. Any other name in the file is
    refused before it is imported.

    Raises:
        InputError: no such file, it is damaged, holds other classes, or is no model of VSE-infinity.
    """
    path = existing(path, what="a model_best.pth of VSE-infinity")
    try:
        with safe_globals([Namespace]):
            held = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises anything from EOFError to UnpicklingError
        if refused := re.search(r"GLOBAL (\S+)", str(error)):
            raise InputError(
                f"{path} holds {refused[1]}, which is neither a tensor nor plain data: to read it could run code, so "
                "nothing of it was read; fetch it again if it was cut short, else take the one that the authors publish"
            ) from error
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise InputError(
            f"{path} is damaged, or not written by torch.save ({reason}); fetch it again"
        ) from error
    if not _is_release(held):
        content = ", ".join(map(str, held)) if isinstance(held, dict) else type(held).__name__
        raise InputError(
            f"{path} is no model of VSE-infinity: expected `model`, the weights of two encoders, and `opt`, the "
            f"command line; found {content or 'nothing'}"
        )
    weights = {
        f"{encoder}.{name.removeprefix('module.')}": x
        for encoder, state in zip(("img_enc", "txt_enc"), held["model"], strict=True)
        for name, x in state.items()
    }
    reached = {"epoch": int(held.get("epoch", 0)), "best_rsum": float(held.get("best_rsum", 0))}
    return Release(path=path, weights=weights, options=vars(held["opt"]), **reached)


def _is_release(held: object) -> bool:
    if not isinstance(held, dict) or not isinstance(held.get("opt"), Namespace):
        return False
    states = held.get("model")
    return (
        isinstance(states, list | tuple)
        and len(states) == 2
        and all(isinstance(state, dict) for state in states)
        and all(isinstance(x, Tensor) for state in states for x in state.values())
    )


def _listed(names: Iterable[str], *, most: int = 20) -> str:
    names = sorted(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return (", ".join(names[:most]) or "none") + more


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
