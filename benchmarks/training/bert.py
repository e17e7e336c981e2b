"""A training step with BERT for the captions, against the authors' arithmetic around the same transformer."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch

from benchmarks.measure import Measurement, Scale, by_turns
from benchmarks.training.authors import AuthorsStep
from benchmarks.training.paper import check, distinct, drawn, past_warm_up, per_step
from benchmarks.training.watched import TrainingSize, random_run
from polypool.infra.process.memory import keep_freed_memory
from polypool.pipelines.recipes.load import derive

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


@dataclass(frozen=True, kw_only=True)
class BertSize(TrainingSize):
    """`coco_region_bert` with a BERT of random weights, of the shape of BERT-mini by default."""

    quick: ClassVar = {"images": 160, "batch": 64, "steps": 1, "rounds": 2}
    tiny: ClassVar = TrainingSize.tiny | {"hidden": 8, "layers": 1, "heads": 2, "width": 8}
    steps: int = 2
    width: int = 1024
    hidden: int = 256
    layers: int = 4
    heads: int = 4


def bert_step(scale: Scale = "full") -> list[Measurement]:
    """Measure a step as the loop takes it, on the CPU."""
    size = BertSize.of(scale)
    keep_freed_memory()  # as training's workers do; it serves both sides here
    with tempfile.TemporaryDirectory() as name:
        text = f"bert(name='{save_bert(Path(name) / 'bert', size)}', width={size.width})"
        run = derive(
            random_run(Path(name), size), text=text, aggregator="gpo", optim={"precision": "float32"}
        )
        trainer, whole = past_warm_up(run), past_warm_up(derive(run, data={"visual_augment": ""}))
        check(whole, distinct(whole, size.batch))
        batches = [trainer.data.batch(index_B, seed=0, epoch=1) for index_B in drawn(trainer, size.steps)]
    wide = [{**batch, "visual": batch["visual"].float()} for batch in batches]
    authors = AuthorsStep(trainer.model, run.optim)
    ours, theirs = (per_step(step, each) for step, each in ((trainer.train_step, batches), (authors, wide)))
    for side in (ours, theirs):
        side(0)
    return [
        Measurement(
            name="bert step / the authors' way",
            measured=f"forward to optimiser, {size.batch} sets of up to {size.regions} x {size.dim} regions, captions "
            f"of about 14 words, BERT of {size.layers} layers of {size.hidden}, float32, on the CPU",
            unit="ms",
            note="Reference: the arithmetic of VSE-infinity's code around transformers' BertModel; all weights learn, "
            "without dropout. Where no region is dropped, both have the same loss and gradients, which is checked "
            "first.",
            **by_turns(ours, theirs, rounds=size.rounds).numbers(invert=True),
        )
    ]


def save_bert(folder: Path, size: BertSize) -> str:
    """Save a BERT of random weights with a tokenizer that knows the words of the captions; return where."""
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder.mkdir()
    words = folder / "vocab.txt"
    words.write_text("\n".join([*SPECIALS, *(f"w{number}" for number in range(size.words))]))
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(SPECIALS) + size.words,
        hidden_size=size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        intermediate_size=4 * size.hidden,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        max_position_embeddings=64,
    )
    BertModel(config).save_pretrained(folder)
    BertTokenizerFast(vocab=str(words)).save_pretrained(folder)
    return str(folder)
