from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from clips import HEIGHT, WIDTH, pictures, server, turned, write_bad, write_clip
from PIL import Image
from places import ROOT

from infra.errors import InputError
from infra.video.decoding import DECODERS, BadVideo, choose_decoder, describe_decoder, frames
from infra.video.reader import VideoReader
from infra.video.sampling import choose_frames

COUNT = 50


def installed(name: str) -> bool:
    try:
        return choose_decoder(name) == name
    except InputError:
        return False


HERE = [name for name in DECODERS if installed(name)]
both = pytest.mark.skipif(
    len(HERE) < 2, reason="decord has no wheel for this machine, so there is nothing to compare"
)


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_clip(tmp_path_factory.mktemp("clips") / "a.mp4", COUNT)


def decoded(path: Path, **how) -> np.ndarray:
    return np.stack(list(frames(str(path), **how)))


def test_every_length_chooses_the_frames_of_the_authors_code(golden):
    for count, row in enumerate(np.load(golden / "hgr_graph_inputs.npz")["frame_select"], start=1):
        assert choose_frames(count, 20).tolist() == row[row >= 0].tolist()


@pytest.mark.parametrize("decoder", HERE)
@pytest.mark.parametrize("at_most", [None, 20, 3, 1, 50, 51])
def test_the_frames_asked_for_come_in_order(clip, decoder, at_most):
    x_THW3 = decoded(clip, at_most=at_most, decoder=decoder)
    wanted = range(COUNT) if at_most is None else choose_frames(COUNT, at_most).tolist()
    assert x_THW3.shape == (len(wanted), HEIGHT, WIDTH, 3)
    assert x_THW3.dtype == np.uint8
    distance_TN = np.abs(x_THW3[:, None].astype(int) - pictures(COUNT)).mean(axis=(2, 3, 4))
    assert distance_TN.argmin(axis=1).tolist() == list(wanted)


@both
@pytest.mark.parametrize(("suffix", "codec"), [("mp4", "libx264"), ("avi", "mpeg4"), ("webm", "libvpx")])
def test_both_decoders_give_the_same_pixels(tmp_path, suffix, codec):
    path = write_clip(tmp_path / f"a.{suffix}", 33, codec=codec)
    for at_most in (None, 20):
        first, second = (decoded(path, at_most=at_most, decoder=name) for name in DECODERS)
        np.testing.assert_array_equal(first, second)


@both
def test_both_decoders_give_the_same_pixels_of_real_clips(shared):
    clips = sorted((shared / "data/msrvtt_mini/videos").glob("*.mp4"))[:8]
    assert clips
    for path in clips:
        first, second = (decoded(path, at_most=20, decoder=name) for name in DECODERS)
        assert 1 <= len(first) <= 20
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("decoder", HERE)
def test_a_clip_that_was_filmed_sideways_is_turned_upright(clip, tmp_path, decoder):
    plain = decoded(clip, at_most=4, decoder=decoder)
    upright = decoded(turned(clip, tmp_path / "turned.mp4"), at_most=4, decoder=decoder)
    np.testing.assert_array_equal(upright, np.rot90(plain, -1, axes=(1, 2)))


@pytest.mark.parametrize("decoder", HERE)
def test_a_single_frame_is_a_video(tmp_path, decoder):
    x_THW3 = decoded(write_clip(tmp_path / "one.mp4", 1), at_most=20, decoder=decoder)
    assert np.abs(x_THW3.astype(int) - pictures(1)).mean() < 12


def test_an_animation_is_a_video_to_pyav(tmp_path):
    first, *others = map(Image.fromarray, pictures(5))
    first.save(tmp_path / "a.gif", save_all=True, append_images=others)
    assert np.abs(decoded(tmp_path / "a.gif", decoder="av").astype(int) - pictures(5)).mean() < 12


@pytest.mark.parametrize("decoder", HERE)
def test_bad_files_are_told_in_words_and_do_no_harm_to_the_next(clip, tmp_path, decoder):
    bad = write_bad(tmp_path)
    with VideoReader(decoder=decoder) as reader:
        for name, words in bad.items():
            with pytest.raises(BadVideo, match=words) as error:
                list(reader.frames(tmp_path / name, at_most=20))
            assert str(tmp_path) not in str(error.value)  # reasons are counted by their words
            assert len(list(reader.frames(clip, at_most=20))) == 20


@pytest.mark.parametrize("decoder", HERE)
def test_memory_is_that_of_the_frames_wanted(tmp_path, decoder):
    path = write_clip(tmp_path / "long.mp4", 400)
    decoded(path, at_most=3, decoder=decoder)  # imports
    tracemalloc.start()
    kept = decoded(path, at_most=3, decoder=decoder)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept.nbytes < peak < 40 * kept[0].nbytes


@pytest.mark.parametrize("decoder", HERE)
def test_the_process_gives_the_same_frames(clip, decoder):
    with VideoReader(decoder=decoder) as reader:
        for at_most in (None, 7):
            np.testing.assert_array_equal(
                np.stack(list(reader.frames(clip, at_most=at_most))),
                decoded(clip, at_most=at_most, decoder=decoder),
            )


@pytest.fixture
def hanging(clip, tmp_path) -> Path:
    return Path(shutil.copy(clip, tmp_path / "hang.mp4"))


def test_a_decoder_that_hangs_is_killed_and_the_next_video_works(clip, hanging):
    with VideoReader(decoder="av", program=server()) as reader:
        assert len(list(reader.frames(clip, at_most=5))) == 5
        process, reader.timeout = reader._process, 0.5
        got = []
        with pytest.raises(BadVideo, match=r"took too long; --timeout allows 0\.5 seconds"):
            got.extend(reader.frames(hanging))
        assert len(got) == 2
        assert process.poll() == -signal.SIGKILL
        reader.timeout = 60.0
        np.testing.assert_array_equal(
            np.stack(list(reader.frames(clip, at_most=5))), decoded(clip, at_most=5, decoder="av")
        )


def test_a_decoder_that_crashes_costs_one_video(clip, tmp_path):
    with VideoReader(decoder="av", program=server()) as reader:
        for _ in range(2):
            with pytest.raises(BadVideo, match=r"the decoder ended \(SIGABRT\)"):
                list(reader.frames(tmp_path / "crash.mp4"))
            assert len(list(reader.frames(clip))) == COUNT


def test_a_process_that_was_ended_between_two_videos_is_replaced(clip):
    with VideoReader(decoder="av") as reader:
        list(reader.frames(clip))
        reader._process.kill()
        reader._process.wait()
        assert len(list(reader.frames(clip))) == COUNT


def test_a_video_that_is_left_halfway_does_not_run_into_the_next(clip, tmp_path):
    other = write_clip(tmp_path / "other.mp4", 3, seed=1)
    with VideoReader(decoder="av") as reader:
        first = reader.frames(clip)
        next(first)
        first.close()
        np.testing.assert_array_equal(np.stack(list(reader.frames(other))), decoded(other, decoder="av"))


def test_what_is_done_with_the_frames_does_not_count(clip):
    with VideoReader(decoder="av", timeout=60.0) as reader:
        list(reader.frames(clip))
        reader.timeout = 1.2
        for _ in reader.frames(clip, at_most=5):
            time.sleep(0.3)


def test_a_process_that_does_not_start_is_nobody_s_video(clip):
    with (
        VideoReader(decoder="av", program=[sys.executable, "-c", "raise SystemExit(3)"]) as reader,
        pytest.raises(RuntimeError, match=r"does not start: the decoder ended \(exit status 3\)"),
    ):
        list(reader.frames(clip))


def test_a_process_that_hangs_and_was_forgotten_ends_itself(hanging):
    root = str(ROOT)
    with subprocess.Popen(
        server(timeout=0.1, spare=0.4),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": root},
    ) as process:
        process.stdin.write(json.dumps({"path": str(hanging), "at_most": None}).encode() + b"\n")
        process.stdin.flush()
        assert process.wait(60) == -signal.SIGALRM


def test_without_decord_the_choice_is_pyav(tmp_path, monkeypatch):
    assert choose_decoder() == HERE[0]
    (tmp_path / "decord.py").write_text("raise OSError('a library is missing')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert choose_decoder() == choose_decoder("av") == "av"
    with pytest.raises(InputError, match="'decord' does not import; install"):
        choose_decoder("decord")
    with pytest.raises(InputError, match="Did you mean 'decord'"):
        choose_decoder("decor")


def test_a_decoder_is_described_by_its_version():
    import av

    assert describe_decoder("av") == f"av {av.__version__}"
