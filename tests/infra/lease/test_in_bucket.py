from __future__ import annotations

import json
import multiprocessing
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from typing import Any

import pytest
from object_storage import Bucket, Fault
from programs import soon

from polypool.infra.errors import AwayError, InputError
from polypool.infra.lease import in_bucket
from polypool.infra.lease.in_bucket import BucketLease, holder_in_bucket, refuse_lost
from polypool.infra.lease.on_disk import HeldError, Holder
from polypool.infra.storage import conditional, remote
from polypool.infra.storage.places import Url, place

FAR = Holder(host="far", boot="another", process=7, command="train x", since=0.0)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_bucket, "_SETTLE_SECONDS", 0)


@pytest.fixture
def folder(bucket: Bucket) -> Url:
    return place(f"{bucket.url}/runs/1")


def held_by(folder: Url, holder: Holder, token: str = "t", processes: str = "pid:[1]") -> None:
    record = {"token": token, "holder": asdict(holder), "processes": processes}
    remote.upload(json.dumps(record).encode(), folder / in_bucket.NAME)


def test_one_of_many_has_it_and_the_others_are_told_who(folder):
    barrier = threading.Barrier(4)

    def take() -> BucketLease | HeldError:
        barrier.wait()
        try:
            return BucketLease.take(folder, of="run 1 is held")
        except HeldError as error:
            return error

    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            results = [future.result() for future in [pool.submit(take) for _ in range(4)]]
            (mine,) = [each for each in results if isinstance(each, BucketLease)]
            for other in results:
                assert other is mine or str(other).startswith(f"run 1 is held (process {os.getpid()} on ")
            assert holder_in_bucket(folder).process == os.getpid()
            refuse_lost(folder, mine.token, of="it")
            mine.release()
            assert holder_in_bucket(folder) is None


@pytest.mark.parametrize("before", [True, False])
def test_of_two_that_read_at_once_the_second_to_write_is_refused(before, folder, monkeypatch):
    if before:
        BucketLease.take(folder, of="a").release()
    read, others = conditional.read, list[BucketLease]()

    def outrun(url: Url, **options: Any) -> conditional.Version | None:
        there = read(url, **options)
        if not others:
            others.append(None)
            others[0] = BucketLease.take(folder, of="other")
        return there

    monkeypatch.setattr(conditional, "read", outrun)
    with pytest.raises(HeldError, match=r"^b \(process"):
        BucketLease.take(folder, of="b")
    refuse_lost(folder, others[0].token, of="other")
    others[0].release()


def _take_and_die(url: str) -> None:
    BucketLease.take(place(url), of="a")
    os._exit(0)


def test_a_dead_process_of_this_machine_holds_nothing_and_others_until_they_expire(folder, monkeypatch):
    process = multiprocessing.get_context("spawn").Process(target=_take_and_die, args=[str(folder)])
    process.start()
    process.join()
    with BucketLease.take(folder, of="a") as mine:
        assert mine.found
    for holder in (FAR, replace(Holder.this(), process=process.pid, boot="an earlier one")):
        held_by(folder, holder)
        with pytest.raises(HeldError, match=rf"process {holder.process} .* 90 free it"):
            BucketLease.take(folder, of="a")
    remote.upload(b"{", folder / in_bucket.NAME)  # damaged
    with pytest.raises(HeldError, match="it is not known which"):
        BucketLease.take(folder, of="a")
    monkeypatch.setattr(in_bucket, "STALE_SECONDS", 0)
    BucketLease.take(folder, of="a").release()


def test_a_holder_that_was_away_notices_its_loss(folder, bucket, monkeypatch, capsys):
    monkeypatch.setattr(in_bucket, "BEAT_SECONDS", 0.02)
    mine = BucketLease.take(folder, of="run 1 is held")
    fault = Fault(method="PUT", key="lease.json", times=remote.ATTEMPTS)
    bucket.server.faults.append(fault)
    assert soon(lambda: not fault.times)
    beats = len(bucket.asked("lease.json", "PUT"))
    assert soon(lambda: len(bucket.asked("lease.json", "PUT")) > beats + 2)
    assert not mine.lost, "no other process took it meanwhile"
    held_by(folder, FAR, token="theirs")
    assert soon(lambda: mine.lost)
    assert "run 1 is held now" in capsys.readouterr().err
    with pytest.raises(HeldError, match="process 7 on far"):
        refuse_lost(folder, mine.token, of="a")
    mine.release()
    refuse_lost(folder, "theirs", of="it was left as it is")


def test_a_lost_answer_is_no_other_holder(folder, monkeypatch):
    put, lost = conditional._put, []

    def losing(url: Url, data: bytes, condition: dict[str, str]) -> str | None:
        etag = put(url, data, condition)
        if etag and len(lost) < 2:
            lost.append(etag)
            raise OSError("the connection was cut")
        return etag

    monkeypatch.setattr(conditional, "_put", losing)
    with BucketLease.take(folder, of="a") as mine:
        refuse_lost(folder, mine.token, of="a")
    assert len(lost) == 2


def test_where_conditions_are_ignored_signs_of_life_decide(folder, monkeypatch, capsys):
    put = conditional._put
    monkeypatch.setattr(conditional, "_put", lambda url, data, condition: put(url, data, {}))
    monkeypatch.setattr(in_bucket, "BEAT_SECONDS", 0.02)
    mine = BucketLease.take(folder, of="run 1 is held")
    assert f"the storage of {folder} ignores conditions" in capsys.readouterr().err

    def overwritten() -> bool:  # also between the holder's read and its write
        held_by(folder, FAR, token="theirs")
        return mine.lost

    assert soon(overwritten)
    refuse_lost(folder, "theirs", of="it was left as it is")


def test_a_new_file_is_deleted_on_withdrawal(folder, bucket):
    BucketLease.take(folder, of="a").withdraw()
    assert bucket.keys() == []
    BucketLease.take(folder, of="a").release()
    BucketLease.take(folder, of="a").withdraw()
    assert bucket.keys() == ["runs/1/lease.json"]


@pytest.mark.parametrize(
    ("status", "error", "message"),
    [("403 Forbidden", InputError, "may not be read"), ("503 Slow Down", AwayError, "tried 6 times")],
)
def test_storage_that_refuses_or_is_away_is_said(status, error, message, folder, bucket):
    bucket.server.faults.append(Fault(times=100, status=status))
    with pytest.raises(error, match=message) as raised:
        BucketLease.take(folder, of="a")
    assert type(raised.value) is error
