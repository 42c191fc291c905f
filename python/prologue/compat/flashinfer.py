"""FlashInfer 0.7.2: flashinfer.rope and flashinfer.page.append_paged_kv_cache.

Positions are int32 or int64. `backend` has no effect. Frequencies are computed in float64 on the host, once for each set of arguments.
"""

import functools
import math
from typing import Any, List, Optional, Tuple

from .. import PagedKv, Rope, TokenPlaces, attention_prologue, rotary
from .._frameworks import framework_of


@functools.lru_cache(maxsize=64)
def _frequencies(rotary_dim: int, theta: float, scale: float, llama31: Optional[Tuple[float, float, float]]) -> List[float]:
    frequencies = []
    for i in range(rotary_dim // 2):
        plain = theta ** (-2.0 * i / rotary_dim)
        if llama31 is None:
            frequencies.append(plain / scale)
            continue
        low, high, context = llama31
        smooth = min(max((context * plain / (2 * math.pi) - low) / (high - low), 0.0), 1.0)
        frequencies.append((1 - smooth) * plain / scale + smooth * plain)
    return frequencies


_ARRAYS: dict = {}  # frequencies on a device, made once


def _inv_freq(q: Any, *key: Any) -> Any:
    where = (type(q), str(getattr(q, "device", "cpu")), *key)
    if where not in _ARRAYS:
        _ARRAYS[where] = framework_of(q).array(q, _frequencies(*key), "float64")
    return _ARRAYS[where]


def _rope(q: Any, rotary_dim: Optional[int], interleave: bool, rope_scale: float, rope_theta: float, llama31: Any = None) -> Rope:
    rotary_dim = q.shape[-1] if rotary_dim is None else rotary_dim
    style = "interleaved" if interleave else "neox"
    if llama31 is None and rope_scale == 1:
        return Rope(style, rotary_dim, theta=float(rope_theta))
    return Rope(style, rotary_dim, inv_freq=_inv_freq(q, rotary_dim, float(rope_theta), float(rope_scale), llama31))


def apply_rope(
    q: Any, k: Any, indptr: Any, offsets: Any, rotary_dim: Optional[int] = None, interleave: bool = False, rope_scale: float = 1,
    rope_theta: float = 1e4, backend: str = "cuda",
) -> Tuple[Any, Any]:  # fmt: skip
    """q, k: [nnz, heads, head_dim]; indptr: [batch_size + 1]; offsets: [batch_size]: the position of each sequence's first row."""
    return rotary(q, k, rope=_rope(q, rotary_dim, interleave, rope_scale, rope_theta), cu_seqlens=indptr, offsets=offsets)


def apply_rope_inplace(
    q: Any, k: Any, indptr: Any, offsets: Any, rotary_dim: Optional[int] = None, interleave: bool = False, rope_scale: float = 1,
    rope_theta: float = 1e4, backend: str = "cuda",
) -> None:  # fmt: skip
    rotary(q, k, rope=_rope(q, rotary_dim, interleave, rope_scale, rope_theta), cu_seqlens=indptr, offsets=offsets, inplace=True)


def apply_rope_pos_ids(
    q: Any, k: Any, pos_ids: Any, rotary_dim: Optional[int] = None, interleave: bool = False, rope_scale: float = 1,
    rope_theta: float = 1e4, backend: str = "cuda",
) -> Tuple[Any, Any]:  # fmt: skip
    """pos_ids: [nnz]."""
    return rotary(q, k, rope=_rope(q, rotary_dim, interleave, rope_scale, rope_theta), positions=pos_ids)


def apply_rope_pos_ids_inplace(
    q: Any, k: Any, pos_ids: Any, rotary_dim: Optional[int] = None, interleave: bool = False, rope_scale: float = 1,
    rope_theta: float = 1e4, backend: str = "cuda",
) -> None:  # fmt: skip
    rotary(q, k, rope=_rope(q, rotary_dim, interleave, rope_scale, rope_theta), positions=pos_ids, inplace=True)


def _llama31(low_freq_factor: float, high_freq_factor: float, old_context_len: int) -> Tuple[float, float, float]:
    return float(low_freq_factor), float(high_freq_factor), float(old_context_len)


def apply_llama31_rope(
    q: Any, k: Any, indptr: Any, offsets: Any, rotary_dim: Optional[int] = None, interleave: bool = False, rope_scale: float = 8,
    rope_theta: float = 5e5, low_freq_factor: float = 1, high_freq_factor: float = 4, old_context_len: int = 8192, backend: str = "cuda",
) -> Tuple[Any, Any]:  # fmt: skip
    """apply_rope with the frequencies of Llama 3.1."""
    rope = _rope(q, rotary_dim, interleave, rope_scale, rope_theta, _llama31(low_freq_factor, high_freq_factor, old_context_len))
    return rotary(q, k, rope=rope, cu_seqlens=indptr, offsets=offsets)


def apply_llama31_rope_inplace(
    q: Any, k: Any, indptr: Any, offsets: Any, rotary_dim: Optional[int] = None, interleave: bool = False, rope_scale: float = 8,
    rope_theta: float = 5e5, low_freq_factor: float = 1, high_freq_factor: float = 4, old_context_len: int = 8192, backend: str = "cuda",
) -> None:  # fmt: skip
    rope = _rope(q, rotary_dim, interleave, rope_scale, rope_theta, _llama31(low_freq_factor, high_freq_factor, old_context_len))
    rotary(q, k, rope=rope, cu_seqlens=indptr, offsets=offsets, inplace=True)


def apply_llama31_rope_pos_ids(
    q: Any, k: Any, pos_ids: Any, rotary_dim: Optional[int] = None, interleave: bool = False, rope_scale: float = 8,
    rope_theta: float = 5e5, low_freq_factor: float = 1, high_freq_factor: float = 4, old_context_len: int = 8192, backend: str = "cuda",
) -> Tuple[Any, Any]:  # fmt: skip
    rope = _rope(q, rotary_dim, interleave, rope_scale, rope_theta, _llama31(low_freq_factor, high_freq_factor, old_context_len))
    return rotary(q, k, rope=rope, positions=pos_ids)


def apply_llama31_rope_pos_ids_inplace(
    q: Any, k: Any, pos_ids: Any, rotary_dim: Optional[int] = None, interleave: bool = False, rope_scale: float = 8,
    rope_theta: float = 5e5, low_freq_factor: float = 1, high_freq_factor: float = 4, old_context_len: int = 8192, backend: str = "cuda",
) -> None:  # fmt: skip
    rope = _rope(q, rotary_dim, interleave, rope_scale, rope_theta, _llama31(low_freq_factor, high_freq_factor, old_context_len))
    rotary(q, k, rope=rope, positions=pos_ids, inplace=True)


def _with_cache(positions: Any, query: Any, key: Any, head_size: int, cos_sin_cache: Any, is_neox: bool, inplace: bool) -> Any:
    if str(cos_sin_cache.dtype).split(".")[-1] != "float32":
        raise ValueError(f"cos_sin_cache is {cos_sin_cache.dtype}: it must be float32")
    heads = [x.reshape(x.shape[0], -1, head_size) for x in (query, key)]
    rope = Rope("neox" if is_neox else "interleaved", cos_sin=cos_sin_cache, past_table="zero")
    return rotary(*heads, rope=rope, positions=positions, inplace=inplace)


def apply_rope_with_cos_sin_cache(
    positions: Any, query: Any, key: Any, head_size: int, cos_sin_cache: Any, is_neox: bool = True, backend: str = "auto"
) -> Tuple[Any, Any]:
    """query, key: [nnz, heads * head_size]; cos_sin_cache: [max_seq_len, rotary_dim] float32, cos then sin."""
    q, k = _with_cache(positions, query, key, head_size, cos_sin_cache, is_neox, False)
    return q.reshape(query.shape), k.reshape(key.shape)


def apply_rope_with_cos_sin_cache_inplace(
    positions: Any, query: Any, key: Any, head_size: int, cos_sin_cache: Any, is_neox: bool = True, backend: str = "auto"
) -> None:
    _with_cache(positions, query, key, head_size, cos_sin_cache, is_neox, True)


def append_paged_kv_cache(
    append_key: Any, append_value: Any, batch_indices: Any, positions: Any, paged_kv_cache: Any, kv_indices: Any, kv_indptr: Any,
    kv_last_page_len: Any, kv_layout: str = "NHD",
) -> None:  # fmt: skip
    """append_key, append_value: [nnz, num_kv_heads, head_dim]. paged_kv_cache: (k, v), or one [pages, 2, ..]; each
    [pages, page_size, num_kv_heads, head_dim] (NHD) or [pages, num_kv_heads, page_size, head_dim] (HND). A token with a negative batch
    index is not written; nor is one whose position is not in its sequence's pages. The slots are computed from batch_indices and
    positions with some operations of the caller's framework before the launch: attention_prologue itself takes kv_indptr as it is
    (PageTable), without them."""
    if kv_layout not in ("NHD", "HND"):
        raise ValueError(f"kv_layout is {kv_layout!r}: it must be 'NHD' or 'HND'")
    k, v = paged_kv_cache if isinstance(paged_kv_cache, (tuple, list)) else (paged_kv_cache[:, 0], paged_kv_cache[:, 1])
    page_size = k.shape[1 if kv_layout == "NHD" else 2]
    sequence = batch_indices.clip(0)
    entry = kv_indptr[sequence] + positions // page_size
    valid = (batch_indices >= 0) & (positions >= 0) & (entry < kv_indptr[sequence + 1])
    page = kv_indices[entry * valid]
    slots = (page * page_size + positions % page_size + 1) * valid - 1  # -1 where not valid
    attention_prologue(
        k=append_key, v=append_value, cache=PagedKv(k, v, layout=kv_layout.lower()), places=TokenPlaces(slot_mapping=slots)
    )
