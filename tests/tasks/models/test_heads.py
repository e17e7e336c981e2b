"""The model `heads`: pairs of branches with one loss each."""

import pytest
import torch
from small_models import batch_of, small_model

from polypool.infra.errors import InputError
from polypool.tasks.objectives.objective import batch_positives

HEADS = {"model": "heads(k=2)", "aggregator": "gpo", "objective": "infonce"}


def test_heads_average_losses_and_cosines():
    model, batch = small_model(**HEADS).eval(), batch_of(0, 7, 20, 3, 30, 12)
    visual, text = model.encode_visual(batch), model.encode_text(batch)
    cosines = [visual.vectors[:, k] @ text.vectors[:, k].T for k in (0, 1)]
    assert not torch.allclose(*cosines)
    torch.testing.assert_close(model.score(visual, text), sum(cosines) / 2)
    positive_VT = batch_positives(batch["item"], batch["row"])
    losses = [model.objective(c, batch["row"], positive_VT, epoch=2.0)["loss"] for c in cosines]
    torch.testing.assert_close(model(batch, epoch=2.0)["loss"], sum(losses) / 2)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"aggregator": "map(k=4, heads=2)"}, "MAP and MAP by SmoothChamfer"),
        ({"aggregator": "mean", "similarity": "maxsim"}, "Mean and Mean by MaxSim"),
    ],
)
def test_heads_refuse_sets_and_other_similarities(changes, what):
    with pytest.raises(InputError, match=f"not the vectors of {what}"):
        small_model(**HEADS | changes)
