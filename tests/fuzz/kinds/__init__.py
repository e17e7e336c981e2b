"""Every kind of file that is read, by name."""

from __future__ import annotations

from fuzz.kinds import captions, compared, features, outbox, own, questions, stored, trained, words

KINDS = {
    kind.name: kind
    for module in (own, captions, questions, features, words, stored, outbox, trained, compared)
    for kind in module.KINDS
}
