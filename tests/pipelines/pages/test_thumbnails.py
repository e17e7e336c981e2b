from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from clips import pictures, server, write_clip
from PIL import Image

from infra.errors import InputError
from infra.video.reader import VideoReader
from pipelines.pages import thumbnails
from pipelines.pages.thumbnails import Thumbnails


def of_files(folder: Path, *paths: str, video: bool = False) -> Thumbnails:
    corpus = SimpleNamespace(manifest={"images": str(folder)}, image_path=lambda item: folder / item.path)
    return Thumbnails(corpus, [SimpleNamespace(path=path) for path in paths], video=video)


def test_images_are_small_upright_and_rgb(tmp_path):
    Image.effect_noise((1600, 1200), 80).save(tmp_path / "large.jpg")
    Image.new("RGBA", (50, 90), (255, 0, 0, 0)).save(tmp_path / "small.png")
    turned = Image.Exif()
    turned[0x0112] = 6
    Image.new("RGB", (800, 400)).save(tmp_path / "turned.jpg", exif=turned)
    some = of_files(tmp_path, "large.jpg", "small.png", "turned.jpg")
    found = [some.images(number, at_most=4) for number in range(3)]
    assert [(image.mode, image.size) for (image,) in found] == [
        ("RGB", (320, 240)),
        ("RGB", (50, 90)),
        ("RGB", (160, 320)),
    ]
    assert found[1][0].getpixel((0, 0)) == (255, 255, 255), "what is transparent is white"


def test_a_large_jpeg_looks_as_it_does_when_it_is_decoded_whole(tmp_path):
    y, x = np.mgrid[:960, :1280]
    whole = Image.fromarray(np.stack([x / 5, y / 4, (x + y) / 9], axis=2).astype(np.uint8))
    whole.save(tmp_path / "smooth.jpg", quality=95)
    (small,) = of_files(tmp_path, "smooth.jpg").images(0)
    difference = np.asarray(small, float) - np.asarray(whole.resize((320, 240)), float)
    assert abs(difference).mean() < 3


def test_what_is_missing_broken_or_elsewhere_has_none(tmp_path):
    inside = tmp_path / "images"
    inside.mkdir()
    (inside / "broken.jpg").write_bytes(b"no image")
    Image.new("RGB", (9, 9)).save(tmp_path / "secret.png")
    names = ("", "gone.jpg", "broken.jpg", "../secret.png", str(tmp_path / "secret.png"), ".")
    assert [of_files(inside, *names).images(number) for number in range(len(names))] == [[]] * len(names)


def test_frames_are_spread_over_a_video_and_one_is_from_its_middle(tmp_path):
    write_clip(tmp_path / "a.mp4", 9)
    expected = pictures(9).astype(float)

    def numbers(frames):
        return [int(abs(expected - np.asarray(frame, float)).mean((1, 2, 3)).argmin()) for frame in frames]

    with of_files(tmp_path, "a.mp4", "gone.mp4", video=True) as some:
        assert numbers(some.images(0, at_most=3)) == [0, 4, 8]
        assert numbers(some.images(0)) == [4]
        assert some.images(1, at_most=3) == []
        process = some._reader._process
        assert process.poll() is None
    assert process.poll() is not None, "the process that decodes has ended"


@pytest.mark.parametrize("bad", ["hang.mp4", "crash.mp4"])
def test_a_video_that_is_lost_costs_itself_alone(tmp_path, monkeypatch, bad):
    for name in (bad, "good.mp4"):
        write_clip(tmp_path / name, 6)
    monkeypatch.setattr(
        thumbnails, "VideoReader", lambda **_: VideoReader(decoder="av", timeout=3, program=server())
    )
    with of_files(tmp_path, bad, "good.mp4", video=True) as some:
        assert [len(some.images(number, at_most=3)) for number in (0, 1)] == [0, 3]


def test_without_a_decoder_there_are_no_frames_and_it_is_looked_for_once(tmp_path, monkeypatch):
    write_clip(tmp_path / "a.mp4", 2)
    asked = []

    def none():
        asked.append(1)
        raise InputError("no decoder")

    monkeypatch.setattr(thumbnails, "choose_decoder", none)
    with of_files(tmp_path, "a.mp4", video=True) as some:
        assert [some.images(0), some.images(0)] == [[], []]
    assert len(asked) == 1
