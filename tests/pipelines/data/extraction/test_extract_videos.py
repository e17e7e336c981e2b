from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest
import torch
from clips import pictures, server, write_bad, write_clip
from fake_extractor import corpus_of_files, in_this_process
from PIL import Image
from tiny_models import save_clip
from verbs import exit_code, reasons, sets_of

from polypool.encoders.backbones.cells import Cells
from polypool.encoders.backbones.inception import I3D
from polypool.infra import video
from polypool.infra.errors import InputError
from polypool.infra.store import FeatureStore
from polypool.infra.video import SECONDS, choose_decoder, choose_frames, describe_decoder, frames
from polypool.pipelines.commands import extract as verb
from polypool.pipelines.data import extraction
from polypool.pipelines.data.extraction import FileFeatures, VideoExtractor, VideoOptions, VideoSettings
from polypool.tasks.datasets.corpus import Corpus, Item, Tolerance, write_corpus
from polypool.tasks.inputs.visuals import FeatureSource

extract = functools.partial(verb.extract, tolerance=Tolerance(allow_skipped=True))

LENGTHS = (1, 30, 2, 21, 8, 3, 12, 20)
CELLS = "cells(grid=3)"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Good clips and one bad file of each kind, in two splits."""
    folder = tmp_path_factory.mktemp("corpus")
    videos = folder / "videos"
    videos.mkdir()
    names = list(write_bad(videos))
    for at, length in enumerate(LENGTHS):
        write_clip(videos / f"clip{at}.mp4", length, seed=at)
        names.insert(2 * at, f"clip{at}.mp4")
    return corpus_of_files(folder, videos, names)


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few good clips only, for speed."""
    folder = tmp_path_factory.mktemp("clips")
    for at, length in enumerate(LENGTHS[:5]):
        write_clip(folder / f"clip{at}.mp4", length, seed=at)
    return corpus_of_files(folder / "corpus", folder, [f"clip{at}.mp4" for at in range(5)])


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return in_this_process(monkeypatch, threads=2)


@pytest.fixture(scope="module")
def store(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stores") / "first"
    with pytest.MonkeyPatch.context() as patch:
        in_this_process(patch, threads=2)
        extract(corpus=corpus, out=folder, backbone=CELLS, video=True)
    return folder


def good(corpus: Path) -> list[Item]:
    opened = Corpus.open(corpus)
    return [item for split in opened.splits for item in opened.items(split) if item.id.startswith("clip")]


def features(corpus: Path, item: Item, *, pool: str, at_most: int | None = 20) -> np.ndarray:
    """Return the features of a video, by loops over frames and cells."""
    path, rows, cells = str(Corpus.open(corpus).image_path(item)), [], Cells(grid=3)
    for x_HW3, _ in frames(path, at_most=at_most, decoder=choose_decoder()):
        (x_ND,) = cells([Image.fromarray(x_HW3)])
        mean_D = sum(x_ND.astype(np.float64)) / len(x_ND)
        rows += {"all": [*x_ND], "mean": [mean_D], "concat": [np.concatenate([*x_ND])]}[pool]
    return np.array(rows)


def test_videos_store_frame_means_and_bad_ones_are_listed(corpus, store, tmp_path):
    found = sets_of(store)
    assert list(found) == [item.id for item in good(corpus)]
    for item in good(corpus):
        length = LENGTHS[int(item.id.removeprefix("clip"))]
        assert found[item.id].shape == (min(length, 20), Cells.dim)
        np.testing.assert_allclose(found[item.id], features(corpus, item, pool="mean"), rtol=1e-3, atol=1e-4)
    manifest = FeatureStore.open(store).manifest
    decoder = describe_decoder(choose_decoder())
    assert manifest.source["extractor"] == Cells(grid=3).describe()
    assert manifest.source["video"] == {"decoder": decoder, "frames": 20, "pool": "mean"}
    assert manifest.source["corpus"] == Corpus.open(corpus).digest
    assert manifest.statistics["sets"] == sum(item.split == "train" for item in good(corpus))
    skipped = {where.split("/")[-1]: why for where, why in reasons(store)}
    expected = write_bad(tmp_path)
    assert set(skipped) == set(expected)
    assert all(words in skipped[name] for name, words in expected.items())
    assert manifest.skipped["count"] == len(expected)


@pytest.mark.parametrize(("pool", "dim"), [("concat", 9 * Cells.dim), ("all", Cells.dim)])
def test_pool_concat_and_all_match_loop_reference(clips, tmp_path, pool, dim):
    options = VideoOptions(pool=pool, frames=4)
    extract(corpus=clips, out=tmp_path, backbone=CELLS, dtype="float32", batch=3, video=True, videos=options)
    opened = FeatureStore.open(tmp_path)
    assert (opened.dim, opened.manifest.source["video"]["pool"]) == (dim, pool)
    for id, x_ND in sets_of(tmp_path).items():
        (item,) = (item for item in good(clips) if item.id == id)
        np.testing.assert_array_equal(x_ND, features(clips, item, pool=pool, at_most=4).astype(np.float32))
        count = LENGTHS[int(id.removeprefix("clip"))]
        shown = np.repeat(choose_frames(count, 4) / 8, 9 if pool == "all" else 1)
        column = opened.column(SECONDS)
        np.testing.assert_allclose(column[column.find([id]).item()][:, 0], shown, atol=1e-5)


def test_seconds_follow_frames_of_varying_element_counts(clips, tmp_path):
    options = VideoOptions(pool="all", frames=6)
    extract(corpus=clips, out=tmp_path, backbone="clips:Uneven", video=True, batch=4, videos=options)
    opened = FeatureStore.open(tmp_path)
    column, uneven = opened.column(SECONDS), False
    for id, x_N1 in sets_of(tmp_path).items():
        times = choose_frames(LENGTHS[int(id.removeprefix("clip"))], 6) / 8
        elements, expected = x_N1[:, 0].astype(int).tolist(), []
        while elements:
            expected += [times[0]] * elements[0]
            elements, times = elements[elements[0] :], times[1:]
        assert len(times) == 0
        np.testing.assert_allclose(column[column.find([id]).item()][:, 0], expected, atol=1e-5)
        uneven |= len({*x_N1[:, 0].tolist()}) > 1
    assert uneven


def test_frame_folders_are_videos_and_changed_are_listed(tmp_path):
    shown = pictures(5)
    for name in ("still", "changed"):
        (tmp_path / "frames" / name).mkdir(parents=True)
        for at, x_HW3 in enumerate(shown):
            Image.fromarray(x_HW3).save(tmp_path / "frames" / name / f"{7 + at}.png")
    corpus = corpus_of_files(tmp_path / "corpus", tmp_path / "frames", ["still/", "changed/"])
    Image.fromarray(shown[0]).save(tmp_path / "frames" / "changed" / "9.png")
    with pytest.raises(InputError, match="is a corpus of videos, such as still/: add --video"):
        extract(corpus=corpus, out=tmp_path / "no", backbone=CELLS)
    options = VideoOptions(frames=3)
    extract(corpus=corpus, out=tmp_path / "out", backbone=CELLS, dtype="float32", video=True, videos=options)
    (x_TD,) = sets_of(tmp_path / "out").values()
    cells_T = Cells(grid=3)([Image.fromarray(shown[at]) for at in (0, 2, 4)])
    np.testing.assert_allclose(x_TD, [x_ND.mean(axis=0) for x_ND in cells_T], rtol=1e-5)
    ((_, why),) = reasons(tmp_path / "out")
    assert why == "changed since it was ingested: its SHA-256 differs"


def test_whole_video_backbone_gets_all_frames(clips, tmp_path):
    what = {"corpus": clips, "backbone": "clips:Whole", "dtype": "float32", "video": True}
    extract(**what, out=tmp_path / "all")
    assert FeatureStore.open(tmp_path / "all").columns == {}, "features of several frames have no single time"
    for id, x_ND in sets_of(tmp_path / "all").items():
        assert x_ND[:, 3].tolist() == list(range(LENGTHS[int(id.removeprefix("clip"))]))
    source = FeatureStore.open(tmp_path / "all").manifest.source
    assert source["video"] == {"decoder": describe_decoder(choose_decoder()), "frames": "all"}
    extract(**what, out=tmp_path / "six", videos=VideoOptions(frames=6))
    assert {len(x_ND) for x_ND in sets_of(tmp_path / "six").values()} == {min(n, 6) for n in LENGTHS[:5]}


class Steps(torch.nn.Module):
    """A fake I3D: the mean over every 8 frames."""

    def forward(self, pixels_13THW: torch.Tensor) -> torch.Tensor:
        step_1T = pixels_13THW.mean(dim=(1, 3, 4)).unflatten(1, (-1, 8)).mean(dim=2)
        return step_1T[:, 1:, None].expand(-1, -1, 1024)


@pytest.mark.parametrize("kind", ["clip", "i3d"])
def test_model_of_another_folder_describes_video_files(clips, tmp_path, new_home, monkeypatch, kind):
    monkeypatch.setattr(I3D, "load", lambda path: Steps())
    (tmp_path / "weights.pt").write_bytes(b"weights")
    specs = {
        "clip": f"clip(name={save_clip(tmp_path / 'tiny-clip')!r})",
        "i3d": f"i3d(weights={str(tmp_path / 'weights.pt')!r})",
    }
    extract(corpus=clips, out=tmp_path / "store", backbone=specs[kind], dtype="float32", video=True)
    store, item = FeatureStore.open(tmp_path / "store"), good(clips)[1]
    made = FileFeatures(FeatureSource.of(store))
    x_ND = made.of(Corpus.open(clips).image_path(item), video=True)
    made.close()
    np.testing.assert_allclose(x_ND, sets_of(tmp_path / "store")[item.id], rtol=1e-5, atol=1e-6)


def test_failing_decoder_skips_video(tmp_path, monkeypatch):
    videos = tmp_path / "videos"
    videos.mkdir()
    names = ("hang", "a", "crash", "b")
    for name in names:
        write_clip(videos / f"{name}.mp4", 6)
    items = [Item(id=name, split="test", captions=("a",), path=f"{name}.mp4") for name in names]
    write_corpus(tmp_path, items, source={}, images=videos)
    hanging = functools.partial(video.VideoReader, program=server())
    monkeypatch.setattr(video, "VideoReader", hanging)
    extract(
        corpus=tmp_path, out=tmp_path / "store", video=True, videos=VideoOptions(timeout=2.0, decoder="av")
    )
    assert list(sets_of(tmp_path / "store")) == ["a", "b"]
    found = {where.split(",")[0]: why for where, why in reasons(tmp_path / "store")}
    assert found == {
        "id hang": "decoding took too long; `extract --timeout` allows 2 seconds",
        "id crash": "the decoder ended (SIGABRT)",
    }


@pytest.mark.parametrize(
    ("id", "seconds", "told"),
    [
        ("a_000010_000012", [0, 1.9, 2.0], ""),
        ("b_000010_000012", [0, 7.25, 7.375], "7.4 s"),
        ("c_000010_000020", [0, 1.9, 2.0], "2.0 s"),
        ("d_10_12", [0, 7.375], ""),
        ("e_000010_000014", [0, 2.5], ""),  # a frame every 2.5 seconds
        ("f_000010_000014", [0], "0.0 s"),
    ],
)
def test_clip_length_is_checked_against_id(id, seconds, told):
    assert extraction._odd_length(id, seconds) == told


def test_clip_length_mismatch_is_warned(tmp_path):
    write_clip(tmp_path / "b_000010_000012.mp4", 60)
    corpus = corpus_of_files(tmp_path, tmp_path, ["b_000010_000012.mp4"])
    extract(corpus=corpus, out=tmp_path / "store", video=True, dtype="float32")
    assert reasons(tmp_path / "store", "warnings.jsonl") == [
        (
            f"id b_000010_000012, {corpus}/b_000010_000012.mp4, 7.4 s",
            "a clip whose length contradicts the seconds in its id: is it the whole video?",
        )
    ]


def test_concat_skips_frames_with_wrong_cell_count(tmp_path):
    plan = VideoSettings.plan(Cells(grid=3), VideoOptions(pool="concat", decoder="av"), batch=2)
    clip = write_clip(tmp_path / "a.mp4", 3)
    worker = VideoExtractor(backbone="cells(grid=2)", threads=1, videos=plan)
    (row,) = worker({"ids": ["a"], "paths": [str(clip)], "digests": [""]})
    worker.close()
    assert row["why"] == "frames of 4 cells, expected 9; --pool mean takes any number"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--video", "--backbone", "cell"), "Did you mean 'cells'"),
        (("--video", "--splits", "dev"), "there are"),
        (("--video", "--batch", "0"), "at least 1"),
        (("--video", "--frames", "0"), "at least 1"),
        (("--video", "--timeout", "0"), "above 0"),
        (("--frames", "5"), "need --video"),
        (("--backbone", "cells"), "is a corpus of videos"),
        (("--backbone", "clips:Whole"), "add --video"),
        (("--video", "--backbone", "clips:Whole", "--pool", "all"), "for backbones of images"),
        (("--video", "--backbone", "clips:Loose"), "'clips:Loose' is the class Loose, expected"),
    ],
)
def test_bad_arguments_exit_2_with_message(corpus, tmp_path, capsys, arguments, message):
    usual = ("--corpus", corpus, "--out", tmp_path / "store")
    assert exit_code(verb.main, *usual, *arguments) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "store" / "manifest.json").exists()
