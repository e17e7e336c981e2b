"""A task to copy: change the batch, the loss and the metrics; docs/add-a-task.md has the checklist.

This task predicts, from the features of an item, the word at position `place` of its first caption.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from polypool.infra.compute.device import device_of, on_device
from polypool.infra.compute.dist import all_sum
from polypool.infra.errors import InputError
from polypool.infra.registry import TASKS
from polypool.tasks.abilities import Scores
from polypool.tasks.adapter import Evaluation, Metric, QueryMean, QueryMetric, TaskAdapter
from polypool.tasks.inputs.corpus_inputs import CorpusInputs
from polypool.tasks.models.parts import Parts


class Labelled:
    """The items of a split and the classes of their words; the last class is for words not seen in training."""

    def __init__(self, items, visual, words, word_of):
        number = {word: n for n, word in enumerate(words)}
        self.ids, self.visual = [item.id for item in items], visual
        self.word = torch.tensor([number.get(word_of(item), len(words)) for item in items])

    def __len__(self):
        return len(self.ids)

    def batch(self, index_B, *, seed, epoch):
        visual, mask = self.visual.batch(index_B, sample_B=index_B, draw=None)
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
        self.run, self.place, self.inputs = run, place, CorpusInputs(run)
        self.assets = self.inputs.assets = assets or self._prepare()

    def _prepare(self):
        self.inputs.check_inputs()
        counts = Counter(self._word(item) for item in self.inputs.corpus.items("train"))
        return self.inputs.visual_assets() | {"words": [word for word, _ in counts.most_common()]}

    def _word(self, item):
        return [*item.captions[0].split(), *[""] * (self.place + 1)][self.place]

    def describe(self):
        return self.inputs.describe()

    def sources(self):
        return self.inputs.sources()

    def data(self, split):
        items = self.inputs.corpus.items(split)
        return Labelled(items, self.inputs.item_inputs(items), self.assets["words"], self._word)

    def model(self, *, pretrained=True):
        parts = Parts.of(self.run, self.assets, pretrained=pretrained)
        encoder = parts.visual()
        return Classifier(encoder, parts.visual_aggregator(encoder.width), len(self.assets["words"]) + 1)

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
