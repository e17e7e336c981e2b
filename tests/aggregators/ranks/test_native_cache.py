"""Compiled code is cached per user; without a usable cache, each process compiles its own."""

import shutil
from pathlib import Path

import pytest
import torch

from polypool.aggregators.random_sets import random_sets
from polypool.aggregators.ranks.kernels import native

build = native.library.__wrapped__  # bypasses the in-process cache

pytestmark = pytest.mark.skipif(native.library(torch.float32) is None, reason="no compiler on this machine")


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """Return the compiled library; compiling takes a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        return Path(build(torch.float32)._name)


@pytest.fixture
def compiled(built, monkeypatch, tmp_path) -> list[Path]:
    """Set up an empty cache and a fake compiler; return the compiler's output folders."""
    folders = []

    def compile(command, folder):
        folders.append(folder)
        return Path(shutil.copy(built, folder / "sorted_sum.so"))

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(native, "_compile", compile)
    return folders


def sorts(monkeypatch, loaded) -> bool:
    monkeypatch.setattr(native, "library", lambda dtype: loaded)
    x_BND, mask_BN = random_sets([4, 3], 3)
    sorted_BND = native.SortDescending.apply(x_BND, mask_BN)
    return torch.equal(sorted_BND[0], x_BND[0].sort(dim=0, descending=True).values)


def test_next_process_loads_cached_library(compiled, monkeypatch, tmp_path):
    assert build(torch.float32)
    (built,) = (tmp_path / "polypool").iterdir()
    again = build(torch.float32)
    assert len(compiled) == 1
    assert again._name == str(built)
    assert sorts(monkeypatch, again)


def test_cache_key_covers_flags_source_and_processor(monkeypatch, tmp_path):
    source = tmp_path / "other.c"
    source.write_text(native.SOURCES[0].read_text() + "\n")
    keys = {native._key(["cc", *flags]) for flags in ([], ["-g"], ["-DREAL=double"])}
    for name, value in (("SOURCES", (source, *native.SOURCES[1:])), ("processor", lambda: ["another"])):
        with monkeypatch.context() as patch:
            patch.setattr(native, name, value)
            keys.add(native._key(["cc"]))
    assert len(keys) == 5
    assert native._key(["cc"]) in keys


@pytest.mark.parametrize("obstacle", ["no folder", "broken file", "no home"])
def test_unusable_cache_falls_back_to_private_build(compiled, monkeypatch, tmp_path, obstacle):
    if obstacle == "no folder":  # as in a read-only home
        (tmp_path / "polypool").write_text("")
    elif obstacle == "broken file":
        monkeypatch.setattr(native, "_key", lambda command: "known")
        (tmp_path / "polypool").mkdir()
        (tmp_path / "polypool" / "sorted_sum_known.so").write_bytes(b"\x7fELF")
    else:
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    loaded = build(torch.float32)
    assert tmp_path not in compiled[-1].parents
    assert sorts(monkeypatch, loaded)


@pytest.mark.parametrize(("lacking", "dtype"), [("-mno-avx", torch.float32), ("-mno-sse3", torch.float64)])
def test_narrower_vector_instructions_sort_the_same(monkeypatch, tmp_path, lacking, dtype):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CC", f"cc {lacking}")
    loaded = build(dtype)
    if loaded is None:
        pytest.skip(f"the compiler knows no {lacking}")
    x_BND, mask_BN = random_sets([37, 9], 21, dtype=dtype)
    ours, grads = [], []
    for library in (native.library(dtype), loaded):
        monkeypatch.setattr(native, "library", lambda dtype, library=library: library)
        x = x_BND.clone().requires_grad_()
        weight_BNC = torch.rand(2, 37, 21, dtype=dtype, generator=torch.Generator().manual_seed(1))
        ours.append(native.SortedSum.apply(x, weight_BNC, mask_BN))
        grads += torch.autograd.grad(ours[-1].square().sum(), x)
    torch.testing.assert_close(*ours)
    torch.testing.assert_close(*grads)
