"""Tiny versions of the downloads that the pages in docs/papers name, with official names, layouts and widths."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import h5py
import numpy as np
from annotations import msrvtt_sentence, msrvtt_video, vatex_entries, write_msrvtt
from clips import write_clip
from corpora import NOUNS, captions_about, write_role_graphs
from judgment_files import caption, image, write_csvs
from PIL import Image
from vqa2_files import annotation, question, write_vqa2

SPLITS = ("train",) * 12 + ("restval",) * 2 + ("val",) * 4 + ("test",) * 10
"""Splits of the COCO and Flickr30K images; the ten test images make five folds."""
PARTS = {"train": range(14), "val": range(14, 18), "test": range(18, 28)}
_SCAN = {"train": ("train",), "val": ("dev",), "test": ("test", "testall")}
SHA = "0" * 40


def sentences(number: int, count: int) -> list[str]:
    """Return `count` captions of an image or video."""
    first, second = NOUNS[number % 8], NOUNS[(number // 8 + number + 1) % 8]
    texts = captions_about(first, second)
    return [texts[n % 3] if n < 3 else f"{texts[n % 3]} seen {n}" for n in range(count)]


def write_downloads(folder: Path) -> None:
    """Write everything into the folder."""
    _write_images(folder, "coco", lambda n: f"{'val' if n > 13 else 'train'}2014")
    _write_images(folder, "flickr30k", lambda _: "flickr30k-images")
    write_tsv(folder / "trainval_36", range(28), parts=2)
    write_tsv(folder / "test2015_36", range(100, 104))
    _write_scan(folder / "coco_precomp", twice="testall")
    _write_scan(folder / "f30k_precomp")
    write_csvs(
        folder / "data/cxc",
        sits=[(caption(5 * n + k), image(n), 5.0) for n in PARTS["test"] for k in range(5)],
        sts=[(caption(5 * n), caption(5 * n + 1), 4.0) for n in PARTS["test"]],
        sis=[(image(n), image(n + 1), 4.0) for n in range(18, 27)],
    )
    write_questions(folder)
    _write_videos(folder)


def _write_images(folder: Path, dataset: str, place: Callable[[int], str]) -> None:
    """Write `dataset_coco.json`, whose images have `cocoid`s, or `dataset_flickr30k.json`, and the photographs."""
    entries = []
    for n, split in enumerate(SPLITS):
        name = f"COCO_{place(n)}_{n:012d}.jpg" if dataset == "coco" else f"{1000092795 + n}.jpg"
        (folder / place(n)).mkdir(exist_ok=True)
        pixels = np.random.default_rng(n).integers(0, 256, (40, 48, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / place(n) / name)
        said = [
            {"raw": text, "tokens": text.split(), "imgid": n, "sentid": 5 * n + k}
            for k, text in enumerate(sentences(n, 5))
        ]
        entry = {"filename": name, "imgid": n, "split": split, "sentences": said, "sentids": []}
        entries.append(entry | ({"filepath": place(n), "cocoid": n} if dataset == "coco" else {}))
    text = json.dumps({"images": entries, "dataset": dataset})
    (folder / f"dataset_{dataset}.json").write_text(text)


def _regions(count: int) -> np.ndarray:
    return np.random.default_rng(count).random((count, 36, 2048), np.float32)


def write_tsv(folder: Path, ids: Sequence[int], *, parts: int = 1) -> None:
    """Write bottom-up-attention's files: 36 boxes per image."""
    folder.mkdir()
    box_N4 = np.tile(np.array([1, 2, 30, 40], np.float32), (36, 1))
    for part in range(parts):
        lines = []
        for id, x_ND in zip(ids[part::parts], _regions(len(ids)), strict=False):
            blocks = [base64.b64encode(x.tobytes()).decode() for x in (box_N4, x_ND)]
            lines.append("\t".join([str(id), "48", "40", "36", *blocks]))
        (folder / f"karpathy_part{part}_resnet101_faster_rcnn_genome_36.tsv").write_text(
            "\n".join(lines) + "\n"
        )


def _write_scan(folder: Path, *, twice: str = "") -> None:
    """Write SCAN's arrays, which repeat each row of the dev and test splits five times."""
    folder.mkdir()
    for split, numbers in PARTS.items():
        for name in _SCAN[split]:
            if name == "testall" and name != twice:
                continue
            some = [*numbers][:5] if name == "test" and twice else [*numbers]
            rows = _regions(len(some))
            np.save(folder / f"{name}_ims.npy", rows if name == "train" else rows.repeat(5, axis=0))
            lines = [text for n in some for text in sentences(n, 5)]
            (folder / f"{name}_caps.txt").write_text("\n".join(lines) + "\n")
            repeated = [n for n in some for _ in range(1 if name == "train" else 5)]
            (folder / f"{name}_ids.txt").write_text("".join(f"{n}\n" for n in repeated))


def write_questions(folder: Path) -> None:
    """Write VQA 2.0's files: two questions about each image."""
    images = {
        "train2014": range(14),
        "val2014": range(14, 20),
        "test2015": range(100, 104),
        "test-dev2015": range(100, 102),
    }
    for subtype, ids in images.items():
        entries = [question(10 * n + k, n) for n in ids for k in (1, 2)]
        write_vqa2(folder, subtype, "questions", entries)
        if subtype in ("train2014", "val2014"):
            entries = [annotation(10 * n + k, n) for n in ids for k in (1, 2)]
            write_vqa2(folder, subtype, "annotations", entries, name=f"v2_mscoco_{subtype}_annotations.json")


def _write_videos(folder: Path) -> None:
    """Write MSR-VTT's and VATEX's files, and HGR's releases for both."""
    (folder / "videos").mkdir()
    names = [f"video{n}" for n in range(28)]
    for n, name in enumerate(names):
        write_clip(folder / "videos" / f"{name}.mp4", 20, seed=n)
    of = {"train": "train", "val": "validate", "test": "test"}
    for file, splits in {"train_val": ("train", "val"), "test": ("test",)}.items():
        numbers = [(n, of[split]) for split in splits for n in PARTS[split]]
        said = [
            msrvtt_sentence(100 * n + k, n, caption=text)
            for n, _ in numbers
            for k, text in enumerate(sentences(n, 20))
        ]
        write_msrvtt(folder / f"{file}_videodatainfo.json", [msrvtt_video(*each) for each in numbers], said)
    listed = {split: [names[n] for n in numbers] for split, numbers in PARTS.items()}
    _write_release(folder / "MSRVTT", listed, features="resnet152.pth", dim=2048)
    entries = vatex_entries(0, 28)
    for n, entry in enumerate(entries):
        entry["enCap"] = sentences(n, 10)
    for split, some in {"training": entries[:14], "validation": entries[14:]}.items():
        (folder / f"vatex_{split}_v1.0.json").write_text(json.dumps(some))
    (folder / "val").mkdir()
    for entry in entries:
        np.save(folder / "val" / f"{entry['videoID']}.npy", _regions(1)[:, :7, :1024])
    listed = {split: [entries[n]["videoID"] for n in numbers] for split, numbers in PARTS.items()}
    _write_release(folder / "VATEX", listed)


def _write_release(folder: Path, listed: dict[str, list[str]], *, features: str = "", dim: int = 0) -> None:
    """Write HGR's release of a data set: captions, lists, role graphs and, if named, features of frames."""
    texts = {
        name: sentences(n, 10) for n, name in enumerate(name for some in listed.values() for name in some)
    }
    (folder / "annotation/RET").mkdir(parents=True)
    (folder / "annotation/RET/ref_captions.json").write_text(json.dumps(texts))
    write_role_graphs(
        folder / "annotation/RET/sent2rolegraph.augment.json",
        (text for some in texts.values() for text in some),
    )
    (folder / "public_split").mkdir()
    for short, names in zip(("trn", "val", "tst"), listed.values(), strict=True):
        np.save(folder / "public_split" / f"{short}_names.npy", np.array(names))
        if features:
            (place := folder / "ordered_feature/SA" / features).mkdir(parents=True, exist_ok=True)
            with h5py.File(place / f"{short}_ft.hdf5", "w") as file:
                for name in names:
                    file[name] = _regions(1)[0, :9, :dim]


def cache_models(cache: Path, models: dict[str, Callable[[Path], object]]) -> None:
    """Save models in a cache of the Hugging Face hub, under their names there."""
    for name, save in models.items():
        folder = cache / f"models--{name.replace('/', '--')}"
        (folder / "refs").mkdir(parents=True)
        (folder / "refs/main").write_text(SHA)
        save(folder / "snapshots" / SHA)


def write_vectors(folder: Path, words: Iterable[str] = ("a", "dog", "cat", "the")) -> None:
    """Write 300-dimensional GloVe vectors to files of the official names."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("6B", "42B", "840B"):
        (folder / f"glove.{name}.300d.txt").write_text("".join(f"{word}{' 0.5' * 300}\n" for word in words))
