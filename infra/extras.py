"""Optional packages by extra of polypool, and the error that names the extra of a missing package."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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


@contextmanager
def needed(extra: str = "", *, otherwise: str = "") -> Iterator[None]:
    """Convert the ImportError of a missing package to an error that names its extra; also a decorator.

    The Python functions of `polypool`, the registries and the command line are wrapped in it, so that code inside can
    import optional packages directly.

    Args:
        extra: extra of the packages imported inside; looked up in `EXTRAS` by the missing module if empty.
        otherwise: alternative remedy, for the message.
    """
    try:
        yield
    except ImportError as error:
        module = (error.name or "").partition(".")[0]
        extra = extra or (isinstance(error, ModuleNotFoundError) and _BROUGHT_BY.get(module)) or ""
        if not extra:
            raise
        choice = f"; or {otherwise}" if otherwise else ""
        raise MissingPackageError(
            f"the package {module or extra!r} cannot be imported ({error}); the extra {extra!r} brings it: "
            f"pip install 'polypool[{extra}]'{choice}"
        ) from error
