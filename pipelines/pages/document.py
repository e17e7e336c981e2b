"""What all HTML is made with: templates whose every value is escaped, and pictures that stand in the page itself."""

from __future__ import annotations

import base64
import io

from jinja2 import Environment, PackageLoader, StrictUndefined
from PIL import Image

QUALITY = 70  # of JPEG


def templates(package: str) -> Environment:
    """Return the templates of a package's folder `templates`.

    Every value is escaped unless it is another template's output, and a name that a template does not get is an error.

    Args:
        package: such as `pipelines.pages`.
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


def percent(part: float) -> str:
    """Return a part of one in per cent, to three digits below 10."""
    value = 100 * part
    return f"{value:.1f}%" if abs(value) >= 10 else f"{value:.2f}%"


def data_address(image: Image.Image | bytes, *, quality: int = QUALITY) -> str:
    """Return a picture as a `data:` address that holds it.

    Args:
        image: in mode RGB, which becomes a JPEG; or the bytes of a JPEG or a PNG, which stay as they are.
        quality: of the JPEG.
    """
    if isinstance(image, Image.Image):
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=quality)
        image = buffer.getvalue()
    kind = "png" if image.startswith(b"\x89PNG") else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(image).decode()}"
