"""A trained model as ONNX graphs, run by another program's runtime."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from corpora import make_corpus, make_questions
from kept import keep_run
from searchable import untrained

from polypool.aggregators.random_sets import random_sets
from polypool.infra.compute.device import device_of, on_device
from polypool.infra.errors import InputError
from polypool.infra.registry import AGGREGATORS
from polypool.pipelines.models import onnx as graphs
from polypool.pipelines.models.exporting import export
from polypool.pipelines.models.onnx import ANSWERS, SIMILARITY, TEXT, VISUAL, write_graphs
from polypool.pipelines.models.search.queries import Query, QueryReader
from polypool.pipelines.models.trained import load

ort = pytest.importorskip("onnxruntime", reason="not installed (pip install 'polypool[onnx]')")
pytest.importorskip("onnx", reason="not installed (pip install 'polypool[onnx]')")

CAPTIONS = ["a dog", "a dog and a cat on a bench", "two"]
DIM = 8
NOT_WRITTEN = {"boq", "probabilistic", "seq2seq", "seq_lstm", "ts2_select"}
"""What torch writes no graph of: stable sorts, two GRUs over the same ranks, its own attention, tails of a Gaussian."""


def computed(file: Path, **inputs: torch.Tensor) -> np.ndarray:
    session = ort.InferenceSession(file, providers=["CPUExecutionProvider"])
    assert {it.name for it in session.get_inputs()} == {*inputs}
    (found,) = session.run(None, {name: x.numpy() for name, x in inputs.items()})
    return found


def batches(trained, sizes: list[int], texts: list[str]) -> dict[str, torch.Tensor]:
    """Return what the model's own adapter makes of features and texts."""
    random = np.random.default_rng(len(sizes))
    sets = [random.standard_normal((size, trained.adapter.visual_dim)).astype(np.float32) for size in sizes]
    queries = [Query(features=x_NF) for x_NF in sets]
    reader = QueryReader(trained.adapter)
    return reader.visual_batch(queries) | reader.text_batch([Query(text=text) for text in texts])


def changed(run, **change):
    return replace(run, data=replace(run.data, text_augment=""), **change)


@pytest.mark.parametrize("aggregator", ["gpo", "map(k=1)", "fspool"])
def test_scores_of_an_exported_folder_are_those_of_its_graphs(new_home, aggregator):
    run_id = keep_run(changed(make_corpus(new_home, train=8, val=4, test=4), aggregator=aggregator))
    export(run_id, new_home / "out", onnx=True)
    trained = load(new_home / "out")
    batch = batches(trained, [9, 1, 3, 12], CAPTIONS)
    embeddings = {}
    for side, graph in (("visual", VISUAL), ("text", TEXT)):
        inputs = {name: batch[name] for name in (side, f"{side}_mask")}
        embeddings[f"{side}_embedding"] = torch.from_numpy(computed(new_home / "out" / graph, **inputs))
    score, model = computed(new_home / "out" / SIMILARITY, **embeddings), trained.model
    with torch.no_grad():
        batch = on_device(batch, device_of(model))
        expected = model.score(model.encode_visual(batch), model.encode_text(batch)).cpu().numpy()
    assert score.shape == (4, 3)
    np.testing.assert_allclose(score, expected, atol=1e-4)
    assert np.ptp(expected) > 1e-3
    said = (new_home / "out" / "README.md").read_text()
    assert "| `text.onnx` | `text` int64 (text, tokens), `text_mask` bool (text, tokens) |" in said
    assert "`score` float (visual, text)" in said


def test_pads_and_what_lies_in_them_change_nothing(tmp_path):
    trained = untrained(changed(make_corpus(tmp_path, train=8, val=4, test=4), aggregator="gpo"))
    write_graphs(trained, tmp_path)
    batch = batches(trained, [2, 5], CAPTIONS)
    x, mask = batch["visual"], batch["visual_mask"]
    expected = computed(tmp_path / VISUAL, visual=x, visual_mask=mask)
    wider = torch.nn.functional.pad(x.masked_fill(~mask[..., None], 77.0), (0, 0, 0, 4), value=50.0)
    found = computed(tmp_path / VISUAL, visual=wider, visual_mask=torch.nn.functional.pad(mask, (0, 4)))
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_probabilities_of_answers_are_those_of_the_model(tmp_path):
    trained = untrained(changed(make_questions(tmp_path), aggregator="gpo"))
    (file,), left_out = write_graphs(trained, tmp_path)
    assert (file.name, left_out) == (ANSWERS, "")
    batch = batches(trained, [4, 7, 1], ["what is it?", "how many dogs are there in the picture?", "why"])
    with torch.no_grad():
        expected = trained.adapter.probabilities(trained.model, batch).numpy()
    names = ("visual", "visual_mask", "text", "text_mask")
    np.testing.assert_allclose(computed(file, **{name: batch[name] for name in names}), expected, atol=1e-4)


def test_of_sets_the_similarity_may_be_left_out_and_is_said(new_home, capsys):
    run_id = keep_run(
        changed(make_corpus(new_home, train=8, val=4, test=4), aggregator="slots(k=2, heads=2, head_width=8)")
    )
    export(run_id, new_home / "out", onnx=True)
    assert "embeddings are to be compared by other means: similarity.onnx" in capsys.readouterr().err
    assert {path.name for path in (new_home / "out").glob("*.onnx")} == {VISUAL, TEXT}


def of_visual(owner: torch.nn.Module, compute) -> graphs.Graph:
    names = {"inputs": ("visual", "visual_mask"), "output": "visual_embedding"}
    return graphs.Graph("it.onnx", owner, compute, **names)


@pytest.mark.parametrize("name", [name for name, _ in AGGREGATORS.usable()])
def test_every_aggregator_is_written_or_known_not_to_be(name, tmp_path):
    torch.manual_seed(0)
    module = AGGREGATORS.build(name, DIM).eval()
    if module.context != "none":
        pytest.skip("looks at the other modality, so it is no graph of its own")

    inputs = [random_sets(sizes, DIM, seed=seed) for seed, sizes in enumerate(([5, 3], [2, 9, 4]))]
    graph = of_visual(module, lambda batch: module(batch["visual"], batch["visual_mask"]).vectors)
    made = [{"visual": x_BND, "visual_mask": mask_BN} for x_BND, mask_BN in inputs]
    if name in NOT_WRITTEN:
        with pytest.raises(InputError, match=r"^it\.onnx: "):
            graphs._written(graph, made, tmp_path)
    else:
        graphs._written(graph, made, tmp_path)


def test_a_graph_that_gives_other_numbers_is_not_kept(tmp_path):
    def fixed(batch):
        return batch["visual"].sum(dim=1) * int(batch["visual_mask"].sum())  # a value that becomes a constant

    masks = [torch.ones(2, n, dtype=torch.bool) for n in (2, 3)]
    made = [{"visual": mask[..., None].expand(-1, -1, 3).float(), "visual_mask": mask} for mask in masks]
    graph = of_visual(torch.nn.Module(), fixed)
    with pytest.raises(InputError, match="gives other numbers than the model; it is not kept"):
        graphs._written(graph, made, tmp_path)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"model": "hgr(dropout=0.0)", "text": "bigru(width=16, embedding=8, min_count=1, ends=False)"},
            "HGR reads",
        ),
        ({"aggregator": "seq2seq"}, r"visual\.onnx: torch cannot write this model as ONNX"),
    ],
)
def test_what_has_no_such_form_is_said(new_home, change, message):
    run_id = keep_run(changed(make_corpus(new_home, train=8, val=4, test=4), **change))
    with pytest.raises(InputError, match=message):
        export(run_id, new_home / "out", onnx=True)
    assert not (new_home / "out").exists()


def test_without_the_packages_it_is_said_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(InputError, match=r"pip install 'polypool\[onnx\]'"):
        write_graphs(untrained(changed(make_corpus(tmp_path, train=8, val=4, test=4))), tmp_path)
