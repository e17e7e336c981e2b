"""Encoders of stored features: a linear map or none, with or without an MLP with batch normalisation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from polypool.encoders.elements import Rows, map_elements
from polypool.encoders.encoder import FeatureEncoder, Standardise, xavier_linear
from polypool.infra.compute.batchnorm import SetBatchNorm
from polypool.infra.compute.dropout import Dropout
from polypool.infra.errors import InputError
from polypool.infra.registry import AGGREGATORS, ENCODERS


@ENCODERS.register("grid")
class Grid(FeatureEncoder):
    """A linear map of cells or patches, as in VSE-infinity.

    Args:
        assets: see `FeatureEncoder`.
        width: output width D of the elements.
        standardise: standardise features by the store's statistics; `auto` does so if the store has them.
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
        """Return the features `(B, N, F)`, their mask and the linear map."""
        return self.features(x_BNF, mask_BN), mask_BN, self.fc


@ENCODERS.register("pooled_grid")
class PooledGrid(FeatureEncoder):
    """Unmapped cells, with a linear map of their mean as global feature: the image side of PVSE.

    Args:
        assets: see `FeatureEncoder`.
        width: width of the global feature; the elements keep the store's width.
        standardise: standardise features by the store's statistics; `auto` does so if the store has them.
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
        width: output width D of the elements.
        dropout: dropout rate of the elements' values.
        standardise: standardise features by the store's statistics; `auto` does so if the store has them.
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
    """Stored features without a map, such as embeddings of a pretrained image-text model.

    Args:
        assets: see `FeatureEncoder`.
        unit: L2-normalise each element, as CLIP4Clip does before it averages frames.
    """

    def __init__(self, assets: Mapping[str, Any], *, unit: bool = False) -> None:
        super().__init__(assets, standardise=False)
        self.width: int = assets["dim"]
        self.unit = unit

    def forward(self, x_BNF: Tensor, mask_BN: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features `(B, N, F)` in float32."""
        x_BNF = x_BNF.float()
        return (nn.functional.normalize(x_BNF, dim=-1, eps=1e-8) if self.unit else x_BNF), mask_BN


class _ResidualMLP(FeatureEncoder):
    """A linear map `fc`, and an MLP of input width `inputs` with batch normalisation."""

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
        """Map `(R, I)` to `(R, D)`; batch statistics cover the rows that `Rows.real` marks."""
        return self.up(self.norm(self.down(x_RI), real).relu())


@ENCODERS.register("regions")
class Regions(_ResidualMLP):
    """A linear map plus an MLP with batch normalisation, both of the raw features.

    The image encoder of VSE-infinity (its code, `EncoderImageAggr`).

    Args:
        assets: see `FeatureEncoder`.
        width: output width D of the elements.
        hidden: width of the MLP; by default half of `width`.
        standardise: standardise features by the store's statistics; `auto` does so if the store has them.
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
    """A linear map, then a residual MLP with batch normalisation, then dropout.

    The image encoder of DivE.

    Args:
        assets: see `FeatureEncoder`.
        width: output width D of the elements.
        hidden: width of the MLP; by default half of `width`.
        dropout: dropout rate of the elements' values.
        standardise: standardise features by the store's statistics; `auto` does so if the store has them.
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


@ENCODERS.register("pooled_regions")
class PooledRegions(_ResidualMLP):
    """`regions` applied to concatenated poolings of the raw features: a set of one element.

    [CLS] and the mean element, concatenated (`pool="cls mean"`), are the input of DINOv2's linear evaluation (Oquab et
    al., TMLR 2024). Each channel is standardised by batch normalisation. Dropout of these inputs regularises training
    on few photographs, and so do torch's initial weights of the linear map, smaller than Xavier's of `regions`.

    Args:
        assets: see `FeatureEncoder`.
        width: output width D of the element.
        hidden: width of the MLP; by default half of `width`.
        pool: aggregators of one vector, separated by spaces.
        element_dropout: share of the elements that symmetric aggregators leave out in training; `cls` keeps the first.
        input_dropout: dropout rate of the pooled features.
    """

    def __init__(
        self,
        assets: Mapping[str, Any],
        *,
        width: int = 1024,
        hidden: int | None = None,
        pool: str = "cls mean",
        element_dropout: float = 0.0,
        input_dropout: float = 0.5,
    ) -> None:
        pools = [AGGREGATORS.build(spec, assets["dim"]) for spec in pool.split()]
        if not pools or any(each.num_embeddings != 1 or each.context != "none" for each in pools):
            raise InputError(
                f"pool {pool!r}: expected aggregators of one vector, separated by spaces, as 'cls mean'"
            )
        inputs = sum(each.width or assets["dim"] for each in pools)
        super().__init__({"dim": inputs}, width=width, inputs=inputs, hidden=hidden, standardise=False)
        self.fc.reset_parameters()
        self.pools = nn.ModuleList(pools)
        self.element_dropout = Dropout(element_dropout)
        self.input_norm = SetBatchNorm(inputs, affine=False)
        self.input_dropout = Dropout(input_dropout)

    def forward(self, x_BNF: Tensor, mask_BN: Tensor) -> tuple[Tensor, Tensor]:
        """Map features `(B, N, F)` to `(B, 1, D)`."""
        x_BNF = self.features(x_BNF, mask_BN)
        kept_BN = self.kept(mask_BN)
        pooled = [pool(x_BNF, kept_BN if pool.symmetric else mask_BN) for pool in self.pools]
        x_BI = torch.cat([each.vectors for each in pooled], dim=1)
        x_BI = self.input_dropout(self.input_norm(x_BI))
        vector_BD = self.fc(x_BI) + self.mlp(x_BI, None)
        return vector_BD[:, None], mask_BN.new_ones(len(x_BI), 1)

    def kept(self, mask_BN: Tensor) -> Tensor:
        """Return the mask of the elements that dropout keeps; a set that would lose all its elements keeps all."""
        kept_BN = self.element_dropout(mask_BN.float()) > 0
        return kept_BN.where(kept_BN.any(dim=1, keepdim=True), mask_BN)
