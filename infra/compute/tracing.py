"""Whether code is being written down, by a compiler or for an export, instead of run."""

from __future__ import annotations

import torch


def traced() -> bool:
    """Whether what runs is traced: values are not known then, and what depends on them must stay in the graph."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()
