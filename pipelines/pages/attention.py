"""The page of where the aggregators of a trained model look, for either kind of task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from infra.dist import rank
from infra.registry import ENCODERS, Spec
from pipelines.pages.attended import Attended, attended, caption_pairs, question_pairs
from pipelines.pages.attention_page import Split, attention_page
from pipelines.pages.thumbnails import Thumbnails
from tasks.models.split_embeddings import SplitEmbeddings
from tasks.scoring.scores import Score

if TYPE_CHECKING:
    from tasks.visual_text import VisualText
    from tasks.vqa import VQA


def attention_to_captions(
    adapter: VisualText, model: nn.Module, split: str, score: Score
) -> dict[str, bytes]:
    """Return the page of a retrieval model by file name; nothing where it has none, or on workers but the first.

    Args:
        adapter: of the task.
        model: a trained one.
        split: whose items and captions are shown.
        score: what scores the split; its embeddings tell which caption lies nearest to each vector of an image.
    """
    pairs = adapter.data(split)
    found = attended(model, caption_pairs(pairs))
    sets = isinstance(score, SplitEmbeddings) and score.visual.dim() == 3
    return _page(
        found,
        adapter,
        split,
        items=adapter.corpus.items(split) if found else [],
        ids=pairs.item_ids,
        texts=pairs.texts,
        owner_G=pairs.owner_G,
        modality=adapter.modality,
        embeddings=score if sets else None,
    )


def attention_to_questions(adapter: VQA, model: nn.Module, split: str) -> dict[str, bytes]:
    """Return the page of a model that answers questions, likewise."""
    found = attended(model, question_pairs(adapter.data(split)))
    questions = adapter.corpus.questions(split) if found else []
    return _page(
        found,
        adapter,
        split,
        items=questions,
        ids=[question.image_id for question in questions],
        texts=[question.question for question in questions],
        owner_G=np.empty(0, np.int64),
        modality="image",
        embeddings=None,
    )


def _page(
    found: list[Attended], adapter: VisualText | VQA, split: str, *, items: list[Any], **shown: Any
) -> dict[str, bytes]:
    if not found or rank() > 0:
        return {}
    tokenizer = ENCODERS.get(Spec.parse(adapter.run.text).name).tokenizer(adapter.assets["text"])
    with Thumbnails(adapter.corpus, items, video=shown["modality"] == "video") as thumbnails:
        about = Split(
            name=split, tokenizer=tokenizer, thumbnails=thumbnails, extractor=_extractor(adapter), **shown
        )
        return {f"{split}_attention.html": attention_page(found, about).encode()}


def _extractor(adapter: VisualText | VQA) -> Mapping[str, Any] | None:
    """Return what made cells of the images, empty where that is not told; None where elements are regions."""
    if adapter.store is None:  # the model itself, of the whole image
        return {}
    unknown = None if "regions" in Spec.parse(adapter.run.visual).name else {}
    return adapter.store.manifest.source.get("extractor", unknown)
