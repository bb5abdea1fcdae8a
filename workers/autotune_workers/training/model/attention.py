"""Attention with grouped queries by a kernel whose memory grows with the sequence, never with its square.

    q (b, a, s, d)   k, v (b, k, s, d)   a heads of queries, k of keys, a / k queries to each

On a GPU, torch gives grouped queries to the flash kernel or, where that does not take the tensors, to plain matrix products, which keep scores of
(b, a, s, s). Flash takes 16-bit tensors on GPUs of compute capability 8.0 and later (torch.nn.functional.scaled_dot_product_attention). For all others keys
and values are repeated for their queries, and the memory-efficient kernel takes them (Rabe and Staats 2021, arXiv:2112.05682).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

FLASH_DTYPES = (torch.float16, torch.bfloat16)
FLASH_CAPABILITY = (8, 0)
FLASH_HEAD_DIM = 256
"""the largest that the flash kernel takes"""


def fused_attention(q: Tensor, k: Tensor, v: Tensor, *, mask: Any = None) -> Tensor:
    """Attention -> (b, a, s, d): causal, or under `mask`, by whichever kernel torch finds best here."""
    if q.shape[1] != k.shape[1] and not _takes_groups(q):
        k, v = expanded(k, q), expanded(v, q)
    grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=grouped)


def expanded(x: Tensor, q: Tensor) -> Tensor:
    """Keys or values (b, k, c, d) with one head for each of the queries, (b, a, c, d)."""
    return x.repeat_interleave(q.shape[1] // x.shape[1], dim=1)


def _takes_groups(q: Tensor) -> bool:
    """Whether a kernel of linear memory takes grouped queries of this kind."""
    if q.device.type != "cuda":
        return True
    fits = q.dtype in FLASH_DTYPES and q.shape[-1] <= FLASH_HEAD_DIM
    return fits and torch.cuda.get_device_capability(q.device) >= FLASH_CAPABILITY
