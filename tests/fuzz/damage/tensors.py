"""Damage to the header of a `.safetensors` file, which is JSON after its length."""

from __future__ import annotations

import struct

from hypothesis import strategies as st

from fuzz.damage import documents


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """Damage the header, and most often say its right length."""
    (length,) = struct.unpack("<Q", data[:8])
    header = draw(documents.damaged(data[8 : 8 + length]))
    said = len(header) if draw(st.integers(0, 3)) else draw(st.sampled_from([0, 2**40, 2**63, length]))
    return struct.pack("<Q", said) + header + data[8 + length :]
