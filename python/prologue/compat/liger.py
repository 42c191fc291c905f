"""Liger-Kernel 0.8.5: liger_kernel.transformers.rope.liger_rotary_pos_emb.

As there, only the first half of the columns of cos and sin is read, and position_ids and unsqueeze_dim have no effect.
"""

from typing import Any, Optional, Tuple

from .. import Rope, rotary


def liger_rotary_pos_emb(
    q: Any, k: Any, cos: Any, sin: Any, position_ids: Optional[Any] = None, unsqueeze_dim: int = 1
) -> Tuple[Any, Any]:
    """q: [bsz, n_q_head, seq_len, head_dim]; k: [bsz, n_kv_head, seq_len, head_dim]; cos, sin: [1 or bsz, seq_len, head_dim].
    Returns both rotated, with gradients."""
    half = q.shape[3] // 2
    return rotary(q, k, rope=Rope(cos=cos[..., :half], sin=sin[..., :half], per_token=True), layout="bhsd")
