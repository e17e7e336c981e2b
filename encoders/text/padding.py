"""Token numbers of several texts side by side, as text encoders read them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from encoders.base import Tokenizer


def pad_tokens(subword_P: np.ndarray, size_B: np.ndarray, tokenizer: Tokenizer) -> tuple[Tensor, Tensor]:
    """Return token numbers `(B, L)`, int64, 0 in the pads, and their mask `(B, L)`.

    Args:
        subword_P: the subwords of B texts, one after another, without special tokens.
        size_B: how many each text has.
        tokenizer: says whether `start` and `end` are put around them. Where they are not, a text without a subword
            keeps a pad: no set is empty.
    """
    ends = int(tokenizer.ends)
    row_P = np.repeat(np.arange(len(size_B)), size_B)
    place_P = np.arange(len(row_P)) - np.repeat(np.cumsum(size_B) - size_B, size_B) + ends
    size_B = np.maximum(size_B, 1 - ends)
    token_BL = np.zeros((len(size_B), size_B.max(initial=0) + 2 * ends), np.int64)
    token_BL[row_P, place_P] = subword_P
    if ends:
        token_BL[:, 0] = tokenizer.start
        token_BL[np.arange(len(size_B)), size_B + 1] = tokenizer.end
    mask_BL = np.arange(token_BL.shape[1]) < size_B[:, None] + 2 * ends
    return torch.from_numpy(token_BL), torch.from_numpy(mask_BL)
