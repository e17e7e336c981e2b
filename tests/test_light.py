"""Aggregators, similarities and objectives need only torch and numpy; other parts name the missing extra."""

import os
import re

from places import ROOT
from programs import begin, end

# Hides all installed packages except torch, numpy and their requirements.
ALONE = """
import sys
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder

OWN = {"polypool", "torch", "torchgen", "functorch", "numpy", "sympy", "mpmath", "networkx", "jinja2", "markupsafe"}
OWN |= {"fsspec", "filelock", "typing_extensions", "triton", *sys.stdlib_module_names}

class Installed:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return PathFinder.find_spec(name, path, target) if name.partition(".")[0] in OWN else None

sys.meta_path[:] = [BuiltinImporter, FrozenImporter, Installed]
"""

PARTS = """
import torch
import polypool as pp
from polypool.aggregators.random_sets import random_inputs
from polypool.infra.registry import AGGREGATORS, KINDS, OBJECTIVES, SIMILARITIES
from polypool.tasks.objectives.objective import batch_positives

def check(name, scalar, *floats):
    scalar.backward()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in floats), name
    print(name)

for spec in [*AGGREGATORS.built_in(), "late(factor=2)"]:
    module = pp.aggregator(spec, 16)
    inputs = random_inputs([3, 1, 5], module=module, dim=16)
    inputs.x_BND.requires_grad_()
    check(spec, inputs.pool(module).vectors.square().sum(), inputs.x_BND, *module.parameters())
for spec in SIMILARITIES.built_in():
    width = (16,) if SIMILARITIES.get(spec).takes_width else ()
    similarity = pp.part("similarity", spec, *width)
    shape = (2, 16) if similarity.of_sets or similarity.of_distributions else (16,)
    v, t = (torch.randn(4, *shape, requires_grad=True) for _ in "vt")
    check(spec, similarity(v, t).square().sum(), v, t, *similarity.parameters())
for spec in OBJECTIVES.built_in():
    objective = pp.part("objective", spec)
    sim_VT, row_T = torch.rand(4, 4, requires_grad=True), torch.arange(4)
    losses = objective(sim_VT, row_T, batch_positives(10 + row_T, row_T), epoch=2.0)
    check(spec, losses["loss"], sim_VT, *objective.parameters())
for kind in ("miner", "regulariser", "augmentation", "fusion", "optimiser"):
    for name in KINDS[kind].built_in():
        KINDS[kind].get(name)
"""

FROM_PYTHON = """
import polypool as pp
for call in (
    lambda: pp.train("coco_mini"), lambda: pp.load("a run"), lambda: pp.compare(), lambda: pp.runs(), lambda: pp.Run,
    lambda: pp.part("encoder", "bert"), lambda: pp.part("reader", "hdf5"),
):
    try:
        call()
    except pp.InputError as error:
        print(error)
"""

COMMAND = "sys.argv = ['polypool', *{}]\nfrom polypool.__main__ import main; main()"


def alone(program: str) -> tuple[int, list[str], str]:
    """Run a program with only torch and numpy importable; return its exit code, output lines and errors."""
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    code, out, err = end(begin("-c", ALONE + program, env=env))
    return code, out.splitlines(), err


def test_core_parts_train_with_only_torch_and_numpy():
    from polypool.infra.registry import AGGREGATORS, OBJECTIVES, SIMILARITIES

    code, lines, err = alone(PARTS)
    assert code == 0, err[-2000:]
    names = {*AGGREGATORS.built_in(), *SIMILARITIES.built_in(), *OBJECTIVES.built_in()}
    assert len(names) > 60
    assert names <= {*lines}


def test_python_api_names_missing_extra():
    code, lines, err = alone(FROM_PYTHON)
    assert code == 0, err[-2000:]
    assert len(lines) == 7
    for line in lines:
        assert re.fullmatch(r"the package '\w+' cannot be imported .* pip install 'polypool\[train\]'", line)


def test_command_names_missing_extra_and_lists_verbs():
    needs = "the extra 'train' brings it: pip install 'polypool[train]'"
    for words in (["train"], ["check", "gpo"], ["serve", "--help"]):
        code, lines, err = alone(COMMAND.format(words))
        assert (code, lines, err.count("\n")) == (2, [], 1)
        assert err.startswith("error: the package 'tyro' cannot be imported")
        assert needs in err
    code, lines, err = alone(COMMAND.format(["--help"]))
    assert (code, err) == (0, "")
    assert lines[-1] == "verbs need more packages: pip install 'polypool[all]'"
    assert any(line.split()[:1] == ["train"] for line in lines)


def test_aggregator_parses_no_source_and_imports_no_task():
    program = """
import ast, sys, torch
ast.parse = None  # of every file that registers aggregators it takes longer than all else
import polypool
polypool.aggregator("gpo", 1024)
print(*(name for name in sys.modules if name.startswith("polypool.")))
"""
    code, (loaded,), err = alone(program)
    assert code == 0, err
    assert {name.split(".")[1] for name in loaded.split()} == {"aggregators", "infra"}
