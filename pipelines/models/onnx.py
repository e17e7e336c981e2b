"""ONNX graphs of a model, for programs without Python or torch; each is compared with the model before it is kept.

A model with embeddings becomes three graphs, `visual.onnx`, `text.onnx` and `similarity.onnx`; one that answers
questions `answers.onnx`; any other that compares `scores.onnx`. Batches and sets may have any size. They are written by
torch's tracing exporter: the other one takes ten times as long, and knows no sets of different sizes in a GRU.
"""

from __future__ import annotations

import copy
import io
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from polypool.infra.errors import InputError
from polypool.infra.extras import needed
from polypool.infra.files import atomic
from polypool.pipelines.models.search.queries import visual_batch
from polypool.tasks.abilities import Answers, ReadsInputs
from polypool.tasks.corpus_task import refuse_video_files
from polypool.tasks.models.retrieval_model import RetrievalModel

if TYPE_CHECKING:
    from polypool.pipelines.models.trained import TrainedModel

VISUAL, TEXT, SIMILARITY, ANSWERS, SCORES = (
    f"{name}.onnx" for name in ("visual", "text", "similarity", "answers", "scores")
)
_VISUAL, _TEXT = ("visual", "visual_mask"), ("text", "text_mask")
_EMBEDDINGS = ("visual_embedding", "text_embedding")
"""The names of inputs, those of the model's batches."""
_COUNTED = {
    "visual_embedding": {0: "visual"},
    "text_embedding": {0: "text"},
    "score": {0: "visual", 1: "text"},
    "probability": {0: "text"},
}
"""The axes of outputs that differ from batch to batch, and what they count."""
_NEAR = 1e-4
"""Tolerance of a graph's numbers, absolute and relative."""
_TRIES = (
    ((3, 5), ("a dog", "two people sit on a bench")),
    ((4, 1, 2), ("a", "a cat and a dog")),
    ((6,), ("a dog",)),
)
"""Sizes of made-up sets and texts; the first are traced, the others compared only."""


class Graph(nn.Module):
    """A graph to be written: a function of tensors, one by one.

    Args:
        file: its name.
        owner: the module whose weights it uses.
        compute: what it computes of a batch.
        inputs: the names of the batch's tensors.
        output: the name of what comes out.
    """

    def __init__(
        self,
        file: str,
        owner: nn.Module,
        compute: Callable[[dict[str, Tensor]], Tensor],
        *,
        inputs: tuple[str, ...],
        output: str,
    ) -> None:
        super().__init__()
        self.file, self.owner, self.inputs, self.output = file, owner, inputs, output
        self._compute = compute
        self.eval()  # torch would have the owner train after it is traced, as a new module does

    def forward(self, *tensors: Tensor) -> Tensor:
        return self._compute(dict(zip(self.inputs, tensors, strict=True)))


def write_graphs(trained: TrainedModel, folder: Path) -> tuple[list[Path], str]:
    """Write a model's graphs to a folder; return the files, and why there is no graph of the similarity, if so.

    Of sets and distributions that one may have no form in ONNX; it is then for the reader of embeddings to compute.

    Raises:
        InputError: the packages are missing, no batches can be made for the model, something else in it has no form in
            ONNX, or a graph does not compute what the model does.
    """
    _import()
    adapter, model = trained.adapter, copy.deepcopy(trained.model).cpu().eval()
    if not isinstance(adapter, ReadsInputs):
        raise InputError(
            f"the task {trained.run.task!r} reads nothing but its corpus, so nothing can be sent to a graph"
        )
    refuse_video_files(adapter, "graphs of ONNX")
    with tempfile.TemporaryDirectory(prefix="polypool.") as images:
        batches = [_batch(adapter, sizes, texts, Path(images)) for sizes, texts in _TRIES]
    graphs = _graphs(adapter, model, batches)
    files, left_out = [], ""
    for graph in graphs:
        try:
            files.append(_written(graph, batches, folder))
        except InputError as error:
            if graph.file != SIMILARITY:
                raise
            left_out = str(error)
    return files, left_out


def describe_graphs(files: Sequence[Path]) -> str:
    """Return the section on graphs in the description of an exported folder."""
    onnxruntime = _import()
    lines = ["\n## ONNX\n", "| graph | takes | gives |", "| --- | --- | --- |"]
    for file in files:
        session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
        sides = [
            ", ".join(
                f"`{it.name}` {it.type.removeprefix('tensor')[1:-1]} ({', '.join(map(str, it.shape))})"
                for it in of
            )
            for of in (session.get_inputs(), session.get_outputs())
        ]
        lines.append(f"| `{file.name}` | {' | '.join(sides)} |")
    return "\n".join(
        [
            *lines,
            "",
            "Masks are true for real elements, and every set has one; sets are filled up with anything. Subwords of",
            "texts are numbered as `assets.json` has them. In Python, `model.adapter` makes such batches.\n",
        ]
    )


def _graphs(adapter: ReadsInputs, model: nn.Module, batches: Sequence[dict[str, Tensor]]) -> list[Graph]:
    if more := {*batches[0]} - {*_VISUAL, *_TEXT}:
        raise InputError(
            f"{type(model).__name__} reads {', '.join(sorted(more))} beside sets and texts, which graphs do not take"
        )
    both = _VISUAL + _TEXT
    if isinstance(adapter, Answers):

        def answer(batch: dict[str, Tensor]) -> Tensor:
            return adapter.probabilities(model, batch)

        return [Graph(ANSWERS, model, answer, inputs=both, output="probability")]
    if not isinstance(model, RetrievalModel):
        raise InputError(
            f"{type(model).__name__} neither compares nor answers; `model.safetensors` has its weights"
        )
    if not model.has_embeddings:

        def score(batch: dict[str, Tensor]) -> Tensor:
            return model.score(model.encode_visual(batch), model.encode_text(batch))

        return [Graph(SCORES, model, score, inputs=both, output="score")]

    def visual(batch: dict[str, Tensor]) -> Tensor:
        return model.encode_visual(batch).vectors

    def text(batch: dict[str, Tensor]) -> Tensor:
        return model.encode_text(batch).vectors

    def compare(batch: dict[str, Tensor]) -> Tensor:
        return model.similarity(*(batch[name] for name in _EMBEDDINGS))

    with torch.no_grad():
        for batch in batches:
            batch |= dict(zip(_EMBEDDINGS, (visual(batch), text(batch)), strict=True))
    return [
        Graph(VISUAL, model, visual, inputs=_VISUAL, output=_EMBEDDINGS[0]),
        Graph(TEXT, model, text, inputs=_TEXT, output=_EMBEDDINGS[1]),
        Graph(SIMILARITY, model.similarity, compare, inputs=_EMBEDDINGS, output="score"),
    ]


def _batch(
    adapter: ReadsInputs, sizes: Sequence[int], texts: Sequence[str], images: Path
) -> dict[str, Tensor]:
    """Return a made-up batch: random features, or pictures of noise; as many texts as sets of a model that answers."""
    random = np.random.default_rng(sum(sizes))
    texts = (
        [texts[number % len(texts)] for number in range(len(sizes))]
        if isinstance(adapter, Answers)
        else texts
    )
    if adapter.visual_dim:
        visuals: list[Any] = [
            random.standard_normal((size, adapter.visual_dim)).astype(np.float32) for size in sizes
        ]
    else:
        visuals = [_picture(random, images / f"{len(sizes)}-{number}.png") for number in range(len(sizes))]
    visual = visual_batch(adapter.visual_inputs(visuals), np.arange(len(sizes)))
    visual["visual"] = visual["visual"].float()
    return visual | adapter.text_inputs(texts).batch(np.arange(len(texts)))


def _picture(random: np.random.Generator, path: Path) -> Path:
    from PIL import Image

    Image.fromarray(random.integers(0, 256, (64, 80, 3), np.uint8)).save(path)
    return path


def _written(graph: Graph, batches: Sequence[Mapping[str, Tensor]], folder: Path) -> Path:
    traced, data = [batches[0][name] for name in graph.inputs], io.BytesIO()
    axes = {name: _axes(name, [batch[name] for batch in batches]) for name in graph.inputs}
    axes[graph.output] = _COUNTED[graph.output]
    try:
        with warnings.catch_warnings(), torch.no_grad(), _without_dumps():
            warnings.simplefilter("ignore")  # that values become constants: they are compared below
            torch.onnx.export(
                graph,
                tuple(traced),
                data,  # ty: ignore[invalid-argument-type]  (a file is taken where dynamo is off)
                input_names=list(graph.inputs),
                output_names=[graph.output],
                dynamic_axes=axes,
                dynamo=False,
            )
    except Exception as error:  # of many types, by what is not known
        raise InputError(f"{graph.file}: torch cannot write this model as ONNX: {_first(error)}") from error
    _compare(graph, data.getvalue(), batches)
    with atomic(folder / graph.file) as file:
        file.write(data.getvalue())
    return folder / graph.file


@contextmanager
def _without_dumps() -> Iterator[None]:
    """Keep torch from printing the whole of a graph that it cannot write."""
    set_enabled = getattr(torch._C, "_jit_set_onnx_log_enabled", lambda on: None)  # no other way in
    set_enabled(False)
    try:
        yield
    finally:
        set_enabled(True)


def _axes(name: str, tensors: Sequence[Tensor]) -> dict[int, str]:
    """Return the axes of an input that differ from batch to batch, with what they count."""
    side = name.partition("_")[0]
    counted = {0: side, 1: "elements" if side == "visual" else "tokens"}
    return {at: what for at, what in counted.items() if len({x.shape[at] for x in tensors}) > 1}


def _compare(graph: Graph, data: bytes, batches: Sequence[Mapping[str, Tensor]]) -> None:
    onnxruntime = _import()
    try:
        session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
        reads = {it.name for it in session.get_inputs()}  # without those that became constants
        for batch in batches:
            inputs = {name: batch[name] for name in graph.inputs}
            with torch.no_grad():
                expected = graph(*inputs.values()).numpy()
            sent = {name: x.numpy() for name, x in inputs.items() if name in reads}
            (found,) = session.run([graph.output], sent)
            if found.shape != expected.shape or not np.allclose(found, expected, atol=_NEAR, rtol=_NEAR):
                raise InputError(
                    f"{graph.file}: the graph gives other numbers than the model; it is not kept"
                )
    except InputError:
        raise
    except Exception as error:  # the runtime's own
        raise InputError(
            f"{graph.file}: the graph does not run on batches of other sizes: {_first(error)}"
        ) from error


def _first(error: Exception) -> str:
    """Return the first line of an error's message, or its type where it has none."""
    return next(iter(str(error).splitlines()), "").strip() or type(error).__name__


def _import() -> Any:
    with needed("onnx"):
        import onnx  # noqa: F401 - torch writes with it
        import onnxruntime
    return onnxruntime
