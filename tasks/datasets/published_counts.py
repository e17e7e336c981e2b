"""Numbers of rows in the splits of published data sets, so that an incomplete file is noticed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Published:
    """The counts of a data set.

    Args:
        name: the data set and its division.
        splits: rows of each split; of several together where `+` joins them, as where one is held out of the other.
        rows: what is counted.
        captions: in all splits; None where it is not told.
        absent: splits that may be missing.
    """

    name: str
    splits: Mapping[str, int]
    rows: str = "items"
    captions: int | None = None
    absent: frozenset[str] = field(default_factory=frozenset)

    def differences(self, splits: Mapping[str, int], captions: int | None = None) -> list[str]:
        """Return what differs, such as `train 6,512 of 6,513 items`; nothing where all is as published."""
        told = []
        for names, expected in self.splits.items():
            found = sum(splits.get(split, 0) for split in names.split("+"))
            if found != expected and (found or names not in self.absent):
                told.append(f"{names} {found:,} of {expected:,} {self.rows}")
        if self.captions is not None and captions is not None and captions != self.captions:
            told.append(f"{captions:,} of {self.captions:,} captions")
        return told


def compare_counts(
    published: Sequence[Published], splits: Mapping[str, int], *, captions: int | None = None
) -> str:
    """Return in a line whether the counts of a corpus are those of one of some data sets, or how they differ.

    Where they are of none, they are compared with the one that fewest of them differ from, the first of several.
    """
    nearest = min(published, key=lambda each: len(each.differences(splits, captions)))
    differences = nearest.differences(splits, captions)
    if not differences:
        return f"as many as published: {nearest.name}"
    return f"not as many as published ({nearest.name}): {', '.join(differences)}"


# Karpathy and Fei-Fei, CVPR 2015: restval belongs to what is trained on; all captions, of which most images have five.
COCO = Published(
    name="COCO, Karpathy's splits",
    splits={"train+restval": 113_287, "val": 5_000, "test": 5_000},
    captions=616_767,
)
FLICKR30K = Published(
    name="Flickr30K, Karpathy's splits",
    splits={"train": 29_000, "val": 1_014, "test": 1_000},
    captions=155_070,
)
# Hodosh et al., JAIR 2013: five captions of every image; Karpathy's splits are the official ones.
FLICKR8K = Published(
    name="Flickr8k, Karpathy's splits",
    splits={"train": 6_000, "val": 1_000, "test": 1_000},
    captions=40_000,
)
# Lee et al., ECCV 2018 (SCAN): five captions of every image; testall of COCO.
SCAN = (
    Published(
        name="COCO, SCAN's features", splits={"train": 113_287, "val": 5_000, "test": 5_000}, captions=616_435
    ),
    Published(
        name="Flickr30K, SCAN's features",
        splits={"train": 29_000, "val": 1_014, "test": 1_000},
        captions=155_070,
    ),
)
# Xu et al., CVPR 2016: 20 captions of every video.
MSRVTT = Published(
    name="MSR-VTT, full splits", splits={"train": 6_513, "val": 497, "test": 2_990}, captions=200_000
)
# Yu et al., ECCV 2018 (the test set, a caption a video); Gabeur et al., ECCV 2020 (9k); Miech et al., ICCV 2019 (7k).
MSRVTT_1KA = tuple(
    Published(
        name=f"MSR-VTT, split 1k-A with {name} training videos",
        splits={"train+val": train, "test": 1_000},
        captions=20 * train + 1_000,
    )
    for name, train in (("9k", 9_000), ("7k", 7_010))
)
# Wang et al., ICCV 2019; Chen et al., CVPR 2020 (the halves of the validation videos): ten English captions each.
VATEX = Published(
    name="VATEX, validation in halves",
    splits={"train": 25_991, "val": 1_500, "test": 1_500},
    captions=289_910,
)
# Venugopalan et al., ICCV 2015 (the division).
MSVD = Published(name="MSVD", splits={"train": 1_200, "val": 100, "test": 670})
# Goyal et al., CVPR 2017: train2014 is train and val, val2014 is test.
VQA2 = Published(
    name="VQA 2.0",
    splits={"train+val": 443_757, "test": 214_354, "test-dev": 107_394, "test2015": 447_793},
    rows="questions",
    absent=frozenset({"test-dev", "test2015"}),
)
# Parekh et al., EACL 2021: rows of the official files of a split.
CXC = {
    "val": Published(
        name="Crisscrossed Captions, val",
        splits={"sits": 44_722, "sts": 44_009, "sis": 42_767},
        rows="ratings",
    ),
    "test": Published(
        name="Crisscrossed Captions, test",
        splits={"sits": 44_833, "sts": 44_045, "sis": 46_719},
        rows="ratings",
    ),
}
# Chun et al., ECCV 2022 (the statistics beside the released files): right answers of all queries.
ECCV = Published(
    name="ECCV Caption", splits={"image_to_caption": 22_550, "caption_to_image": 11_279}, rows="pairs"
)
