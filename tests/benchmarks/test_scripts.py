"""The scripts of `python -m benchmarks`, run at tiny sizes."""

import re
from contextlib import suppress
from importlib import import_module

import pytest

from polypool.infra.errors import InputError


@pytest.mark.parametrize("name", ["step", "gpo", "aggregators", "store", "evaluation", "gpu"])
def test_benchmark_scripts_print_positive_ratios(name, capsys):
    with suppress(InputError):  # a cgroup memory limit needs root
        import_module(f"benchmarks.{name}").main(quick=True)
    ratios = re.findall(r"^.+: \S+ \S+, reference \S+ \S+: (\d+\.\d\d)x", capsys.readouterr().out, re.M)
    assert ratios
    assert all(float(ratio) > 0 for ratio in ratios)
