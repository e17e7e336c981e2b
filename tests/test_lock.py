"""Lock files pin the requirements of `pyproject.toml` with hashes and name no registry."""

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from places import ROOT

LOCKS = [f"requirements{kind}.lock" for kind in ("", "-cpu", "-cuda", "-docs")] + [
    "infra/deploy/postgres.lock"
]
TORCH = re.search(r"^TORCH := torch==(\S+)$", (ROOT / "Makefile").read_text(), re.M)[1]


def pins(lock: str) -> dict[str, tuple[set[str], list[str]]]:
    """Return each package's versions and hashes in a lock file; versions may differ by Python version."""
    lines = (ROOT / lock).read_text().replace("\\\n", " ").splitlines()
    found: dict[str, tuple[set[str], list[str]]] = {}
    for line in lines:
        if line.strip() and not line.lstrip().startswith("#"):
            pinned, *hashes = re.split(r"\s+--hash=sha256:", line.strip())
            (exact,) = (requirement := Requirement(pinned)).specifier
            assert exact.operator == "==", pinned
            assert hashes, pinned
            versions, all_hashes = found.setdefault(canonicalize_name(requirement.name), (set(), []))
            versions.add(exact.version)
            all_hashes += hashes
    return found


@pytest.mark.parametrize("lock", LOCKS)
def test_lock_pins_have_hashes_and_no_registry_urls(lock):
    for name, (_, hashes) in pins(lock).items():
        assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in hashes), name
    assert not re.search(r"://|--(extra-)?index-url|--find-links", (ROOT / lock).read_text())


def test_pins_satisfy_pyproject_requirements():
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = asked["project"]
    extras = project["optional-dependencies"]
    everything = [text for name in ("train", "video", "serve", "dev") for text in extras[name]]
    requirements = project["dependencies"] + everything + asked["build-system"]["requires"]
    hold(requirements, pins("requirements.lock") | {"torch": ({TORCH}, [])})
    hold(extras["docs"], pins("requirements-docs.lock"))


def hold(requirements: list[str], pinned: dict[str, tuple[set[str], list[str]]]) -> None:
    for requirement in (of for of in map(Requirement, requirements) if of.name != "polypool"):
        name = canonicalize_name(requirement.name)
        assert name in pinned, f"{requirement.name} is missing from the locks: run `make lock UPGRADE=`"
        for version in pinned[name][0]:
            assert version in requirement.specifier, f"{requirement} excludes the pinned version {version}"


def test_docs_lock_agrees_with_main_lock():
    docs, others = pins("requirements-docs.lock"), pins("requirements.lock")
    assert {name: others[name][0] for name in docs if name in others} == {
        name: versions for name, (versions, _) in docs.items() if name in others
    }


def test_locks_pin_one_torch_and_isolate_cuda_packages():
    assert pins("requirements-cpu.lock")["torch"][0] == {f"{TORCH}+cpu"}
    cuda, others = pins("requirements-cuda.lock"), pins("requirements.lock")
    assert cuda["torch"][0] == {TORCH}
    assert "torch" not in others
    assert "triton" in cuda
    assert not [name for name in others if re.match("nvidia-|cuda-|triton", name)]
    assert all(others[name][0] == versions for name, (versions, _) in cuda.items() if name in others)
