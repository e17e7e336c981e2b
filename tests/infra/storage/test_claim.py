"""A lease in object storage: one process of all machines has it, and who comes second is told who is at work."""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from typing import Any

import pytest
from object_storage import Bucket, Fault

from infra.errors import AwayError, InputError
from infra.process.lease import HeldError, Holder
from infra.storage import claim, conditional, remote
from infra.storage.claim import Claim, holder_at, refuse_lost
from infra.storage.places import Url, place

FAR = Holder(host="far", boot="another", process=7, command="train x", since=0.0)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_PAUSE", 0)
    monkeypatch.setattr(claim, "_SETTLES", 0)


@pytest.fixture
def folder(bucket: Bucket) -> Url:
    return place(f"{bucket.url}/runs/1")


def held_by(bucket: Bucket, holder: Holder, token: str = "t", processes: str = "pid:[1]") -> None:
    written = {"token": token, "holder": asdict(holder), "processes": processes}
    with bucket.system.open_output_stream(f"{bucket.name}/runs/1/lease.json") as file:
        file.write(json.dumps(written).encode())


def wait_for(what: Callable[[], bool]) -> None:
    limit = time.monotonic() + 30
    while not what():
        assert time.monotonic() < limit
        time.sleep(0.01)


def test_one_of_many_has_it_and_the_others_are_told_who(folder: Url) -> None:
    barrier = threading.Barrier(4)

    def take() -> Claim | HeldError:
        barrier.wait()
        try:
            return Claim.take(folder, of="run 1 is held")
        except HeldError as error:
            return error

    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            came = [future.result() for future in [pool.submit(take) for _ in range(4)]]
            (mine,) = [each for each in came if isinstance(each, Claim)]
            for other in came:
                assert other is mine or str(other).startswith(f"run 1 is held (process {os.getpid()} on ")
            assert holder_at(folder).process == os.getpid()
            refuse_lost(folder, mine.token, of="it")
            mine.release()
            assert holder_at(folder) is None


@pytest.mark.parametrize("before", [True, False])
def test_of_two_who_looked_at_once_the_second_to_write_is_refused(
    before: bool, folder: Url, monkeypatch: pytest.MonkeyPatch
) -> None:
    if before:
        Claim.take(folder, of="a").release()
    look, others = conditional.read, list[Claim]()

    def outrun(url: Url, **options: Any) -> conditional.Version | None:
        there = look(url, **options)
        if not others:
            others.append(None)
            others[0] = Claim.take(folder, of="other")
        return there

    monkeypatch.setattr(conditional, "read", outrun)
    with pytest.raises(HeldError, match=r"^b \(process"):
        Claim.take(folder, of="b")
    refuse_lost(folder, others[0].token, of="other")
    others[0].release()


def _take_and_die(url: str) -> None:
    Claim.take(place(url), of="a")
    os._exit(0)


def test_that_of_a_dead_process_of_this_machine_is_free_and_of_another_machine_only_after_a_while(
    folder: Url, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = multiprocessing.get_context("spawn").Process(target=_take_and_die, args=[str(folder)])
    process.start()
    process.join()
    with Claim.take(folder, of="a") as mine:
        assert mine.found
    for holder in (FAR, replace(Holder.this(), process=process.pid, boot="an earlier one")):
        held_by(bucket, holder)
        with pytest.raises(HeldError, match=rf"process {holder.process} .* 90 free it"):
            Claim.take(folder, of="a")
    monkeypatch.setattr(claim, "STALE_SECONDS", 0)
    Claim.take(folder, of="a").release()


def test_what_says_nothing_is_held_for_a_while(folder: Url, bucket: Bucket) -> None:
    with bucket.system.open_output_stream(f"{bucket.name}/runs/1/lease.json") as file:
        file.write(b"{")
    with pytest.raises(HeldError, match="it is not known which"):
        Claim.take(folder, of="a")


def test_a_holder_that_was_away_finds_out(
    folder: Url, bucket: Bucket, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(claim, "BEAT_SECONDS", 0.02)
    mine = Claim.take(folder, of="run 1 is held")
    first = bucket.server.faults
    first.append(Fault(method="PUT", key="lease.json", times=remote.ATTEMPTS))
    wait_for(lambda: not first[-1].times)
    beats = len(bucket.asked("lease.json", "PUT"))
    wait_for(lambda: len(bucket.asked("lease.json", "PUT")) > beats + 2)
    assert not mine.lost, "nobody else took it while nothing was heard of it"
    held_by(bucket, FAR, token="theirs")
    wait_for(lambda: mine.lost)
    assert "run 1 is held now" in capsys.readouterr().err
    with pytest.raises(HeldError, match="process 7 on far"):
        refuse_lost(folder, mine.token, of="a")
    mine.release()
    refuse_lost(folder, "theirs", of="it was left as it is")


def test_an_answer_that_is_lost_is_no_other_holder(folder: Url, monkeypatch: pytest.MonkeyPatch) -> None:
    put, lost = conditional._put, []

    def losing(url: Url, data: bytes, condition: dict[str, str]) -> str | None:
        mark = put(url, data, condition)
        if mark and len(lost) < 2:
            lost.append(mark)
            raise OSError("the connection was cut")
        return mark

    monkeypatch.setattr(conditional, "_put", losing)
    with Claim.take(folder, of="a") as mine:
        refuse_lost(folder, mine.token, of="a")
    assert len(lost) == 2


def test_storage_that_heeds_no_conditions_is_named_and_signs_of_life_decide(
    folder: Url, bucket: Bucket, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put = conditional._put
    monkeypatch.setattr(conditional, "_put", lambda url, data, condition: put(url, data, {}))
    monkeypatch.setattr(claim, "BEAT_SECONDS", 0.02)
    mine = Claim.take(folder, of="run 1 is held")
    assert f"the storage of {folder} heeds no conditions" in capsys.readouterr().err

    def overwritten() -> bool:  # between its look and its write nothing stands
        held_by(bucket, FAR, token="theirs")
        return mine.lost

    wait_for(overwritten)
    refuse_lost(folder, "theirs", of="it was left as it is")


def test_what_was_not_there_before_is_withdrawn(folder: Url, bucket: Bucket) -> None:
    Claim.take(folder, of="a").withdraw()
    assert bucket.keys() == []
    Claim.take(folder, of="a").release()
    Claim.take(folder, of="a").withdraw()
    assert bucket.keys() == ["runs/1/lease.json"]


@pytest.mark.parametrize(
    ("status", "error", "message"),
    [("403 Forbidden", InputError, "may not be read"), ("503 Slow Down", AwayError, "tried 6 times")],
)
def test_storage_that_refuses_or_is_away_is_said(
    status: str, error: type, message: str, folder: Url, bucket: Bucket
) -> None:
    bucket.server.faults.append(Fault(times=100, status=status))
    with pytest.raises(error, match=message) as said:
        Claim.take(folder, of="a")
    assert type(said.value) is error
