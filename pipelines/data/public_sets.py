"""Public data sets of the recipes: files, addresses, sizes and terms as their authors state them; which are here."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

DEPTH = 4  # folders below the first one that are looked through: archives hold their files one or two folders deep
_MOST = 10_000  # entries of a folder of pictures or clips, beyond which those below are not looked at


@dataclass(frozen=True, kw_only=True)
class PublicFile:
    """A file or a folder.

    Attributes:
        name: in its archive, such as `dataset_coco.json`, or `train2014/` for a folder.
        url: of the file, of the archive that holds it, or of the page that leads there.
        size: of what is downloaded, as its page says; empty where it says nothing.
        use: what it is for; empty where nothing goes without it.
    """

    name: str
    url: str
    size: str = ""
    use: str = ""


@dataclass(frozen=True, kw_only=True)
class PublicSet:
    """A data set.

    Attributes:
        title: its name in papers.
        page: of its authors.
        terms: under which they give it away; what stands on the page holds.
        files: what `commands` read.
        commands: what makes a corpus of them, and stores; run where the files are.
    """

    title: str
    page: str
    terms: str
    files: tuple[PublicFile, ...]
    commands: tuple[str, ...]


def _files(url: str, *names: str, size: str = "", use: str = "") -> tuple[PublicFile, ...]:
    return tuple(PublicFile(name=name, url=url, size=size, use=use) for name in names)


_COCO = "http://images.cocodataset.org/zips"
_KARPATHY = "https://cs.stanford.edu/people/karpathy/deepimagesent/caption_datasets.zip"
_SCAN = "https://www.kaggle.com/datasets/kuanghueilee/scan-features"
_SCAN_USE = "SCAN's arrays: regions and captions, a corpus by themselves"
_FLICKR = "https://shannon.cs.illinois.edu/DenotationGraph/"
_FLICKR8K = "https://hockenmaier.cs.illinois.edu/Framing_Image_Description/KCCA.html"
_CXC = "https://github.com/google-research-datasets/Crisscrossed-Captions"
_CLIP4CLIP = "https://github.com/ArrowLuo/CLIP4Clip/releases/download/v0.0"
_MSRVTT = "http://ms-multimedia-challenge.com/2017/dataset"
_MSRVTT_CLIPS = "https://www.robots.ox.ac.uk/~maxbain/frozen-in-time/data/MSRVTT.zip"
_MSVD = "https://www.cs.utexas.edu/users/ml/clamp/videoDescription/"
_VATEX = "https://eric-xw.github.io/vatex-website/download.html"
_VQA = "https://s3.amazonaws.com/cvmlp/vqa/mscoco/vqa"
_PICTURES = (
    *_files(f"{_COCO}/train2014.zip", "train2014/", size="13 GB"),
    *_files(f"{_COCO}/val2014.zip", "val2014/", size="6 GB"),
)
_BUTD = "https://github.com/peteanderson80/bottom-up-attention"
_REGIONS = _files(
    _BUTD,
    "trainval_36/",
    size="25 GB",
    use="bottom-up-attention's 36 regions of each photograph, instead of features of your own",
)

SETS: dict[str, PublicSet] = {
    "coco": PublicSet(
        title="COCO captions, in Karpathy's splits",
        page="https://cocodataset.org/#download",
        terms="captions CC BY 4.0; the photographs stay under Flickr's terms",
        files=(
            *_files(_KARPATHY, "dataset_coco.json"),
            *_PICTURES,
            *_REGIONS,
            *_files(_SCAN, "coco_precomp/", use=_SCAN_USE),
        ),
        commands=(
            "polypool ingest karpathy --json dataset_coco.json --images . --out data/coco",
            "polypool ingest butd --file trainval_36/*.tsv --out data/coco/regions --corpus data/coco",
        ),
    ),
    "flickr30k": PublicSet(
        title="Flickr30K, in Karpathy's splits",
        page=_FLICKR,
        terms="captions by their authors; the photographs stay under Flickr's terms, for research",
        files=(
            *_files(_KARPATHY, "dataset_flickr30k.json"),
            *_files(_FLICKR, "flickr30k-images/"),
            *_files(_SCAN, "f30k_precomp/", use=_SCAN_USE),
        ),
        commands=(
            "polypool ingest karpathy --json dataset_flickr30k.json --images flickr30k-images "
            "--out data/flickr30k",
        ),
    ),
    "flickr8k": PublicSet(
        title="Flickr8k, in Karpathy's splits, which are its official ones",
        page=_FLICKR8K,
        terms="captions by their authors; the photographs stay under Flickr's terms, for research",
        files=(
            *_files(_KARPATHY, "dataset_flickr8k.json"),
            *_files(_FLICKR8K, "Flickr8k_Dataset/"),
            *_files(
                _FLICKR8K,
                *("ExpertAnnotations.txt", "CrowdFlowerAnnotations.txt"),
                use="for the protocols `flickr8k-expert` and `flickr8k-crowd`",
            ),
        ),
        commands=(
            "polypool ingest karpathy --json dataset_flickr8k.json --images Flickr8k_Dataset --out data/flickr8k",
            "polypool evaluate RUN_ID --protocol flickr8k-expert     # with the judgments in data/flickr8k",
        ),
    ),
    "cxc": PublicSet(
        title="Crisscrossed Captions: people's ratings of pairs of COCO",
        page=_CXC,
        terms="see its page",
        files=_files(f"{_CXC}/tree/master/data", "sits_test.csv", "sts_test.csv", "sis_test.csv"),
        commands=("polypool evaluate RUN_ID --protocol coco-5k-cxc     # with the files in data/cxc",),
    ),
    "msrvtt": PublicSet(
        title="MSR-VTT: 6,513 clips to train, 497 and 2,990 to choose and test",
        page="https://www.microsoft.com/en-us/research/publication/msr-vtt-a-large-video-description-dataset-for-bridging-video-and-language/",
        terms="for research; the clips are YouTube's",
        files=(
            *_files(_MSRVTT, "train_val_videodatainfo.json", "test_videodatainfo.json"),
            *_files(_MSRVTT_CLIPS, "videos/"),
        ),
        commands=(
            "polypool ingest msrvtt --json train_val_videodatainfo.json test_videodatainfo.json "
            "--videos videos --out data/msrvtt",
        ),
    ),
    "msrvtt-1ka": PublicSet(
        title="MSR-VTT, the 1k-A split: 9,000 clips to train, 1,000 to test, a caption each",
        page="https://github.com/ArrowLuo/CLIP4Clip",
        terms="for research; the clips are YouTube's",
        files=(
            *_files(
                f"{_CLIP4CLIP}/msrvtt_data.zip",
                *("MSRVTT_data.json", "MSRVTT_train.9k.csv", "MSRVTT_JSFUSION_test.csv"),
            ),
            *_files(_MSRVTT_CLIPS, "videos/"),
        ),
        commands=(
            "polypool ingest msrvtt-1ka --json MSRVTT_data.json --train MSRVTT_train.9k.csv "
            "--test MSRVTT_JSFUSION_test.csv --videos videos --out data/msrvtt-1ka",
        ),
    ),
    "msvd": PublicSet(
        title="MSVD: 1,200 clips to train, 100 and 670 to choose and test",
        page=_MSVD,
        terms="for research; the clips are YouTube's",
        files=(
            *_files(_MSVD, "AllVideoDescriptions.txt"),
            *_files(f"{_CLIP4CLIP}/msvd_data.zip", "train_list.txt", "val_list.txt", "test_list.txt"),
            *_files(_MSVD, "YouTubeClips/", size="1.7 GB"),
        ),
        commands=(
            "polypool ingest msvd --captions AllVideoDescriptions.txt --lists . --videos YouTubeClips "
            "--out data/msvd",
        ),
    ),
    "vatex": PublicSet(
        title="VATEX, English captions; half of the validation split is tested on, as in HGR",
        page=_VATEX,
        terms="annotations CC BY 4.0; the clips are YouTube's, and some are gone",
        files=_files(_VATEX, "vatex_training_v1.0.json", "vatex_validation_v1.0.json"),
        commands=(
            "polypool ingest vatex --training vatex_training_v1.0.json "
            "--validation vatex_validation_v1.0.json --out data/vatex",
        ),
    ),
    "vqa2": PublicSet(
        title="VQA 2.0: questions about COCO's photographs",
        page="https://visualqa.org/download.html",
        terms="annotations CC BY 4.0; the photographs stay under Flickr's terms",
        files=(
            *_files(f"{_VQA}/v2_Questions_Train_mscoco.zip", "v2_OpenEnded_mscoco_train2014_questions.json"),
            *_files(f"{_VQA}/v2_Questions_Val_mscoco.zip", "v2_OpenEnded_mscoco_val2014_questions.json"),
            *_files(f"{_VQA}/v2_Annotations_Train_mscoco.zip", "v2_mscoco_train2014_annotations.json"),
            *_files(f"{_VQA}/v2_Annotations_Val_mscoco.zip", "v2_mscoco_val2014_annotations.json"),
            *_PICTURES,
            *_files(
                f"{_VQA}/v2_Questions_Test_mscoco.zip",
                "v2_OpenEnded_mscoco_test2015_questions.json",
                use="the splits test-dev and test, whose answers the challenge's server keeps",
            ),
            *_files(f"{_COCO}/test2015.zip", "test2015/", size="12 GB", use="their photographs"),
            *_REGIONS,
            *_files(_BUTD, "test2015_36/", use="those of the photographs of test-dev and test"),
        ),
        commands=(
            "polypool ingest vqa2 --questions v2_OpenEnded_*_questions.json "
            "--annotations v2_mscoco_*_annotations.json --images . --out data/vqa2",
            "polypool ingest butd --file trainval_36/*.tsv test2015_36/*.tsv --corpus data/vqa2 "
            "--out data/vqa2/regions",
        ),
    ),
}
"""Data sets by name, in the order of `polypool data`."""


def found_below(folder: Path, names: Collection[str]) -> dict[str, Path]:
    """Return where files and folders (`name/`) are; of several the first by its path.

    Links to folders are not followed, and what may not be read is passed over.
    """
    found: dict[str, Path] = {}
    for place, folders, files in os.walk(folder):
        here = Path(place)
        for name in sorted({*(f"{each}/" for each in folders), *files} & {*names}):
            found.setdefault(name, here / name)
        deep = len(here.relative_to(folder).parts) >= DEPTH or len(files) > _MOST
        folders[:] = [] if deep else sorted(each for each in folders if not each.startswith("."))
    return found


def summary(of: PublicSet, found: Mapping[str, Path]) -> str:
    """Return a line on a data set: its title, and how many of the files that it cannot go without are here."""
    needed = [file.name for file in of.files if not file.use]
    here = sum(name in found for name in needed)
    return f"{of.title}: " + (
        "all files here" if here == len(needed) else f"{here} of {len(needed)} files here"
    )


def where_published(path: Path) -> str:
    """Return where a file or folder of a public data set can be had, for the message that it is missing."""
    sets = [name for name, of in SETS.items() if path.name in {file.name.rstrip("/") for file in of.files}]
    return f"; polypool data {' '.join(sets)} says where it can be had" if sets else ""


def report(name: str, of: PublicSet, found: Mapping[str, Path]) -> str:
    """Return what a person needs to get a data set and to read it."""
    lines = [f"{name}: {of.title}", f"  {of.page}", f"  {of.terms}", ""]
    for file in of.files:
        where = f"here: {found[file.name]}" if file.name in found else "not here: " + file.url
        size = f", {file.size}" if file.size and file.name not in found else ""
        use = f"\n    {file.use}" if file.use else ""
        lines.append(f"  {file.name:<{max(len(each.name) for each in of.files)}}  {where}{size}{use}")
    return "\n".join([*lines, "", *(f"  {command}" for command in of.commands), ""])
