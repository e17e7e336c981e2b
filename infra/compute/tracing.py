"""Detection of compilation and export."""

from __future__ import annotations

import torch


def traced() -> bool:
    """Whether the code is traced, so that values are unknown, and all that depends on them must be in the graph."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()
