"""HTML templates that escape every value, and pictures as `data:` addresses."""

from __future__ import annotations

import base64
import io
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from PIL import Image

QUALITY = 70  # of JPEG


def templates(package: str) -> Environment:
    """Return the templates of a package's folder `templates`.

    Every value is escaped unless it is the output of another template, and an undefined name is an error.

    Args:
        package: such as `polypool.pipelines.figures.pages`.
    """
    environment = Environment(
        loader=PackageLoader(package),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["percent"] = percent
    return environment


def rendered(name: str, title: str, **values: Any) -> bytes:
    """Return a page of this package by the name of its template."""
    page = templates("polypool.pipelines.figures.pages").get_template(f"{name}.html.j2")
    return page.render(title=title, **values).encode()


def percent(part: float) -> str:
    """Return a fraction as a percentage, to three digits below 10 %."""
    value = 100 * part
    return f"{value:.1f}%" if abs(value) >= 10 else f"{value:.2f}%"


def data_address(image: Image.Image | bytes, *, quality: int = QUALITY) -> str:
    """Return a picture as a `data:` address.

    Args:
        image: in mode RGB, encoded as JPEG; or the bytes of a JPEG or a PNG.
        quality: of the JPEG.
    """
    if isinstance(image, Image.Image):
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=quality)
        image = buffer.getvalue()
    kind = "png" if image.startswith(b"\x89PNG") else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(image).decode()}"
