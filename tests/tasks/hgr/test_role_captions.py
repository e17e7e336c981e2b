import json
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from polypool.encoders.text.tokenizers import Vocabulary, count_words
from polypool.tasks.hgr import parsing
from polypool.tasks.hgr.role_captions import RoleCaptions
from polypool.tasks.hgr.role_graph import ROLES
from polypool.tasks.inputs.texts import Captions

TEXTS = ["A man is playing a guitar.", "a dog", "A man is playing a guitar.", "Two kids don't sing"]


def vocabulary(*, ends: bool = True) -> Vocabulary:
    return Vocabulary(count_words(TEXTS, min_count=1), ends=ends)


def written(folder: Path, graphs: dict) -> str:
    path = folder / "graphs.json"
    path.write_text(json.dumps(graphs))
    return str(path)


def graph(*nodes: tuple[str, list[int]], edges: tuple = ()) -> list:
    listed = {str(i): {"role": role, "spans": spans} for i, (role, spans) in enumerate(nodes, start=1)}
    return [{"0": {"role": "ROOT", "spans": []}} | listed, [[str(a), str(b), "x"] for a, b in edges]]


PLAYS = graph(("V", [3]), ("ARG0", [0, 1]), ("ARG1", [4, 5]), edges=((1, 2), (1, 3)))
GRAPHS = {"A man is playing a guitar": PLAYS, "a dog": graph(("NOUN", [0, 1]))}


@pytest.fixture(autouse=True)
def without_spacy(monkeypatch):
    parsing._pipeline.cache_clear()
    monkeypatch.setitem(sys.modules, "spacy", None)


def words_of(captions: RoleCaptions, caption: int) -> dict[int, list[int]]:
    """Return the positions of each used slot."""
    spans = captions.batch(np.array([caption]))["text_spans"][0]
    return {slot: row.nonzero()[:, 0].tolist() for slot, row in enumerate(spans) if row.any()}


@pytest.mark.parametrize("ends", [True, False])
def test_a_batch_holds_words_phrases_roles_and_edges(ends, tmp_path, capsys):
    file = written(tmp_path, GRAPHS)
    captions = RoleCaptions(TEXTS, vocabulary(ends=ends), verbs=2, nouns=3, graphs=file)
    said = capsys.readouterr().out
    assert said.startswith(f"role graphs of 3 distinct captions: 2 from {file}, 1 without")
    plain = Captions(TEXTS, vocabulary(ends=ends))
    batch = captions.batch(np.array([1, 0, 2]))
    for key, value in plain.batch(np.array([1, 0, 2])).items():
        assert torch.equal(batch[key], value)
    assert len(captions) == len(TEXTS)
    np.testing.assert_array_equal(captions.sizes(), plain.sizes())
    length, by = batch["text"].shape[1], int(ends)
    spans = torch.zeros(3, 5, length, dtype=torch.bool)
    spans[0, 2, by : by + 2] = True  # a dog
    for row in (1, 2):
        spans[row, 0, by + 3] = spans[row, 2, by : by + 2] = spans[row, 3, by + 4 : by + 6] = True
    roles = torch.zeros(3, 5, dtype=torch.int64)
    roles[0, 2], roles[1:, 2], roles[1:, 3] = ROLES.index("NOUN"), ROLES.index("ARG0"), ROLES.index("ARG1")
    edges = torch.zeros(3, 6, 6, dtype=torch.bool)
    for target, source in ((1, 0), (1, 3), (3, 1), (1, 4), (4, 1)):
        edges[1:, target, source] = True
    for key, expected in (("text_spans", spans), ("text_roles", roles), ("text_edges", edges)):
        assert batch[key].dtype == expected.dtype
        assert torch.equal(batch[key], expected)


def test_phrases_beyond_the_limit_are_cut_with_the_words(tmp_path):
    captions = RoleCaptions(TEXTS, vocabulary(ends=False), graphs=written(tmp_path, GRAPHS), limit=5)
    assert captions.batch(np.array([0]))["text"].shape == (1, 5)
    assert words_of(captions, 0) == {0: [3], 4: [0, 1], 5: [4]}


def test_the_graph_of_an_equal_sentence_comes_before_those_of_the_same_letters(tmp_path, capsys):
    released = {
        "a man is playing a guitar": graph(("V", [3]), ("ARG1", [5]), edges=((1, 2),)),
        "two kids don't sing": graph(("V", [2, 3]), ("ARG0", [0, 1]), edges=((1, 2),)),
        "nobody asks for this": graph(("V", [77])),
        "a dog": None,
    }
    captions = RoleCaptions(TEXTS, vocabulary(ends=False), graphs=written(tmp_path, released))
    assert words_of(captions, 0) == {0: [3], 4: [5]}
    assert words_of(captions, 1) == {}
    assert words_of(captions, 3) == {0: [2, 3, 4], 4: [0, 1]}  # two kids do n't sing
    assert "1 entries are not of the expected form" in capsys.readouterr().out
    released["A man is playing a guitar."] = graph(("V", [2]))
    captions = RoleCaptions(TEXTS, vocabulary(ends=False), graphs=written(tmp_path, released))
    assert words_of(captions, 0) == words_of(captions, 2) == {0: [2]}


def test_captions_without_words_have_no_phrases_and_all_of_it_can_be_sent_to_a_worker():
    for texts in (["", "!"], ["", "a dog"]):
        captions = pickle.loads(pickle.dumps(RoleCaptions(texts, vocabulary(ends=False))))
        batch = captions.batch(np.array([0, 0]))
        assert not batch["text_spans"].any()
        assert not batch["text_edges"].any()
        assert batch["text_spans"].shape == (2, 10, 1)
