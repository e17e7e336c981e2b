"""Videos: containers, frames, and the decoder process."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import closing
from itertools import product
from pathlib import Path

import av
import numpy as np
import pytest
from clips import (
    HEIGHT,
    HERE,
    WIDTH,
    decoded,
    headless,
    pictures,
    remuxed,
    server,
    turned,
    write_bad,
    write_clip,
    write_lists,
)
from PIL import Image
from places import ROOT

from polypool.infra import video
from polypool.infra.errors import InputError
from polypool.infra.video import (
    FEWER,
    MEMORY,
    BadVideo,
    Timeline,
    VideoReader,
    choose_decoder,
    choose_frames,
    describe_decoder,
    frames,
    sample_frames,
)

COUNT = 50


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_clip(tmp_path_factory.mktemp("clips") / "a.mp4", COUNT)


def test_choose_frames_matches_authors_code(golden):
    for count, row in enumerate(np.load(golden / "hgr_graph_inputs.npz")["frame_select"], start=1):
        assert choose_frames(count, 20).tolist() == row[row >= 0].tolist()


def test_sample_frames_takes_every_nth_frame():
    assert len(sample_frames(300, every=16)) == 19
    for count in range(1, 70):
        assert sample_frames(count, every=16).tolist() == [n for n in range(count) if n % 16 == 0]
        few = [3 * n for n in choose_frames(-(-count // 3), 5).tolist()]
        assert sample_frames(count, every=3, at_most=5).tolist() == few
        assert sample_frames(count).tolist() == list(range(count))


@pytest.mark.parametrize(
    ("every", "at_most"), [(1, None), (1, 20), (1, 1), (1, 51), (16, None), (7, 3), (51, None)]
)
def test_requested_frames_come_in_order_with_times(clip, every, at_most):
    found = [*frames(str(clip), every=every, at_most=at_most)]
    wanted = sample_frames(COUNT, every=every, at_most=at_most)
    x_THW3 = np.stack([frame.x_HW3 for frame in found])
    assert (x_THW3.shape, x_THW3.dtype) == ((len(wanted), HEIGHT, WIDTH, 3), np.uint8)
    distance_TN = np.abs(x_THW3[:, None].astype(int) - pictures(COUNT)).mean(axis=(2, 3, 4))
    assert distance_TN.argmin(axis=1).tolist() == wanted.tolist()
    np.testing.assert_allclose([frame.seconds for frame in found], wanted / 8, atol=1e-6)


@pytest.mark.parametrize("decoder", HERE)
def test_rotated_clip_is_decoded_upright(clip, tmp_path, decoder):
    plain = decoded(clip, at_most=4, decoder=decoder)
    upright = decoded(turned(clip, tmp_path / "turned.mp4"), at_most=4, decoder=decoder)
    np.testing.assert_array_equal(upright, np.rot90(plain, -1, axes=(1, 2)))


def test_times_are_relative_to_the_first_frame(clip, tmp_path):
    later = Timeline.of(str(remuxed(clip, tmp_path / "later.mp4", shift=5)))
    assert [round(later.seconds(n), 3) for n in (0, 1, 8)] == [0.0, 0.125, 1.0]
    late = Timeline(count=3, times=(5, 6, 9), keys=(0,), codec="h264", unit=0.5)
    assert [late.seconds(n) for n in range(3)] == [0.0, 0.5, 2.0]
    untimed = Timeline(count=3, times=None, keys=(0,), codec="h264", unit=0.04)
    assert [untimed.seconds(n) for n in range(3)] == [0.0, 0.04, 0.08]


def test_single_frame_and_animated_gif_decode_as_videos(tmp_path):
    first, *others = map(Image.fromarray, pictures(5))
    first.save(tmp_path / "a.gif", save_all=True, append_images=others)
    one = write_clip(tmp_path / "one.mp4", 1)
    for path, count, decoders in ((one, 1, HERE), (tmp_path / "a.gif", 5, ["av"])):
        for decoder in decoders:
            x_THW3 = decoded(path, at_most=20, decoder=decoder)
            assert np.abs(x_THW3.astype(int) - pictures(count)).mean() < 12


def test_frame_folder_is_read_in_numeric_order(clip, tmp_path):
    names = ["2-img9.png", "2-img10.png", "2-img100.PNG", "10-img1.webp", "10-img2.bmp"]
    shown_TVV3 = pictures(len(names))
    for name, x_HW3 in zip(names, shown_TVV3, strict=True):
        Image.fromarray(x_HW3).save(tmp_path / name, lossless=True)
    for other in (".2-img9.png", "2-img11.txt"):
        (tmp_path / other).touch()
    found = [*frames(str(tmp_path))]
    np.testing.assert_array_equal([frame.x_HW3 for frame in found], shown_TVV3)
    assert [frame.seconds for frame in found] == [0, 1, 2, 3, 4]
    with closing(VideoReader(decoder="av")) as reader:
        np.testing.assert_array_equal(shown(reader, tmp_path, every=2, at_most=2), shown_TVV3[[0, 4]])
        (tmp_path / "2-img10.png").write_bytes(b"no picture")
        with pytest.raises(BadVideo, match="a frame in it: does not decode as an image"):
            shown(reader, tmp_path)
        (tmp_path / "empty").mkdir()
        with pytest.raises(BadVideo, match="a folder without frames"):
            shown(reader, tmp_path / "empty")
        assert len(shown(reader, clip)) == COUNT


def test_missing_decoder_message_names_the_extra(tmp_path, monkeypatch):
    assert choose_decoder() == "av"
    assert describe_decoder("av") == f"av {av.__version__}"
    (tmp_path / "decord.py").write_text("raise OSError('a library is missing')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert choose_decoder("av") == "av"
    with pytest.raises(InputError, match=r"'decord' does not import: pip install 'polypool\[video\]'"):
        choose_decoder("decord")
    with pytest.raises(InputError, match="Did you mean 'decord'"):
        choose_decoder("decor")


def everything(path: Path) -> np.ndarray:
    """Return all frames of a clip, decoded by a plain loop."""
    with av.open(str(path)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record each decoded frame and each fallback to decoding from the first frame."""
    done: list[str] = []
    check, counted = video._check, video._counted

    def checked(frame):
        done.append("frame")
        check(frame)

    def from_the_first(path, chosen):
        done.append("from the first")
        return counted(path, chosen)

    monkeypatch.setattr(video, "_check", checked)
    monkeypatch.setattr(video, "_counted", from_the_first)
    return done


@pytest.mark.parametrize(
    ("name", "codec"),
    [
        *(("a.mp4", "libx264"), ("a.mkv", "libx264"), ("b.mp4", "libx265"), ("a.avi", "mpeg4")),
        *(("a.webm", "libvpx-vp9"), ("a.mp4", "libsvtav1")),
    ],
)
def test_decoding_starts_at_the_nearest_key_frame(tmp_path, counting, name, codec):
    path = write_clip(tmp_path / name, 120, codec=codec, pan=True)
    whole = everything(path)
    assert len(whole) == 120
    for at_most in (3, 8):
        counting.clear()
        np.testing.assert_array_equal(decoded(path, at_most=at_most), whole[choose_frames(120, at_most)])
        assert "from the first" not in counting
        if len(Timeline.of(str(path)).keys) == 10:
            assert len(counting) < 14 * at_most


@pytest.mark.parametrize(
    ("name", "codec"),
    [
        *(("a.ts", "libx264"), ("a.flv", "libx264"), ("a.mpg", "mpeg2video"), ("a.wmv", "wmv2")),
        *(("a.wmv", "mpeg4"), ("b.avi", "libx264"), ("a.mp4", "libsvtav1")),
        *(("a.mp4", "libx264"), ("a.avi", "mpeg4"), ("a.webm", "libvpx")),  # decord decodes these itself
    ],
)
def test_frames_are_correct_despite_wrong_times_or_decord_bugs(tmp_path, name, codec):
    path = write_clip(tmp_path / name, 40, codec=codec, pan=True)
    whole = everything(path)
    assert len(whole) == 40
    for decoder, at_most in product(HERE, (40, 7)):
        found = decoded(path, at_most=at_most, decoder=decoder)
        np.testing.assert_array_equal(found, whole[choose_frames(40, at_most)])
    if name == "b.avi":  # packets out of display order: times follow the frame rate
        seconds = [frame.seconds for frame in frames(str(path))]
        np.testing.assert_allclose(seconds, np.arange(40) / 8, atol=1e-6)


@pytest.mark.parametrize("codec", ["mpeg4", "libx264"])
def test_dropped_avi_frames_do_not_count_as_missing(tmp_path, codec):
    times = [0, 1, 2, 5, 6, 7, 10, 11, 12, 13, 20, 21, 22, 23, 24, 30]
    path = write_clip(tmp_path / "a.avi", len(times), codec=codec, pan=True, times=times)
    whole = everything(path)
    assert len(whole) == len(times)
    for decoder, at_most in product(HERE, (16, 5)):
        found = decoded(path, at_most=at_most, decoder=decoder)
        np.testing.assert_array_equal(found, whole[choose_frames(16, at_most)])
    if codec == "mpeg4":
        assert [frame.seconds for frame in frames(str(path))] == [time / 8 for time in times]
    path.write_bytes(path.read_bytes()[: path.read_bytes().rindex(b"idx1") - 40])
    with pytest.raises(BadVideo, match="fewer frames than the file says"):
        decoded(path)


def test_false_key_frames_force_decoding_from_the_first(tmp_path, counting):
    plain = write_clip(tmp_path / "plain.mp4", 60, codec="mpeg4", pan=True)
    liar = remuxed(plain, tmp_path / "liar.mp4", keys=True)
    assert len(Timeline.of(str(liar)).keys) == 60
    np.testing.assert_array_equal(decoded(liar, at_most=4), everything(plain)[choose_frames(60, 4)])
    assert "from the first" in counting


@pytest.mark.parametrize("codec", ["mpeg4", "libx264"])
def test_frames_before_the_start_time_are_not_counted(tmp_path, codec):
    plain = write_clip(tmp_path / "plain.mp4", 60, codec=codec, pan=True)
    later = remuxed(plain, tmp_path / "later.mp4", shift=5)
    whole = everything(later)
    assert len(whole) == Timeline.of(str(later)).count == 55
    for decoder, at_most in product(HERE, (55, 6)):  # decord would count them
        found = decoded(later, at_most=at_most, decoder=decoder)
        np.testing.assert_array_equal(found, whole[choose_frames(55, at_most)])


@pytest.mark.parametrize(
    "times",
    [
        tuple(range(1, 61)),  # AVI numbers frames in decoding order, which is not H.264's display order
        None,
        (1,) * 60,
    ],
    ids=["another order", "missing", "double"],
)
def test_wrong_or_missing_timestamps_are_detected(tmp_path, counting, monkeypatch, times):
    path = write_clip(tmp_path / "a.avi", 60, pan=True)
    said = Timeline(count=60, times=times, keys=(0,), codec="h264", unit=0.125)
    monkeypatch.setattr(video.Timeline, "of", lambda _: said)
    np.testing.assert_array_equal(decoded(path, at_most=9), everything(path)[choose_frames(60, 9)])
    assert "from the first" in counting


def test_hidden_vp8_frames_are_not_counted(tmp_path):
    plain = write_clip(tmp_path / "plain.webm", 40, codec="libvpx", pan=True)
    hidden = remuxed(plain, tmp_path / "hidden.webm", hide=17)
    whole = everything(plain)
    assert len(everything(hidden)) == Timeline.of(str(hidden)).count == 39
    shown = np.delete(whole, 17, axis=0)
    np.testing.assert_array_equal(decoded(hidden, at_most=9), shown[choose_frames(39, 9)])


def words(path: Path, **how) -> str:
    """Return the reason why a file has no usable frames; "" if it has some."""
    try:
        decoded(path, at_most=12, **how)
    except BadVideo as bad:
        return str(bad)
    return ""


def test_playlists_and_addresses_read_no_other_files(tmp_path):
    clip = write_clip(tmp_path / "private.mp4", 12)
    for path in write_lists(tmp_path, clip):
        assert words(path).startswith("does not decode as a video"), path.name
    for address in (f"concat:{clip}|{clip}", f"subfile,,start,0,end,0,,:{clip}", f"file:{clip}"):
        assert words(address) == "no such file", address


def test_file_named_like_an_address_is_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_clip(tmp_path / "a.mp4", 12).rename("concat:a.mp4")
    for decoder in HERE:
        assert len(decoded("concat:a.mp4", decoder=decoder)) == 12


def test_oversized_frames_are_refused(tmp_path, monkeypatch):
    clip = write_clip(tmp_path / "a.mp4", 3)
    monkeypatch.setattr(video, "MAX_PIXELS", 64 * 48)
    assert words(clip) == ""
    monkeypatch.setattr(video, "MAX_PIXELS", 64 * 48 - 1)
    assert words(clip) == "frames of more than 3,071 pixels; make it smaller"


@pytest.mark.parametrize(
    ("name", "codec", "unseen"), [("a.avi", "mpeg4", 0), ("a.mp4", "libx264", 2), ("a.mp4", "libsvtav1", 3)]
)
def test_damage_concealed_by_decoder_is_detected(tmp_path, name, codec, unseen):
    """Zero 64 bytes at sixty offsets. H.264 has no checksum; which errors go unnoticed differs by CPU."""
    path = write_clip(tmp_path / name, 48, codec=codec, pan=True)
    truth, whole = decoded(path, at_most=12), path.read_bytes()
    refused = wrong = 0
    for at in np.linspace(0, len(whole) - 64, 60).astype(int).tolist():
        path.write_bytes(whole[:at] + bytes(64) + whole[at + 64 :])
        if words(path):
            refused += 1
        elif not np.array_equal(decoded(path, at_most=12), truth):
            wrong += 1
    assert refused >= 20
    assert wrong <= unseen


@pytest.mark.parametrize("name", ["a.webm", "a.mkv", "a.avi", "a.mp4"])
def test_truncated_file_is_refused(tmp_path, name):
    codec = {"a.webm": "libvpx-vp9", "a.avi": "mpeg4"}.get(name, "libx264")
    path = write_clip(tmp_path / name, 48, codec=codec)
    whole = path.read_bytes()
    end = whole.rindex(b"idx1") if name == "a.avi" else len(whole)  # a lost index can be rebuilt
    for at in np.linspace(1, end - 100, 40).astype(int).tolist():
        path.write_bytes(whole[:at])
        assert words(path), at


@pytest.mark.parametrize("codec", ["mpeg4", "libx264"])
def test_clip_without_its_first_key_frame_is_refused(tmp_path, codec):
    clip = write_clip(tmp_path / "a.mp4", 30, codec=codec, pan=True)
    for name in ("b.mp4", "b.mkv"):
        assert words(headless(clip, tmp_path / name)) == FEWER


def test_matroska_file_of_unknown_size_is_accepted(tmp_path):
    path = write_clip(tmp_path / "a.mkv", 12)
    whole = bytearray(path.read_bytes())
    at = whole.index(b"\x18\x53\x80\x67") + 4
    whole[at : at + 8] = b"\x01" + b"\xff" * 7
    path.write_bytes(whole)
    assert Timeline.of(str(path)).count == 12


@pytest.mark.parametrize("decoder", HERE)
def test_bad_file_is_explained_and_reader_continues(clip, tmp_path, decoder):
    bad = write_bad(tmp_path)
    with closing(VideoReader(decoder=decoder)) as reader:
        for name, words in bad.items():
            with pytest.raises(BadVideo, match=words) as error:
                list(reader.frames(tmp_path / name, at_most=20))
            assert str(tmp_path) not in str(error.value)  # messages are grouped by text
            assert len(list(reader.frames(clip, at_most=20))) == 20


def shown(reader: VideoReader, path: Path, **which: object) -> np.ndarray:
    return np.stack([frame.x_HW3 for frame in reader.frames(path, **which)])


@pytest.mark.parametrize("decoder", HERE)
def test_reader_matches_direct_decoding_with_memory_limit(clip, decoder):
    with closing(VideoReader(decoder=decoder, timeout=30)) as reader:
        for at_most in (None, 7):
            found = shown(reader, clip, at_most=at_most)
            np.testing.assert_array_equal(found, decoded(clip, at_most=at_most, decoder=decoder))
        about = Path(f"/proc/{reader._running[0].pid}")
        lines = (about / "limits").read_text().splitlines()
    limits = {line[:20].strip(): line[20:].split() for line in lines}
    assert limits["Max address space"][0] == str(MEMORY)


@pytest.fixture
def hanging(clip, tmp_path) -> Path:
    return Path(shutil.copy(clip, tmp_path / "hang.mp4"))


def test_hung_decoder_is_killed_and_restarted(clip, hanging):
    with closing(VideoReader(decoder="av", program=server())) as reader:
        assert len(list(reader.frames(clip, at_most=5))) == 5
        process, reader.timeout = reader._running[0], 0.5
        got = []
        with pytest.raises(BadVideo, match=r"took too long; `extract --timeout` allows 0\.5 seconds"):
            got.extend(reader.frames(hanging))
        assert len(got) == 2
        assert process.poll() == -signal.SIGKILL
        reader.timeout = 60.0
        expected = decoded(clip, at_most=5, decoder="av")
        np.testing.assert_array_equal(shown(reader, clip, at_most=5), expected)
        reader._running[0].kill()  # between two videos
        reader._running[0].wait()
        np.testing.assert_array_equal(shown(reader, clip, at_most=5), expected)


def test_abandoned_video_does_not_leak_into_the_next(clip, tmp_path):
    other = write_clip(tmp_path / "other.mp4", 3, seed=1)
    with closing(VideoReader(decoder="av")) as reader:
        first = reader.frames(clip)
        next(first)
        first.close()
        np.testing.assert_array_equal(shown(reader, other), decoded(other, decoder="av"))


def test_decoder_start_failure_is_not_a_bad_video(clip):
    with (
        closing(VideoReader(decoder="av", program=[sys.executable, "-c", "raise SystemExit(3)"])) as reader,
        pytest.raises(RuntimeError, match=r"does not start: the decoder ended \(exit status 3\)"),
    ):
        list(reader.frames(clip))


def test_unsupervised_hung_decoder_ends_itself(hanging):
    ours, theirs = socket.socketpair()
    command = [*server(timeout=0.1, spare=0.4), str(theirs.fileno())]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, pass_fds=[theirs.fileno()]) as process:
        ours.sendall(json.dumps({"path": str(hanging), "every": 1, "at_most": None}).encode() + b"\n")
        assert process.wait(60) == -signal.SIGALRM


def test_out_of_memory_video_does_not_affect_others(clip, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # address space of further threads counts, too
    large = write_clip(tmp_path / "large.mp4", 2, scale=64)
    with closing(VideoReader(decoder="av", program=server(memory=320 << 20))) as reader:
        for _ in range(2):
            with pytest.raises(BadVideo, match="more memory than it is given"):
                list(reader.frames(large))
            assert len(list(reader.frames(clip))) == COUNT
