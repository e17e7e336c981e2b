"""Whether a word that can be a form of a verb is one: from left to right, by the words around it."""

from __future__ import annotations

from collections.abc import Sequence

from tasks.parsers.lexicon import BASE, FORMS, ING, NOUNISH, PARTICIPLE, PAST, THIRD, bag

_PLURALS = bag(
    """people men women children police kids crew they guys couple group team all both some others"""
)
_STANDS_ALONE = bag("one two three another other this that these those both all some many each")
_HEADS = bag(  # of compounds with a form in -ing: a swimming pool
    """pool show match ring room class program machine competition contest event track team school lesson session
    suit cart center gear tutorial pan pot bar area floor park court lot style equipment demonstration channel
    tournament practice hall line arena rink instructor news commercial league club studio lane alley trip
    ceremony industry techniques"""
)
_CHAINS = bag(  # verbs that another verb in -ing follows
    """start begin stop keep enjoy go come try practice practise continue finish like love hate see watch show
    film hear end spend sit stand lie walk run"""
)
_ACTORS = bag("man woman boy girl guy person kid child baby lady dog cat someone")
_DOINGS = bag("play dance walk talk run fight drive ride swim cook drink laugh jump")
_STATES = bag(  # participles after a noun that are passive without more signs
    """dressed seated surrounded shown called named covered filled displayed made used based gathered parked
    located given taken written titled painted done held known mixed set dubbed featured filmed recorded
    played seen prepared cooked served compared combined put attached placed interviewed shown built"""
)


OPENERS = frozenset(["then", "before", "after", "until", "since"])
"""Words that a clause may begin with, beside conjunctions and subordinators."""


def _forms(word: str) -> int:
    """Return the forms of a verb that a word can be; one that is in no list is judged by its end."""
    return FORMS[word][0] if word in FORMS else ING if word.endswith("ing") else PAST | PARTICIPLE


def _plural(word: str) -> bool:
    return word in _PLURALS or (word.endswith("s") and not word.endswith(("ss", "us")))


class Reading:
    """What of a caption has been read: what decides on the next word that can be a verb.

    Args:
        words: the caption's words.
        tags: their tags, `v` where a word can be a form of a verb; those before the current word are final.
    """

    def __init__(self, words: Sequence[str], tags: list[str]) -> None:
        self.words, self.tags = words, tags
        self.before, self.at = "", -1  # the last tag and word that count, adverbs left out
        self.verb_before = -1
        self.going = False  # whether the clause has a verb
        self.head = ""  # the last noun that is in no prepositional phrase
        self.inside = False  # whether this is in one
        self.helper = ""
        self.due = 1  # finite verbs that may still come
        self.joined = False  # whether the subject is several things

    def past(self, i: int) -> None:
        """Take note of a word whose tag is settled."""
        tag, word = self.tags[i], self.words[i]
        if tag == "S" and self.before:
            self.due += 1
        elif tag == "C" or word in OPENERS:
            self.due = max(self.due, 1)
            self.joined = self.before == "N"
        elif (
            tag == "M"
            or (tag == "X" and not word.endswith("ing") and self.before not in ("X", "T"))
            or (tag == "V" and self.before not in ("X", "M", "T"))
        ):
            self.due -= 1
        elif tag == "P":
            self.joined = False
        if tag == "X":
            self.helper = word
        if tag in "VGE":
            self.verb_before, self.joined, self.going, self.inside = i, False, True, False
        elif tag in "SC" or word in OPENERS:
            self.going = self.inside = False
        if tag == "P" and word != "of":
            self.inside = True
        elif tag in "NR" and not self.inside:
            self.head = word
        if tag not in "AO":
            self.before, self.at = tag, i

    def verb(self, i: int) -> str:
        """Return the tag of a word that can be a form of a verb."""
        word = self.words[i]
        forms = _forms(word)
        after = self.tags[i + 1] if i + 1 < len(self.tags) else ""
        if self.before == "X":
            return self._helped(word, forms, after)
        if self.before in ("M", "T"):
            return "V" if forms & BASE else "G" if forms & ING else "E" if forms & PARTICIPLE else "N"
        if forms & ING:
            return self._going(i, after)
        if forms & (BASE | THIRD):
            return "V" if (self._third if forms & THIRD else self._bare)(i, after) else "N"
        return self._done(i, forms, after)

    def unlisted(self, i: int) -> bool:
        """Whether a word of no list is a verb: something before it asks for one, and an object follows."""
        after = self.tags[i + 1] if i + 1 < len(self.tags) else ""
        if self.before == "T":
            return after in ("D", "R") or (after == "N" and self.words[self.at - 1] == "how")
        if self.before == "M":
            return self.at > 0
        return self.words[i].endswith("s") and after == "D" and self.before == "N" and self.due > 0

    def _helped(self, word: str, forms: int, after: str) -> str:
        if forms & ING:
            return "G"
        if forms & (PARTICIPLE | PAST):
            return "V" if self.helper in ("has", "have", "had", "'ve", "having") else "E"
        if forms & BASE and (self.helper in ("do", "does", "did") or word not in NOUNISH or after == "D"):
            return "V"
        return "N"

    def _subject(self) -> bool:
        """Whether what stands before can be a subject."""
        return self.before in ("N", "R") or (self.before == "D" and self.words[self.at] in _STANDS_ALONE)

    def _going(self, i: int, after: str) -> str:
        compound = (
            i + 1 < len(self.words) and self.words[i + 1] in _HEADS and self.before not in ("N", "R", "S")
        )
        bare_end = after in ("", "C", "S", "X", "M", "O")
        if self.before == "D":
            return "G" if self._subject() and not compound and after != "N" else "N"
        if self.before == "P":
            return (
                "N"
                if compound or (bare_end and self.words[self.at] not in ("while", "by", "without"))
                else "G"
            )
        if self.before in ("V", "G", "E") and self.at == self.verb_before:
            base = FORMS.get(self.words[self.at], (0, ""))[1]
            if compound:
                return "N"
            return "G" if self.before == "E" or base in _CHAINS or after in ("D", "R", "P", "T") else "N"
        if not self.before:
            return "N" if compound or after in ("X", "M") else "G"
        return "N" if compound else "G"

    def _third(self, i: int, after: str) -> bool:
        if self.words[i + 1 : i + 2] == ["of"]:
            return False
        if self.before == "S":
            return True
        if self.before == "C":
            return self.verb_before >= 0 or after in ("D", "R", "P", "T")
        if self._subject():
            noun = self.before != "R" and FORMS[self.words[i]][1] in NOUNISH
            several = self.before == "D" and self.words[self.at] not in ("this", "that")
            if after in ("X", "M") or (several and noun and after not in ("D", "R")):
                return False
            if noun and (self._bare_next(i) or (not after and (self.going or self.joined))):
                return False
            return self.due > 0 or self.before == "R" or (not noun and after in ("D", "R"))
        return not self.before and after in ("D", "R", "")

    def _bare_next(self, i: int) -> bool:
        """Whether the next word is the bare form of a verb, and of no noun."""
        word = self.words[i + 1] if i + 1 < len(self.words) else ""
        return self.tags[i + 1 : i + 2] == ["v"] and bool(_forms(word) & BASE) and word not in NOUNISH

    def _bare(self, i: int, after: str) -> bool:
        noun, owner = self.words[i] in NOUNISH, self.words[self.at] if self.at >= 0 else ""
        if self.before == "S":
            return not noun or after in ("D", "R", "P", "T", "")
        if self.before == "R":
            return not noun or after in ("D", "R") or owner in ("i", "you", "we", "they")
        if self.before == "C":
            last = FORMS.get(self.words[self.verb_before], (0, ""))[0] if self.verb_before >= 0 else 0
            strong = not noun or bool(last & BASE) or self.words[i] in _DOINGS
            return after in ("D", "R") or (self.verb_before >= 0 and strong and (after != "N" or not noun))
        if self._subject() and self.due > 0:
            if (
                after == "M"
                or (after == "X" and not self.words[i + 1].endswith("ing"))
                or (noun and after == "v")
            ):
                return False
            if self.joined or _plural(owner) or after in ("D", "R") or not noun:
                return True
            acts = owner in _ACTORS and self.words[i] in _DOINGS and not self.going
            return after != "N" and (acts or (self.inside and not self.going and _plural(self.head)))
        return self.before in ("", "V", "G") and after in ("D", "R") and not noun

    def _done(self, i: int, forms: int, after: str) -> str:
        by = i + 1 < len(self.words) and self.words[i + 1] == "by"
        if self.before == "C":
            last = self.tags[self.verb_before] if self.verb_before >= 0 else ""
            return (
                "N"
                if (after == "N" and last != "V") or not last
                else "E"
                if last == "E" and forms & PARTICIPLE
                else "V"
            )
        if self.before == "S" or self._subject():
            known = self.words[i] in FORMS
            if after == "N" and (self.going or self.due <= 0):
                return "N"
            if by or (self.words[i] in _STATES and after not in ("D", "R")):
                return "E"
            if not known and after not in ("D", "P"):
                return "N"
            if self.due <= 0:
                return "E" if forms & PARTICIPLE else "V"
            if after in ("D", "R"):
                return "V"
            return "V" if not forms & PARTICIPLE or (forms & PAST and not self._finite_later(i)) else "E"
        return "E" if by else "N"

    def _finite_later(self, i: int) -> bool:
        for tag, word in zip(self.tags[i + 1 :], self.words[i + 1 :], strict=True):
            if tag in "SC":
                return False
            if tag in "XM" or (tag == "v" and _forms(word) & THIRD):
                return True
        return False
