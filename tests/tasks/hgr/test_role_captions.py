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


def test_start_token_shifts_spans_and_duplicates_share_graphs(tmp_path, capsys):
    file = written(tmp_path, GRAPHS)
    plain, captions = (
        RoleCaptions(TEXTS, vocabulary(ends=ends), verbs=2, nouns=3, graphs=file) for ends in (False, True)
    )
    said = capsys.readouterr().out
    assert said.startswith(f"role graphs of 3 distinct captions: 2 from {file}, 1 without")
    words = Captions(TEXTS, vocabulary())
    batch, of_words = captions.batch(np.array([1, 0, 2])), words.batch(np.array([1, 0, 2]))
    assert all(torch.equal(batch[key], value) for key, value in of_words.items())
    np.testing.assert_array_equal(captions.sizes(), words.sizes())
    for caption, spans in enumerate([{0: [3], 2: [0, 1], 3: [4, 5]}, {2: [0, 1]}]):
        assert words_of(plain, caption) == spans
        assert words_of(captions, caption) == {slot: [1 + word for word in of] for slot, of in spans.items()}
    for key in ("text_spans", "text_roles", "text_edges"):
        assert torch.equal(batch[key][1], batch[key][2])


def test_token_limit_truncates_phrases(tmp_path):
    captions = RoleCaptions(TEXTS, vocabulary(ends=False), graphs=written(tmp_path, GRAPHS), limit=5)
    assert captions.batch(np.array([0]))["text"].shape == (1, 5)
    assert words_of(captions, 0) == {0: [3], 4: [0, 1], 5: [4]}


def test_exact_sentence_takes_precedence_over_same_letters(tmp_path, capsys):
    released = {
        "a man is playing a guitar": graph(("V", [3]), ("ARG1", [5]), edges=((1, 2),)),
        "two kids don't sing": graph(("V", [2, 3]), ("ARG0", [0, 1]), edges=((1, 2),)),
        "nobody asks for this": graph(("V", [77])),
        "a dog": None,
    }
    captions = RoleCaptions(TEXTS, vocabulary(ends=False), graphs=written(tmp_path, released))
    assert words_of(captions, 0) == {0: [3], 4: [5]}
    assert words_of(captions, 1) == {}
    assert words_of(captions, 3) == {0: [2, 3, 4], 4: [0, 1]}  # tokens: two kids do n't sing
    assert "1 entries are not of the expected form" in capsys.readouterr().out
    released["A man is playing a guitar."] = graph(("V", [2]))
    captions = RoleCaptions(TEXTS, vocabulary(ends=False), graphs=written(tmp_path, released))
    assert words_of(captions, 0) == words_of(captions, 2) == {0: [2]}


def test_pickled_empty_captions_have_no_phrases():
    for texts in (["", "!"], ["", "a dog"]):
        captions = pickle.loads(pickle.dumps(RoleCaptions(texts, vocabulary(ends=False))))
        batch = captions.batch(np.array([0, 0]))
        assert not batch["text_spans"].any()
        assert not batch["text_edges"].any()
        assert batch["text_spans"].shape == (2, 10, 1)
