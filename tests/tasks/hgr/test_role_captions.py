import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from polypool.encoders.text.tokenizers import Vocabulary, WordTokenizer, count_words
from polypool.infra.errors import InputError
from polypool.infra.registry import PARSERS
from polypool.tasks.hgr import released_graphs as role_graphs
from polypool.tasks.hgr.role_captions import RoleCaptions
from polypool.tasks.hgr.role_graph import ROLES, Node, RoleGraph
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


def words_of(captions: RoleCaptions, caption: int) -> dict[int, list[int]]:
    """Return the positions of each used slot."""
    spans = captions.batch(np.array([caption]))["text_spans"][0]
    return {slot: row.nonzero()[:, 0].tolist() for slot, row in enumerate(spans) if row.any()}


@pytest.mark.parametrize("ends", [True, False])
def test_a_batch_holds_words_phrases_roles_and_edges(ends, capsys):
    captions = RoleCaptions(TEXTS, vocabulary(ends=ends), verbs=2, nouns=3)
    assert "3 distinct captions: all by the parser 'rules'" in capsys.readouterr().out
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


def test_phrases_beyond_the_limit_are_cut_with_the_words():
    captions = RoleCaptions(TEXTS, vocabulary(ends=False), limit=5)
    assert captions.batch(np.array([0]))["text"].shape == (1, 5)
    assert words_of(captions, 0) == {0: [3], 4: [0, 1], 5: [4]}


def test_released_graphs_come_first_by_string_and_then_by_words(tmp_path, capsys):
    released = {
        "a man is playing a guitar": graph(("V", [3]), ("ARG1", [5]), edges=((1, 2),)),
        "two kids don't sing": graph(("V", [2, 3]), ("ARG0", [0, 1]), edges=((1, 2),)),
        "nobody asks for this": graph(("V", [77])),
    }
    captions = RoleCaptions(TEXTS, vocabulary(ends=False), graphs=written(tmp_path, released))
    out = capsys.readouterr().out
    assert "3 distinct captions: 2 from" in out
    assert "1 by the parser 'rules'" in out
    assert "in the file" not in out
    assert words_of(captions, 0) == {0: [3], 4: [5]}
    assert words_of(captions, 3) == {0: [2, 3, 4], 4: [0, 1]}  # two kids do n't sing
    released = {"A man is playing a guitar.": graph(("V", [2])), **released, "a dog": None}
    captions = RoleCaptions(TEXTS, vocabulary(ends=False), graphs=written(tmp_path, released))
    assert words_of(captions, 0) == words_of(captions, 2) == {0: [2]}
    assert words_of(captions, 1) == {4: [0, 1]}
    assert "1 x not of the expected form" in capsys.readouterr().out
    last = dict(reversed(released.items()))
    captions = RoleCaptions(TEXTS, vocabulary(ends=False), graphs=written(tmp_path, last))
    assert words_of(captions, 0) == {0: [2]}  # whatever the order of the file


def test_faults_are_counted_once_in_one_line(tmp_path, capsys):
    released = {"a dog": graph(("NOUN", [0, 5])), "A man is playing a guitar.": graph(("V", [-1]))}
    captions = RoleCaptions(TEXTS, vocabulary(ends=False), graphs=written(tmp_path, released))
    (line,) = capsys.readouterr().out.splitlines()
    assert "2 x words outside the sentence (dropped), 2 x no verb (kept)" in line
    assert words_of(captions, 1) == {4: [0]}
    assert words_of(captions, 0) == {}


def test_a_caption_that_is_repeated_is_parsed_once():
    seen = []

    def parser() -> object:
        def parse(words: list[str]) -> RoleGraph:
            seen.append(tuple(words))
            return RoleGraph(words=tuple(words), nodes=(Node(role="V", words=(0, 99)),), edges=())

        return parse

    PARSERS.register("seen_by_a_test")(parser)
    try:
        captions = RoleCaptions(TEXTS, vocabulary(), parser="seen_by_a_test")
    finally:
        del PARSERS._parts["seen_by_a_test"]
    assert len(seen) == len(set(seen)) == 3
    assert words_of(captions, 0) == {0: [1]}  # behind the start token; what is beyond the caption is dropped


def test_captions_without_words_have_no_phrases_and_all_of_it_can_be_sent_to_a_worker():
    for texts in (["", "!"], ["", "a dog"]):
        captions = pickle.loads(pickle.dumps(RoleCaptions(texts, vocabulary(ends=False))))
        batch = captions.batch(np.array([0, 0]))
        assert not batch["text_spans"].any()
        assert not batch["text_edges"].any()
        assert batch["text_spans"].shape == (2, 10, 1)


def test_words_cannot_be_augmented():
    captions = RoleCaptions(TEXTS, vocabulary())
    with pytest.raises(InputError, match="text-augment empty"):
        captions.batch(np.array([0]), augment=lambda *_: None, draw=lambda *_: None)


class Subwords:
    """A tokenizer of subwords."""

    ends, start, end, mask, size = True, 0, 1, 2, 3

    def encode(self, captions):
        return iter([[[2]] for _ in captions])

    def subwords(self, numbers):
        return ["##s" for _ in numbers]


def test_a_tokenizer_of_words_splits_and_one_of_subwords_does_not():
    assert isinstance(vocabulary(), WordTokenizer)
    assert not isinstance(Subwords(), WordTokenizer)


@pytest.mark.parametrize(
    ("tokenizer", "options", "message"),
    [
        (Subwords(), {}, "Subwords splits captions into subwords"),
        (vocabulary(), {"verbs": 0}, "at least one slot"),
        (vocabulary(), {"nouns": 300}, "at most 255"),
        (vocabulary(), {"parser": "grammar"}, "unknown role parser"),
        (vocabulary(), {"graphs": "no/such.json"}, "no such file"),
    ],
)
def test_what_cannot_be_is_refused(tokenizer, options, message):
    with pytest.raises(InputError, match=message):
        RoleCaptions(TEXTS, tokenizer, **options)


def test_a_file_of_graphs_is_read_once_for_many_queries(tmp_path, monkeypatch, capsys):
    reads = []
    read = role_graphs.read_entries
    monkeypatch.setattr(
        role_graphs, "read_entries", lambda *given, **named: reads.append(given) or read(*given, **named)
    )
    released = {
        "a man is playing a guitar": graph(("V", [3]), ("ARG1", [5]), edges=((1, 2),)),
        "A DOG": graph(("V", [0])),
        "a dog": graph(("ARG0", [1])),
        "two kids do n't sing": graph(("V", [4]), ("ARG0", [0, 1])),
    }
    path = written(tmp_path, released)
    many = RoleCaptions([*TEXTS, *map(str, range(40))], vocabulary(), graphs=path)
    assert len(reads) == 1
    for number, text in enumerate(TEXTS):
        alone = RoleCaptions([text], vocabulary(), graphs=path)
        assert "distinct captions: 1 from" in capsys.readouterr().out
        for key, value in alone.batch(np.array([0])).items():
            assert torch.equal(value, many.batch(np.array([number]))[key]), (text, key)
    assert len(reads) == 2
    assert words_of(RoleCaptions(["a dog"], vocabulary(), graphs=path), 0) == {4: [2]}
    written(tmp_path, released | {"a dog": graph(("V", [1]))})
    assert words_of(RoleCaptions(["a dog"], vocabulary(), graphs=path), 0) == {0: [2]}
    assert len(reads) == 3
