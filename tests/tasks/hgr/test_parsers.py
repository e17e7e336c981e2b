"""The parsers of role graphs."""

import builtins
import json

import numpy as np
import pytest
from role_graphs import told

from polypool.encoders.text.tokenizers import split_words
from polypool.infra.errors import InputError
from polypool.infra.registry import PARSERS

CAPTIONS = {
    "A man is sitting and playing a guitar.": {
        "sitting": {"a man": "ARG0"},
        "playing": {"a man": "ARG0", "a guitar": "ARG1"},
    },
    "a man in a red shirt is cooking some food in the kitchen and then slowly eats it": {
        "cooking": {"a man in a red shirt": "ARG0", "some food": "ARG1", "in the kitchen": "ARGM-LOC"},
        "eats": {"a man in a red shirt": "ARG0", "it": "ARG1", "slowly": "ARGM-MNR", "then": "ARGM-TMP"},
    },
    "the ball is being kicked by two young boys": {
        "kicked": {"the ball": "ARG1", "by two young boys": "ARG0"}
    },
    "a woman gives a child a toy": {"gives": {"a woman": "ARG0", "a child": "ARG2", "a toy": "ARG1"}},
    "a chef adds salt to the soup": {"adds": {"a chef": "ARG0", "salt": "ARG1", "to the soup": "ARG2"}},
    "a dog runs into the house": {"runs": {"a dog": "ARG0", "into the house": "ARGM-DIR"}},
    "people are celebrating after a game": {"celebrating": {"people": "ARG0", "after a game": "ARGM-TMP"}},
    "a man cuts the bread with a knife": {
        "cuts": {"a man": "ARG0", "the bread": "ARG1", "with a knife": "ARGM-MNR"}
    },
    "a girl is talking with a friend about cars": {
        "talking": {"a girl": "ARG0", "with a friend": "ARGM-COM", "about cars": "ARG1"}
    },
    "someone shows how you can fold paper": {
        "shows": {"someone": "ARG0"},
        "fold": {"you": "ARG0", "paper": "ARG1", "can": "ARGM-MOD"},
    },
    "a woman wearing a hat is singing a song": {
        "wearing": {"a woman": "ARG0", "a hat": "ARG1"},
        "singing": {"a woman": "ARG0", "a song": "ARG1"},
    },
    "a boy is trying to open the door": {
        "trying": {"a boy": "ARG0"},
        "open": {"a boy": "ARG0", "the door": "ARG1"},
    },
    "a man plays the piano while a woman dances": {
        "plays": {"a man": "ARG0", "the piano": "ARG1"},
        "dances": {"a woman": "ARG0"},
    },
    "a man playing guitar and a woman singing": {
        "playing": {"a man": "ARG0", "guitar": "ARG1"},
        "singing": {"a woman": "ARG0"},
    },
    "a man picks up a bag": {"picks up": {"a man": "ARG0", "a bag": "ARG1"}},
    "there is a woman who is dancing": {"dancing": {"a woman": "ARG0"}},
    "there is a dog in a car": {"is": {"a dog in a car": "ARG1"}},
    "this is a video of two guys": {"is": {"this": "ARG1", "a video of two guys": "ARG2"}},
    "a video of a cat playing with yarn": {
        "playing": {"a cat": "ARG0", "with yarn": "ARGM-MNR"},
        "": {"a video": "NOUN"},
    },
    "in the kitchen two women make a cake": {
        "make": {"two women": "ARG0", "a cake": "ARG1", "in the kitchen": "ARGM-LOC"}
    },
    "people swimming in a swimming pool": {"swimming": {"people": "ARG0", "in a swimming pool": "ARGM-LOC"}},
    "a clip from a football game": {"": {"a clip": "NOUN", "a football game": "NOUN"}},
    # a rule each
    "a man and a woman talk and laugh": {
        "talk": {"a man and a woman": "ARG0"},
        "laugh": {"a man and a woman": "ARG0"},
    },
    "a woman who is wearing a hat sings": {
        "wearing": {"a woman": "ARG0", "a hat": "ARG1"},
        "sings": {"a woman": "ARG0"},
    },
    "a dog chased by a cat runs away": {
        "chased": {"a dog": "ARG1", "by a cat": "ARG0"},
        "runs": {"a dog": "ARG1", "away": "ARGM-DIR"},
    },
    "a man has eaten the cake": {"eaten": {"a man": "ARG0", "the cake": "ARG1"}},
    "a woman 's hand holds a cup": {"holds": {"a woman 's hand": "ARG0", "a cup": "ARG1"}},
    "it 's a big city": {"'s": {"it": "ARG1", "a big city": "ARG2"}},
    "the inside of a car is shown": {"shown": {"the inside of a car": "ARG1"}},
    "a cat sits next to a box": {"sits": {"a cat": "ARG0", "next to a box": "ARGM-LOC"}},
    "two dogs play in the snow": {"play": {"two dogs": "ARG0", "in the snow": "ARGM-LOC"}},
    "the drink is cold": {"is": {"the drink": "ARG1", "cold": "ARG2"}},
    "the family is happy": {"is": {"the family": "ARG1", "happy": "ARG2"}},
    "a man has a hat": {"has": {"a man": "ARG0", "a hat": "ARG1"}},
    "a woman being interviewed": {"interviewed": {"a woman": "ARG1"}},
    "a man takes a drink": {"takes": {"a man": "ARG0", "a drink": "ARG1"}},
    "someone does not eat the soup": {"eat": {"someone": "ARG0", "the soup": "ARG1"}},
    "the team cheers while players run": {"cheers": {"the team": "ARG0"}, "run": {"players": "ARG0"}},
    "a plate filled with food": {"filled": {"a plate": "ARG1", "with food": "ARGM-MNR"}},
    "a man carved a pumpkin": {"carved": {"a man": "ARG0", "a pumpkin": "ARG1"}},
    "a man cooks as a dog watches": {"cooks": {"a man": "ARG0"}, "watches": {"a dog": "ARG0"}},
    "a car like a truck": {"": {"a car": "NOUN", "a truck": "NOUN"}},
    "a man steps over a fence and paints the house": {
        "steps": {"a man": "ARG0", "over a fence": "ARGM-DIR"},
        "paints": {"a man": "ARG0", "the house": "ARG1"},
    },
    "a baby falls asleep": {"falls": {"a baby": "ARG1", "asleep": "ARG2"}},
    "a man feeds a dog who barks": {"feeds": {"a man": "ARG0", "a dog": "ARG1"}, "barks": {"a dog": "ARG1"}},
    "this is a clip from a show": {"is": {"this": "ARG1", "a clip from a show": "ARG2"}},
    "a man sings a song a woman eats a cake": {
        "sings": {"a man": "ARG0", "a song": "ARG1"},
        "eats": {"a woman": "ARG0", "a cake": "ARG1"},
    },
    "a man holds a dog to wash it": {
        "holds": {"a man": "ARG0", "a dog": "ARG1"},
        "wash": {"a man": "ARG0", "it": "ARG1"},
    },
    "a man holding a dog and petting it": {
        "holding": {"a man": "ARG0", "a dog": "ARG1"},
        "petting": {"a man": "ARG0", "it": "ARG1"},
    },
    "a woman makes apple bites": {"makes": {"a woman": "ARG0", "apple bites": "ARG1"}},
    "a street cobbled": {"": {"a street cobbled": "NOUN"}},
    "a man opens a door by pushing it": {
        "opens": {"a man": "ARG0", "a door": "ARG1"},
        "pushing": {"a man": "ARG0", "it": "ARG1"},
    },
    "a man is watching a dog trained for hunting": {
        "watching": {"a man": "ARG0", "a dog": "ARG1"},
        "trained": {"a dog": "ARG1"},
        "hunting": {"a dog": "ARG1"},
    },
    "a baseball ground": {"": {"a baseball ground": "NOUN"}},
    "a man stands there": {"stands": {"a man": "ARG0", "there": "ARGM-LOC"}},
    "the painted wall": {"": {"the painted wall": "NOUN"}},
    "a girl in a bed": {"": {"a girl": "NOUN", "a bed": "NOUN"}},
    "runs": {"runs": {}},
    "": {},
    "!": {},
}


@pytest.mark.parametrize("caption", CAPTIONS)
def test_rules_on_captions_checked_by_hand(caption):
    words = split_words(caption)
    graph = PARSERS.build("rules")(words)
    assert graph.words == tuple(words)
    assert told(graph) == CAPTIONS[caption]


def test_a_phrase_of_two_verbs_is_one_node():
    graph = PARSERS.build("rules")(["a", "man", "is", "singing", "and", "dancing"])
    assert [(node.role, node.words) for node in graph.nodes] == [("V", (3,)), ("ARG0", (0, 1)), ("V", (5,))]
    assert graph.edges == ((0, 1), (2, 1))


def test_rules_take_any_words():
    parse = PARSERS.build("rules")
    words_of = "to is the of and there who then 's that not can in played singing runs up as"
    odd = words_of.split(" ")
    rng = np.random.default_rng(0)
    for _ in range(2000):
        words = [odd[k] for k in rng.integers(len(odd), size=rng.integers(1, 9))]
        for node in parse(words).nodes:
            assert node.words
            assert all(0 <= word < len(words) for word in node.words)


def test_rules_find_the_verbs_of_the_recorded_graphs(golden):
    with np.load(golden / "hgr_graph_inputs.npz", allow_pickle=False) as z:
        graphs = json.loads(str(z["graph_json"]))
    parse, found, spans = PARSERS.build("rules"), 0, 0
    for sentence, nodes, _ in graphs[:5]:  # the sixth is no sentence
        graph = parse(sentence.split())
        verbs = [node["spans"] for node in nodes.values() if node["role"] == "V"]
        assert [list(node.words) for node in graph.nodes if node.role == "V"] == verbs
        mine = {node.words for node in graph.nodes if node.role != "V"}
        theirs = {tuple(node["spans"]) for node in nodes.values() if node["role"] not in ("V", "ROOT")}
        found, spans = found + len(mine & theirs), spans + len(theirs)
    assert (found, spans) == (12, 14)  # one cut short there, one of an unknown role


def test_most_captions_of_videos_have_a_verb(shared):
    data = json.loads((shared / "data" / "msrvtt_mini" / "test_videodatainfo.json").read_text())
    parse = PARSERS.build("rules")
    counts = np.array(
        [
            sum(node.role == "V" for node in parse(split_words(one["caption"])).nodes)
            for one in data["sentences"]
        ]
    )
    assert 1.2 < counts.mean() < 1.9
    assert (counts <= 4).mean() > 0.98
    assert (counts == 0).mean() < 0.08


def test_an_unknown_parser_is_an_error():
    with pytest.raises(InputError, match=r"unknown role parser 'rule'\. Did you mean 'rules'"):
        PARSERS.build("rule")


def test_spacy_says_what_to_install(monkeypatch):
    real = builtins.__import__

    def without(name, *rest, **more):
        if name == "spacy" or name.startswith("spacy."):
            raise ImportError("No module named 'spacy'")
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InputError, match=r"pip install 'polypool\[spacy\]'"):
        PARSERS.build("spacy")


def test_spacy_without_its_model_says_how_to_get_it():
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
def test_parses_of_spacy_become_role_graphs(case):
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
