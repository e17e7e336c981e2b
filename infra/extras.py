"""Optional packages by extra of polypool, and the error that names the extra of a missing package."""

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
"""Modules that are imported in many places, by extra; others name their extra at the import."""
_BROUGHT_BY = {module: extra for extra, modules in EXTRAS.items() for module in modules.split()}


class MissingPackageError(InputError):
    """A package of an extra is not installed, or cannot be imported."""


class needed(ContextDecorator):
    """Convert the ImportError of a missing package to an error that names its extra.

    The Python functions of `polypool`, the registries and the command line are wrapped in it, so that code inside can
    import optional packages directly.

    Args:
        extra: extra of the packages imported inside; looked up in `EXTRAS` by the missing module if empty.
        otherwise: alternative remedy, for the message.
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
