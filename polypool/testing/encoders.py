"""Checks of encoders, on a few captions, random features or random images."""

from __future__ import annotations

import copy
import inspect
import json
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from polypool.encoders.encoder import Encoder, TextEncoder
from polypool.infra.registry import ENCODERS, Spec
from polypool.tasks.inputs.texts import Captions
from polypool.testing.base import (
    REGISTER,
    PartChecks,
    check,
    check_mask,
    check_parameters,
    check_tensor,
)

CAPTIONS = (
    "a dog runs on the grass",
    "two people sit at a small table and eat, one of them laughs",
    "boats",
    "the red car is beside a tree",
)
_DIM = 12  # width of made-up stored features
_SIZES = (5, 1, 9, 4)

Inputs = tuple[Tensor, Tensor]


class EncoderChecks(PartChecks):
    """Checks of one encoder."""

    def __init__(self, spec: str) -> None:
        super().__init__(spec)
        self._parsed = Spec.parse(spec)
        self._kind = ENCODERS.get(self._parsed.name)
        self._of_text = issubclass(self._kind, TextEncoder)
        self._of_pixels = self._kind.reads == "pixels"

    @cached_property
    def assets(self) -> dict[str, Any]:
        """The assets of a new encoder."""
        if self._of_text:  # each caption several times, since rare words may be left out
            return self._kind.prepare([text for text in CAPTIONS for _ in range(8)], **self._parsed.params)
        if self._of_pixels:
            return self._kind.prepare(**self._parsed.params)
        return {"dim": _DIM, "statistics": {"mean": [0.1] * _DIM, "std": [1.5] * _DIM}}

    @cached_property
    def inputs(self) -> Inputs:
        """A batch, `(x, mask_BN)`."""
        generator = torch.Generator().manual_seed(0)
        if self._of_text:
            batch = Captions(CAPTIONS, self._kind.tokenizer(self.assets)).batch(np.arange(len(CAPTIONS)))
            return batch["text"], batch["text_mask"]
        if self._of_pixels:
            transform = self._kind.transform(self.assets, **self._parsed.params)
            pixels = torch.randn(2, 3, transform.size, transform.size, generator=generator)
            return pixels, torch.ones(2, transform.cells, dtype=torch.bool)
        mask_BN = torch.arange(max(_SIZES)) < torch.tensor(_SIZES)[:, None]
        x_BNF = torch.randn(*mask_BN.shape, _DIM, generator=generator)
        return x_BNF.masked_fill(~mask_BN[..., None], 0.0), mask_BN

    def _new(self, assets: dict[str, Any]) -> Encoder:
        torch.manual_seed(0)
        return ENCODERS.build(self.spec, assets)

    @cached_property
    def encoder(self) -> Encoder:
        """A new encoder in evaluation mode."""
        return self._new(self.assets).eval()

    @torch.no_grad()
    def _encode(self, x: Tensor, mask_BN: Tensor) -> tuple[Tensor, ...]:
        return self.encoder(x, mask_BN)

    @check(
        "assets are plain JSON",
        "make them of dicts with string keys, lists, strings, numbers, None: no tensors, arrays, tuples",
        vital=True,
    )
    def _assets_are_json(self) -> None:
        json.dumps(self.assets)

    @check(
        "the tokenizer numbers the subwords of every word",
        "give it `size`, `ends`, `start`, `end`, `mask` and `encode(captions)`, which yields for each "
        "caption a list of words and for each word a list of numbers below `size`",
        vital=True,
        applies=lambda self: self._of_text,
    )
    def _tokenizes(self) -> str:
        tokenizer = self._kind.tokenizer(self.assets)
        missing = [n for n in ("size", "ends", "start", "end", "mask", "encode") if not hasattr(tokenizer, n)]
        assert not missing, f"the tokenizer {type(tokenizer).__name__} has no {', '.join(missing)}"
        lines = list(tokenizer.encode(CAPTIONS))
        assert len(lines) == len(CAPTIONS), f"{len(CAPTIONS)} captions gave {len(lines)} lists of words"
        assert all(lines), "a caption gave no word"
        numbers = [subword for line in lines for word in line for subword in word]
        assert 0 <= min(numbers) <= max(numbers) < tokenizer.size, (
            f"numbers from {min(numbers)} to {max(numbers)} with a size of {tokenizer.size}"
        )
        return f"{tokenizer.size:,} numbers"

    @check(
        "it is built of assets and parameters",
        "derive from Encoder, take `assets` first and every parameter by keyword, with a default",
        vital=True,
    )
    def _is_built(self) -> str:
        weights = sum(p.numel() for p in self.encoder.parameters())
        _assets, *others = inspect.signature(self._kind).parameters.values()
        loose = [p.name for p in others if p.kind != p.KEYWORD_ONLY]
        assert not loose, f"the parameters {', '.join(loose)} are not keyword-only, so a spec cannot set them"
        return f"{weights:,} weights"

    @check(
        "sets of the declared width, with their mask",
        "return (x_BND, mask_BN), or (x_BND, mask_BN, global_BS), with self.width = D, "
        "self.global_width = S, and a bool mask that marks at least one element of each set",
        vital=True,
    )
    def _shape(self) -> str:
        out = self._encode(*self.inputs)
        width, global_feature = self.encoder.width, self.encoder.global_width
        assert len(out) == 2 + bool(global_feature), (
            f"{len(out)} things came out, expected {2 + bool(global_feature)} with global_width = {global_feature}"
        )
        (x_BND, mask_BN, *others), samples = out, len(self.inputs[0])
        check_mask("the mask", mask_BN, samples)
        check_tensor("the set", x_BND.masked_fill(~mask_BN[..., None], 0.0), *mask_BN.shape, width)
        for feature in others:
            check_tensor("the global feature", feature, samples, global_feature)
        return f"{tuple(self.inputs[0].shape)} -> {tuple(x_BND.shape)}"

    @check(
        "padding and values under the mask change nothing",
        "hide it before elements meet: pack sequences, mask attention, fill with 0 before a convolution",
        applies=lambda self: not self._of_pixels,
    )
    def _padding(self) -> None:
        x, mask_BN = self.inputs
        expected = self._encode(x, mask_BN)
        padded = nn.functional.pad(x, [0, 0] * (x.dim() - 2) + [0, 3])
        longer = self._encode(padded, nn.functional.pad(mask_BN, (0, 3)))
        _same(longer, expected, "more padding changes the set")
        noise = torch.full_like(x, 1 if self._of_text else 50)
        filled = x.where(mask_BN[(...,) + (None,) * (x.dim() - 2)], noise)
        _same(self._encode(filled, mask_BN), expected, "values under the mask change the set")

    @check(
        "batch mates change nothing",
        "compute each set from itself alone in evaluation mode, and nothing from the longest set's size",
    )
    def _batch_mates(self) -> None:
        x, mask_BN = self.inputs
        together = self._encode(x, mask_BN)
        for i in range(len(x)):
            size = x.shape[1] if self._of_pixels else int(mask_BN[i].sum())
            alone = self._encode(x[i : i + 1, :size], mask_BN[i : i + 1, : None if self._of_pixels else size])
            _same(alone, tuple(part[i : i + 1] for part in together), "batch mates change the set")

    @check(
        "a video is its frames",
        "derive from PixelEncoder and implement `cells`, whose forward takes videos, too",
        applies=lambda self: self._of_pixels,
    )
    def _frames(self) -> None:
        x_B3SS, mask_BN = self.inputs
        x_BND, *_ = self._encode(x_B3SS, mask_BN)
        video = self._encode(x_B3SS[None], mask_BN.reshape(1, -1))
        _same(
            video[:2], (x_BND.flatten(0, 1)[None], mask_BN.reshape(1, -1)), "a video differs from its frames"
        )

    @check(
        "before_affine and its map give what forward gives, where there are any",
        "return what the last step of forward maps, and that step, if nothing follows it; None elsewhere",
        applies=lambda self: not self._of_pixels,
    )
    def _before_affine(self) -> None:
        if mapped := self.encoder.before_affine(*self.inputs):
            x_BNF, mask_BN, affine = mapped
            with torch.no_grad():
                _same(
                    (affine(x_BNF), mask_BN), self._encode(*self.inputs), "the map of before_affine differs"
                )

    @check("gradients are finite and reach every weight", REGISTER)
    def _gradients(self) -> None:
        module = copy.deepcopy(self.encoder).train()
        x_BND, mask_BN, *global_feature = module(*self.inputs)
        loss = x_BND[mask_BN].square().sum() + sum(part.square().sum() for part in global_feature)
        loss.backward()
        check_parameters(module)

    @check(
        "assets and state dict rebuild it",
        "make what is learned a parameter, what is fixed a buffer; put what shapes them into the assets",
    )
    def _rebuilt(self) -> None:
        other = self._new(json.loads(json.dumps(self.assets))).eval()
        for parameter in other.parameters():
            nn.init.normal_(parameter)
        other.load_state_dict(self.encoder.state_dict())
        with torch.no_grad():
            _same(other(*self.inputs), self._encode(*self.inputs), "the rebuilt encoder differs")


def _same(result: tuple[Tensor, ...], expected: tuple[Tensor, ...], what: str) -> None:
    """Assert that two results have the same elements outside the padding, and the same global features."""
    unpadded = [(x_BND[mask_BN], *others) for x_BND, mask_BN, *others in (result, expected)]
    for one, other in zip(*unpadded, strict=True):
        assert one.shape == other.shape, f"{what}: shape {tuple(one.shape)}, not {tuple(other.shape)}"
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4, msg=what)
