"""vLLM 0.33: functions of vllm._custom_ops.

Caches of kv_cache_dtype "fp8", "fp8_e4m3" and "fp8_e5m2" may be uint8, as in vLLM. A negative slot is not written. slot_mapping may be
shorter than key and value, which are then padded.
"""

import math
from typing import Any, Dict, Optional, Tuple

from .. import HeadNorm, PagedKv, Rope, TokenPlaces, attention_prologue, mla_prologue, rotary
from .._frameworks import framework_of

_CACHE_TYPES: Dict[str, Any] = {"auto": None, "fp8": "fp8_e4m3", "fp8_e4m3": "fp8_e4m3", "fp8_e5m2": "fp8_e5m2"}


def _rope(cos_sin_cache: Any, is_neox: bool, rotary_offset: int = 0, inverse: bool = False) -> Rope:
    style: Any = "neox" if is_neox else "interleaved"
    return Rope(style, cos_sin=cos_sin_cache, rotary_offset=rotary_offset, inverse=inverse, past_table="zero")


def _cache(k: Any, v: Any, kv_cache_dtype: str, k_scale: Any, v_scale: Any) -> PagedKv:
    if kv_cache_dtype not in _CACHE_TYPES:
        raise NotImplementedError(f"kv_cache_dtype is {kv_cache_dtype!r}: supported are {', '.join(map(repr, _CACHE_TYPES))}")
    kind = _CACHE_TYPES[kv_cache_dtype]
    if kind is None:
        return PagedKv(k, v)
    per_head = len(k_scale.shape) > 0 and k_scale.shape[0] > 1
    return PagedKv(k, v, k_scale.reshape(-1), v_scale.reshape(-1), scaling="head" if per_head else "tensor", k_type=kind, v_type=kind)


def rotary_embedding(
    positions: Any,
    query: Any,
    key: Optional[Any],
    head_size: int,
    cos_sin_cache: Any,
    is_neox: bool,
    rope_dim_offset: int = 0,
    inverse: bool = False,
) -> None:
    """Rotates query and key in place. positions: [num_tokens] or [batch, seq_len]; query, key: [.., heads * head_size] or
    [.., heads, head_size]; cos_sin_cache: [max_position, rot_dim]. Rows of a packed qkv are fine."""
    leading = positions.shape
    tensors = []
    for x in (query, key):
        if x is None:
            continue
        if tuple(x.shape[: len(leading)]) != tuple(leading):
            raise ValueError(f"positions has the shape {list(leading)}, query or key {list(x.shape)}: the leading axes must be equal")
        heads = math.prod(x.shape[len(leading) :]) // head_size
        tensors.append(x if len(x.shape) == len(leading) + 2 else x.reshape(*leading, heads, head_size))
    rotary(*tensors, rope=_rope(cos_sin_cache, is_neox, rope_dim_offset, inverse), positions=positions, inplace=True, tail="leave")


def reshape_and_cache_flash(
    key: Any, value: Any, key_cache: Any, value_cache: Any, slot_mapping: Any, kv_cache_dtype: str, k_scale: Any, v_scale: Any
) -> None:
    """key, value: [num_tokens, num_heads, head_size]; caches: [num_blocks, block_size, num_heads, head_size], of any strides (HND
    too). k_scale, v_scale: [1], or [num_heads]."""
    cache = _cache(key_cache, value_cache, kv_cache_dtype, k_scale, v_scale)
    attention_prologue(k=key, v=value, cache=cache, places=TokenPlaces(slot_mapping=slot_mapping))


def fused_qk_norm_rope(
    qkv: Any,
    num_heads_q: int,
    num_heads_k: int,
    num_heads_v: int,
    head_dim: int,
    eps: float,
    q_weight: Any,
    k_weight: Any,
    cos_sin_cache: Any,
    is_neox: bool,
    position_ids: Any,
    forced_token_heads_per_warp: int = -1,
) -> None:
    """qkv: [num_tokens, (num_heads_q + num_heads_k + num_heads_v) * head_dim]: RMSNorm of each head of Q and K, then the rotation, in
    place. forced_token_heads_per_warp has no effect."""
    heads = qkv.reshape(qkv.shape[0], num_heads_q + num_heads_k + num_heads_v, head_dim)
    q, k = heads[:, :num_heads_q], heads[:, num_heads_q : num_heads_q + num_heads_k]
    attention_prologue(
        q, k, rope=_rope(cos_sin_cache, is_neox), places=TokenPlaces(position_ids.reshape(-1)), q_out=q, k_out=k,
        q_norm=HeadNorm(weight=q_weight, eps=eps), k_norm=HeadNorm(weight=k_weight, eps=eps),
    )  # fmt: skip


def fused_qknorm_rope_cache(
    qkv: Any,
    q_weight: Any,
    k_weight: Any,
    cos_sin_cache: Any,
    positions: Any,
    slot_mapping: Any,
    key_cache: Any,
    value_cache: Any,
    num_q_heads: int,
    num_kv_heads: int,
    head_dim: int,
    rotary_dim: int,
    eps: float,
    norm_weight_bias: float = 0.0,
    kv_cache_dtype: str = "auto",
    k_scale: Optional[Any] = None,
    v_scale: Optional[Any] = None,
) -> Tuple[Any, Any, Any]:
    """qkv: [num_tokens, (num_q_heads + 2 * num_kv_heads) * head_dim], which is only read: RMSNorm of each head of Q and K with
    (weight + norm_weight_bias), then the rotation (neox) of the first rotary_dim channels. K and V go to the cache and are also returned:
    (q, k, v), each [num_tokens, heads * head_dim]. One launch. As there, the norm is rounded to the dtype of qkv before the rotation."""
    if rotary_dim < 0 or rotary_dim > head_dim or rotary_dim % 8 != 0:
        raise ValueError(f"rotary_dim is {rotary_dim}: it must be a multiple of 8 in 0..head_dim, {head_dim}")
    if kv_cache_dtype != "auto" and (k_scale is None or v_scale is None):
        raise ValueError(f"kv_cache_dtype is {kv_cache_dtype!r}: k_scale and v_scale must be given")
    framework, tokens = framework_of(qkv), qkv.shape[0]
    q, k, v = (framework.zeros(qkv, (tokens, heads, head_dim)) for heads in (num_q_heads, num_kv_heads, num_kv_heads))
    attention_prologue(
        qkv=qkv, num_q_heads=num_q_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, q_out=q, k_out=k, v_out=v,
        q_norm=HeadNorm(weight=q_weight, eps=eps, weight_offset=norm_weight_bias),
        k_norm=HeadNorm(weight=k_weight, eps=eps, weight_offset=norm_weight_bias),
        rope=_rope(cos_sin_cache[:, :rotary_dim], True) if rotary_dim > 0 else None,
        cache=_cache(key_cache, value_cache, kv_cache_dtype, k_scale, v_scale), places=TokenPlaces(positions, slot_mapping),
        rounding="per_step",
    )  # fmt: skip
    return tuple(one.reshape(tokens, one.shape[1] * head_dim) for one in (q, k, v))


def _mla(
    kv_c: Any, k_pe: Any, kv_cache: Any, slot_mapping: Any, kv_cache_dtype: str, scale: Any, rope: Optional[Rope], positions: Any, q_pe: Any
) -> None:
    """One launch. With q_pe: it and k_pe are rotated in place."""
    k_out = None if q_pe is None else k_pe
    if kv_cache_dtype == "fp8_ds_mla":
        kind: Any = "fp8_ds_mla"
    elif kv_cache_dtype in _CACHE_TYPES:
        kind = _CACHE_TYPES[kv_cache_dtype]
    else:
        raise NotImplementedError(f"kv_cache_dtype is {kv_cache_dtype!r}: supported are {', '.join(map(repr, _CACHE_TYPES))}, 'fp8_ds_mla'")
    if kind == "fp8_ds_mla" and k_pe.shape[-1] == 0:  # a record has its 64 channels all the same
        k_pe = framework_of(kv_c).zeros(kv_c, (kv_c.shape[0], 64))
    rank, dim = kv_c.shape[-1], k_pe.shape[-1]
    if rank % 16 == 0 and dim % 16 == 0 and rank <= 1024:
        mla_prologue(
            kv_c, k_pe, q_pe, kv_cache=kv_cache, cache_type=kind, cache_scale=scale if kind in ("fp8_e4m3", "fp8_e5m2") else None,
            slot_mapping=slot_mapping, rope=rope, positions=positions, q_pe_out=q_pe, k_pe_out=k_out,
        )  # fmt: skip
        return
    if kind == "fp8_ds_mla":
        raise NotImplementedError(f"kv_cache_dtype is 'fp8_ds_mla', and the latent has {rank} channels: it must have a multiple of 256")
    k_pe = k_pe.reshape(k_pe.shape[0], 1, dim)
    if q_pe is not None:
        assert rope is not None
        rotary(q_pe, k_pe, rope=rope, positions=positions, inplace=True, tail="leave")
    pages = kv_cache[:, :, None, :]
    cache = _cache(pages[..., :rank], pages[..., rank:], kv_cache_dtype, scale, scale)
    attention_prologue(k=kv_c[:, None, :], v=k_pe, cache=cache, places=TokenPlaces(slot_mapping=slot_mapping))


def concat_and_cache_mla(
    kv_c: Any, k_pe: Any, kv_cache: Any, slot_mapping: Any, kv_cache_dtype: str, scale: Any, skip_scale: bool = False
) -> None:
    """kv_cache[slot] = [kv_c, k_pe]. kv_c: [num_tokens, kv_lora_rank]; k_pe: [num_tokens, pe_dim] or [num_tokens, 1, pe_dim];
    kv_cache: [num_blocks, block_size, kv_lora_rank + pe_dim]; "fp8_ds_mla": [num_blocks, block_size, 656] bytes, with zeros in place of k_pe
    if pe_dim is 0. One launch (and what makes those zeros)."""
    if skip_scale and kv_cache_dtype != "auto":
        raise NotImplementedError(f"skip_scale is True, and kv_cache_dtype is {kv_cache_dtype!r}: it must be 'auto'")
    _mla(kv_c, k_pe, kv_cache, slot_mapping, kv_cache_dtype, scale, None, None, None)


def concat_and_cache_mla_rope_fused(
    positions: Any,
    q_pe: Any,
    k_pe: Any,
    kv_c: Any,
    cos_sin_cache: Any,
    is_neox: bool,
    slot_mapping: Any,
    kv_cache: Any,
    kv_cache_dtype: str,
    kv_cache_scale: Any,
) -> None:
    """Rotates q_pe [num_tokens, num_heads, pe_dim] and k_pe in place, and concat_and_cache_mla. One launch; two if pe_dim or the latent is
    not a multiple of 16."""
    _mla(kv_c, k_pe, kv_cache, slot_mapping, kv_cache_dtype, kv_cache_scale, _rope(cos_sin_cache, is_neox), positions, q_pe)
