"""Role graphs by rules: who does what to whom, read off a caption's word classes from left to right.

It needs no model and no data, and takes some tens of microseconds a caption. HGR's own graphs come from AllenNLP's
semantic role labeller with spaCy behind it; these rules give the same roles to what captions are made of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from infra.registry import PARSERS
from tasks.inputs.role_graph import NOUN, VERB, Node, RoleGraph
from tasks.parsers.lexicon import FORMS, bag
from tasks.parsers.phrases import MEDIA, Phrases, Span
from tasks.parsers.roles import MOTION, UNDERGOING, adverb_role, agent, preposition_role
from tasks.parsers.tagging import tag

_HELPERS = {"have": "has have had 've having", "do": "do does did", "get": "get gets getting got"}
_HELPER_BASE = {word: base for base, words in _HELPERS.items() for word in words.split()}
_CONTROL = bag(
    """ask help teach tell allow force make want order train let cause convince invite challenge instruct"""
)
"""Verbs whose object does what the next verb says."""
_GIVING = bag("give show teach tell send offer hand ask feed throw pass sell serve bring buy read")
_SHOWING = bag("show see watch film feature depict display hear have")
_PARTICLES = frozenset(["up", "off", "out", "on", "down", "over"])
_PARTICLES_OF = {
    "on": ("put", "try", "turn", "switch"),
    "down": ("put", "knock", "cut", "break", "take", "set", "lay"),
    "over": ("turn", "flip", "knock", "fold", "take"),
}
_WORN = bag(
    """dress dresses shirt shirts suit suits hat cap jacket coat pants shorts shoes glasses sunglasses uniform
    uniforms costume costumes clothes clothing outfit outfits apron helmet jeans tie skirt bikini sweater
    hoodie hair beard black white red blue green yellow pink orange purple brown gray grey t-shirt top vest
    scarf mask wig"""
)
_TIMES = bag(
    """day night morning evening afternoon year years minute minutes second seconds hour hours time times week"""
)


@dataclass
class _Frame:
    """A verb with its arguments."""

    words: list[int]
    base: str
    passive: bool
    subject: Span | None
    arguments: list[tuple[str, Span]] = field(default_factory=list)

    def has(self, role: str) -> bool:
        return any(name == role for name, _ in self.arguments)


@PARSERS.register("rules")
class Rules:
    """The parser of captions that needs nothing else."""

    def __call__(self, words: Sequence[str]) -> RoleGraph:
        """Return the graph of lower-case words: each verb with its arguments, then noun phrases that no verb has."""
        return _Walk(words).graph()


class _Walk:
    """One pass over a caption. Spans are (first word, word after the last)."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words, self.tags = list(words), [*tag(words), "O"]
        self.find = Phrases(self.words, self.tags)
        self.frames: list[_Frame] = []
        self.phrases: list[Span] = []  # that may stay without a verb
        self.waiting: list[tuple[str, Span]] = []  # for the next verb
        self.subject: Span | None = None  # of the clause
        self.near: Span | None = None  # the last noun phrase
        self.latest: Span | None = None  # the same, where a subject has several: a man with [a hat]
        self.verb: _Frame | None = None  # of the clause, the last one
        self.settled = False  # the clause's finite verb has come
        self.joined = self.linked = False  # a conjunction; `to` or a preposition came before
        self.relative = False  # `who` came before
        self.there: int | None = None  # the verb of "there is"
        i = 0
        while i < len(self.words):
            i = self._step(i)

    def _step(self, i: int) -> int:
        kind = self.tags[i]
        if kind in "DNR":
            return self._noun(i)
        if kind in "PT":
            return self._preposition(i)
        if kind in "XMVGE":
            return self._verb(i)
        if kind == "S":
            self._subordinate(i)
        elif kind == "A":
            self._adverb(i)
        if kind == "C" or self.words[i] == "then":
            self.joined = True
        return i + 1

    def _noun(self, i: int) -> int:
        if self.words[i] == "there":
            if self.tags[i + 1] != "X":
                (self.waiting if self.verb is None else self.verb.arguments).append(("ARGM-LOC", (i, i + 1)))
                return i + 1
            self._clause()
            self.there = i + 1
            return i + 2
        end, near = self.find.phrase(i, verb=self.verb is not None, settled=self._closed())
        beside = self.tags[i - 1] in "NR" and i > 0
        kinds = "XMVGE" if self.joined else "XMV" if beside else "XM" if self.settled else ""
        fresh = self.verb is not None and self.find.predicate(end, kinds)
        if fresh:
            self._clause()
        if self.verb is None:
            return self._be_subject(i, end, near)
        while self._worn(end):
            end = self.find.phrase(end + 1, verb=True)[0]
        self._object((i, end))
        self.near = self.latest = near
        self.joined = False
        return end

    def _closed(self) -> bool:
        """Whether no finite verb is due: the clause has it, or has no subject that waits for one."""
        return self.settled or self.subject is None

    def _worn(self, end: int) -> bool:
        """Whether `in a red dress` or the like follows a phrase."""
        if self.words[end : end + 1] not in (["in"], ["with"]) or self.tags[end + 1] not in "DNR":
            return False
        return self.words[self.find.chunk(end + 1) - 1] in _WORN

    def _be_subject(self, i: int, end: int, near: Span) -> int:
        self.latest = near
        media = near[0] > i or self.words[end - 1] in MEDIA
        while self.tags[end] == "P" and self.tags[end + 1] in "DNR":
            last = end + 1
            end = self.find.phrase(last, verb=self.verb is not None)[0]
            self.latest = (last, end)
            near = self.latest if media and agent(self.words[last:end]) else near
        near = near if media else (i, end)
        self.subject, self.near, self.joined = (i, end), near, False
        self.phrases.append((i, near[0] - 1) if near[0] > i and self.words[near[0] - 1] == "of" else (i, end))
        return end

    def _object(self, span: Span) -> None:
        frame = self.verb
        if self.words[span[1] - 1] in _TIMES and frame.has("ARG1"):
            role = "ARGM-TMP"
        elif frame.passive or frame.base == "be" or frame.has("ARG1"):
            role = "ARG2"
            if frame.base in _GIVING and not frame.passive and frame.arguments[-1][0] == "ARG1":
                frame.arguments[-1] = ("ARG2", frame.arguments[-1][1])
                role = "ARG1"
        else:
            role = "ARG1"
        frame.arguments.append((role, span))

    def _preposition(self, i: int) -> int:
        j = i + 1
        while self.tags[j] in "PT" and not (self.tags[j] == "T" and self.tags[j + 1] in "VG"):
            j += 1
        word, frame = self.words[i], self.verb
        if self.words[j - 1] != "of" and word != "next":
            word = self.words[j - 1]  # `up to her eyelid` is led by `to`
        while self.tags[j] == "A" and self.tags[j + 1] in "AN":
            j += 1
        if self.tags[j] not in "DNR" or self.words[j : j + 1] == ["there"]:
            self.linked = self.tags[j] in "XVGE" or self.tags[i] == "T"
            if frame is not None and not (self.tags[j] in "SXVGE" and word in ("on", "in", "by", "past")):
                frame.arguments += self._manner(i)
            return i + 1
        if frame is not None and j == i + 1 == frame.words[-1] + 2 and self._particle(word, frame):
            frame.words.append(i)
            return j
        end, near = self.find.phrase(j, leading=frame is None, verb=frame is not None, settled=self._closed())
        if frame is None:
            role = preposition_role(word, verb="", passive=False, has_object=False, phrase=[])
            self.waiting.append((role, (i, end)))
            return end
        if frame.base == "be" and frame.arguments and frame.arguments[-1][0] == "ARG2":
            whole = (frame.arguments.pop()[1][0], end)  # this is [a clip from a show]
            frame.arguments.append(("ARG2", whole))
            self.near = self.latest = near if agent(self.words[j:end]) else whole
            self.joined = False
            return end
        phrase, complete = self.words[j:end], frame.has("ARG1")
        role = preposition_role(
            word, verb=frame.base, passive=frame.passive, has_object=complete, phrase=phrase
        )
        frame.arguments.append((role, (i, end)))
        self.near = self.latest = near
        self.joined = False
        return end

    def _particle(self, word: str, frame: _Frame) -> bool:
        if frame.passive or frame.base in MOTION or word not in _PARTICLES:
            return False
        return frame.base in _PARTICLES_OF.get(word, (frame.base,))

    def _verb(self, i: int) -> int:
        j, helpers, modals = i, [], []
        while self.tags[j] in "XMA" or self.words[j : j + 1] in (["not"], ["n't"]):
            if self.tags[j] == "X":
                helpers.append(j)
            elif self.tags[j] == "M":
                modals.append(j)
            j += 1
        if self.tags[j] in "VGE":
            main = j
        elif helpers:
            main = helpers.pop()
        else:
            return max(j, i + 1)
        self.waiting += [pair for k in range(i, main) if self.tags[k] == "A" for pair in self._manner(k)]
        self.waiting += [("ARGM-MOD", (k, k + 1)) for k in modals]
        leads = [*helpers, main] if self.tags[main] in "XV" else helpers
        finite = bool(modals) or any(not self.words[k].endswith("ing") for k in leads)
        frame = _Frame(words=[main], base=self._base(main), passive=self.tags[main] == "E", subject=None)
        self._add(frame, finite=finite)
        return main + 1

    def _base(self, i: int) -> str:
        word = self.words[i]
        if self.tags[i] == "X":
            return _HELPER_BASE.get(word, "be")
        return FORMS[word][1] if word in FORMS else word

    def _add(self, frame: _Frame, *, finite: bool) -> None:
        frame.subject = self._whose(frame, finite=finite)
        if frame.subject is not None:
            role = "ARG1" if frame.passive or frame.base in UNDERGOING else "ARG0"
            frame.arguments.append((role, frame.subject))
        frame.arguments += self.waiting
        self.settled = self.settled or (finite and frame.subject == self.subject)
        self.frames.append(frame)
        self.verb, self.waiting = frame, []
        self.joined = self.linked = self.relative = False

    def _whose(self, frame: _Frame, *, finite: bool) -> Span | None:
        """Return the subject of a new verb."""
        last = self.verb or (self.frames[-1] if self.frames else None)
        if self.relative:
            return self.latest
        if self.verb is None and self.subject is not None:
            return self.subject if finite else self.near
        if last is None:
            return None
        if self.linked and self.near is not None and last.base in _CONTROL and not last.passive:
            return self.near
        if self.linked or self.joined or self.verb is None:
            return last.subject
        if finite:
            return self.near if self.settled else self.subject
        bare_object = self.near is not None and self.near != last.subject
        if bare_object and (frame.passive or last.base in _SHOWING or agent(self.words[slice(*self.near)])):
            return self.near
        return last.subject

    def _subordinate(self, i: int) -> None:
        if self.words[i] in ("who", "which", "that") and i and self.tags[i - 1] in "NR":
            self.relative, self.verb, self.joined = self.tags[i + 1] not in "DNR", None, False
        else:
            self._clause()

    def _clause(self) -> None:
        self.subject = self.verb = self.near = None
        self.settled = self.joined = self.linked = self.relative = False

    def _adverb(self, i: int) -> None:
        ahead = self.verb is None or self.joined or self.tags[i + 1] in "VM" or self.words[i] == "then"
        (self.waiting if ahead else self.verb.arguments).extend(self._manner(i))

    def _manner(self, i: int) -> list[tuple[str, Span]]:
        role = adverb_role(self.words[i])
        return [(role, (i, i + 1))] if role else []

    def graph(self) -> RoleGraph:
        """Return what was found."""
        if not self.frames and self.there is not None:
            self._add(_Frame(words=[self.there], base="be", passive=False, subject=None), finite=True)
        if self.frames:
            self.frames[-1].arguments += self.waiting
        nodes: list[Node] = []
        edges: list[tuple[int, int]] = []
        places: dict[Span, int] = {}
        for frame in self.frames:
            verb = len(nodes)
            nodes.append(Node(role=VERB, words=tuple(frame.words)))
            for role, span in sorted(frame.arguments, key=lambda one: one[0].startswith("ARGM")):
                if span not in places:
                    places[span] = len(nodes)
                    nodes.append(Node(role=role, words=tuple(range(*span))))
                edges.append((verb, places[span]))
        loose = self.phrases if self.frames else self.find.chunks()
        nodes += [Node(role=NOUN, words=tuple(range(*span))) for span in loose if span not in places]
        return RoleGraph(words=tuple(self.words), nodes=tuple(nodes), edges=tuple(edges))
