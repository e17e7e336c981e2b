import json

import numpy as np
import pytest

from polypool.tasks.hgr.role_captions import RoleCaptions
from polypool.tasks.hgr.role_graph import (
    NOUN,
    ROLES,
    Node,
    RoleGraph,
    align,
    cut,
    graph_of_entry,
    over_words,
    role_number,
)


class GoldenTokenizer:
    """Tokenizer of the recorded inputs: splits at spaces; ids from 3, 2 if unknown; no start or end."""

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


def test_role_captions_match_recorded_inputs(golden, tmp_path, capsys):
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


def test_cut_fills_slots_in_order_and_keeps_verb_noun_edges():
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


def test_role_number_drops_prefixes_and_defaults_to_noun():
    assert role_number("R-ARG0") == role_number("ARG0") == 2
    assert role_number("C-ARGM-LOC") == ROLES.index("ARGM-LOC")
    assert role_number("ARGM-NEG") == role_number("FOO") == ROLES.index(NOUN) == 15


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
def test_words_are_aligned_by_characters(words, others, expected):
    assert align(words, others) == expected


def test_retokenized_graph_keeps_nodes_and_edges():
    nodes = Node(role="V", words=(2,)), Node(role="ARGM-MOD", words=(1,))
    one = RoleGraph(words=("he", "can't", "sing."), nodes=nodes, edges=((0, 1),))
    moved = over_words(one, ["he", "ca", "n't", "sing", "."])
    assert [node.words for node in moved.nodes] == [(3, 4), (1, 2)]
    assert moved.edges == one.edges
    assert over_words(one, one.words) is one
    assert over_words(one, ["she", "sings"]) is None


def phrase(role: str, *spans: object) -> dict:
    return {"role": role, "spans": list(spans), "words": []}


ROOT = {"0": phrase("ROOT", 0, 1, 2)}
FROM_VERB, ROOTED = [["1", "2", "x"]], [["0", "1", "root"], ["1", "2", "x"]]


@pytest.mark.parametrize(
    ("nodes", "edges", "left", "kept"),
    [
        ([phrase("V", 1), phrase("R-ARG0", 0)], ROOTED, [("V", (1,)), ("R-ARG0", (0,))], ((0, 1),)),
        ([phrase("V", 1, 9), phrase("ARG0", 3)], FROM_VERB, [("V", (1,))], ()),
        ([phrase("V", -1), phrase("V", 2)], FROM_VERB, [("V", (2,))], ()),
        ([phrase("V", 1)], [["1", "7", "ARG0"]], [("V", (1,))], ()),
        ([phrase("V", 1), phrase("FOO", 0)], FROM_VERB, [("V", (1,)), ("FOO", (0,))], ((0, 1),)),
        ([], [], [], ()),
    ],
)
def test_graph_of_entry_drops_root_and_words_out_of_range(nodes, edges, left, kept):
    numbered = {str(number): node for number, node in enumerate(nodes, 1)}
    for root in (ROOT, {"0": phrase("NOUN", 0, 1, 2)}):
        one = graph_of_entry("a b c", [root | numbered, edges])
        assert [(node.role, node.words) for node in one.nodes] == left
        assert one.edges == kept
        assert graph_of_entry("a b c", one.entry()) == one
