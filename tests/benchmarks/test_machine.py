"""The line about the machine, from files of this one and of others."""

import os
import platform
from pathlib import Path

import pytest

from benchmarks import machine
from benchmarks.machine import Machine

X86 = """processor	: 0
vendor_id	: GenuineIntel
model name	: Intel(R) Xeon(R) Platinum 8375C CPU @ 2.90GHz
flags		: fpu sse4_2 avx fma avx2 avx512f avx512dq avx512_bf16

processor	: 1
model name	: another
flags		: fpu
"""
ARM = """processor	: 0
BogoMIPS	: 243.75
Features	: fp asimd evtstrm aes asimdhp cpuid asimddp sve bf16
CPU implementer	: 0x41
CPU architecture: 8
CPU part	: 0xd40
"""


def write(root: Path, **files: str) -> Path:
    """Write files under a root, their paths given with `__` for `/`."""
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def disk() -> str:
    device = os.stat("/").st_dev
    return f"{os.major(device)}:{os.minor(device)}"


@pytest.fixture(autouse=True)
def temporary(monkeypatch):
    """Temporary files lie on the disk of `/`."""
    monkeypatch.setattr(machine.tempfile, "gettempdir", lambda: "/")


def test_an_x86_names_its_first_processor_and_the_sets_that_matter(tmp_path):
    memory = "MemTotal:   16000000 kB\nMemFree: 1 kB\n"
    found = Machine.here(write(tmp_path, proc__cpuinfo=X86, proc__meminfo=memory))
    assert found.cpu == "Intel(R) Xeon(R) Platinum 8375C CPU @ 2.90GHz"
    assert found.sets == ("AVX", "AVX2", "FMA", "AVX-512F", "AVX-512 BF16")
    assert found.memory_GB == pytest.approx(16.384)
    assert "(AVX AVX2 FMA AVX-512F AVX-512 BF16), memory 16 GB" in str(found)


def test_an_arm_has_features_and_no_name(tmp_path):
    found = Machine.here(write(tmp_path, proc__cpuinfo=ARM))
    assert found.cpu == "CPU of implementer 0x41, part 0xd40"
    assert found.sets == ("NEON", "NEON FP16", "BF16", "SVE")


def test_a_machine_that_says_nothing_is_unknown(tmp_path, monkeypatch):
    monkeypatch.setattr(platform, "processor", lambda: "")
    monkeypatch.setenv("CC", str(tmp_path / "no-such-compiler"))
    monkeypatch.delattr(os, "getloadavg")
    found = Machine.here(tmp_path)
    assert (found.cpu, found.sets, found.memory_GB, found.read_ahead_kB) == ("unknown", None, None, None)
    assert (found.compiler, found.load) == ("none", None)
    assert "unknown, " in str(found)
    for part in ("cores (unknown)", "memory unknown", "read-ahead unknown", "compiler none", "load unknown"):
        assert part in str(found)


@pytest.mark.parametrize(
    "name", ["sys__class__bdi__{}__read_ahead_kb", "sys__dev__block__{}__queue__read_ahead_kb"]
)
def test_read_ahead_is_that_of_the_disk_with_temporary_files(tmp_path, name):
    other = write(tmp_path, **{name.format("999:1"): "64\n"})
    assert Machine.here(other).read_ahead_kB is None
    found = Machine.here(write(tmp_path, **{name.format(disk()): "8192\n"}))
    assert found.read_ahead_kB == 8192
    assert "read-ahead 8,192 kB" in str(found)


def test_read_ahead_of_a_partition_is_its_disks(tmp_path):
    write(tmp_path, sys__devices__sda__queue__read_ahead_kb="128\n", sys__devices__sda__sda1__partition="1\n")
    link = tmp_path / "sys/dev/block" / disk()
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "sys/devices/sda/sda1")
    assert Machine.here(tmp_path).read_ahead_kB == 128


@pytest.mark.parametrize(
    ("groups", "limit"),
    [
        ("0::/box\n", "sys__fs__cgroup__box__memory.max"),
        ("4:memory:/box\n0::/\n", "sys__fs__cgroup__memory__box__memory.limit_in_bytes"),
    ],
    ids=["version 2", "version 1"],
)
def test_a_limit_of_memory_counts_where_it_is_lower(tmp_path, groups, limit):
    files = {"proc__meminfo": "MemTotal: 16000000 kB\n", "proc__self__cgroup": groups}
    assert Machine.here(write(tmp_path, **files, **{limit: "900000000\n"})).memory_GB == pytest.approx(0.9)
    assert Machine.here(write(tmp_path, **{limit: "max\n"})).memory_GB == pytest.approx(16.384)
    assert Machine.here(write(tmp_path, **{limit: f"{1 << 62}\n"})).memory_GB == pytest.approx(16.384)


def test_the_compiler_is_the_one_that_compiles_here(tmp_path, monkeypatch):
    made_up = tmp_path / "mycc"
    made_up.write_text("#!/bin/sh\necho mycc 3.1\necho more\n")
    made_up.chmod(0o755)
    monkeypatch.setenv("CC", f"{made_up} -m64")
    assert Machine.here(tmp_path).compiler == "mycc 3.1"
    for odd in ("", "'", "false"):
        monkeypatch.setenv("CC", odd)
        assert Machine.here(tmp_path).compiler == "none"


@pytest.mark.skipif(platform.system() != "Linux", reason="only Linux has /proc")
def test_this_machine_says_something():
    found = Machine.here()
    assert found.cpu != "unknown"
    assert found.sets
    assert found.memory_GB > 0.1
    assert found.cores >= 1
