from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from clips import HERE, decoded, server, write_bad, write_clip
from places import ROOT

from polypool.infra.video.containers import BadVideo
from polypool.infra.video.video_reader import MEMORY, VideoReader

COUNT = 50


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_clip(tmp_path_factory.mktemp("clips") / "a.mp4", COUNT)


@pytest.mark.parametrize("decoder", HERE)
def test_bad_files_are_told_in_words_and_do_no_harm_to_the_next(clip, tmp_path, decoder):
    bad = write_bad(tmp_path)
    with VideoReader(decoder=decoder) as reader:
        for name, words in bad.items():
            with pytest.raises(BadVideo, match=words) as error:
                list(reader.frames(tmp_path / name, at_most=20))
            assert str(tmp_path) not in str(error.value)  # reasons are counted by their words
            assert len(list(reader.frames(clip, at_most=20))) == 20


def shown(reader: VideoReader, path: Path, **which: object) -> np.ndarray:
    return np.stack([frame.x_HW3 for frame in reader.frames(path, **which)])


@pytest.mark.parametrize("decoder", HERE)
def test_the_process_gives_the_same_frames_and_is_bounded_without_new_rights(clip, decoder):
    with VideoReader(decoder=decoder, timeout=30) as reader:
        for at_most in (None, 7):
            found = shown(reader, clip, at_most=at_most)
            np.testing.assert_array_equal(found, decoded(clip, at_most=at_most, decoder=decoder))
        about = Path(f"/proc/{reader._process.pid}")
        lines = (about / "limits").read_text().splitlines()
        assert "NoNewPrivs:\t1" in (about / "status").read_text()
    limits = {line[:20].strip(): line[20:].split() for line in lines}
    assert limits["Max address space"][0] == str(MEMORY)
    assert 30 <= int(limits["Max cpu time"][0]) <= 60


@pytest.fixture
def hanging(clip, tmp_path) -> Path:
    return Path(shutil.copy(clip, tmp_path / "hang.mp4"))


def test_a_decoder_that_hangs_is_killed_and_the_next_video_works(clip, hanging):
    with VideoReader(decoder="av", program=server()) as reader:
        assert len(list(reader.frames(clip, at_most=5))) == 5
        process, reader.timeout = reader._process, 0.5
        got = []
        with pytest.raises(BadVideo, match=r"took too long; `extract --timeout` allows 0\.5 seconds"):
            got.extend(reader.frames(hanging))
        assert len(got) == 2
        assert process.poll() == -signal.SIGKILL
        reader.timeout = 60.0
        expected = decoded(clip, at_most=5, decoder="av")
        np.testing.assert_array_equal(shown(reader, clip, at_most=5), expected)
        reader._process.kill()  # between two videos
        reader._process.wait()
        np.testing.assert_array_equal(shown(reader, clip, at_most=5), expected)


def test_a_decoder_that_crashes_costs_one_video(clip, tmp_path):
    with VideoReader(decoder="av", program=server()) as reader:
        for _ in range(2):
            with pytest.raises(BadVideo, match=r"the decoder ended \(SIGABRT\)"):
                list(reader.frames(tmp_path / "crash.mp4"))
            assert len(list(reader.frames(clip))) == COUNT


def test_a_video_that_is_left_halfway_does_not_run_into_the_next(clip, tmp_path):
    other = write_clip(tmp_path / "other.mp4", 3, seed=1)
    with VideoReader(decoder="av") as reader:
        first = reader.frames(clip)
        next(first)
        first.close()
        np.testing.assert_array_equal(shown(reader, other), decoded(other, decoder="av"))


def test_what_is_done_with_the_frames_does_not_count(clip):
    with VideoReader(decoder="av", timeout=60.0) as reader:
        list(reader.frames(clip))
        reader.timeout = 0.6
        for _ in reader.frames(clip, at_most=4):
            time.sleep(0.2)


def test_a_process_that_does_not_start_is_nobody_s_video(clip):
    with (
        VideoReader(decoder="av", program=[sys.executable, "-c", "raise SystemExit(3)"]) as reader,
        pytest.raises(RuntimeError, match=r"does not start: the decoder ended \(exit status 3\)"),
    ):
        list(reader.frames(clip))


def test_a_process_that_hangs_and_was_forgotten_ends_itself(hanging):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL}
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(server(timeout=0.1, spare=0.4), env=environment, **pipes) as process:
        process.stdin.write(json.dumps({"path": str(hanging), "every": 1, "at_most": None}).encode() + b"\n")
        process.stdin.flush()
        assert process.wait(60) == -signal.SIGALRM


def test_a_video_that_takes_too_much_processor_time_costs_itself_alone(clip, tmp_path):
    spin = Path(shutil.copy(clip, tmp_path / "spin.mp4"))
    with VideoReader(decoder="av", program=server(timeout=0.6)) as reader:
        for _ in range(3):  # each has its own time
            assert len(list(reader.frames(clip))) == COUNT
        with pytest.raises(BadVideo, match=r"too much processor time; `extract --timeout` allows 60 seconds"):
            list(reader.frames(spin))
        assert len(list(reader.frames(clip))) == COUNT


def test_a_video_that_takes_too_much_memory_costs_itself_alone(clip, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # others have room of their own, which counts
    large = write_clip(tmp_path / "large.mp4", 2, scale=64)
    with VideoReader(decoder="av", program=server(memory=320 << 20)) as reader:
        for _ in range(2):
            with pytest.raises(BadVideo, match="more memory than it is given"):
                list(reader.frames(large))
            assert len(list(reader.frames(clip))) == COUNT
