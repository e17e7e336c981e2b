"""Files that features come in, and which axis of their arrays is the width."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from polypool.infra.errors import InputError
from polypool.infra.files import existing, existing_folder
from polypool.infra.store.findings import Skipped
from polypool.tasks.datasets import FeatureReader
from polypool.tasks.datasets.annotations import map_array
from polypool.tasks.datasets.readers.folders import files_below

PATTERNS = {
    "arrays": r"\.(npy|npz|pth?)$",
    "butd": r"\.tsv(\.\d+)?$",
    "hdf5": r"\.(h5|hdf5?)$",
}
"""Names of the files that a form reads."""
OTHER_WIDTH = "vectors of another width than {}, which most have"
"""Why a set is skipped, with the width."""
_WIDTHS = (256, 384, 512, 640, 768, 1024, 1152, 1280, 1408, 1536, 2048, 3072, 4096)  # of backbones
_MOST_REGIONS, _LARGEST_SIDE = 100, 64  # of bottom-up attention, and of maps
_BLOCK = 64 << 20  # bytes of rows that are mapped at a time


def files_of(
    file: Sequence[Path], dir: Path | None, *, pattern: str, what: str, deep: bool = True
) -> list[Path]:
    """Return the files that `--file` names, or those in the folder `--dir` whose names match a pattern, sorted.

    Args:
        file, dir: of which one is given.
        pattern: of the names of files in the folder.
        what: they are, for messages.
        deep: whether its sub-folders are looked through, too.

    Raises:
        InputError: both or neither are given; a file or the folder is missing; or the folder has no such file.
    """
    if bool(file) == (dir is not None):
        raise InputError(f"name {what} by --file FILE [FILE ...], or the folder of them by --dir DIR")
    if dir is None:
        if folder := next((path for path in file if path.is_dir()), None):
            raise InputError(f"{folder}: is a folder; name it by --dir, or {what} by --file")
        return [existing(path, what=what) for path in file]
    folder = existing_folder(dir, what=f"a folder of {what}")
    names = sorted(files_below(folder) if deep else os.listdir(folder))
    names = [name for name in names if not f"/{name}".count("/.")]
    if found := [name for name in names if re.search(pattern, os.path.basename(name))]:
        return [folder / name for name in found]
    others = (form for form, other in PATTERNS.items() if any(re.search(other, name) for name in names))
    hint = "".join(f"; `polypool ingest {form} --dir` reads what it has" for form in others)
    if single := next((name for name in names if name.endswith((".pkl", ".pickle", ".csv"))), ""):
        hint += f"; `polypool ingest arrays --file {folder / single}` may read that"
    raise InputError(f"{folder}: nothing usable was found: no {what} among its {len(names):,} files{hint}")


@dataclass(frozen=True, kw_only=True)
class FileReader(FeatureReader):
    """A reader of files, or of a folder of them."""

    file: tuple[Path, ...] = ()
    """One or several files."""
    dir: Path | None = None
    """Instead, a folder of them."""


class Shape(NamedTuple):
    """The shape of the array of one image or video, and the number of its elements where that is known."""

    axes: tuple[int, ...]
    count: int | None = None

    @property
    def squeezed(self) -> tuple[int, ...]:
        """Without leading axes of one, as far as two are left."""
        axes = self.axes
        while len(axes) > 2 and axes[0] == 1:
            axes = axes[1:]
        return axes

    @property
    def counted(self) -> bool:
        """Whether the number of elements says which of two axes is the width."""
        axes = self.squeezed
        return len(axes) == 2 and self.count in axes and axes[0] != axes[1]

    @property
    def looks_turned(self) -> bool:
        """Whether it looks like maps `(D, H, W)` or regions `(D, N)`."""
        axes = self.squeezed
        if len(axes) == 2:
            return not self.counted and axes[0] in _WIDTHS and axes[1] <= _MOST_REGIONS
        if len(axes) < 2 or axes[-1] > _LARGEST_SIDE:
            return False
        D, height, width = axes[-3:]
        return width != D and (height == width or max(height, width) < D)


@dataclass(frozen=True, kw_only=True)
class Axes:
    """How arrays become sets `(N, D)`.

    The last axis is D and all others are elements: so `(N, D)`, `(1, N, D)`, a grid `(H, W, D)` and a single vector
    `(D,)`. With `first`, D is the third axis from the end, or the first of two. Where the number of elements is known
    and is one of two axes, the other one is D, unless `last` says otherwise.

    Attributes:
        first, last: which axis is said to be D.
        usual: the width that most sets have, of equally many the first one's; None where there are none.
    """

    first: bool = False
    last: bool = False
    usual: int | None = None

    def _axis(self, shape: Shape) -> int:
        """Return which axis is D, from the end."""
        axes = shape.squeezed
        if shape.counted and not self.last:
            return -2 if axes[1] == shape.count else -1
        return -min(3, len(axes)) if self.first else -1

    def width(self, shape: Shape) -> int:
        """Return the width of the set of an array."""
        return shape.squeezed[self._axis(shape)]

    def set(self, x: np.ndarray, count: int | None = None) -> np.ndarray:
        """Return an array as a set `(N, D)`, of so many elements where that is known."""
        shape = Shape(x.shape, count)
        x = np.moveaxis(x.reshape(shape.squeezed), self._axis(shape), -1)
        return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


@dataclass(frozen=True, kw_only=True)
class ArrayReader(FileReader):
    """A reader of arrays, whose axes may have another order."""

    channels_first: bool = False
    """Arrays are (D, N), or (D, H, W) as convolutions give them; by default the last axis is the width D."""
    channels_last: bool = False
    """The last axis is the width, even where it looks like a side of a map or a number of regions."""

    def axes(self, shapes: Iterable[Shape], *, where: Any) -> Axes:
        """Return how arrays of some shapes are read.

        Raises:
            InputError: most of them look as if D was not their last axis, and it is not said.
        """
        if self.channels_first and self.channels_last:
            raise InputError("--channels-first and --channels-last contradict each other; give one")
        shapes = [shape for shape in shapes if shape.axes and math.prod(shape.axes)]
        turned = [shape.squeezed for shape in shapes if shape.looks_turned]
        if len(turned) * 2 > len(shapes) and not (self.channels_first or self.channels_last):
            shape, size, last = turned[0], math.prod(turned[0]), turned[0][-1]
            first = shape[-min(3, len(shape))]
            raise InputError(
                f"{where}: an image or video of shape {shape} would become {size // last:,} vectors of {last}. Give "
                f"--channels-first for {size // first:,} vectors of {first}, or --channels-last if {last} is the width"
            )
        axes = Axes(first=self.channels_first, last=self.channels_last)
        widths = Counter(map(axes.width, shapes))
        return replace(axes, usual=max(widths, key=widths.__getitem__, default=None))


def named_rows(pairs: Iterable[tuple[str, Any]], count: int) -> Generator[Skipped, None, dict[int, str]]:
    """Return the ids of rows 0 to `count` - 1; ids without a row of their own are yielded."""
    names: dict[int, str] = {}
    for id, row in pairs:
        if not isinstance(row, int) or not 0 <= row < count:
            yield Skipped(where=f"id {id}", why=f"an id whose row is not one of 0 to {count - 1}")
        elif row in names:
            yield Skipped(where=f"id {id}", why="an id whose row has another id already")
        else:
            names[row] = id
    return names


def mapped_rows(path: Path, *, what: str, each: int = 1) -> Iterator[np.ndarray]:
    """Yield every `each`-th row of a `.npy` file.

    It is mapped anew for each block: else every page that was read would count as memory in use.
    """
    rows = map_array(path, what=what)
    step = each * max(1, _BLOCK // max(1, rows[:each].nbytes))
    for start in range(0, len(rows), step):
        yield from map_array(path, what=what)[start : start + step : each]
