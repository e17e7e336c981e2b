"""Low-rank adaptation (LoRA), by peft."""

from __future__ import annotations

from torch import nn

from polypool.encoders.adaptations import Adaptation
from polypool.infra.errors import InputError
from polypool.infra.fields import at_least, below, require
from polypool.infra.registry import ADAPTATIONS


@ADAPTATIONS.register("lora")
class Lora(Adaptation):
    """Train low-rank updates of linear maps, W + (alpha / r) B A, with W frozen.

    A `(r, in)` is initialised at random and B `(out, r)` at zero, so that training starts from the published model.
    Source: Hu et al., "LoRA: low-rank adaptation of large language models", ICLR 2022, equation 3.

    Args:
        r: rank of the updates.
        alpha: numerator of their scale, a whole number; r if None, for a scale of 1.
        dropout: dropout rate of the input of A.
        parts: last components of the names of the linear maps, or `all`; by default queries and values of attention, by
            their names in BERT, and in ViT, DINOv2, CLIP, SigLIP and most decoders.
        sides: `visual`, `text` or both.
    """

    def __init__(
        self,
        *,
        r: int = 8,
        alpha: int | None = None,
        dropout: float = 0.0,
        parts: str = "query value q_proj v_proj",
        sides: str = "visual text",
    ) -> None:
        super().__init__(sides=sides)
        require(at_least(1), r=r)
        require(at_least(0), dropout=dropout)
        require(below(1), dropout=dropout)
        self.r, self.alpha, self.dropout, self.parts = (
            r,
            r if alpha is None else alpha,
            dropout,
            parts.split(),
        )

    def change(self, model: nn.Module) -> None:
        from peft import LoraConfig, inject_adapter_in_model

        maps = [name for name, part in model.named_modules() if isinstance(part, nn.Linear)]
        chosen = [name for name in maps if self.parts == ["all"] or name.rpartition(".")[2] in self.parts]
        if not chosen:
            names = ", ".join(sorted({name.rpartition(".")[2] for name in maps})) or "none"
            raise InputError(
                f"lora: the model has no linear maps called {' or '.join(self.parts)}; it has {names}"
            )
        config = LoraConfig(
            r=self.r, lora_alpha=self.alpha, lora_dropout=self.dropout, target_modules=chosen, bias="none"
        )
        inject_adapter_in_model(config, model)

    def is_added(self, name: str) -> bool:
        return ".lora_" in name

    def merge(self, model: nn.Module) -> None:
        from peft.tuners.tuners_utils import BaseTunerLayer

        for name, part in [*model.named_modules()]:
            if isinstance(part, BaseTunerLayer):
                part.merge()
                model.set_submodule(name, part.get_base_layer())
