from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from clips import HERE, decoded, headless, write_clip, write_lists

from polypool.infra.video import containers
from polypool.infra.video.containers import DAMAGED, FEWER, BadVideo, Timeline


def words(path: Path, **how) -> str:
    """Return why a file gives no frames; "" where it gives some."""
    try:
        decoded(path, at_most=12, **how)
    except BadVideo as bad:
        return str(bad)
    return ""


@pytest.mark.parametrize("decoder", HERE)
def test_playlists_and_scripts_have_no_other_file_read(tmp_path, decoder):
    clip = write_clip(tmp_path / "private.mp4", 12)
    for path in write_lists(tmp_path, clip):
        assert words(path, decoder=decoder).startswith("does not decode as a video"), path.name
    for address in (f"concat:{clip}|{clip}", f"subfile,,start,0,end,0,,:{clip}", f"file:{clip}"):
        assert words(address, decoder=decoder) == "no such file", address


def test_a_file_is_read_whose_name_is_an_address(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_clip(tmp_path / "a.mp4", 12).rename("concat:a.mp4")
    for decoder in HERE:
        assert len(decoded("concat:a.mp4", decoder=decoder)) == 12


def test_a_frame_of_any_size_is_not_decoded(tmp_path, monkeypatch):
    clip = write_clip(tmp_path / "a.mp4", 3)
    monkeypatch.setattr(containers, "MAX_PIXELS", 64 * 48)
    assert words(clip) == ""
    monkeypatch.setattr(containers, "MAX_PIXELS", 64 * 48 - 1)
    assert words(clip) == "frames of more than 3,071 pixels; make it smaller"


@pytest.mark.parametrize(
    ("name", "codec", "unseen"), [("a.avi", "mpeg4", 0), ("a.mp4", "libx264", 0), ("a.mp4", "libsvtav1", 3)]
)
def test_frames_that_a_decoder_made_up_are_not_taken_for_good(tmp_path, name, codec, unseen):
    """64 bytes are lost at each of sixty places; H.264 has no checksum, and reads some of that as if it were meant."""
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


def box_of(path: Path, name: bytes) -> int:
    """Return where the content of an MP4 file's box begins."""
    return path.read_bytes().index(name) + 4


def overwritten(path: Path, at: int, content: bytes) -> Path:
    """Replace bytes of a file."""
    whole = path.read_bytes()
    path.write_bytes(whole[:at] + content + whole[at + len(content) :])
    return path


@pytest.mark.parametrize(
    ("box", "offset", "why"),
    [(b"mvhd", 36, DAMAGED), (b"tkhd", 40, DAMAGED), (b"stsz", 12 + 4 * 9, DAMAGED)],
    ids=["matrix of the film", "matrix of the track", "sizes"],
)
def test_numbers_of_a_container_that_cannot_be_are_refused(tmp_path, box, offset, why):
    clip = write_clip(tmp_path / "a.mp4", 48, pan=True)
    assert words(overwritten(clip, box_of(clip, box) + offset, bytes(36))) == why


def test_what_an_edit_list_leaves_out_is_not_missing(tmp_path):
    clip = write_clip(tmp_path / "a.mp4", 48, pan=True)
    at = box_of(clip, b"elst") + 12  # the time of the first frame that is shown
    whole, unit = (
        clip.read_bytes(),
        int.from_bytes(clip.read_bytes()[box_of(clip, b"mdhd") + 12 :][:4], "big"),
    )
    start = int.from_bytes(whole[at : at + 4], "big") + 24 * unit // 8
    overwritten(clip, at, start.to_bytes(4, "big"))
    assert 12 <= len(decoded(clip)) < 40


@pytest.mark.parametrize("name", ["a.webm", "a.mkv", "a.avi", "a.mp4"])
def test_a_file_that_was_cut_off_anywhere_gives_no_frames(tmp_path, name):
    codec = {"a.webm": "libvpx-vp9", "a.avi": "mpeg4"}.get(name, "libx264")
    path = write_clip(tmp_path / name, 48, codec=codec)
    whole = path.read_bytes()
    end = whole.rindex(b"idx1") if name == "a.avi" else len(whole)  # the index may be made again
    for at in np.linspace(1, end - 100, 40).astype(int).tolist():
        path.write_bytes(whole[:at])
        assert words(path), at


@pytest.mark.parametrize("codec", ["mpeg4", "libx264"])
def test_a_clip_that_begins_with_what_builds_on_a_frame_before_it_gives_none(tmp_path, codec):
    clip = write_clip(tmp_path / "a.mp4", 30, codec=codec, pan=True)
    for name in ("b.mp4", "b.mkv"):
        assert words(headless(clip, tmp_path / name)) == FEWER


def test_the_end_of_matroska_that_its_writer_did_not_know_is_no_damage(tmp_path):
    path = write_clip(tmp_path / "a.mkv", 12)
    whole = bytearray(path.read_bytes())
    at = whole.index(b"\x18\x53\x80\x67") + 4
    whole[at : at + 8] = b"\x01" + b"\xff" * 7
    path.write_bytes(whole)
    assert Timeline.of(str(path)).count == 12
