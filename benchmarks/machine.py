"""Description of the machine that numbers are measured on, in a line or two."""

from __future__ import annotations

import os
import platform
import re
import shlex
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

from polypool.infra.ray.session import local_cores

UNKNOWN = "unknown"
SETS = {
    "AVX": ("avx",),
    "AVX2": ("avx2",),
    "FMA": ("fma",),
    "AVX-512F": ("avx512f",),
    "AVX-512 BF16": ("avx512_bf16",),
    "AVX-512 FP16": ("avx512_fp16",),
    "AMX": ("amx_tile",),
    "NEON": ("asimd", "neon"),
    "NEON FP16": ("asimdhp",),
    "BF16": ("bf16",),
    "SVE": ("sve",),
    "SVE2": ("sve2",),
}
"""Instruction sets that decide the speed of the benchmarks, with their names in /proc/cpuinfo."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A machine; a text is `unknown`, and a number None, where the system does not report it.

    Args:
        cpu: its model.
        sets: its instruction sets among `SETS`; None where the system does not list them.
        cores: that this process may use.
        memory_GB: that this process may use, in 10^9 bytes.
        compiler: the C compiler and its version; `none` without one.
        read_ahead_kB: bytes that a page fault reads at once, on the disk of temporary files.
        gpu: its model; empty without one.
        load: average number of running or waiting processes in the last minute.
    """

    cpu: str
    sets: tuple[str, ...] | None
    cores: int
    memory_GB: float | None
    compiler: str
    read_ahead_kB: int | None
    gpu: str
    load: float | None

    @classmethod
    def here(cls, root: Path = Path("/")) -> Machine:
        """Describe this machine, from the files under `root`/proc and `root`/sys."""
        fields = _cpu_fields(root / "proc/cpuinfo")
        return cls(
            cpu=_model(fields),
            sets=_sets(fields),
            cores=local_cores(),
            memory_GB=_memory(root),
            compiler=_compiler(),
            read_ahead_kB=_read_ahead(root, Path(tempfile.gettempdir())),
            gpu=torch.cuda.get_device_name() if torch.cuda.is_available() else "",
            load=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        )

    def brief(self) -> str:
        """Return what decides most ratios: cores, instruction sets, and the version of torch."""
        version = torch.__version__.partition("+")[0]
        gpu = f", {self.gpu}" if self.gpu else ""
        return f"{self.cores} cores of {self.cpu} ({self._listed()}){gpu}, torch {version}"

    def _listed(self) -> str:
        return UNKNOWN if self.sets is None else " ".join(self.sets) or "none that matter"

    def __str__(self) -> str:
        memory = UNKNOWN if self.memory_GB is None else f"{self.memory_GB:,.0f} GB"
        ahead = UNKNOWN if self.read_ahead_kB is None else f"{self.read_ahead_kB:,} kB"
        load = UNKNOWN if self.load is None else f"{self.load:.1f}"
        parts = (
            self.cpu,
            f"{self.cores} cores ({self._listed()})",
            f"memory {memory}",
            f"read-ahead {ahead}",
            self.gpu or "no GPU",
            f"C compiler {self.compiler}",
            f"torch {torch.__version__} with {torch.get_num_threads()} threads",
            f"Python {platform.python_version()}",
            f"{platform.system()} {platform.machine()}",
            f"load {load} at the start",
        )
        return ", ".join(parts)


def _text(path: Path) -> str:
    """Return the text of a system file, empty where there is none."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _cpu_fields(path: Path) -> dict[str, str]:
    """Return the fields of the first processor, and those that follow the last one."""
    fields: dict[str, str] = {}
    for line in _text(path).splitlines():
        name, colon, value = line.partition(":")
        if colon:
            fields.setdefault(name.strip(), value.strip())
    return fields


def _model(fields: dict[str, str]) -> str:
    """Return the name; of ARM, which has none on Linux, the numbers that tell its cores apart."""
    for name in ("model name", "Model", "Hardware", "cpu"):
        if fields.get(name):
            return fields[name]
    if "CPU part" in fields:
        return f"CPU of implementer {fields.get('CPU implementer', UNKNOWN)}, part {fields['CPU part']}"
    if platform.system() == "Darwin":
        return _first_line(["sysctl", "-n", "machdep.cpu.brand_string"]) or UNKNOWN
    return platform.processor() or UNKNOWN


def _sets(fields: dict[str, str]) -> tuple[str, ...] | None:
    listed = fields.get("flags", fields.get("Features"))
    if listed is None:
        return None
    found = set(listed.split())
    return tuple(name for name, flags in SETS.items() if found.intersection(flags))


def _memory(root: Path) -> float | None:
    """Return the memory of the machine, or the lower limit of this process's cgroup, in GB."""
    found = re.search(r"^MemTotal:\s*(\d+) kB", _text(root / "proc/meminfo"), re.MULTILINE)
    total = 1024 * int(found[1]) if found else None
    groups = {
        controllers: path.lstrip("/")
        for _, controllers, path in (
            line.split(":", 2) for line in _text(root / "proc/self/cgroup").splitlines()
        )
    }
    groups_at = root / "sys/fs/cgroup"
    limits = [
        _text(groups_at / groups.get("", "") / "memory.max"),
        _text(groups_at / "memory" / groups.get("memory", "") / "memory.limit_in_bytes"),
    ]
    numbers = [int(limit) for limit in limits if limit.strip().isdigit()] + ([total] if total else [])
    return min(numbers) / 1e9 if numbers else None


def _compiler() -> str:
    try:
        words = shlex.split(os.environ.get("CC", "cc"))
    except ValueError:  # a quote that does not end
        return "none"
    return _first_line([*words, "--version"]) or "none"


def _first_line(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    lines = done.stdout.splitlines()
    return lines[0].strip() if done.returncode == 0 and lines else ""


def _read_ahead(root: Path, folder: Path) -> int | None:
    """Return the read-ahead of the device that a folder is on, in kB; of memory and of networks there may be none."""
    device = folder.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    block = root / "sys/dev/block" / number
    places = (
        root / "sys/class/bdi" / number / "read_ahead_kb",
        block / "queue/read_ahead_kb",
        block / "../queue/read_ahead_kb",  # of the disk that a partition is on
    )
    return next((int(text) for text in map(_text, places) if text.strip().isdigit()), None)
