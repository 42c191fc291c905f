"""SGLang 0.5.23: functions of sglang.kernels.ops.attention.rope (before: sglang.jit_kernel.rope) and .fused_qknorm_rope.

Q may have another dtype than K there; here they must have one. A negative slot is not written.
"""

import math
from dataclasses import dataclass
from typing import Any, Dict, List, Optional

from .. import HeadNorm, PagedKv, Rope, TokenPlaces, attention_prologue, rotary
from .._frameworks import framework_of
from .vllm import rotary_embedding as _rotary_embedding


@dataclass
class FusedSetKVBufferArg:
    """value: [nnz, num_kv_heads, head_dim] or [nnz, num_kv_heads * head_dim]. k_buffer, v_buffer: [slots, ..], the same. cache_loc:
    [nnz], the slot of each token."""

    value: Any
    k_buffer: Any
    v_buffer: Any
    cache_loc: Any


def _rope(cos_sin_cache: Any, is_neox: bool, rope_dim: int) -> Rope:
    return Rope("neox" if is_neox else "interleaved", rope_dim or cos_sin_cache.shape[-1], cos_sin=cos_sin_cache, past_table="zero")


def apply_rope_inplace(q: Any, k: Any, cos_sin_cache: Any, positions: Any, *, is_neox: bool, rope_dim: int = 0) -> None:
    """q, k: [num_tokens, heads, head_dim], rotated in place. cos_sin_cache: [max_position, rope_dim] float32. rope_dim: 0: the columns of
    cos_sin_cache."""
    rotary(q, k, rope=_rope(cos_sin_cache, is_neox, rope_dim), positions=positions, inplace=True)


def apply_rope_inplace_with_kvcache(
    q: Any,
    k: Any,
    v: Any,
    k_cache: Any,
    v_cache: Any,
    cos_sin_cache: Any,
    positions: Any,
    out_loc: Any,
    *,
    is_neox: bool,
    rope_dim: int = 0,
) -> None:
    """apply_rope_inplace; the rotated k and v also go to the rows out_loc of k_cache and v_cache, [slots, num_kv_heads * head_dim]. One
    launch."""
    heads = k.shape[1]
    pages = [buffer.reshape(buffer.shape[0], 1, heads, math.prod(buffer.shape[1:]) // heads) for buffer in (k_cache, v_cache)]
    attention_prologue(
        q, k, v.reshape(k.shape[0], heads, math.prod(v.shape[1:]) // heads), cache=PagedKv(*pages),
        rope=_rope(cos_sin_cache, is_neox, rope_dim), q_out=q, k_out=k, places=TokenPlaces(positions, out_loc),
    )  # fmt: skip


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
    """apply_rope_inplace, or with fused_args apply_rope_inplace_with_kvcache."""
    if fused_args is None:
        apply_rope_inplace(q, k, cos_sin_cache, positions, is_neox=is_neox, rope_dim=rope_dim)
    else:
        apply_rope_inplace_with_kvcache(
            q, k, fused_args.value, fused_args.k_buffer, fused_args.v_buffer, cos_sin_cache, positions, fused_args.cache_loc,
            is_neox=is_neox, rope_dim=rope_dim,
        )  # fmt: skip


def rotary_embedding(positions: Any, query: Any, key: Optional[Any], head_size: int, cos_sin_cache: Any, is_neox: bool = True) -> Any:
    """vLLM's rotary_embedding; returns (query, key)."""
    _rotary_embedding(positions, query, key, head_size, cos_sin_cache, is_neox)
    return query, key


_MAX_POSITION = 1 << 20  # of a rotation from frequencies: a token at or past it becomes zeros
_FREQUENCIES: Dict[Any, Any] = {}  # on a device, made once


def _frequencies(rotary_dim: int, base: float, factor: float, low: float, high: float) -> List[float]:
    """YaRN: the plain frequencies up to pair `low`, those divided by `factor` from pair `high` on, a blend between."""
    if not base > 0 or factor == 0:
        raise ValueError(f"base is {base} and factor {factor}: base must be positive, and factor not 0")
    frequencies = []
    span = high - low if abs(high - low) > 1e-6 else 1e-3
    for i in range(rotary_dim // 2):
        plain = base ** (-2.0 * i / rotary_dim)
        blend = 0.0 if factor == 1 else min(max((i - low) / span, 0.0), 1.0)
        frequencies.append(plain / factor * blend + plain * (1 - blend))
    return frequencies


def fused_qk_norm_rope(
    qkv: Any,
    num_heads_q: int,
    num_heads_k: int,
    num_heads_v: int,
    head_dim: int,
    eps: float,
    q_weight: Any,
    k_weight: Any,
    base: float,
    is_neox: bool,
    position_ids: Any,
    factor: float,
    low: float,
    high: float,
    attention_factor: float,
    rotary_dim: Optional[int] = None,
) -> None:
    """qkv: [num_tokens, (num_heads_q + num_heads_k + num_heads_v) * head_dim]: RMSNorm of each head of Q and K, then the rotation, in
    place. The frequencies (YaRN if factor is not 1) are computed in float64 on the host, once for each set of arguments."""
    rotary_dim = head_dim if rotary_dim is None else rotary_dim
    key = (rotary_dim, float(base), float(factor), float(low), float(high))
    where = (type(qkv), str(getattr(qkv, "device", "cpu")), *key)
    if where not in _FREQUENCIES:
        _FREQUENCIES[where] = framework_of(qkv).array(qkv, _frequencies(*key), "float32")
    heads = qkv.reshape(qkv.shape[0], num_heads_q + num_heads_k + num_heads_v, head_dim)
    q, k = heads[:, :num_heads_q], heads[:, num_heads_q : num_heads_q + num_heads_k]
    style: Any = "neox" if is_neox else "interleaved"
    attention_prologue(
        q, k, q_out=q, k_out=k, places=TokenPlaces(position_ids.reshape(-1)),
        rope=Rope(style, rotary_dim, inv_freq=_FREQUENCIES[where], attention_factor=attention_factor,
                  max_position=_MAX_POSITION, past_table="zero"),
        q_norm=HeadNorm(weight=q_weight, eps=eps), k_norm=HeadNorm(weight=k_weight, eps=eps),
    )  # fmt: skip
