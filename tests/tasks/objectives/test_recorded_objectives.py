"""Objectives, similarities and regularisers against recorded outputs of the authors' code."""

import pytest
import torch
from recorded import hold
from torch import Tensor, nn
from torch.nn.functional import normalize

from polypool.infra.registry import OBJECTIVES, REGULARISERS, SIMILARITIES
from polypool.tasks.similarities.similarity import Similarity
from polypool.tasks.similarities.vectors import Embeddings


def loss_of(objective: nn.Module, sim_VT: Tensor) -> Tensor:
    """Return the loss after the warm-up of scores whose pairs are on the diagonal."""
    row_T = torch.arange(len(sim_VT))
    return objective(sim_VT, row_T, torch.eye(len(sim_VT), dtype=torch.bool), epoch=5.0)["loss"]


@pytest.mark.parametrize(
    ("part", "spec", "names"),
    [
        ("infonce", "infonce(learned=True)", ("log_scale",)),
        ("siglip", "siglip", ("log_scale", "bias")),
    ],
)
def test_contrastive_losses_match_recorded_outputs(golden, part, spec, names):
    objective = OBJECTIVES.build(spec)
    names = {name: name for name in names}
    hold(golden / "objectives", f"{part}/pairs", objective, lambda sim: loss_of(objective, sim), names)


@pytest.mark.parametrize(("case", "pseudo"), [("pairs", 0.0), ("pseudo", 0.3)])
def test_pcmepp_matches_recorded_outputs(golden, case, pseudo):
    objective, csd = OBJECTIVES.build(f"pcmepp(pseudo={pseudo})"), SIMILARITIES.build("csd")

    def call(**inputs: Tensor) -> Tensor:
        sides = [torch.stack((inputs[f"mean_{x}"], inputs[f"log_variance_{x}"]), dim=1) for x in "vt"]
        return loss_of(objective, csd(*sides))

    hold(
        golden / "objectives",
        f"pcmepp/{case}",
        objective,
        call,
        {"scale": "negative_scale", "bias": "shift"},
    )


def test_hardest_triplet_on_mil_matches_recorded_outputs(golden):
    objective = OBJECTIVES.build("triplet(margin=0.3, reduction=mean)")
    mil = SIMILARITIES.build("mil")

    def call(visual: Tensor, text: Tensor) -> Tensor:
        return loss_of(objective, mil(normalize(visual, dim=-1), normalize(text, dim=-1)))

    hold(golden / "objectives", "mil/hardest", objective, call, {})


def test_maxsim_matches_recorded_outputs(golden):
    maxsim = SIMILARITIES.build("maxsim")

    def call(visual: Tensor, text: Tensor) -> Tensor:
        return maxsim(normalize(visual, dim=-1), normalize(text, dim=-1))

    hold(golden / "objectives", "maxsim/both", maxsim, call, {})


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("case", ["whole", "masked"])
def test_wti_matches_recorded_outputs(golden, case, layers):
    wti = Similarity.build(f"wti(layers={layers})", 8)
    ends = [f".{2 * number}" for number in range(layers)]
    names = {
        f"{ours}{end}.{kind}": f"{theirs}_weight_fc{end * (layers > 1)}.{kind}"
        for ours, theirs in (("visual", "video"), ("text", "text"))
        for end in ends
        for kind in ("weight", "bias")[: 1 + (end != ends[-1])]
    }

    def call(**inputs: Tensor) -> Tensor:
        sides = [normalize(inputs[name], dim=-1) for name in ("visual", "text")]
        if case == "masked":
            sides = [
                side * inputs[f"{name}_mask"][..., None]
                for side, name in zip(sides, ("visual", "text"), strict=True)
            ]
        return wti(*sides)

    hold(golden / "interactions", f"wti/{case}{layers}", wti, call, names)


def test_regularisers_match_recorded_outputs(golden):
    diversity, mmd, vib = (REGULARISERS.build(f"{name}(weight=1.0)") for name in ("diversity", "mmd", "vib"))
    half = 0.5  # ours sum over both modalities, the recorded ones over one

    def spread(x: Tensor) -> Tensor:
        return half * diversity(Embeddings(x), Embeddings(x))

    def divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
        side = Embeddings(torch.stack((mean, log_variance), dim=1))
        return half * vib(side, side)

    def discrepancy(visual: Tensor, text: Tensor) -> Tensor:
        return mmd(Embeddings(visual), Embeddings(text))

    folder = golden / "objectives"
    hold(folder, "diversity/one_side", diversity, spread, {})
    hold(folder, "vib/one_side", vib, divergence, {})
    hold(folder, "mmd/plain", mmd, discrepancy, {})
