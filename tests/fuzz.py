"""`make fuzz`: damage files of every format that `ingest` reads, of stores and of corpora; print tables of outcomes.

python tests/fuzz.py --minutes 30

A case passes if the command succeeds, reports what it skipped, or ends with one message (exit codes 0, 1 and 2); the
files of other cases are kept. A second table counts, of 100 damaged pictures or videos, those that are accepted with
other pixels than before the damage.
"""

from __future__ import annotations

import base64
import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import tarfile
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tyro
from PIL import Image

sys.path.append(str(Path(__file__).resolve().parent / "support"))
from places import PATHS

sys.path[:0] = PATHS
from annotations import (  # noqa: E402 (needs the path set above)
    HGR_NAMES,
    activitynet_video,
    didemo_entry,
    karpathy_entry,
    msrvtt_sentence,
    msrvtt_video,
    vatex_entries,
    write_hgr,
    write_karpathy,
    write_msrvtt,
    write_msvd,
    write_paragraphs,
    write_vatex,
)
from clips import decoded, write_clip  # noqa: E402
from corpora import make_corpus  # noqa: E402
from pictures import photograph  # noqa: E402
from vqa2_files import annotation, question, write_vqa2  # noqa: E402

from polypool.infra.errors import InputError  # noqa: E402
from polypool.infra.pictures import load  # noqa: E402
from polypool.infra.store import FeatureStore  # noqa: E402
from polypool.infra.video import BadVideo  # noqa: E402
from polypool.pipelines.commands import ingest  # noqa: E402
from polypool.tasks.datasets.corpus import Corpus  # noqa: E402

SECONDS, MEMORY = 20, 8 << 30  # limits per case
SPLITS = ["train"] * 4 + ["val"] * 2 + ["test"] * 2
ROWS = [{"image": f"{n}.png", "caption": f"a café, {n}", "split": split} for n, split in enumerate(SPLITS)]
ODD = [
    *(
        "null",
        "true",
        "-1",
        str(2**63),
        "1e999",
        "NaN",
        '""',
        '"\\ud800"',
        '"\\u001b[2J"',
        "[]",
        "{}",
        "[null]",
    ),
    *('"../../etc/passwd"', "9" * 5000, "[" * 50_000, '"' + "word " * 20_000 + '"', '{"a": 1, "a": 2}'),
]
"""Replacements for a string or a number."""


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def a_table(folder: Path) -> None:
    for row in ROWS:
        photograph().save(folder / row["image"])
    lines = [",".join(f'"{value}"' for value in row.values()) for row in ROWS]
    (folder / "a.csv").write_text("\n".join(["image,caption,split", *lines]))
    (folder / "a.json").write_text(json.dumps(ROWS))
    (folder / "a.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    pq.write_table(pa.Table.from_pylist(ROWS), folder / "a.parquet")


def a_list_of_ids(folder: Path) -> None:
    rows = [{"video_id": f"v{n}", "desc": ["a café"] * 2, "subtitle": " you"} for n in range(8)]
    (folder / "descs.json").write_text(json.dumps(rows))
    for row in rows:
        (folder / "frames" / row["video_id"]).mkdir(parents=True)
        photograph().save(folder / "frames" / row["video_id"] / "1.jpg")


def a_shard(folder: Path) -> None:
    with tarfile.open(folder / "a.tar", "w") as tar:
        for n in range(8):
            picture = BytesIO()
            photograph(seed=n).save(picture, "png")
            for name, data in ((f"{n}.png", picture.getvalue()), (f"{n}.txt", b"a dog")):
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, BytesIO(data))


def msrvtt(folder: Path) -> None:
    videos = [msrvtt_video(n, split.replace("val", "validate")) for n, split in enumerate(SPLITS)]
    write_msrvtt(folder / "a.json", videos, [msrvtt_sentence(n, n // 2) for n in range(16)])


def vqa2(folder: Path) -> None:
    write_vqa2(folder, "train2014", "questions", [question(n, n // 2) for n in range(8)], name="q.json")
    write_vqa2(folder, "train2014", "annotations", [annotation(n, n // 2) for n in range(8)], name="a.json")


def features(folder: Path) -> None:
    texts = (base64.b64encode(drawn(3, width).tobytes()).decode() for width in (4, 4))
    row = "\t".join(["640", "480", "3", *texts])
    (folder / "a.tsv").write_text("".join(f"{n}\t{row}\n" for n in range(6)))
    with h5py.File(folder / "a.h5", "w") as file:
        file["image_features"], file["image_ids"] = drawn(3, 2, 4), np.array([7, 8, 9])
    (folder / "in").mkdir()
    for n in range(4):
        np.save(folder / "in" / f"{n}.npy", drawn(2, 4))
    np.savez_compressed(folder / "in" / "5.npz", x=drawn(3, 4))


def scan(folder: Path) -> None:
    for split, count in (("train", 6), ("dev", 3)):
        np.save(folder / f"{split}_ims.npy", drawn(count, 2, 4) + np.arange(count)[:, None, None])
        (folder / f"{split}_caps.txt").write_text("".join(f"caption {n}\n" for n in range(2 * count)))
        (folder / f"{split}_ids.txt").write_text("\n".join(f"{split}{n}" for n in range(count)))


def hgr(folder: Path) -> None:
    write_hgr(folder)
    for split, names in HGR_NAMES.items():
        np.save(folder / f"{split}_ft.npy", drawn(len(names), 4))


def read_store(folder: Path) -> None:
    corpus, store = Corpus.open(folder / "corpus"), FeatureStore.open(folder / "features")
    store.verify()
    assert all(len(store[row]) for row in store.rows([item.id for item in corpus.items("train")]))


VATEX, MSVD = "vatex_training_v1.0.json vatex_validation_v1.0.json", "AllVideoDescriptions.txt train_list.txt"
PARTS = ("train", "test")
FORMS: dict[str, tuple[Callable[[Path], object], str, str | Callable[[Path], None]]] = {
    **{f"table {name}": (a_table, name, f"table --file {name}") for name in ("a.csv", "a.json", "a.jsonl")},
    "table a.parquet": (a_table, "a.parquet", "table --file a.parquet"),
    "table of ids": (a_list_of_ids, "descs.json", "table --file descs.json --videos frames"),
    "webdataset": (a_shard, "a.tar", "webdataset --shards a.tar --images pictures"),
    "karpathy": (
        lambda folder: write_karpathy(folder, [karpathy_entry(n, split=s) for n, s in enumerate(SPLITS)]),
        "dataset.json",
        "karpathy --json dataset.json --images images",
    ),
    "msrvtt": (msrvtt, "a.json", "msrvtt --json a.json"),
    "vatex": (
        lambda folder: write_vatex(folder, vatex_entries(0, 4), vatex_entries(4, 4)),
        VATEX,
        f"vatex --training {VATEX.replace(' ', ' --validation ')}",
    ),
    "msvd": (
        lambda folder: write_msvd(
            folder,
            b"".join(b"clip%d_0_9 a dog runs\n" % n for n in range(6)),
            train="clip0_0_9\nclip1_0_9\nclip2_0_9\nclip3_0_9",
            val="clip4_0_9",
            test="clip5_0_9",
        ),
        MSVD,
        "msvd --captions AllVideoDescriptions.txt --lists .",
    ),
    "paragraphs didemo": (
        lambda folder: write_paragraphs(
            folder,
            **{
                s: [didemo_entry(3 * n + m % 3, f"moment {m}") for m in range(6)] for n, s in enumerate(PARTS)
            },
        ),
        "train.json test.json",
        "paragraphs --train train.json --test test.json --held-out 1",
    ),
    "paragraphs activitynet": (
        lambda folder: write_paragraphs(
            folder,
            **{s: {f"v_{s}{n}": activitynet_video("A dog.", " It runs.") for n in range(4)} for s in PARTS},
        ),
        "train.json test.json",
        "paragraphs --train train.json --test test.json --held-out 1",
    ),
    "hgr": (hgr, "ref_captions.json", "hgr --captions ref_captions.json --splits public_split"),
    "hgr-features": (hgr, "trn_ft.npy", "hgr-features --dir . --splits public_split"),
    "vqa2": (vqa2, "q.json a.json", "vqa2 --questions q.json --annotations a.json --dev 0"),
    "butd": (features, "a.tsv", "butd --file a.tsv --dim 4"),
    "hdf5": (features, "a.h5", "hdf5 --file a.h5"),
    "arrays": (features, "in/1.npy in/5.npz", "arrays --dir in"),
    "scan": (scan, "train_ims.npy train_caps.txt train_ids.txt", "scan --dir ."),
    "store": (
        lambda folder: make_corpus(folder, train=6, val=2, test=2),
        "corpus/corpus.json corpus/corpus.arrow features/manifest.json features/shard-00000.arrow",
        read_store,
    ),
}
"""By name: function that writes the files, files to damage, and arguments of `ingest` or a function that reads."""


def damaged(data: bytes, draw: random.Random) -> bytes:
    """Return bytes with one to three kinds of damage."""
    for _ in range(draw.randint(1, 3)):
        at, size = draw.randrange(len(data) + 1), draw.choice([1, 4, 64, 1000])
        words = [*re.finditer(rb'"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?|\w+', data[:100_000])]
        kind = draw.choice(["cut", "flip", "zero", "twice", "without", "odd", "odd", "odd"])
        if kind == "cut":
            data = data[:at]
        elif kind == "flip" and at < len(data):
            data = data[:at] + bytes([data[at] ^ draw.randrange(1, 256)]) + data[at + 1 :]
        elif kind == "zero":
            data = data[:at] + bytes(len(data[at : at + size])) + data[at + size :]
        elif kind == "twice":
            data = data[: at + size] + data[at:]
        elif kind == "without":
            data = data[:at] + data[at + size :]
        elif words:
            found = draw.choice(words)
            data = data[: found.start()] + draw.choice(ODD).encode() + data[found.end() :]
    return data


def outcome(folder: Path, action: str | Callable[[Path], None]) -> str:
    """Run a case in another process; return its outcome."""
    if not (child := os.fork()):
        code = 70
        os.chdir(folder)
        log = os.open("said.txt", os.O_CREAT | os.O_WRONLY)
        os.dup2(log, 1)
        os.dup2(log, 2)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        signal.alarm(SECONDS)
        try:
            if isinstance(action, str):
                sys.argv = ["ingest", *action.split(), "--out", "out", "--allow-skipped"]
                ingest.main()
            else:
                action(folder)
            code = 0
        except InputError:
            code = 2
        except SystemExit as stop:
            code = stop.code or 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return "hang" if os.WTERMSIG(status) == signal.SIGALRM else "crash"
    return {0: "read", 1: "read", 2: "message"}.get(os.WEXITSTATUS(status), "traceback")


def zeros(data: bytes, _: random.Random) -> bytes:
    middle = len(data) // 2
    return data[: middle - 250] + bytes(500) + data[middle + 250 :]


def flips(data: bytes, _: random.Random) -> bytes:
    return data[:700] + bytes(each ^ (255 * (at % 97 == 0)) for at, each in enumerate(data[700:]))


def one(data: bytes, draw: random.Random) -> bytes:
    at = draw.randrange(len(data))
    return data[:at] + bytes([data[at] ^ draw.randrange(1, 256)]) + data[at + 1 :]


DAMAGE = {
    "500 bytes zeroed": zeros,
    "every 97th byte changed": flips,
    "cut at half": lambda data, _: data[: len(data) // 2],
    "one byte changed": one,
}
MEDIA = {
    **{name: (name, {}) for name in ("jpg", "png", "gif", "webp", "tif", "bmp", "ppm")},
    "jpg, progressive": ("jpg", {"progressive": True}),
    "webp, lossless": ("webp", {"lossless": True}),
    "tif, LZW": ("tif", {"compression": "tiff_lzw"}),
    "tif, Deflate": ("tif", {"compression": "tiff_adobe_deflate"}),
    "H.264 in MP4": ("mp4", {"codec": "libx264"}),
    "VP9 in WebM": ("webm", {"codec": "libvpx-vp9"}),
    "MPEG-4 in AVI": ("avi", {"codec": "mpeg4"}),
}


def pixels(path: Path) -> np.ndarray | None:
    """Return the pixels of a picture or video; None if it is refused."""
    if path.suffix in (".mp4", ".webm", ".avi"):
        try:
            return decoded(path, at_most=12)
        except BadVideo:
            return None
    image = load(path)
    return np.asarray(image) if isinstance(image, Image.Image) else None


def media_row(name: str, folder: Path, *, count: int) -> str:
    """Return a row of the second table: the percentage of `count` damaged files accepted with other pixels."""
    suffix, options = MEDIA[name]
    path, used = folder / f"a.{suffix}", Counter[str]()
    for seed in range(count):
        if "codec" not in options:
            photograph(seed=seed).save(path, **options)
        elif not seed:
            write_clip(path, 48, pan=True, **options)
        whole, truth = path.read_bytes(), pixels(path)
        for damage, change in DAMAGE.items():
            path.write_bytes(change(whole, random.Random(seed)))
            found = pixels(path)
            used[damage] += found is not None and not np.array_equal(found, truth)
        path.write_bytes(whole)
    return f"| {name} | {' | '.join(f'{100 * used[damage] / count:.0f}' for damage in DAMAGE)} |"


def main(*, minutes: float = 30.0, seed: int = 0, count: int = 100, found: Path = Path("fuzz-found")) -> None:
    """Fuzz every format in turn.

    Args:
        minutes: time to fuzz, without the second table.
        seed: random seed of the damage.
        count: number of pictures or videos to damage for each format.
        found: folder for the files of failed cases.
    """
    os.environ |= {"TQDM_DISABLE": "1", "HF_HUB_OFFLINE": "1"}
    draw, end, ends = random.Random(seed), time.monotonic() + 60 * minutes, Counter[tuple[str, str]]()
    with tempfile.TemporaryDirectory() as name:
        made = Path(name)
        for form, (make, _, _) in FORMS.items():
            (made / form).mkdir()
            make(made / form)
        while time.monotonic() < end:
            for form, (_, files, action) in FORMS.items():
                case = made / "case"
                shutil.copytree(made / form, case)
                damaged_file = case / draw.choice(files.split())
                damaged_file.write_bytes(damaged(damaged_file.read_bytes(), draw))
                how = outcome(case, action)
                ends[form, how] += 1
                if how not in ("read", "message") and ends[form, how] < 4:
                    shutil.copytree(case, found / f"{form} {how} {ends[form, how]}", dirs_exist_ok=True)
                shutil.rmtree(case)
        columns = ("read", "message", "traceback", "hang", "crash")
        print(f"| form | {' | '.join(columns)} |\n|---|{'---:|' * len(columns)}")
        for form in FORMS:
            print(f"| {form} | {' | '.join(f'{ends[form, how]:,}' for how in columns)} |")
        print(f"\n| of 100 | {' | '.join(DAMAGE)} |\n|---|{'---:|' * len(DAMAGE)}")
        for media in MEDIA:
            print(media_row(media, made, count=count), flush=True)
    sys.exit(any(how not in ("read", "message") for _, how in ends))


if __name__ == "__main__":
    tyro.cli(main)
