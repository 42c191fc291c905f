"""Liger-Kernel 0.8.5: liger_rotary_pos_emb and its two forms of liger_kernel.transformers.rope.

As there, only the first half of the columns of cos and sin is read, and position_ids and unsqueeze_dim have no effect.
"""

from typing import Any, Optional, Tuple

from .. import Rope, rotary


def liger_rotary_pos_emb(
    q: Any, k: Any, cos: Any, sin: Any, position_ids: Optional[Any] = None, unsqueeze_dim: int = 1, rotary_dim: Optional[int] = None
) -> Tuple[Any, Any]:
    """q: [bsz, n_q_head, seq_len, head_dim]; k: [bsz, n_kv_head, seq_len, head_dim]; cos, sin: [1 or bsz, seq_len, columns].
    rotary_dim: the rotated channels, the first of each head; None: as many as columns. Returns both rotated, with gradients."""
    half = (cos.shape[-1] if rotary_dim is None else rotary_dim) // 2
    return rotary(q, k, rope=Rope(cos=cos[..., :half], sin=sin[..., :half], per_token=True), layout="bhsd")


def liger_rotary_pos_emb_gpt_oss(q: Any, k: Any, cos: Any, sin: Any) -> Tuple[Any, Any]:
    """The same for cos and sin with a column for each pair of the whole head."""
    return liger_rotary_pos_emb(q, k, cos, sin, rotary_dim=q.shape[-1])


def liger_rotary_pos_emb_vision(q: Any, k: Any, cos: Any, sin: Any) -> Tuple[Any, Any]:
    """q, k: [seq_len, heads, head_dim]; cos, sin: [seq_len, head_dim]."""
    half = cos.shape[-1] // 2
    return rotary(q, k, rope=Rope(cos=cos[..., :half], sin=sin[..., :half], per_token=True), layout="shd")
