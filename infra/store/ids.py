"""What may be an id: the one rule for feature stores and for the corpora whose items they describe."""

from __future__ import annotations

from infra.fields import is_unicode

_LONGEST = 1000


def wrong_id(id: str) -> str | None:
    """Return why a text cannot be an id, in the same words for every such text; None where it can.

    An id has 1 to 1,000 characters, all of them printable, so that it can be listed, searched for and typed.
    """
    if not id:
        return "an id that is empty"
    if not is_unicode(id):
        return "an id that is not valid UTF-8"
    if not id.isprintable():
        return "an id with characters that cannot be printed"
    if len(id) > _LONGEST:
        return f"an id of more than {_LONGEST:,} characters"
    return None
