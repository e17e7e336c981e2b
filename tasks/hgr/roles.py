"""Roles of prepositional phrases and adverbs, for every parser."""

from __future__ import annotations


def bag(text: str) -> frozenset[str]:
    return frozenset(text.split())


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

# Verbs after which `to` is a direction.
MOTION = bag(
    """go walk run drive ride come move jump fly swim climb crawl travel slide ski race roll fall march step
    skate surf leap rush dance return arrive sail head jog wander enter flow bounce skateboard trot swing
    sprint chase"""
)
# Verbs whose subject undergoes rather than acts.
UNDERGOING = frozenset(["be", "fall", "happen", "appear", "die", "disappear", "seem"])
_TOPICS = {
    "to": ("listen",),
    "at": ("look", "stare", "laugh", "gaze", "smile", "wave", "point", "yell", "aim"),
    "for": ("look", "wait"),
}
_GIFTS = bag("make buy cook prepare bake get build provide perform sing open play")
_WITH = bag(
    """play talk speak fight dance chat sit stand walk interact meet argue sing wrestle live compete practice"""
)
_AGENTS = bag(
    """person people boy boys girl girls guy guys kid kids child children lady ladies baby babies him her them me us
    someone somebody friend friends family mother father mom dad son daughter wife husband brother sister student
    students host judge judges crowd audience group team couple band chef actress character characters others himself
    herself themselves he she they who dog dogs cat cats puppy puppies kitten kittens horse horses animal animals bird
    birds monkey monkeys elephant bear lion fish male female players player singer dancer dancers teacher reporter
    car cars truck vehicle train airplane plane"""
)


def agent(words: list[str]) -> bool:
    """Whether a phrase names a person, an animal or a vehicle."""
    return any(word in _AGENTS or word.endswith(("man", "men", "ist", "ists")) for word in words)


def preposition_role(
    preposition: str, *, verb: str, passive: bool, has_object: bool, phrase: list[str]
) -> str:
    """Return the role of a prepositional phrase.

    Args:
        preposition: first word.
        verb: base form of the verb.
        passive: whether the verb is passive.
        has_object: whether an object comes between the verb and the phrase.
        phrase: words after the preposition.
    """
    if preposition == "by" and passive:
        return "ARG0"
    if verb in _TOPICS.get(preposition, ()):
        return "ARG1"
    if preposition == "to" and verb not in MOTION:
        return "ARG2"
    if preposition == "for" and has_object and verb in _GIFTS:
        return "ARG2"
    if preposition == "with" and agent(phrase):
        return "ARGM-COM" if verb in _WITH or not has_object else "ARGM-MNR"
    if preposition in ("around", "over") and verb in MOTION:
        return "ARGM-DIR"
    if preposition in ("about", "of") and has_object:
        return "ARG2"
    return _BY_PREPOSITION.get(preposition, "ARGM-ADV")


def adverb_role(adverb: str) -> str | None:
    """Return the role of an adverb; None for one that does not modify a verb, such as `very`."""
    if adverb in _BY_ADVERB:
        return _BY_ADVERB[adverb]
    return "ARGM-MNR" if adverb.endswith("ly") and adverb not in _NO_MANNER else None
