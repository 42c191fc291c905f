"""SGLang 0.5.23: apply_rope_with_cos_sin_cache_inplace and FusedSetKVBufferArg of sglang.jit_kernel.rope.

With fused_args, the rotation and the write of K and V into the buffers are one launch. There k itself is rotated in place, too.
"""

from dataclasses import dataclass
from typing import Any, Optional

from .. import PagedKv, Rope, TokenPlaces, attention_prologue, rotary


@dataclass
class FusedSetKVBufferArg:
    """value: [nnz, num_kv_heads, head_dim] or [nnz, num_kv_heads * head_dim]. k_buffer, v_buffer: [slots, ..], the same. cache_loc:
    [nnz], the slot of each token. k_scale and v_scale must be None: as in SGLang, they are not supported."""

    value: Any
    k_buffer: Any
    v_buffer: Any
    cache_loc: Any
    k_scale: Optional[float] = None
    v_scale: Optional[float] = None


def apply_rope_with_cos_sin_cache_inplace(
    q: Any,
    k: Any,
    cos_sin_cache: Any,
    positions: Any,
    *,
    is_neox: bool,
    rope_dim: int = 0,
    fused_args: Optional[FusedSetKVBufferArg] = None,
) -> None:
    """q, k: [nnz, heads, head_dim], rotated in place. cos_sin_cache: [max_position, rope_dim] float32. rope_dim: 0: the columns of
    cos_sin_cache."""
    rope = Rope("neox" if is_neox else "interleaved", rope_dim or cos_sin_cache.shape[-1], cos_sin=cos_sin_cache, past_table="zero")
    if fused_args is None:
        rotary(q, k, rope=rope, positions=positions, inplace=True)
        return
    if fused_args.k_scale is not None or fused_args.v_scale is not None:
        raise NotImplementedError("k_scale and v_scale are not supported: they must be None")
    heads = k.shape[1]
    pages = [buffer.reshape(buffer.shape[0], 1, heads, -1) for buffer in (fused_args.k_buffer, fused_args.v_buffer)]
    attention_prologue(
        q, k, fused_args.value.reshape(k.shape[0], heads, -1), cache=PagedKv(*pages), rope=rope, q_out=q, k_out=k,
        places=TokenPlaces(positions, fused_args.cache_loc),
    )  # fmt: skip
