"""Checks of adaptations of published weights, on a small random BERT."""

from __future__ import annotations

import copy
from functools import cached_property

import torch
from torch import Tensor, nn

from polypool.encoders.adaptations import Adaptation
from polypool.infra.registry import ADAPTATIONS
from polypool.pipelines.checks.part_checks import PartChecks, check


class AdaptationChecks(PartChecks):
    """Checks of one adaptation."""

    @cached_property
    def part(self) -> Adaptation:
        return ADAPTATIONS.build(self.spec)

    @cached_property
    def _published(self) -> nn.Module:
        from transformers import BertConfig, BertModel

        torch.manual_seed(0)
        config = BertConfig(
            vocab_size=9, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16
        )
        return BertModel(config, add_pooling_layer=False).eval()

    def _changed(self, *, moved: bool) -> nn.Module:
        """Return the changed model; if `moved`, its added weights are random."""
        model = copy.deepcopy(self._published).requires_grad_(False)
        self.part.change(model)
        if moved:
            for name, weight in model.named_parameters():
                if self.part.is_added(name):
                    nn.init.normal_(weight, std=0.1)
        return model.eval()

    @check("it is built", "take every parameter by keyword, with a default", vital=True)
    def _built(self) -> str:
        return f"of the side {' and '.join(self.part.sides)}"

    @check(
        "it adds weights and freezes all others", "let `change` add weights that `is_added` tells", vital=True
    )
    def _adds(self) -> str:
        names = [
            name for name, weight in self._changed(moved=False).named_parameters() if weight.requires_grad
        ]
        wrong = [name for name in names if not self.part.is_added(name)]
        assert not wrong, f"{wrong[0]} is trained, and no checkpoint holds it"
        return f"{len(names)} weights are trained"

    @check("a new model is the published one", "let what is added change nothing before training")
    def _begins(self) -> None:
        torch.testing.assert_close(_states(self._changed(moved=False)), _states(self._published))

    @check("every added weight gets a gradient", "use each of them in every pass")
    def _gradients(self) -> None:
        model = self._changed(moved=True)
        weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        if weights:
            _states(model).square().sum().backward()
        without = [name for name, weight in weights.items() if weight.grad is None or not weight.grad.any()]
        assert not without, f"{without[0]} has none"

    @check("what is merged computes the same, with the published names", "undo in `merge` what `change` does")
    def _merges(self) -> None:
        model = self._changed(moved=True)
        expected = _states(model)
        self.part.merge(model)
        assert model.state_dict().keys() == self._published.state_dict().keys(), "names of weights differ"
        torch.testing.assert_close(_states(model), expected)


def _states(model: nn.Module) -> Tensor:
    return model(input_ids=torch.arange(8).view(2, 4)).last_hidden_state
