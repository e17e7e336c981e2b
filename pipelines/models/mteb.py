"""A trained retrieval model as mteb's runner takes it: `mteb.evaluate(mteb_model("RUN_ID"), mteb.get_tasks(...))`.

Embeddings and scores equal those in `evaluate`; mteb's metrics differ from the protocols here:

- **Recall.** R@k here is the share of queries with any correct answer among the first k, mteb's `hit_rate_at_k` (from 0
  to 1). Its `recall_at_k` is the share of a query's correct answers among the first k: at most 0.2 at k = 1 for images
  with five captions. For queries with one correct answer, such as most captions, both are R@k.
- **Metrics.** The main score is nDCG@10, and each direction is a task, without rsum, median rank and the mean over five
  galleries of 1,000 images; only the first 1,000 results are ranked.
- **Splits.** `Flickr30kI2TRetrieval` and `Flickr30kT2IRetrieval` are Karpathy's 1,000 test images with 5,000 captions,
  `MSCOCOI2TRetrieval` and `MSCOCOT2IRetrieval` his 5,000 with 24,809: mteb merges captions with equal words, which are
  then correct for up to eight images. `MSRVTTT2V` and `MSRVTTV2T` are 879 of the 1,000 videos of 1k-A.
- **Ties.** mteb sorts equal scores by id; here a tied rank is the mean over all orders.
- **Texts** are read without mteb's prompts for instruction-following models.
- **Scores** of retrieval tasks use the model's own similarity, also for sets and distributions. If it depends on the
  side, as `wti` does, embeddings have an extra channel that encodes the side. Other tasks, such as zero-shot
  classification, use inner products: these tasks, and mteb's embedding cache, need models of single vectors.
- **Features** of a picture or video are extracted as by `search --image` and `--video`, with the run's backbone and
  frame sampling, whatever rate mteb's own models sample at.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader

from polypool.infra.compute.device import device_of
from polypool.infra.errors import InputError
from polypool.infra.extras import needed
from polypool.infra.pictures import rgb
from polypool.infra.process.progress import Progress
from polypool.pipelines.data.extraction import FileFeatures
from polypool.pipelines.models.search import as_file
from polypool.pipelines.models.table_rows import EXAMPLE_TEXT
from polypool.pipelines.models.trained import TrainedModel, load
from polypool.tasks.abilities import Answers, Searchable
from polypool.tasks.models.retrieval_model import RetrievalModel
from polypool.tasks.run import to_json
from polypool.tasks.similarities.similarity import Cosine, Side, Similarity
from polypool.tasks.similarities.vectors import at_least_float32, side_by_side

if TYPE_CHECKING:
    import numpy as np
    from mteb import TaskMetadata
    from mteb.models import ModelMeta

_TEXT = "text"
_SIDES: tuple[Side, ...] = ("visual", "text")


class MtebModel:
    """mteb's `EncoderProtocol` for a model with embeddings of images or videos and of texts; see `mteb_model`.

    Args:
        trained: the model.
        name: name of the results in mteb (default: `polypool/RECIPE`).

    Raises:
        InputError: the model has no such embeddings, or cannot embed new images or videos.
    """

    def __init__(self, trained: TrainedModel, *, name: str = "") -> None:
        adapter, model = trained.adapter, trained.model
        if isinstance(adapter, Answers):
            raise InputError(
                f"the task {trained.run.task!r} answers questions, and mteb compares embeddings; give a retrieval run"
            )
        adapter = trained.as_a(Searchable, "be given to mteb", instead="give a retrieval run")
        if not isinstance(model, RetrievalModel) or not model.has_embeddings:
            raise InputError(
                f"a {type(model).__name__} with {trained.run.aggregator!r} has no embeddings of images and texts "
                "apart, which mteb compares; give a run whose model encodes them apart"
            )
        self.trained, self.modality = trained, adapter.modality
        self.name = name or f"polypool/{trained.run.label.replace(' ', '-')}"
        self._files = _files(adapter)

    @cached_property
    def mteb_model_meta(self) -> ModelMeta:
        """Key of mteb's results: the name, and as revision a digest of run, assets and weights."""
        from mteb.models.model_meta import ModelMeta, ScoringFunction

        model, example = self.trained.model, self.trained.encode_text([EXAMPLE_TEXT])
        similarity = self.trained.similarity
        cosine = isinstance(similarity, Cosine)
        sets = example.ndim > 2 and not similarity.of_distributions
        return ModelMeta(
            loader=None,
            name=self.name,
            revision=_digest(self.trained),
            release_date=None,
            languages=None,
            n_parameters=sum(x.numel() for x in model.parameters()),
            memory_usage_mb=sum(x.nbytes for x in model.state_dict().values()) / (1 << 20),
            max_tokens=None,
            embed_dim=example.shape[-1],
            license=None,
            open_weights=None,
            public_training_code=None,
            public_training_data=None,
            framework=["PyTorch"],
            similarity_fn_name=ScoringFunction.COSINE if cosine else ScoringFunction.CUSTOM,
            use_instructions=False,
            training_datasets=None,
            modalities=[_TEXT, self.modality],
            model_type=["late-interaction" if sets else "dense"],
        )

    def encode(
        self,
        inputs: Iterable[Mapping[str, Any]],
        *,
        task_metadata: TaskMetadata,
        show_progress_bar: bool = False,
        precision: str = "float32",
        **others: Any,
    ) -> Tensor:
        """Return the embeddings of mteb's inputs, on the CPU: `(B, D)`, `(B, K, D)` or `(B, 2, D)`.

        Args:
            inputs: batches by column: `text`, or `image` with Pillow images, or `video` with video files.
            task_metadata: metadata of the task.
            show_progress_bar: count batches.
            precision: mteb's name of the dtype; only `float32`.
            others: split, subset, prompt type and batch size; ignored.

        Raises:
            InputError: an unknown column, several columns for one embedding, another precision, or embeddings that the
                task does not compare by the model's similarity.
        """
        if precision != "float32":
            raise InputError(
                f"precision={precision!r}: embeddings are float32; leave encode_kwargs['precision'] out"
            )
        batches = Progress(_with_files(inputs), desc="mteb", unit="batch", disable=not show_progress_bar)
        embedding = side_by_side([self._encoded(batch).cpu() for batch in batches])
        if embedding.ndim != 2 and task_metadata.simplified_task_type != "retrieval":
            raise InputError(
                f"{task_metadata.name}: a task of type {task_metadata.type} multiplies vectors by itself, and an "
                f"embedding of this model has shape {tuple(embedding.shape[1:])}; give it retrieval tasks alone"
            )
        return embedding

    @torch.inference_mode()
    def similarity(self, embeddings1: Tensor | np.ndarray, embeddings2: Tensor | np.ndarray) -> Tensor:
        """Return the `(Q, G)` scores of the model's own similarity, float32, on the CPU."""
        similarity, embeddings = self._compared(embeddings1, embeddings2)
        return similarity(*embeddings).float().cpu()

    @torch.inference_mode()
    def similarity_pairwise(
        self, embeddings1: Tensor | np.ndarray, embeddings2: Tensor | np.ndarray
    ) -> Tensor:
        """Return the `(P,)` scores of the embeddings of equal index, float32, on the CPU."""
        similarity, embeddings = self._compared(embeddings1, embeddings2)
        return similarity.pairs(*embeddings).float().cpu()

    def close(self) -> None:
        """Stop the decoding processes."""
        if self._files:
            self._files.close()

    def _marked(self, embedding: Tensor, side: Side) -> Tensor:
        """Add the side as a channel if the similarity depends on it, because mteb does not pass it on."""
        if self.trained.similarity.symmetric:
            return embedding
        return torch.nn.functional.pad(embedding, (0, 1), value=float(_SIDES.index(side)))

    def _compared(self, *embeddings: Tensor | np.ndarray) -> tuple[Similarity, list[Tensor]]:
        similarity, device = self.trained.similarity, device_of(self.trained.model)
        parts = [at_least_float32(torch.as_tensor(embedding)).to(device) for embedding in embeddings]
        if similarity.symmetric:
            return similarity, parts
        query, gallery = (_SIDES[int(part.flatten(0, -2)[0, -1])] for part in parts)
        return similarity.between(query, gallery), [part[..., :-1] for part in parts]

    def _encoded(self, batch: Mapping[str, Any]) -> Tensor:
        found = [column for column in (_TEXT, "image", "video") if column in batch]
        if found == [_TEXT]:
            return self._marked(self.trained.encode_text(list(batch[_TEXT])), "text")
        if found != [self.modality]:
            raise InputError(
                f"a batch of mteb has {' and '.join(found) or 'neither text, image nor video'}; this model makes an "
                f"embedding of one {_TEXT}, or of one {self.modality}: choose tasks between these two"
            )
        with ExitStack() as kept:
            paths = [kept.enter_context(_path(item)) for item in batch[self.modality]]
            video = self.modality == "video"
            visuals = paths if self._files is None else [self._files.of(path, video=video) for path in paths]
            return self._marked(self.trained.encode_visual(visuals), "visual")


def mteb_model(source: str | Path, *, name: str = "", trust: Sequence[str] = ()) -> MtebModel:
    """Return a trained retrieval model for `mteb.evaluate`.

    Args:
        source: a run, by its id, or an exported folder.
        name: name of the results in mteb (default: `polypool/RECIPE`); the revision is a digest of the weights, so
            another model never gets these results.
        trust: modules whose code it may name as `module:Name`.

    Raises:
        InputError: mteb is not installed; no such run or folder; or the model answers questions, scores pairs, or
            reads features that no backbone here extracts from a new file.
    """
    with needed("mteb"):
        import mteb  # noqa: F401
    return MtebModel(load(source, trust=trust), name=name)


def _files(adapter: Searchable) -> FileFeatures | None:
    """Return the extractor of a model's features; None if it reads pixels."""
    if not adapter.visual_dim:
        return None
    try:
        files = FileFeatures.for_model(adapter)
        files.check(video=adapter.modality == "video")
    except InputError as error:
        raise InputError(f"mteb has {adapter.modality}s, and none can be described here: {error}") from error
    return files


def _digest(trained: TrainedModel) -> str:
    """Return a digest of run, assets and weights, 40 hexadecimal digits."""
    made = hashlib.sha256()
    for part in (to_json(trained.run), trained.adapter.assets):
        made.update(json.dumps(part, sort_keys=True).encode())
    for name, weight in sorted(trained.model.state_dict().items()):
        made.update(name.encode())
        made.update(weight.cpu().contiguous().flatten().view(torch.uint8).numpy())
    return made.hexdigest()[:40]


def _with_files(inputs: Any) -> Iterable[Mapping[str, Any]]:
    """Return a loader that yields encoded video files, which mteb's loader would decode with torchcodec."""
    columns = getattr(getattr(inputs, "dataset", None), "features", {})
    if not hasattr(columns.get("video"), "decode"):
        return inputs
    video = replace(columns["video"], decode=False)
    return DataLoader(
        inputs.dataset.cast_column("video", video),
        batch_size=inputs.batch_size,
        collate_fn=inputs.collate_fn,
        num_workers=inputs.num_workers,
    )


@contextmanager
def _path(item: Any) -> Iterator[Path]:
    """Yield the path of a Pillow image, written to a file, or of a file of `datasets`, while the context lasts."""
    if isinstance(item, Image.Image):
        buffer = io.BytesIO()
        rgb(item).save(buffer, "BMP")
        data, what = buffer.getvalue(), "an image of the task"
    elif isinstance(item, Mapping) and (item.get("bytes") or item.get("path")):
        if not item.get("bytes"):
            yield Path(item["path"])
            return
        data, what = item["bytes"], item.get("path") or "a video of the task"
    else:
        raise InputError(
            f"mteb gave a {type(item).__name__} for an image or video; expected a picture of Pillow, or a video's "
            "file as `datasets` stores it (datasets.Video)"
        )
    with as_file(data, what=what) as path:
        yield path
