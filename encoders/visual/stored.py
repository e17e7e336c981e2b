"""Encoders of stored features: one linear map, or none, and MLPs with batch normalisation beside or on top of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from polypool.encoders.elements import Rows, map_elements
from polypool.encoders.encoder import FeatureEncoder, Standardise, xavier_linear
from polypool.infra.compute.batchnorm import SetBatchNorm
from polypool.infra.compute.dropout import Dropout
from polypool.infra.registry import ENCODERS


@ENCODERS.register("grid")
class Grid(FeatureEncoder):
    """A linear map of cells or patches, as in VSE-infinity.

    Args:
        assets: see `FeatureEncoder`.
        width: width D of the elements that come out.
        standardise: bring features to mean 0 and deviation 1 first; `auto` where the store has their statistics.
    """

    def __init__(
        self, assets: Mapping[str, Any], *, width: int = 1024, standardise: Standardise = False
    ) -> None:
        super().__init__(assets, standardise=standardise)
        self.width = width
        self.fc = xavier_linear(assets["dim"], width)

    def forward(self, x_BNF: Tensor, mask_BN: Tensor) -> tuple[Tensor, Tensor]:
        """Map features `(B, N, F)` to `(B, N, D)`."""
        return map_elements(self.fc, x_BNF, mask_BN, prepared=self.features), mask_BN

    def before_affine(self, x_BNF: Tensor, mask_BN: Tensor) -> tuple[Tensor, Tensor, nn.Module]:
        """Return the features `(B, N, F)`, and the linear map."""
        return self.features(x_BNF, mask_BN), mask_BN, self.fc


@ENCODERS.register("pooled_grid")
class PooledGrid(FeatureEncoder):
    """Stored cells as they are, with a linear map of their mean as global feature: the image side of PVSE.

    Args:
        assets: see `FeatureEncoder`.
        width: width of the global feature; the elements keep that of the store.
        standardise: bring features to mean 0 and deviation 1 first; `auto` where the store has their statistics.
    """

    def __init__(
        self, assets: Mapping[str, Any], *, width: int = 1024, standardise: Standardise = False
    ) -> None:
        super().__init__(assets, standardise=standardise)
        self.width = assets["dim"]
        self.global_width = width
        self.fc = xavier_linear(assets["dim"], width)

    def forward(self, x_BNF: Tensor, mask_BN: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the features `(B, N, F)` and global features `(B, S)`."""
        x_BNF = self.features(x_BNF, mask_BN)
        total_BF = x_BNF.masked_fill(~mask_BN[..., None], 0.0).sum(dim=1)
        return x_BNF, mask_BN, self.fc(total_BF / mask_BN.sum(dim=1, keepdim=True))


@ENCODERS.register("frames")
class Frames(FeatureEncoder):
    """A linear map of frames or clips, then dropout: the video encoder of HGR (Chen et al., CVPR 2020, section 3.2).

    Args:
        assets: see `FeatureEncoder`.
        width: width D of the elements that come out.
        dropout: fraction of their values dropped in training.
        standardise: bring features to mean 0 and deviation 1 first; `auto` where the store has their statistics.
    """

    def __init__(
        self,
        assets: Mapping[str, Any],
        *,
        width: int = 1024,
        dropout: float = 0.2,
        standardise: Standardise = False,
    ) -> None:
        super().__init__(assets, standardise=standardise)
        self.width = width
        self.fc = nn.Linear(assets["dim"], width)
        self.dropout = Dropout(dropout)

    def forward(self, x_BNF: Tensor, mask_BN: Tensor) -> tuple[Tensor, Tensor]:
        """Map features `(B, N, F)` to `(B, N, D)`."""
        return self.dropout(map_elements(self.fc, x_BNF, mask_BN, prepared=self.features)), mask_BN


@ENCODERS.register("stored")
class Stored(FeatureEncoder):
    """Stored features without a map, such as embeddings of a pretrained pair.

    Args:
        assets: see `FeatureEncoder`.
        unit: bring each element to length 1, as CLIP4Clip does before it averages frames.
    """

    def __init__(self, assets: Mapping[str, Any], *, unit: bool = False) -> None:
        super().__init__(assets, standardise=False)
        self.width: int = assets["dim"]
        self.unit = unit

    def forward(self, x_BNF: Tensor, mask_BN: Tensor) -> tuple[Tensor, Tensor]:
        """Return features `(B, N, F)` in float32."""
        x_BNF = x_BNF.float()
        return (nn.functional.normalize(x_BNF, dim=-1, eps=1e-8) if self.unit else x_BNF), mask_BN


class _ResidualMLP(FeatureEncoder):
    """A linear map `fc`, and an MLP with batch normalisation whose input is `inputs` wide."""

    def __init__(
        self,
        assets: Mapping[str, Any],
        *,
        width: int,
        inputs: int,
        hidden: int | None,
        standardise: Standardise,
    ) -> None:
        super().__init__(assets, standardise=standardise)
        hidden = hidden or width // 2
        self.width = width
        self.fc = xavier_linear(assets["dim"], width)
        self.down = nn.Linear(inputs, hidden)
        self.norm = SetBatchNorm(hidden)
        self.up = nn.Linear(hidden, width)

    def mlp(self, x_RI: Tensor, real: Tensor | int | None) -> Tensor:
        """Map `(R, I)` to `(R, D)`; the statistics are those of the rows that `Rows.real` names."""
        return self.up(self.norm(self.down(x_RI), real).relu())


@ENCODERS.register("regions")
class Regions(_ResidualMLP):
    """A linear map plus an MLP with batch normalisation, both of the raw features.

    The image encoder of VSE-infinity (its code, `EncoderImageAggr`).

    Args:
        assets: see `FeatureEncoder`.
        width: width D of the elements that come out.
        hidden: width of the MLP; by default half of `width`.
        standardise: bring features to mean 0 and deviation 1 first; `auto` where the store has their statistics.
    """

    def __init__(
        self,
        assets: Mapping[str, Any],
        *,
        width: int = 1024,
        hidden: int | None = None,
        standardise: Standardise = False,
    ) -> None:
        super().__init__(assets, width=width, inputs=assets["dim"], hidden=hidden, standardise=standardise)

    def forward(self, x_BNF: Tensor, mask_BN: Tensor) -> tuple[Tensor, Tensor]:
        """Map features `(B, N, F)` to `(B, N, D)`."""
        rows = Rows(mask_BN)
        x_RF = self.features(rows.of(x_BNF), rows.mask_R)
        return rows.sets(self.fc(x_RF) + self.mlp(x_RF, rows.real)), mask_BN


@ENCODERS.register("stacked_regions")
class StackedRegions(_ResidualMLP):
    """A linear map, then an MLP with batch normalisation on top of it as a residual, then dropout.

    The image encoder of DivE.

    Args:
        assets: see `FeatureEncoder`.
        width: width D of the elements that come out.
        hidden: width of the MLP; by default half of `width`.
        dropout: fraction of the elements' values dropped in training.
        standardise: bring features to mean 0 and deviation 1 first; `auto` where the store has their statistics.
    """

    def __init__(
        self,
        assets: Mapping[str, Any],
        *,
        width: int = 1024,
        hidden: int | None = None,
        dropout: float = 0.1,
        standardise: Standardise = False,
    ) -> None:
        super().__init__(assets, width=width, inputs=width, hidden=hidden, standardise=standardise)
        self.dropout = Dropout(dropout)

    def forward(self, x_BNF: Tensor, mask_BN: Tensor) -> tuple[Tensor, Tensor]:
        """Map features `(B, N, F)` to `(B, N, D)`."""
        rows = Rows(mask_BN)
        x_RD = self.fc(self.features(rows.of(x_BNF), rows.mask_R))
        return self.dropout(rows.sets(x_RD + self.mlp(x_RD, rows.real))), mask_BN
