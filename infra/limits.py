"""Bounds on what files of strangers may hold, unpack to and ask for, the same for every reader."""

from __future__ import annotations

LARGEST_HEADER = LARGEST_TEXT = 1 << 20
"""Bytes of a header that names what follows it, and of a file with the captions of one picture."""
LARGEST_ROW = 16 << 20
"""Bytes of a row of a table, and of any value in it."""
LARGEST_LINE = 64 << 20
"""Bytes of a line of features in base64, and characters of one value of a JSON file that is read in parts."""
LARGEST_BLOCK = 256 << 20
"""Bytes that are unpacked at once: a member of an archive, a chunk of HDF5, a list of ids."""
LARGEST_SET = 1 << 30
"""Bytes of the features of one picture or video, and of a column in a row group of Parquet."""
LARGEST_NUMBER = 2**31
"""What whole numbers in the settings of runs and parts stay below: sizes, counts and the like."""
MOST_REPEATED = 1000
"""Layers and iterations of a part, each of which is made or run in its turn."""
MOST_SPLITS, MOST_TEXTS = 100, 10_000
"""Splits of a corpus, and captions of a picture or answers to a question."""
_MOST_UNPACKED, _SMALL = 100, 64 << 20
"""Features and pictures take 1 to 10 times less when they are packed; what unpacks to 64 MiB may be anything."""
UNPACKS_TOO_FAR = (
    f"unpacks to over {_MOST_UNPACKED} times the bytes that it takes; if it is good, pack it less"
)


def unpacks_too_far(size: int, *, packed: int) -> bool:
    """Whether something unpacks to more than 64 MiB and a hundred times what it takes in its file."""
    return size > max(_SMALL, _MOST_UNPACKED * packed)
