from __future__ import annotations

import numpy as np
from clips import pictures, write_clip
from PIL import Image

from polypool.pipelines.figures.pages import Thumbnails


def test_thumbnails_are_upright_rgb_and_skip_bad_files(tmp_path):
    Image.effect_noise((1600, 1200), 80).save(tmp_path / "large.jpg")
    Image.new("RGBA", (50, 90), (255, 0, 0, 0)).save(tmp_path / "small.png")
    turned = Image.Exif()
    turned[0x0112] = 6
    Image.new("RGB", (800, 400)).save(tmp_path / "turned.jpg", exif=turned)
    (tmp_path / "broken.jpg").write_bytes(b"no image")
    some = Thumbnails(video=False)
    found = [some.images(tmp_path / name, at_most=4) for name in ("large.jpg", "small.png", "turned.jpg")]
    sizes = [(320, 240), (50, 90), (160, 320)]
    assert [(image.mode, image.size) for (image,) in found] == [("RGB", size) for size in sizes]
    assert found[1][0].getpixel((0, 0)) == (255, 255, 255), "transparent pixels must become white"
    assert [some.images(file) for file in (None, tmp_path / "gone.jpg", tmp_path / "broken.jpg")] == [[]] * 3


def test_video_thumbnails_are_evenly_spread_frames(tmp_path):
    write_clip(tmp_path / "a.mp4", 9)
    expected = pictures(9).astype(float)

    def numbers(frames):
        return [int(abs(expected - np.asarray(frame, float)).mean((1, 2, 3)).argmin()) for frame in frames]

    with Thumbnails(video=True) as some:
        assert numbers(some.images(tmp_path / "a.mp4", at_most=3)) == [0, 4, 8]
        assert numbers(some.images(tmp_path / "a.mp4")) == [4]
        assert some.images(tmp_path / "gone.mp4", at_most=3) == []
        process, *_ = some._reader._running
        assert process.poll() is None
    assert process.poll() is not None, "the decoder process must end on exit"
