"""The table of aggregators that torch's compiler, exporter, vmap or autocast cannot take, or only in part.

`python -m docs.generate.transforms` writes it anew in a few minutes; tests hold it to what happens.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from docs.generate.parts import table
from polypool.aggregators.aggregator import Aggregator, Context
from polypool.aggregators.random_sets import Inputs, random_inputs
from polypool.infra.registry import AGGREGATORS

PAGE = Path(__file__).resolve().parents[1] / "transforms.md"
HEADS = ("aggregator", "compile", "export", "vmap", "autocast", "why")
YES, NO, ANY = "yes", "no", "any sizes"
WHOLE = (YES, ANY, YES, YES)
"""What every aggregator does that has no row."""
_UNROLLED = "a graph has a step of the GRU for each element"
WHY = {
    "gpo": _UNROLLED,
    "probabilistic": f"as `gpo`: {_UNROLLED}",
    "seq2seq": _UNROLLED,
    "seq_lstm": "torch's LSTM fixes all sizes, and has no rule for batches of batches",
    "text_topk": "a graph takes the best 3 of as many elements as there were",
    "transmil": "a graph has the square of as many elements as there were",
}
WIDTH = 16


class Vectors(nn.Module):
    """An aggregator whose inputs and output are tensors."""

    def __init__(self, pool: Aggregator) -> None:
        super().__init__()
        self.pool = pool

    def forward(self, x_BND: Tensor, mask_BN: Tensor, context: Context | None = None) -> Tensor:
        """Return the vectors."""
        return self.pool(x_BND, mask_BN, context=context).vectors


def outcomes(pool: Aggregator) -> tuple[str, ...]:
    """Return what happens with an aggregator, in the order and the words of the table."""
    model = Vectors(pool.double()).eval()
    return tuple(tried(model) for tried in (_compiled, _exported, _mapped, _autocast))


def _inputs(model: Vectors, sizes: Sequence[int] = (3, 1, 5, 4)) -> Inputs:
    return random_inputs([*sizes], module=model.pool, dim=WIDTH).cast(torch.float64)


def _given(inputs: Inputs) -> tuple:
    return (inputs.x_BND, inputs.mask_BN, *([inputs.context] if inputs.context else []))


def _worked(attempt: Callable[[], None]) -> bool:
    """Whether an attempt ends without an error; a wrong result is one that nobody expects."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that something is slow
            attempt()
    except AssertionError:
        raise
    except Exception:  # of torch's many
        return False
    return True


def _results(model: nn.Module, call: nn.Module, inputs: Inputs) -> list[Tensor]:
    """Return the vectors, and the gradients of the elements and of the weights."""
    x_BND = inputs.x_BND.clone().requires_grad_()
    vectors = call(x_BND, *_given(inputs)[1:])
    weights = [x_BND, *model.parameters()]
    return [vectors.detach(), *torch.autograd.grad(vectors.float().square().sum(), weights)]


def _compiled(model: Vectors) -> str:
    """Whether it is one graph, in evaluation with the same results, and in training."""
    torch.compiler.reset()
    inputs, compiled = _inputs(model), torch.compile(model, fullgraph=True, backend="aot_eager")

    def attempt() -> None:
        torch.testing.assert_close(_results(model, compiled, inputs), _results(model, model, inputs))
        model.train()
        assert all(result.isfinite().all() for result in _results(model, compiled, inputs))

    try:
        return YES if _worked(attempt) else NO
    finally:
        model.eval()


def _exported(model: Vectors) -> str:
    """Return which sizes an exported graph takes."""
    inputs = _inputs(model)
    others = {ANY: (2, 7, 1, 3, 6, 2), "any number of sets": (5, 1, 2), "these sizes": (5, 2, 1, 3)}
    for free, sizes in others.items():
        sets = {} if free == "these sizes" else {0: torch.export.Dim("sets", min=2)}
        one, other = (
            sets | ({1: torch.export.Dim(name, min=2)} if free == ANY else {})
            for name in ("elements", "context")
        )
        shapes = [one, one]
        if inputs.context is not None:
            shapes.append(
                Context(*((other, other) if inputs.context.mask is not None else (sets, None)), None)
            )

        def attempt(shapes: list = shapes, sizes: Sequence[int] = sizes) -> None:
            graph = torch.export.export(model, _given(inputs), dynamic_shapes=tuple(shapes)).module()
            for of in (inputs, _inputs(model, sizes)):
                torch.testing.assert_close(graph(*_given(of)), model(*_given(of)))

        with torch.no_grad():
            if _worked(attempt):
                return free
    return NO


def _mapped(model: Vectors) -> str:
    """Whether `vmap` over two batches gives the results of both."""
    inputs = _inputs(model)
    x_GBND, mask_GBN = (torch.stack([part, part.flip(0)]) for part in (inputs.x_BND, inputs.mask_BN))
    more = _given(inputs)[2:]

    def attempt() -> None:
        mapped = torch.func.vmap(lambda x_BND, mask_BN: model(x_BND, mask_BN, *more))(x_GBND, mask_GBN)
        both = [model(x_BND, mask_BN, *more) for x_BND, mask_BN in zip(x_GBND, mask_GBN, strict=True)]
        torch.testing.assert_close(mapped, torch.stack(both))

    return YES if _worked(attempt) else NO


def _autocast(model: Vectors) -> str:
    """Whether vectors in bfloat16 are close to those in float32, and gradients finite."""
    model.float()
    inputs = _inputs(model).cast(torch.float32)

    def attempt() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            results = _results(model, model, inputs)
        assert all(result.isfinite().all() for result in results)
        torch.testing.assert_close(results[0].float(), model(*_given(inputs)).detach(), rtol=0.05, atol=0.05)

    return YES if _worked(attempt) else NO


def main() -> None:
    """Measure every aggregator and write the table into its page."""
    logging.getLogger("torch").setLevel(logging.CRITICAL)
    found = {name: outcomes(AGGREGATORS.build(name, WIDTH)) for name in AGGREGATORS.built_in()}
    rows = table(HEADS, [(f"`{name}`", *of, WHY.get(name, "")) for name, of in found.items() if of != WHOLE])
    text = re.sub(r"(?:^\|.*\n)+", lambda _: f"{rows}\n", PAGE.read_text(), count=1, flags=re.MULTILINE)
    PAGE.write_text(text)


if __name__ == "__main__":
    main()
