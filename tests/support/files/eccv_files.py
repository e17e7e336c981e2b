"""Files of ECCV Caption, small and in the official form."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path


def write_eccv(
    folder: Path,
    *,
    image_to_caption: Mapping[object, Sequence[int]],
    caption_to_image: Mapping[object, Sequence[int]],
) -> Path:
    folder.mkdir(exist_ok=True)
    for name, answers in (("image_to_caption", image_to_caption), ("caption_to_image", caption_to_image)):
        text = json.dumps({str(query): [*ids] for query, ids in answers.items()})
        (folder / f"eccv_{name}.json").write_text(text)
    return folder
