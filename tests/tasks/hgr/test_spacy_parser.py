"""The parser that asks spaCy: what it says without it, and graphs of parses written by hand."""

from __future__ import annotations

import builtins

import pytest
from role_graphs import told

from polypool.infra.errors import InputError
from polypool.infra.registry import PARSERS


def test_spacy_says_what_to_install(monkeypatch) -> None:
    real = builtins.__import__

    def without(name, *rest, **more):
        if name == "spacy" or name.startswith("spacy."):
            raise ImportError("No module named 'spacy'")
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InputError, match=r"pip install 'polypool\[spacy\]'"):
        PARSERS.build("spacy")


def test_spacy_without_its_model_says_how_to_get_it() -> None:
    pytest.importorskip("spacy", reason="spaCy is not installed (pip install polypool[spacy])")
    with pytest.raises(InputError, match="no model 'en_no_such'"):
        PARSERS.build("spacy(model=en_no_such)")


# word, part of speech, tag, label, number of the word it hangs on
PARSED = {
    "sharing a subject": (
        """a DET DT det 1 | man NOUN NN nsubj 3 | is AUX VBZ aux 3 | cooking VERB VBG ROOT 3 | food NOUN NN dobj 3
        | and CCONJ CC cc 3 | slowly ADV RB advmod 7 | eats VERB VBZ conj 3 | it PRON PRP dobj 7""",
        {
            "cooking": {"a man": "ARG0", "food": "ARG1"},
            "eats": {"a man": "ARG0", "it": "ARG1", "slowly": "ARGM-MNR"},
        },
    ),
    "passive, with its agent": (
        """balls NOUN NNS nsubjpass 2 | are AUX VBP auxpass 2 | kicked VERB VBN ROOT 2 | by ADP IN agent 2
        | a DET DT det 5 | boy NOUN NN pobj 3""",
        {"kicked": {"balls": "ARG1", "by a boy": "ARG0"}},
    ),
    "clause at a noun": (
        """a DET DT det 1 | woman NOUN NN nsubj 6 | wearing VERB VBG acl 1 | a DET DT det 4 | hat NOUN NN dobj 2
        | can AUX MD aux 6 | sing VERB VB ROOT 6 | in ADP IN prep 6 | rain NOUN NN pobj 7""",
        {
            "wearing": {"a woman": "ARG0", "a hat": "ARG1"},
            "sing": {"a woman": "ARG0", "can": "ARGM-MOD", "in rain": "ARGM-LOC"},
        },
    ),
    "relative pronoun, particle, two objects": (
        """girl NOUN NN ROOT 0 | who PRON WP nsubj 2 | gives VERB VBZ relcl 0 | him PRON PRP dative 2 | up ADP RP prt 2
        | cake NOUN NN dobj 2""",
        {"gives up": {"girl": "ARG0", "him": "ARG2", "cake": "ARG1"}},
    ),
    "infinitive": (
        """boy NOUN NN nsubj 1 | tries VERB VBZ ROOT 1 | to PART TO aux 3 | open VERB VB xcomp 1
        | doors NOUN NNS dobj 3""",
        {"tries": {"boy": "ARG0"}, "open": {"boy": "ARG0", "doors": "ARG1"}},
    ),
    "copula": (
        "this PRON DT nsubj 1 | is AUX VBZ ROOT 1 | fun NOUN NN attr 1",
        {"is": {"this": "ARG1", "fun": "ARG2"}},
    ),
    "no verb": (
        "a DET DT det 1 | clip NOUN NN ROOT 1 | from ADP IN prep 1 | a DET DT det 4 | game NOUN NN pobj 2",
        {"": {"a clip": "NOUN", "a game": "NOUN"}},
    ),
}


@pytest.mark.parametrize("case", PARSED)
def test_parses_of_spacy_become_role_graphs(case: str) -> None:
    pytest.importorskip("spacy", reason="spaCy is not installed (pip install polypool[spacy])")
    from spacy.tokens import Doc
    from spacy.vocab import Vocab

    from polypool.tasks.hgr.spacy_parser import graph_of

    text, expected = PARSED[case]
    words, pos, tags, deps, heads = zip(*(one.split() for one in text.split("|")), strict=True)
    lemmas = [{"is": "be", "are": "be"}.get(word, word) for word in words]
    doc = Doc(
        Vocab(), words=words, pos=pos, tags=tags, deps=deps, heads=[int(h) for h in heads], lemmas=lemmas
    )
    assert told(graph_of(doc)) == expected
