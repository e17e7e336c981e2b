"""Parts and tasks that break one property each, for `check` to find."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import template_task
import torch
from torch import nn

from polypool.aggregators.aggregator import Pooled
from polypool.aggregators.averages.mean import Mean
from polypool.encoders.text.bigru import BiGRU
from polypool.encoders.visual.stored import Grid
from polypool.infra.registry import Spec
from polypool.tasks.abilities import Searchable
from polypool.tasks.adapter import Evaluation, Metric
from polypool.tasks.image_text import ImageText
from polypool.tasks.inputs.texts import Captions
from polypool.tasks.inputs.visuals import unseen_inputs
from polypool.tasks.objectives.infonce import InfoNCE
from polypool.tasks.objectives.regularisers import MMD
from polypool.tasks.similarities.similarity import Cosine


class Summing(Mean):
    """Ignores the mask."""

    def forward(self, x_BND, mask_BN):
        return Pooled(x_BND.sum(dim=1))


class Unbuilt(Mean):
    """Fails in its constructor."""

    def __init__(self, dim):
        super().__init__(dim)
        raise RuntimeError(f"no room for {dim}")


class Exits(Mean):
    """Exits the program in `forward`."""

    def forward(self, x_BND, mask_BN):
        raise SystemExit(3)


class Padded(Grid):
    """Subtracts a mean that includes the pads."""

    def forward(self, x_BNF, mask_BN):
        x_BND, mask_BN = super().forward(x_BNF, mask_BN)
        return x_BND - x_BND.mean(dim=1, keepdim=True), mask_BN


class Halfway(Grid):
    """Halves the inputs in `before_affine`, but not in `forward`."""

    def forward(self, x_BNF, mask_BN):
        return super().forward(x_BNF, mask_BN)

    def before_affine(self, x_BNF, mask_BN):
        return self.features(x_BNF, mask_BN) / 2, mask_BN, self.fc


class Mates(BiGRU):
    """Adds the batch's mean, and has an unused weight."""

    def __init__(self, assets, *, width: int = 8):
        super().__init__(assets, width=width, embedding=8)
        self.idle = nn.Linear(2, 2)

    def forward(self, token_BL, mask_BL):
        x_BLD, mask_BL = super().forward(token_BL, mask_BL)
        return x_BLD + x_BLD.mean(dim=(0, 1)), mask_BL


class Tensors(BiGRU):
    @classmethod
    def prepare(cls, captions, **params):
        return super().prepare(captions, **params) | {"sizes": torch.ones(2)}


class Relative(Cosine):
    def forward(self, query, gallery):
        sim_QG = super().forward(query, gallery)
        return sim_QG - sim_QG.mean()


class Backwards(InfoNCE):
    def forward(self, sim_VT, row_T, positive_VT, *, epoch):
        loss = super().forward(sim_VT, row_T, positive_VT, epoch=epoch)["loss"]
        return {"loss": 2 * loss.detach() - loss}


class HiddenLayers(Cosine):
    """Keeps its layers in a plain list, where torch does not find them."""

    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(8, 8)]

    def forward(self, query, gallery):
        return super().forward(self.layers[0](query), gallery)


class LateWeight(InfoNCE):
    """Uses its weight only after epoch 1."""

    def __init__(self):
        super().__init__()
        self.late = nn.Parameter(torch.ones(()))

    def forward(self, sim_VT, row_T, positive_VT, *, epoch):
        return super().forward(sim_VT * self.late if epoch > 1 else sim_VT, row_T, positive_VT, epoch=epoch)


class IdleTerm(MMD):
    """Has an unused weight."""

    def __init__(self, *, weight=1.0):
        super().__init__(weight=weight)
        self.idle = nn.Parameter(torch.ones(2))


class Rolling(template_task.Labelled):
    """Draws noise from a shared generator instead of seed and epoch."""

    rng = np.random.default_rng(0)

    def batch(self, index_B, *, seed, epoch):
        batch = super().batch(index_B, seed=seed, epoch=epoch)
        noise = self.rng.normal(size=batch["visual"].shape).astype(np.float32)
        return batch | {"visual": batch["visual"] + torch.from_numpy(noise)}


class Task(template_task.CaptionWord):
    """The template task; subclasses break it."""

    def data(self, split):
        data = super().data(split)
        data.__class__ = getattr(self, "dataset", data.__class__)
        return data


class Unseeded(Task):
    dataset = Rolling


class Short(Task):
    class dataset(template_task.Labelled):
        def batch(self, index_B, *, seed, epoch):
            batch = super().batch(index_B, seed=seed, epoch=epoch)
            return batch | {"visual_mask": batch["visual_mask"].long()}


class NotANumber(Task):
    def loss(self, model, batch, *, epoch):
        return {"loss": super().loss(model, batch, epoch=epoch)["loss"] * float("nan")}


class At(Task):
    def evaluate(self, model, split, protocol):
        found = super().evaluate(model, split, protocol)
        return replace(found, metrics=found.metrics | {"R@1": 1.0})


class Unjoined(Task):
    def evaluate(self, model, split, protocol):
        found = super().evaluate(model, split, protocol)
        return replace(found, per_query={"right": found.per_query["right"]})


class Nameless(Task):
    def evaluate(self, model, split, protocol):
        return Evaluation(protocol=protocol, metrics={"recall": 1.0}, primary=self.primary)


class Changed(Task):
    """Returns a changed evaluation."""

    def evaluate(self, model, split, protocol):
        return self.changed(super().evaluate(model, split, protocol))


class Chanceless(Changed):
    def changed(self, found):
        return replace(found, primary=replace(found.primary, chance=float("nan")))


class Unnoted(Changed):
    def changed(self, found):
        return replace(found, query_metrics=())


class Inverted(Changed):
    """Lower is better, but the best value (100) is worse than chance (1)."""

    primary = Metric(name="word_recall", higher_is_better=False, best=100.0)

    def changed(self, found):
        return replace(found, primary=replace(found.primary, chance=1.0))


class Hungry(Task):
    def __init__(self, run, assets=None, *, place=1):
        super().__init__(run, assets, place=place)
        self.inputs.corpus.items("train")


class Flipped(Task):
    """Returns the negative of the scores that it evaluates."""

    def scorer(self, model, split):
        score = super().scorer(model, split)
        return lambda items, words: -score(items, words)

    def evaluate(self, model, split, protocol):
        return self.evaluate_scores(super().scorer(model, split), split, protocol)


class Whole(Task):
    """Returns the scores of the whole split for every block."""

    def scorer(self, model, split):
        score = super().scorer(model, split)
        return lambda items, words: score(slice(None), slice(None))


class Unnamed(Task, Searchable):
    """Declares an ability that it does not have."""

    def text_inputs(self, texts):
        return Captions(texts, ())

    def visual_inputs(self, visuals):
        return unseen_inputs(visuals, spec=Spec.parse(self.run.visual), assets=self.assets["visual"])


class Forgetful(ImageText):
    """Reads only the last word of a text in a batch of one."""

    def text_inputs(self, texts):
        return super().text_inputs(texts if len(texts) > 1 else [texts[0].split()[-1]])


class Underived:
    """Has the methods of a task, but not its base class."""

    __init__ = template_task.CaptionWord.__init__
    _prepare, _word = template_task.CaptionWord._prepare, template_task.CaptionWord._word
    describe, sources, data, model = (
        getattr(template_task.CaptionWord, name) for name in ("describe", "sources", "data", "model")
    )
    primary, dev_protocol = template_task.CaptionWord.primary, "caption_word"
