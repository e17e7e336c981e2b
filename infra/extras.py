"""Packages that come with an extra of polypool, and the error that names the extra of one that is missing."""

from __future__ import annotations

from contextlib import ContextDecorator
from types import TracebackType

from polypool.infra.errors import InputError

EXTRAS = {
    "train": (
        "PIL filelock h5py huggingface_hub jinja2 matplotlib mlflow pandas peft pyarrow pydantic ray regex rich "
        "safetensors scipy simplejpeg skimage tokenizers tqdm transformers tyro xxhash yaml"
    ),
    "serve": "anyio fastapi starlette uvicorn",
    "video": "av decord",
}
"""Modules that are imported in many places, by the extra that brings them; others name their extra where they are."""
_BROUGHT_BY = {module: extra for extra, modules in EXTRAS.items() for module in modules.split()}


class MissingPackageError(InputError):
    """A package that an extra brings is not installed, or cannot be imported."""


class needed(ContextDecorator):
    """Raise a package that is missing inside as the error that names its extra.

    The Python functions of `polypool`, the registries and the command line are wrapped in it: code inside imports what
    it needs without further ado.

    Args:
        extra: the extra that brings whatever is imported inside; that of the missing module in `EXTRAS` where empty.
        otherwise: what else the user can do.
    """

    def __init__(self, extra: str = "", *, otherwise: str = "") -> None:
        self.extra, self.otherwise = extra, otherwise

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not isinstance(error, ImportError):
            return
        module = (error.name or "").partition(".")[0]
        extra = self.extra or (isinstance(error, ModuleNotFoundError) and _BROUGHT_BY.get(module))
        if extra:
            choice = f"; or {self.otherwise}" if self.otherwise else ""
            raise MissingPackageError(
                f"the package {module or extra!r} cannot be imported ({error}); the extra {extra!r} brings it: "
                f"pip install 'polypool[{extra}]'{choice}"
            ) from error
