"""Role graphs from spaCy's dependency parses: `pip install polypool[spacy]` and one of its English models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from polypool.infra.errors import InputError
from polypool.infra.extras import needed
from polypool.infra.paths import ModelName
from polypool.infra.registry import PARSERS
from polypool.tasks.hgr.lexicon import UNDERGOING, adverb_role, preposition_role
from polypool.tasks.hgr.role_graph import NOUN, Node, RoleGraph, nodes_of_verbs

_SUBJECTS = {"nsubj": "ARG0", "csubj": "ARG0", "nsubjpass": "ARG1", "csubjpass": "ARG1"}
_OBJECTS = {"dobj": "ARG1", "obj": "ARG1", "dative": "ARG2", "iobj": "ARG2", "attr": "ARG2", "acomp": "ARG2"}
_OBJECTS |= {"oprd": "ARGM-PRD", "npadvmod": "ARGM-TMP"}
_CLAUSES = ("relcl", "acl", "advcl", "ccomp", "xcomp", "conj", "cc", "punct", "parataxis", "mark")


@PARSERS.register("spacy")
class Spacy:
    """A parser by spaCy; `model` is an installed pipeline with a tagger and a dependency parser, or its path."""

    def __init__(self, *, model: ModelName = "en_core_web_sm") -> None:
        with needed("spacy", otherwise="take the parser 'rules'"):
            import spacy
            from spacy.tokens import Doc

        try:
            self._pipeline = spacy.load(model, exclude=["ner", "senter"])
        except OSError as error:
            raise InputError(
                f"spaCy has no model {model!r}: python -m spacy download {model}, or name an installed one: "
                f"spacy(model=...)"
            ) from error
        self._doc = Doc

    def __call__(self, words: Sequence[str]) -> RoleGraph:
        """Parse lower-case words; several sentences become clauses of one graph."""
        return graph_of(self._pipeline(self._doc(self._pipeline.vocab, words=list(words))))


def graph_of(doc: Any) -> RoleGraph:
    """Return the role graph of a parsed `spacy.tokens.Doc` with the labels of spaCy's English models."""
    nodes, edges = nodes_of_verbs(
        ((verb.i, *(child.i for child in verb.children if child.dep_ == "prt")), _arguments(verb))
        for verb in _verbs(doc)
    )
    used = {word for node in nodes for word in node.words}
    nodes += [Node(role=NOUN, words=words) for words in _noun_phrases(doc) if not used & set(words)]
    return RoleGraph(words=tuple(token.text for token in doc), nodes=tuple(nodes), edges=tuple(edges))


def _verbs(doc: Any) -> Iterator[Any]:
    """Yield full verbs, and auxiliaries that have none."""
    for token in doc:
        helps = token.dep_ in ("aux", "auxpass") or (token.dep_ in ("amod", "compound", "prep", "nmod"))
        there = token.lemma_ == "be" and any(child.dep_ == "expl" for child in token.children)
        acts = there and any(
            child.pos_ == "VERB" or grandchild.dep_ in ("acl", "relcl")
            for child in token.children
            for grandchild in (child, *child.children)
        )
        if token.pos_ in ("VERB", "AUX") and not helps and not acts:
            yield token


def _passive(verb: Any) -> bool:
    own = any(child.dep_ in ("auxpass", "nsubjpass", "agent") for child in verb.children)
    active = any(child.dep_ in ("aux", "nsubj") for child in verb.children)
    inherited = verb.dep_ == "conj" and not active and verb.tag_ == "VBN" and _passive(verb.head)
    return own or inherited or (verb.dep_ == "acl" and verb.tag_ == "VBN")


def _arguments(verb: Any) -> Iterator[tuple[str, tuple[int, ...]]]:
    passive = _passive(verb)
    subject = _subject(verb)
    if subject is not None:
        undergoes = passive or verb.lemma_ in UNDERGOING
        yield ("ARG1" if undergoes else "ARG0"), _span(subject, without=verb)
    for child in verb.children:
        label = child.dep_
        if label in _OBJECTS:
            recipient = label == "dative" and child.pos_ == "ADP"
            yield ("ARG2" if recipient else _OBJECTS[label]), _span(child)
        elif label in ("prep", "agent") and any(True for _ in child.children):
            before = any(other.dep_ in ("dobj", "obj") and other.i < child.i for other in verb.children)
            phrase = [token.text for token in child.subtree][1:]
            yield (
                preposition_role(
                    child.text, verb=verb.lemma_, passive=label == "agent", has_object=before, phrase=phrase
                ),
                _span(child),
            )
        elif label in ("advmod", "prep") and (role := adverb_role(child.text)):
            yield role, (child.i,)
        elif label == "aux" and child.tag_ == "MD":
            yield "ARGM-MOD", (child.i,)


def _subject(verb: Any) -> Any | None:
    """Return the head of a verb's subject, its own or the one shared with its head verb."""
    for _ in range(len(verb.doc)):
        own = next((child for child in verb.children if child.dep_ in _SUBJECTS), None)
        if own is not None and not (verb.dep_ == "relcl" and own.tag_ in ("WDT", "WP", "WP$")):
            return own
        if verb.dep_ in ("acl", "relcl"):
            return verb.head
        if verb.dep_ not in ("conj", "xcomp", "advcl", "pcomp", "ccomp", "prep"):
            return (
                next((child for child in verb.children if child.dep_ == "attr"), None) if own is None else own
            )
        if verb.dep_ == "xcomp" and verb.head.pos_ == "VERB":
            held = next((child for child in verb.head.children if child.dep_ in ("dobj", "obj")), None)
            if held is not None:
                return held
        verb = verb.head
    return None


def _span(head: Any, *, without: Any = None) -> tuple[int, ...]:
    """Return the words of a phrase without its clauses and the verb whose argument it is."""
    words, stack = [], [head]
    while stack:
        token = stack.pop()
        words.append(token.i)
        for child in token.children:
            joined = child.dep_ in ("cc", "conj", "punct") and (token.pos_ not in ("VERB", "AUX"))
            clause = child.dep_ in _CLAUSES and not (joined and child.pos_ not in ("VERB", "AUX"))
            if child != without and not clause:
                stack.append(child)
    return tuple(sorted(words))


def _noun_phrases(doc: Any) -> Iterator[tuple[int, ...]]:
    """Yield each noun with its words before it."""
    for token in doc:
        inner = token.dep_ in ("compound", "poss", "nmod", "amod") or token.tag_ in ("WDT", "WP", "EX")
        if token.pos_ in ("NOUN", "PROPN", "PRON") and not inner:
            yield tuple(sorted(word.i for word in token.subtree if token.left_edge.i <= word.i <= token.i))
