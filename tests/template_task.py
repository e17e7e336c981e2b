"""A task to copy: change what a batch means, what is minimised and what is scored; CONTRIBUTING.md has the checklist.

This one looks at the features of an item and says which word stands at a place of its first caption.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch
from torch import nn

from infra.compute.device import device_of, on_device
from infra.compute.dist import all_sum
from infra.errors import InputError
from infra.paths import resolve
from infra.registry import AGGREGATORS, ENCODERS, TASKS
from infra.store import FeatureStore
from tasks.abilities import Scores
from tasks.base import Evaluation, Metric, QueryMean, QueryMetric, TaskAdapter
from tasks.datasets.corpus import Corpus
from tasks.inputs.pairs import StoredSets


class Labelled:
    """The items of a split and the numbers of their words, the last one for all that training did not have."""

    def __init__(self, items, store, words, word_of):
        number = {word: n for n, word in enumerate(words)}
        self.ids = [item.id for item in items]
        self.sets = StoredSets(store, self.ids)
        self.word = torch.tensor([number.get(word_of(item), len(words)) for item in items])

    def __len__(self):
        return len(self.ids)

    def batch(self, index_B, *, seed, epoch):
        visual, mask = self.sets.batch(index_B, sample_B=index_B, draw=None)
        return {"visual": visual, "visual_mask": mask, "word": self.word[index_B]}


class Classifier(nn.Module):
    def __init__(self, encoder, aggregator, classes):
        super().__init__()
        self.encoder, self.aggregator = encoder, aggregator
        self.linear = nn.Linear(aggregator.width or encoder.width, classes)

    def forward(self, batch):
        sets = self.encoder(batch["visual"], batch["visual_mask"])
        return self.linear(self.aggregator(*sets).vectors)


@TASKS.register("caption_word")
class CaptionWord(TaskAdapter, Scores):
    primary = Metric(name="word_recall", best=100.0, unit="%")
    dev_protocol = "caption_word"

    def __init__(self, run, assets=None, *, place=1):
        self.run, self.place = run, place
        self.assets = assets or self._prepare()

    def _prepare(self):
        counts = Counter(self._word(item) for item in self.corpus.items("train"))
        visual = {"dim": self.store.dim, "statistics": self.store.manifest.statistics}
        return {"visual": visual, "words": [word for word, _ in counts.most_common()]}

    @cached_property
    def corpus(self):
        return Corpus.open(resolve(self.run.data.corpus))

    @cached_property
    def store(self):
        return FeatureStore.open(resolve(self.run.data.features))

    def _word(self, item):
        return [*item.captions[0].split(), *[""] * (self.place + 1)][self.place]

    def describe(self):
        return {"corpus": self.corpus.digest, "features": self.store.digest}

    def data(self, split):
        return Labelled(self.corpus.items(split), self.store, self.assets["words"], self._word)

    def model(self, *, pretrained=True):
        encoder = ENCODERS.build(self.run.visual, self.assets["visual"])
        if pretrained:
            encoder.load_pretrained()
        aggregator = AGGREGATORS.build(self.run.aggregator, encoder.width)
        return Classifier(encoder, aggregator, len(self.assets["words"]) + 1)

    def loss(self, model, batch, *, epoch):
        total = nn.functional.cross_entropy(model(batch).float(), batch["word"], reduction="sum")
        total, count = all_sum(torch.stack([total, torch.full_like(total, len(batch["word"]))])).unbind()
        return {"loss": total / count.detach()}

    def scorer(self, model, split):
        data, device = self.data(split), device_of(model.eval())

        @torch.inference_mode()
        def score(items, words):
            batch = data.batch(np.arange(len(data))[items], seed=0, epoch=0)
            return model(on_device(batch, device)).float().softmax(dim=1)[:, words]

        return score

    def check_same_data(self, other, split):
        ours, theirs = ((adapter.assets["words"], adapter.data(split).ids) for adapter in (self, other))
        if ours != theirs:
            raise InputError(f"the words or the {split} items of two runs differ; give runs on one corpus")

    def evaluate_scores(self, score, split, protocol):
        data = self.data(split)
        starts = range(0, len(data), 256)
        best = [score(slice(start, start + 256), slice(None)).argmax(dim=1).cpu() for start in starts]
        right_Q = (torch.cat(best) == data.word).double().numpy()
        mean = QueryMean(scores=("right",), units="image_id", factor=100.0)
        return Evaluation(
            protocol=protocol,
            metrics={"word_recall": 100.0 * right_Q.mean().item()},
            primary=replace(self.primary, chance=100 / (len(self.assets["words"]) + 1)),
            per_query={"image_id": np.array(data.ids), "right": right_Q},
            query_metrics=(QueryMetric(name="word_recall", means=(mean,), units="images"),),
        )

    def evaluate(self, model, split, protocol):
        return self.evaluate_scores(self.scorer(model, split), split, protocol)
