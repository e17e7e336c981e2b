import json
from pathlib import Path

import numpy as np
import pytest

from polypool.infra.errors import InputError
from polypool.tasks.hgr.released_graphs import ReadGraph, read_role_graphs
from polypool.tasks.hgr.role_captions import RoleCaptions
from polypool.tasks.hgr.role_graph import NOUN, ROLES, Node, RoleGraph, align, cut, over_words, role_number


class GoldenTokenizer:
    """The tokenizer of the recorded inputs: split at white space, words numbered from 3, 2 for others, no ends."""

    starts, ends, start, end, mask, size, unknown, longest = False, False, 0, 1, 2, 28, -1, 0

    def __init__(self, words: list[str]) -> None:
        self.number = {word: number for number, word in enumerate(words, start=3)}

    def split(self, caption: str) -> list[str]:
        return caption.split()

    def encode(self, captions):
        for caption in captions:
            yield [[self.number.get(word, 2)] for word in self.split(caption)]

    def subwords(self, numbers):
        return [str(number) for number in numbers]


def test_the_recorded_inputs(golden, tmp_path, capsys):
    z = np.load(golden / "hgr_graph_inputs.npz", allow_pickle=False)
    assert list(z["role_names"]) == list(ROLES)
    graphs = json.loads(str(z["graph_json"]))
    path = tmp_path / "graphs.json"
    path.write_text(json.dumps({sentence: [nodes, edges] for sentence, nodes, edges in graphs}))
    sentences, tokenizer = [sentence for sentence, _, _ in graphs], GoldenTokenizer(list(z["words"]))
    captions = RoleCaptions(sentences, tokenizer, graphs=str(path), limit=12)
    batch = captions.batch(np.arange(len(graphs)))
    mask = batch["text_mask"].numpy()
    np.testing.assert_array_equal(mask.sum(axis=1), z["sent_lens"])
    np.testing.assert_array_equal(np.where(mask, batch["text"].numpy(), 1), z["sent_ids"])
    masks = np.concatenate([z["verb_masks"], z["noun_masks"]], axis=1).astype(bool)
    np.testing.assert_array_equal(batch["text_spans"].numpy(), masks)
    np.testing.assert_array_equal(batch["text_roles"].numpy(), z["node_roles"])
    edges = batch["text_edges"].numpy()
    into = edges.sum(axis=2, keepdims=True)
    np.testing.assert_allclose(edges / np.maximum(into, 1), z["rel_edges"], atol=1e-7)
    assert "6 from" in capsys.readouterr().out


def graph(roles: list[str], spans: list[tuple[int, ...]], edges: list[tuple[int, int]]) -> RoleGraph:
    nodes = tuple(Node(role=role, words=words) for role, words in zip(roles, spans, strict=True))
    return RoleGraph(words=tuple("abcdefgh"), nodes=nodes, edges=tuple(edges))


def test_a_cut_graph_closes_its_gaps_and_keeps_edges_from_verbs_to_nouns_alone():
    one = graph(
        ["ARG0", "V", "V", "ARG1", "V", "C-V", "V"],
        [(0, 1), (6,), (2,), (3, 5, 6), (4,), (4,), (1,)],
        [(2, 0), (2, 3), (1, 3), (3, 4), (2, 4), (4, 5), (4, 5), (6, 0), (2, 2)],
    )
    slots = cut(one, verbs=2, nouns=3, length=6)
    assert slots.spans == {0: (2,), 1: (4,), 2: (0, 1), 3: (3, 5), 4: (4,)}
    assert slots.roles == {0: 0, 1: 0, 2: 2, 3: 1, 4: 0}
    expected = {(1, 0), (2, 0), (1, 3), (3, 1), (1, 4), (4, 1), (2, 5), (5, 2)}
    assert set(slots.edges) == expected
    assert len(slots.edges) == len(expected)


def test_prefixes_of_roles_are_dropped_and_other_roles_are_nouns():
    assert role_number("R-ARG0") == role_number("ARG0") == 2
    assert role_number("C-ARGM-LOC") == ROLES.index("ARGM-LOC")
    assert role_number("ARGM-NEG") == role_number("FOO") == ROLES.index(NOUN) == 15


def test_an_edge_to_no_node_is_refused():
    with pytest.raises(ValueError, match="none of 1 nodes"):
        graph(["V"], [(0,)], [(0, 1)])


@pytest.mark.parametrize(
    ("words", "others", "expected"),
    [
        (["i", "don't", "know"], ["i", "do", "n't", "know"], [(0,), (1, 2), (3,)]),
        (["do", "n't"], ["Don't"], [(0,), (0,)]),
        (["a", "dog,", "red"], ["a", "dog", ",", "red"], [(0,), (1, 2), (3,)]),
        (["a", "dog", "."], ["a", "dog"], [(0,), (1,), ()]),
        (["a", "-", "b"], ["a", "b"], [(0,), (), (1,)]),
        (["a", "dog"], ["a", "cat"], None),
        (["a"], ["a", "a"], None),
        ([], [], []),
    ],
)
def test_words_are_aligned_by_their_characters(words, others, expected):
    assert align(words, others) == expected


def test_a_graph_over_other_words_keeps_its_nodes():
    nodes = Node(role="V", words=(2,)), Node(role="ARGM-MOD", words=(1,))
    one = RoleGraph(words=("he", "can't", "sing."), nodes=nodes, edges=((0, 1),))
    moved = over_words(one, ["he", "ca", "n't", "sing", "."])
    assert [node.words for node in moved.nodes] == [(3, 4), (1, 2)]
    assert moved.edges == one.edges
    assert over_words(one, one.words) is one
    assert over_words(one, ["she", "sings"]) is None


def read(path: Path, content: object, *, only: set[str] | None = None) -> dict[str, ReadGraph]:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return {one.sentence: one for one in read_role_graphs(path, wanted=lambda text: not only or text in only)}


def phrase(role: str, *spans: object) -> dict:
    return {"role": role, "spans": list(spans), "words": []}


ROOT = {"0": phrase("ROOT", 0, 1, 2)}
VERB, LATE, BOTH = phrase("V", 1), phrase("V", -1), [["1", "2", "x"], ["2", "1", "x"]]
FROM_VERB = [["1", "2", "x"]]


@pytest.mark.parametrize(
    ("nodes", "edges", "left", "kept", "fault"),
    [
        ([phrase("V", 1, 9), phrase("ARG0", 3)], FROM_VERB, [("V", (1,))], 0, "outside"),
        ([LATE, phrase("V", 2)], [], [("V", (2,))], 0, "outside"),
        ([VERB], [["1", "7", "ARG0"]], [("V", (1,))], 0, "not there"),
        ([VERB, phrase("FOO", 0)], FROM_VERB, [("V", (1,)), ("FOO", (0,))], 1, "not known"),
        ([VERB, phrase("ARG0", 0)], BOTH, [("V", (1,)), ("ARG0", (0,))], 1, "cycle"),
        ([VERB], [["1", "1", "x"]], [("V", (1,))], 0, "cycle"),
        ([phrase("NOUN", 1)], [], [("NOUN", (1,))], 0, "no verb"),
        ([], [], [], 0, "no verb"),
    ],
)
def test_bad_graphs_are_repaired_and_their_faults_named(tmp_path, nodes, edges, left, kept, fault):
    numbered = ROOT | {str(number): node for number, node in enumerate(nodes, 1)}
    one = read(tmp_path / "g.json", {"a b c": [numbered, edges]})["a b c"]
    assert [(node.role, node.words) for node in one.graph.nodes] == left
    assert len(one.graph.edges) == kept
    assert len(one.faults) == 1
    assert fault in one.faults[0]


def test_good_graphs_have_no_faults_whether_their_root_says_so_or_not(tmp_path):
    nodes = {"1": phrase("V", 1), "2": phrase("R-ARG0", 0)}
    without, told = [["1", "2", "ARG0"]], [["1", "2", "ARG0"], ["0", "1", "root"]]
    graphs = {"a b c": [ROOT | nodes, told], "d e f": [{"0": phrase("NOUN", 0, 1, 2)} | nodes, without]}
    found = read(tmp_path / "g.json", graphs)
    for one in found.values():
        assert not one.faults
        assert [node.role for node in one.graph.nodes] == ["V", "R-ARG0"]
        assert one.graph.edges == ((0, 1),)


@pytest.mark.parametrize(
    "entry",
    [None, [], "ab", [[], []], [{}, {}, {}], [{"1": {"role": 3, "spans": [1]}}, []]]
    + [
        [{"1": {"role": "V"} | given}, []]
        for given in ({}, {"spans": 3}, {"spans": ["1"]}, {"spans": [True]})
    ]
    + [[{"1": {"role": "V", "spans": [1]}}, [["1", "1"]]]],
)
def test_what_is_no_graph_is_left_out(tmp_path, entry):
    good = [ROOT | {"1": phrase("V", 1)}, []]
    found = read(tmp_path / "g.json", {"a b c": entry, "d e f": good})
    assert found["a b c"].graph is None
    assert found["a b c"].faults == ("not of the expected form",)
    assert not found["d e f"].faults


def test_only_the_sentences_asked_for_come_from_a_large_file(tmp_path, monkeypatch):
    monkeypatch.setattr("polypool.tasks.datasets.annotation_files._PIECE", 7)  # every value spans pieces
    good = [ROOT | {"1": phrase("V", 1)}, []]
    content = {f"a {i} é": good for i in range(50)}
    text, only = json.dumps(content, indent=1, ensure_ascii=False), {"a 3 é", "a 40 é"}
    found = read(tmp_path / "g.json", text, only=only)
    assert list(found) == ["a 3 é", "a 40 é"]
    assert read(tmp_path / "g.json", " {} \n") == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "found the end of the file"),
        ("[1]", "expected {"),
        ('{"a b": [{}, []]', "found the end of the file"),
        ('{"a b": [{}, [', "cut short"),
        ('{"a b" [{}, []]}', "expected :"),
        ('{"a b": 1, }', "expected a key"),
        ('{"a b": 1} x', "more after the end"),
        ("{a: 1}", "expected a key"),
    ],
)
def test_a_file_that_is_no_json_object_is_an_error_that_says_where(tmp_path, text, message):
    with pytest.raises(InputError, match=message) as error:
        read(tmp_path / "g.json", text)
    assert "g.json" in str(error.value)
    assert "at character" in str(error.value)


def test_a_file_that_is_missing_or_no_text_is_an_error(tmp_path):
    path = tmp_path / "g.json"
    for message in ("no such file", "not UTF-8"):
        with pytest.raises(InputError, match=message):
            list(read_role_graphs(path, wanted=lambda _: True))
        path.write_bytes(b'{"a\xff": 1}')
