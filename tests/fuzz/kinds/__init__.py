"""Every kind of file that is read, by name."""

from __future__ import annotations

from fuzz.kinds import captions, command_line, compared, features, outbox, questions, stored, trained, words

KINDS = {
    kind.name: kind
    for module in (captions, questions, features, words, stored, outbox, trained, compared, command_line)
    for kind in module.KINDS
}
