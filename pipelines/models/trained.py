"""A trained model, loaded from a run or an exported folder: embeddings, scores, answers, search, evaluation.

An exported folder needs no MLflow, no corpus and no feature store.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePath
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from polypool.infra.batches import Batch
from polypool.infra.compute.device import best_device, device_of, on_device
from polypool.infra.digests import DIGESTS, refuse_damaged
from polypool.infra.errors import InputError
from polypool.infra.fields import from_plain
from polypool.infra.files import existing, existing_folder
from polypool.infra.paths import here, home
from polypool.infra.registry import TASKS
from polypool.infra.spec import trust_modules, trust_specs
from polypool.infra.storage import Url, fetch, place, read_bytes, read_json
from polypool.infra.tracking import HOME, Tracker, installed, resolve_run, tracking_uri
from polypool.pipelines.models.search import (
    AnswerSearch,
    EmbeddingFiles,
    Hit,
    Method,
    Query,
    RetrievalSearch,
    best_answers,
)
from polypool.pipelines.training.checkpoint import ASSETS, RUN, WEIGHTS, best_checkpoint, load_weights
from polypool.pipelines.training.record import at_home, run_folder
from polypool.tasks.abilities import Answers, ReadsInputs, Searchable, missing
from polypool.tasks.adapter import Evaluation
from polypool.tasks.corpus_task import CorpusTask
from polypool.tasks.datasets.corpus import Corpus
from polypool.tasks.inputs.corpus_inputs import CorpusInputs
from polypool.tasks.inputs.other_data import (
    OtherData,
    changed_data,
    check_features,
    refuse_changed_data,
    renamed_data,
)
from polypool.tasks.inputs.pairs import Pairs, visual_batch
from polypool.tasks.models.dual_encoder import Batches
from polypool.tasks.models.parts import is_adapted
from polypool.tasks.models.retrieval_model import TRAINING_ONLY, RetrievalModel
from polypool.tasks.run import Run, from_json, located, to_json, training_data
from polypool.tasks.similarities.similarity import Side
from polypool.tasks.similarities.vectors import side_by_side

Visuals = Sequence[np.ndarray | str | Path]
"""Images or videos: features `(N, F)` as in a store, or image or video files for a model that reads pixels."""

Ability = TypeVar("Ability")

OWN = OtherData()
"""The run's own data."""
_CHUNK = 256  # batch size of texts, and of inputs of other tasks
_BY_HAND = "`model` is the module itself and `adapter` makes its batches"


@dataclass(frozen=True, kw_only=True)
class TrainedModel:
    """A trained model, its run and its task adapter; see `load`.

    Attributes:
        run: the complete training settings.
        adapter: adapter of the run's task, which opens corpus and features at first use: a `TaskAdapter` with further
            abilities (`polypool.tasks.abilities`).
        model: the module, in evaluation mode, on the GPU if available.
        tracker: tracker of the run; None for a model from a folder.
        trained_on: data set of the training if `run` and `adapter` have other data; else empty.
        digests: digests of the checkpoint's files, by name; empty if it has none.
        training_data: digests and counts of the training data, which the data in use must match; empty if unknown, or
            for other data.
    """

    run: Run
    adapter: Any
    model: nn.Module
    tracker: Tracker | None = None
    trained_on: str = ""
    digests: Mapping[str, str] = field(default_factory=dict)
    training_data: Mapping[str, str] = field(default_factory=dict)
    _searches: dict[tuple[str, Method], RetrievalSearch | AnswerSearch] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def encode_visual(self, visuals: Visuals) -> Tensor:
        """Return the embeddings of V images or videos: `(V, D)`; `(V, K, D)` for sets.

        For distributions, `(V, 2, D)`: means and log-variances.

        Raises:
            InputError: the model scores only pairs, or an image is not an input of the model.
        """
        return self._embeddings(visuals=visuals)

    def encode_text(self, texts: Sequence[str]) -> Tensor:
        """Return the embeddings of T texts: `(T, D)`; `(T, K, D)` for sets; `(T, 2, D)` as in `encode_visual`.

        Raises:
            InputError: the model scores only pairs.
        """
        return self._embeddings(texts=texts)

    def scores(self, visuals: Visuals, texts: Sequence[str]) -> Tensor:
        """Return the `(V, T)` scores of every image or video with every text, float32; higher is more similar.

        Raises:
            InputError: the model does not retrieve, or invalid inputs.
        """
        score = self._retrieval_model("score texts").scorer(self._visual(visuals), self._text(texts))
        return score(slice(0, len(visuals)), slice(0, len(texts)))

    def answers(self, visuals: Visuals, questions: Sequence[str]) -> list[tuple[str, float]]:
        """Return the most probable answer to each question about the image of the same index, and its probability.

        Raises:
            InputError: the model answers no questions, or invalid inputs.
        """
        adapter = self.as_a(Answers, "answer questions", instead=_BY_HAND)
        if len(visuals) != len(questions):
            raise InputError(
                f"{len(visuals)} images and {len(questions)} questions; give an image for each question"
            )
        answers, batches = [], self._text(questions, size=self._visual_chunk)
        for (_, images), (_, texts) in zip(self._visual(visuals), batches, strict=True):
            answers += [best for (best,) in best_answers(adapter, self.model, images | texts, 1)]
        return answers

    def search(
        self,
        query: str | Path,
        k: int = 10,
        *,
        split: str = "test",
        find: Side | None = None,
        index: Method = "exact",
    ) -> list[Hit]:
        """Return the items of the run's corpus nearest to a text, or the captions nearest to a file.

        The split is encoded at the first query and cached; for a run, also in its folder.

        Args:
            query: a text, or the `Path` of an image or video.
            k: number of results.
            split: split to search; `all` for every split.
            find: "visual" for images or videos, "text" for captions, whatever the query.
            index: `exact`, or `faiss` for many single vectors.

        Raises:
            InputError: the model does not retrieve, its corpus is missing, or a query that it cannot read.
        """
        if k < 1:
            raise InputError(f"k must be at least 1, not {k}")
        search = self.open_search(split, index=index)
        if isinstance(search, AnswerSearch):
            raise InputError(f"the task {self.run.task!r} answers questions; ask one with `answers`")
        if isinstance(query, Path):
            return search.find(Query(file=query, video=search.adapter.modality == "video"), k, side=find)
        return search.find(Query(text=query), k, side=find)

    def open_search(self, split: str = "test", *, index: Method = "exact") -> RetrievalSearch | AnswerSearch:
        """Return the search of a split of the run's corpus for items, captions or answers; it is cached.

        Raises:
            InputError: a task or model without search, no such split or corpus, or changed data.
        """
        if (split, index) not in self._searches:
            instead = "evaluate it, or load it with polypool.pipelines.models.trained.load"
            adapter = self.as_a(Searchable, "be searched", instead=instead)
            self.check_data()
            if isinstance(adapter, Answers):
                search = AnswerSearch(adapter, self.model, split=split)
            else:
                model, pairs = self._retrieval_model("be searched"), partial(self.pairs, split, "be searched")
                files = self._embedding_files(split) if model.has_embeddings else None
                search = RetrievalSearch(adapter, model, pairs, split=split, method=index, files=files)
            self._searches[split, index] = search
        return self._searches[split, index]

    def _embedding_files(self, split: str) -> EmbeddingFiles | None:
        """Return the cache of a split's embeddings; None without a run, or during training."""
        adapter, tracker = self.adapter, self.tracker
        ended = tracker is not None and tracker.status() != "RUNNING"
        if not ended or not self.digests or not isinstance(adapter, CorpusInputs):
            return None
        return EmbeddingFiles(
            folder=run_folder(home(), tracker.run_id) / "embeddings",
            split=f"{PurePath(self.run.data.corpus).name}.{split}",
            depends={
                "model": dict(self.digests),
                "run": to_json(self.run),
                "data": dict(adapter.describe()),
                "files": "" if adapter.store else _state(adapter.corpus, split),
                "polypool": installed("polypool"),
            },
        )

    def evaluate(self, protocol: str = "", *, split: str = "test") -> Evaluation:
        """Score a split of the run's corpus under a protocol (default: the run's).

        Raises:
            InputError: no such split or protocol, or missing or changed data.
        """
        self.check_data()
        return self.adapter.evaluate(self.model, split, protocol or self.run.protocol)

    def check_data(self) -> None:
        """Compare the run's corpus and stores with the training data; called before reading a split.

        Raises:
            InputError: they have changed, or are missing.
        """
        if self.training_data:
            hint = "Restore them, or use the current ones by --other-data (from Python, load(..., other_data=True))"
            refuse_changed_data(self.run, self.training_data, self.adapter.describe(), hint=hint)

    def as_a(self, ability: type[Ability], what: str, *, instead: str) -> Ability:
        """Return the adapter as one of the protocols in `polypool.tasks.abilities`.

        Raises:
            InputError: it does not implement the protocol, so the task cannot `what`, such as `be searched`.
        """
        absent = missing(self.adapter, ability)  # isinstance would open the corpus and the store
        if not absent:
            return self.adapter
        raise InputError(
            f"the task {self.run.task!r} cannot {what}: its adapter has no {', '.join(absent)} "
            f"(polypool.tasks.abilities.{ability.__name__}); {instead}"
        )

    def pairs(self, split: str, what: str) -> Pairs:
        """Return a split's items with their captions.

        Raises:
            InputError: the task has other data, so it cannot `what`; or no such split.
        """
        self.check_data()
        data = self.adapter.data(split)
        if not isinstance(data, Pairs):
            raise InputError(
                f"the task {self.run.task!r} cannot {what}: its data are {type(data).__name__}, not items with their "
                "captions (polypool.tasks.inputs.pairs.Pairs)"
            )
        return data

    @property
    def similarity(self) -> Any:
        """The similarity of a retrieval model's embeddings."""
        return self._retrieval_model("compare embeddings").similarity

    def _retrieval_model(self, what: str) -> RetrievalModel:
        if not isinstance(self.model, RetrievalModel):
            raise InputError(
                f"the task {self.run.task!r} cannot {what}: its model, {type(self.model).__name__}, is no "
                f"polypool.tasks.models.retrieval_model.RetrievalModel; {_BY_HAND}"
            )
        return self.model

    @torch.inference_mode()
    def _embeddings(self, *, visuals: Visuals | None = None, texts: Sequence[str] = ()) -> Tensor:
        model = self._retrieval_model("encode images and texts apart")
        if not model.has_embeddings:
            raise InputError(
                f"a {type(model).__name__} with {self.run.aggregator!r} cannot encode images and texts apart: it looks "
                "at every pair; `scores` compares them"
            )
        if visuals is None:
            encode, batches = model.encode_text, self._text(texts)
        else:
            encode, batches = model.encode_visual, self._visual(visuals)
        device = device_of(model)
        return side_by_side([encode(on_device(batch, device)).vectors for _, batch in batches])

    def _visual(self, visuals: Visuals) -> Batches:
        inputs = self._reader(visuals).visual_inputs(visuals)
        return _batches(len(visuals), partial(visual_batch, inputs), size=self._visual_chunk)

    def _text(self, texts: Sequence[str], *, size: int = _CHUNK) -> Batches:
        return _batches(len(texts), self._reader(texts).text_inputs(texts).batch, size=size)

    @property
    def _visual_chunk(self) -> int:
        return self.adapter.visual_chunk if isinstance(self.adapter, CorpusTask) else _CHUNK

    def _reader(self, inputs: Sequence[object]) -> ReadsInputs:
        if isinstance(inputs, str | Path) or not len(inputs):
            raise InputError("give a list with at least one image, video or text")
        return self.as_a(ReadsInputs, "read new images and texts", instead=_BY_HAND)


def _state(corpus: Corpus, split: str) -> str:
    """Return a digest of the paths, sizes and modification times of a split's files, for a model of pixels."""
    digest = hashlib.sha256()
    for item in corpus.items(split):
        path = corpus.image_path(item)
        with suppress(OSError):  # the encoder reports missing files
            found = path.stat()
            digest.update(f"{path}\0{found.st_size}\0{found.st_mtime_ns}\0".encode())
    return digest.hexdigest()


def _batches(count: int, make: Callable[[np.ndarray], Batch], *, size: int) -> Iterator[tuple[Tensor, Batch]]:
    for start in range(0, count, size):
        number_B = np.arange(start, min(start + size, count))
        yield torch.from_numpy(number_B), make(number_B)


def load(
    source: str | Path,
    *,
    task: str = "",
    data: OtherData = OWN,
    other_data: bool = False,
    trust: Sequence[str] = (),
) -> TrainedModel:
    """Load a trained model from an existing folder of this name, else from the run.

    Args:
        source: an exported folder, its URL (`hf://user/name@revision`), or a run, as in
            `polypool.infra.tracking.resolve_run`.
        task: the adapter's spec with other parameters, such as `image_text(cxc='data/cxc')` (default: the run's).
        data: other data for evaluation and search.
        other_data: use the run's corpus and stores even if they changed since training; they are then another data set,
            `NAME@DIGEST`.
        trust: modules whose code the run may name as `module:Name`, such as `("my_package.parts",)`; by default only
            registered parts and installed plug-ins are allowed.

    Raises:
        InputError: no such folder or run; a missing or damaged file, or one of another version; a module that is not
            trusted; or other data that the model cannot read.
    """
    found, tracker = place(source), None
    if isinstance(found, Url):
        return _load_url(found, task=task, data=data, other_data=other_data, trust=trust)
    if isinstance(source, Path) or "/" in source or (source and found.is_dir()):
        folder = existing_folder(found, what="a folder that `polypool export` wrote")
    else:
        uri = tracking_uri(home())
        tracker = Tracker.attach(uri, resolve_run(uri, source), running=False)
        folder = best_checkpoint(tracker)
    return _load_folder(folder, task=task, data=data, other_data=other_data, trust=trust, tracker=tracker)


def _load_url(
    url: Url, *, task: str, data: OtherData, other_data: bool, trust: Sequence[str]
) -> TrainedModel:
    """Load an exported folder of the hub or of object storage from a local copy."""
    own = hashlib.sha256(read_bytes(url / DIGESTS)).hexdigest()
    digests = from_plain(dict[str, str], read_json(url / DIGESTS, what="digests"), where=str(url / DIGESTS))
    folder = fetch(url, {DIGESTS: own} | {name: digests.get(name, "") for name in (RUN, ASSETS, WEIGHTS)})
    try:
        return _load_folder(folder, task=task, data=data, other_data=other_data, trust=trust)
    except InputError as error:
        raise InputError(str(error).replace(str(folder), str(url))) from error


def _load_folder(
    folder: Path,
    *,
    task: str,
    data: OtherData,
    other_data: bool,
    trust: Sequence[str],
    tracker: Tracker | None = None,
) -> TrainedModel:
    trust_modules(*trust)
    trust_specs(task)
    if tracker is None:  # `best_checkpoint` has verified a run's files
        refuse_damaged(folder, then="copy it again, or `polypool export` the run anew")
    record, where = read_json(folder / RUN, what="the settings of a model"), str(folder / RUN)
    run, data_then = from_json(record, where=where), training_data(record, where=where)
    run = at_home(run, tracker.tag(HOME) if tracker else "")
    assets = read_json(folder / ASSETS, what="the assets of a model")
    assets = from_plain(dict[str, Any], assets, where=str(folder / ASSETS))
    weights = existing(folder / WEIGHTS, what="the weights of a model")
    trained_on = run.data.dataset if data.given else ""
    run = located(data.of(run), here) if data.given else run
    try:
        adapter = TASKS.build(TASKS.located(task, here) or run.task, run, assets=assets)
        model = adapter.model(pretrained=is_adapted(run))
    except InputError as error:
        raise InputError(f"{folder}: {error}") from error
    if other_data and not trained_on and changed_data(data_then, now := adapter.describe()):
        trained_on, run = run.data.dataset, renamed_data(run, now)
    if trained_on and isinstance(adapter, CorpusInputs):
        check_features(adapter)
    load_weights(model, weights, optional=TRAINING_ONLY)
    model = model.to(best_device()).eval()
    digests = read_json(folder / DIGESTS, what="digests") if (folder / DIGESTS).is_file() else {}
    return TrainedModel(
        run=run,
        adapter=adapter,
        model=model,
        tracker=tracker,
        trained_on=trained_on,
        digests=digests,
        training_data={} if trained_on else data_then,
    )
