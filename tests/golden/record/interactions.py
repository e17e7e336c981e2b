"""Record learned similarities of sets."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from recording import Family, Repository
from torch import Tensor, nn
from torch.nn.functional import normalize


def drl(repository: Repository) -> None:
    """Record DRL's weighted token interaction; its weights, too, are computed from normalised elements."""
    kind = repository.load("tvr.models.modeling", without=("ftfy", "regex", "cv2")).DRL
    with repository.part("wti", "tvr/models/modeling.py", "wti_interaction, transposed") as part:
        for layers in (1, 2, 3):
            module = kind.__new__(kind)
            nn.Module.__init__(module)
            module.config = SimpleNamespace(interaction="wti")
            for name in ("text_weight_fc", "video_weight_fc"):
                maps = [part for _ in range(layers - 1) for part in (nn.Linear(8, 8), nn.ReLU())]
                maps.append(nn.Linear(8, 1))
                setattr(module, name, nn.Sequential(*maps) if layers > 1 else maps[0])

            def call(m: nn.Module = module, **inputs: Tensor) -> Tensor:
                sides = [normalize(inputs[name], dim=-1) for name in ("text", "visual")]
                masks = [
                    inputs[f"{name}_mask"].to(side.dtype)
                    if f"{name}_mask" in inputs
                    else side.new_ones(side.shape[:2])
                    for name, side in zip(("text", "visual"), sides, strict=True)
                ]
                return m.wti_interaction(*sides, *masks)[0].T

            inputs = {"visual": part.normal(3, 5, 8), "text": part.normal(4, 2, 8)}
            part.case(f"whole{layers}", f"MLPs of {layers} linear maps", module, call, **inputs)
            (visual, visual_mask), (text, text_mask) = (
                part.sets(5, 1, 3, dim=8),
                part.sets(2, 3, 1, 2, dim=8),
            )
            masks = {"visual_mask": visual_mask, "text_mask": text_mask}
            what = "the same, and pads, which no cosine is below"
            part.case(f"masked{layers}", what, module, call, visual=visual.abs(), text=text.abs(), **masks)


def video_colbert(repository: Repository) -> None:
    """Record a third party's Video-ColBERT: the levels of a video, their similarities with texts, and the loss."""
    file = repository.load("tvr.models.modeling", without=("ftfy", "regex"))
    model = file.VideoColBERT.__new__(file.VideoColBERT)
    nn.Module.__init__(model)
    module = file.TransformerClip(d_model=8, nhead=2, num_layers=2, dim_feedforward=16, dropout=0.0)
    with repository.part("video_colbert", "tvr/models/module_cross.py", "Transformer") as part:
        what = "5 frames, then their encodings and those of 2 expansion tokens"
        part.case("levels", what, module, lambda x: torch.cat((x, module(x)), dim=1), x=part.normal(3, 5, 8))

    def units(**sides: Tensor) -> tuple[Tensor, ...]:
        return tuple(normalize(side, dim=-1) for side in sides.values())

    with repository.part("mms", "tvr/models/modeling.py", "VideoColBERT, VideoColBERTLoss") as part:
        sides = {"text": part.normal(4, 3, 8), "frames": part.normal(4, 5, 8), "video": part.normal(4, 7, 8)}
        what = "the sum of both levels, transposed"
        part.case("sum", what, None, lambda **sides: model.mms_interaction(*units(**sides))[0].T, **sides)
        loss = file.VideoColBERTLoss(temperature=3.0, bias=-1.5, lambda_f=0.7, lambda_v=1.2)

        def call(**sides: Tensor) -> Tensor:
            return loss(*model.mms_interaction(*units(**sides))[2:])[0]

        what = "weights 0.7 of frames and 1.2 of the video, a scale of 3 and a bias of -1.5"
        part.case(
            "loss", what, None, call, **{name: part.normal(*side.shape) for name, side in sides.items()}
        )


def main() -> None:
    """Record all."""
    family = Family("interactions")
    with family.repository("Seyanliu/Video-ColBERT", "none stated") as repository:
        video_colbert(repository)
    with family.repository("foolwood/DRL", "Apache-2.0") as repository:
        drl(repository)
    family.write()


if __name__ == "__main__":
    main()
