"""Checks of backbones for `extract`, on random images, frames and a few texts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from PIL import Image

from polypool.encoders.backbones import Backbone, Described, build_backbone
from polypool.infra.registry import Spec
from polypool.pipelines.checks.encoders import CAPTIONS
from polypool.pipelines.checks.part_checks import PartChecks, check, through_json

_SIZES = ((48, 64), (64, 48), (90, 60))  # of images, as height and width
_FRAMES = 20


class BackboneChecks(PartChecks):
    """Checks of one backbone."""

    @cached_property
    def part(self) -> Backbone:
        return build_backbone(self.spec)

    @check(
        "it is built", "derive from Backbone, and take every parameter by keyword, with a default", vital=True
    )
    def _is_built(self) -> str:
        return f"reads {self.part.reads}s, dim {self.part.dim}"

    @check(
        "it describes what its features depend on",
        "return from describe what JSON can hold, with the registered name as `backbone` and parameters "
        "by their names, so that a store can be made again",
    )
    def _describes(self) -> None:
        described = self.part.describe()
        assert through_json(described) == described, "it comes back from JSON as something else, as tuples do"
        name = Spec.parse(self.spec).name
        assert described.get("backbone") == name, (
            f"backbone is {described.get('backbone')!r}, expected {name!r}"
        )

    @cached_property
    def _inputs(self) -> list[Any]:
        if self.part.reads == "text":
            return list(CAPTIONS[:3])
        rng = np.random.default_rng(0)
        return [Image.fromarray(rng.integers(0, 256, (*size, 3), np.uint8)) for size in _SIZES]

    def _of(self, inputs: list[Any]) -> list[tuple[np.ndarray, Mapping[str, np.ndarray]]]:
        """Return vectors and columns of each input; a video is `_FRAMES` of an image."""
        backbone: Any = self.part
        video = backbone.reads == "video"
        made = [backbone(iter([image] * _FRAMES)) for image in inputs] if video else backbone(inputs)
        assert len(made) == len(inputs), f"{len(made)} things came out of {len(inputs)}"
        refused = [each for each in made if isinstance(each, str)]
        assert not refused, f"it refuses an input: {refused}"
        return [(x.x_ND, x.columns) if isinstance(x, Described) else (x, {}) for x in made]

    @check(
        "sets of the declared width, with the declared columns",
        "return float32 (N, dim) for each input; where `columns` names any, a Described whose columns "
        "are (N, C)",
        vital=True,
    )
    def _sets(self) -> str:
        widths = dict(self.part.columns)
        for x_ND, columns in self._of(self._inputs):
            assert x_ND.ndim == 2, f"a set has shape {x_ND.shape}, expected (N, {self.part.dim})"
            assert x_ND.shape[1] == self.part.dim, f"dim is {self.part.dim}, and vectors have {x_ND.shape[1]}"
            assert len(x_ND), "a set is empty"
            found = {name: x_NC.shape for name, x_NC in columns.items()}
            expected = {name: (len(x_ND), width) for name, width in widths.items()}
            assert found == expected, f"columns of shapes {found}, expected {expected}"
            for name, x in (("vectors", x_ND), *columns.items()):
                assert x.dtype == np.float32, f"{name} are {x.dtype}, expected float32"
                assert np.isfinite(x).all(), f"{name} are not finite"
        return ", ".join(f"{name} {width}" for name, width in widths.items())

    @check("batch mates change nothing", "describe each input from itself alone")
    def _batch_mates(self) -> None:
        together = self._of(self._inputs)
        for number, (x_ND, columns) in enumerate(together):
            ((alone_ND, alone),) = self._of(self._inputs[number : number + 1])
            assert x_ND.shape == alone_ND.shape, f"{len(x_ND)} vectors in a batch, {len(alone_ND)} alone"
            for name, x, by_itself in (
                ("vectors", x_ND, alone_ND),
                *((name, columns[name], alone[name]) for name in columns),
            ):
                off = np.abs(x - by_itself).max() / max(1.0, np.abs(by_itself).max())
                assert off < 1e-3, f"{name} differ by {off:.2g} of their largest"
