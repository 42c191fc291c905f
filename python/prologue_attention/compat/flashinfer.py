"""FlashInfer 0.7.2: functions of flashinfer.rope, flashinfer.page and flashinfer.cake_fused_qk_rope_append.

Positions are int32 or int64. `enable_pdl` has no effect. Frequencies are computed in float64 on the host, and a scale becomes an array on
the device, once for each value. Slots are computed from batch_indices and positions with some operations of the caller's framework before
the launch: attention_prologue itself takes kv_indptr as it is (PageTable), without them.
"""

import functools
import math
from typing import Any, Dict, List, Optional, Tuple

from .. import HeadNorm, PagedKv, PageTable, Rope, TokenPlaces, attention_prologue, mla_prologue, rotary
from .._frameworks import framework_of


@functools.lru_cache(maxsize=64)
def _frequencies(rotary_dim: int, theta: float, scale: float, llama31: Optional[Tuple[float, float, float]]) -> List[float]:
    if not theta > 0 or scale == 0:
        raise ValueError(f"rope_theta is {theta} and rope_scale {scale}: rope_theta must be positive, and rope_scale not 0")
    if llama31 is not None and llama31[0] == llama31[1]:
        raise ValueError(f"low_freq_factor and high_freq_factor are {llama31[0]}: they must differ")
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


_ARRAYS: Dict[Any, Any] = {}  # frequencies and scales on a device, made once


def _once(like: Any, dtype: str, key: Tuple[Any, ...], values: Any) -> Any:
    where = (type(like), str(getattr(like, "device", "cpu")), dtype, *key)
    if where not in _ARRAYS:
        _ARRAYS[where] = framework_of(like).array(like, values(*key), dtype)
    return _ARRAYS[where]


def _inv_freq(q: Any, *key: Any) -> Any:
    return _once(q, "float64", key, _frequencies)


def _rope(q: Any, rotary_dim: Optional[int], interleave: bool, rope_scale: float, rope_theta: float, llama31: Any = None) -> Rope:
    rotary_dim = q.shape[-1] if rotary_dim is None else rotary_dim
    style: Any = "interleaved" if interleave else "neox"
    if llama31 is None and rope_scale == 1:
        return Rope(style, rotary_dim, theta=float(rope_theta))
    return Rope(style, rotary_dim, inv_freq=_inv_freq(q, rotary_dim, float(rope_theta), float(rope_scale), llama31))


def apply_rope(
    q: Any, k: Any, indptr: Any, offsets: Any, rotary_dim: Optional[int] = None, interleave: bool = False, rope_scale: float = 1,
    rope_theta: float = 1e4,
) -> Tuple[Any, Any]:  # fmt: skip
    """q, k: [nnz, heads, head_dim]; indptr: [batch_size + 1]; offsets: [batch_size]: the position of each sequence's first row."""
    return rotary(q, k, rope=_rope(q, rotary_dim, interleave, rope_scale, rope_theta), cu_seqlens=indptr, offsets=offsets)


def apply_rope_inplace(
    q: Any, k: Any, indptr: Any, offsets: Any, rotary_dim: Optional[int] = None, interleave: bool = False, rope_scale: float = 1,
    rope_theta: float = 1e4,
) -> None:  # fmt: skip
    rotary(q, k, rope=_rope(q, rotary_dim, interleave, rope_scale, rope_theta), cu_seqlens=indptr, offsets=offsets, inplace=True)


def apply_rope_pos_ids(
    q: Any, k: Any, pos_ids: Any, rotary_dim: Optional[int] = None, interleave: bool = False, rope_scale: float = 1,
    rope_theta: float = 1e4,
) -> Tuple[Any, Any]:  # fmt: skip
    """pos_ids: [nnz]."""
    return rotary(q, k, rope=_rope(q, rotary_dim, interleave, rope_scale, rope_theta), positions=pos_ids)


def apply_rope_pos_ids_inplace(
    q: Any, k: Any, pos_ids: Any, rotary_dim: Optional[int] = None, interleave: bool = False, rope_scale: float = 1,
    rope_theta: float = 1e4,
) -> None:  # fmt: skip
    rotary(q, k, rope=_rope(q, rotary_dim, interleave, rope_scale, rope_theta), positions=pos_ids, inplace=True)


def _llama31(low_freq_factor: float, high_freq_factor: float, old_context_len: int) -> Tuple[float, float, float]:
    return float(low_freq_factor), float(high_freq_factor), float(old_context_len)


def apply_llama31_rope(
    q: Any, k: Any, indptr: Any, offsets: Any, rotary_dim: Optional[int] = None, interleave: bool = False, rope_scale: float = 8,
    rope_theta: float = 5e5, low_freq_factor: float = 1, high_freq_factor: float = 4, old_context_len: int = 8192,
) -> Tuple[Any, Any]:  # fmt: skip
    """apply_rope with the frequencies of Llama 3.1."""
    rope = _rope(q, rotary_dim, interleave, rope_scale, rope_theta, _llama31(low_freq_factor, high_freq_factor, old_context_len))
    return rotary(q, k, rope=rope, cu_seqlens=indptr, offsets=offsets)


def apply_llama31_rope_inplace(
    q: Any, k: Any, indptr: Any, offsets: Any, rotary_dim: Optional[int] = None, interleave: bool = False, rope_scale: float = 8,
    rope_theta: float = 5e5, low_freq_factor: float = 1, high_freq_factor: float = 4, old_context_len: int = 8192,
) -> None:  # fmt: skip
    rope = _rope(q, rotary_dim, interleave, rope_scale, rope_theta, _llama31(low_freq_factor, high_freq_factor, old_context_len))
    rotary(q, k, rope=rope, cu_seqlens=indptr, offsets=offsets, inplace=True)


def apply_llama31_rope_pos_ids(
    q: Any, k: Any, pos_ids: Any, rotary_dim: Optional[int] = None, interleave: bool = False, rope_scale: float = 8,
    rope_theta: float = 5e5, low_freq_factor: float = 1, high_freq_factor: float = 4, old_context_len: int = 8192,
) -> Tuple[Any, Any]:  # fmt: skip
    rope = _rope(q, rotary_dim, interleave, rope_scale, rope_theta, _llama31(low_freq_factor, high_freq_factor, old_context_len))
    return rotary(q, k, rope=rope, positions=pos_ids)


def apply_llama31_rope_pos_ids_inplace(
    q: Any, k: Any, pos_ids: Any, rotary_dim: Optional[int] = None, interleave: bool = False, rope_scale: float = 8,
    rope_theta: float = 5e5, low_freq_factor: float = 1, high_freq_factor: float = 4, old_context_len: int = 8192,
) -> None:  # fmt: skip
    rope = _rope(q, rotary_dim, interleave, rope_scale, rope_theta, _llama31(low_freq_factor, high_freq_factor, old_context_len))
    rotary(q, k, rope=rope, positions=pos_ids, inplace=True)


def _with_cache(positions: Any, query: Any, key: Any, head_size: int, cos_sin_cache: Any, is_neox: bool, inplace: bool) -> Any:
    if str(cos_sin_cache.dtype).split(".")[-1] != "float32":
        raise ValueError(f"cos_sin_cache is {cos_sin_cache.dtype}: it must be float32")
    heads = [x.reshape(x.shape[0], math.prod(x.shape[1:]) // head_size, head_size) for x in (query, key)]
    rope = Rope("neox" if is_neox else "interleaved", cos_sin=cos_sin_cache, past_table="zero")
    return rotary(*heads, rope=rope, positions=positions, inplace=inplace)


def apply_rope_with_cos_sin_cache(
    positions: Any, query: Any, key: Any, head_size: int, cos_sin_cache: Any, is_neox: bool = True
) -> Tuple[Any, Any]:
    """query, key: [nnz, heads * head_size]; cos_sin_cache: [max_seq_len, rotary_dim] float32, cos then sin."""
    q, k = _with_cache(positions, query, key, head_size, cos_sin_cache, is_neox, False)
    return q.reshape(query.shape), k.reshape(key.shape)


def apply_rope_with_cos_sin_cache_inplace(
    positions: Any, query: Any, key: Any, head_size: int, cos_sin_cache: Any, is_neox: bool = True
) -> None:
    _with_cache(positions, query, key, head_size, cos_sin_cache, is_neox, True)


def _caches(paged_kv_cache: Any, kv_layout: str) -> Tuple[Any, Any]:
    if kv_layout not in ("NHD", "HND"):
        raise ValueError(f"kv_layout is {kv_layout!r}: it must be 'NHD' or 'HND'")
    k, v = paged_kv_cache if isinstance(paged_kv_cache, (tuple, list)) else (paged_kv_cache[:, 0], paged_kv_cache[:, 1])
    return k, v


def _slots(batch_indices: Any, positions: Any, kv_indices: Any, kv_indptr: Any, page_size: int) -> Any:
    """The slot of each token, int64; -1 for a batch index without a sequence, and for a position that is not in the sequence's pages."""
    for name, array in (("batch_indices", batch_indices), ("positions", positions)):
        if "int" not in _name(array.dtype):
            raise TypeError(f"{name} is {_name(array.dtype)}: it must be integers")
    framework, num_seqs, num_entries = framework_of(batch_indices), kv_indptr.shape[0] - 1, kv_indices.shape[0]
    if num_seqs < 1 or num_entries < 1:
        return framework.cast(batch_indices, "int64") * 0 - 1
    sequence = batch_indices.clip(0, num_seqs - 1)
    entry = kv_indptr[sequence] + positions // page_size
    valid = (batch_indices == sequence) & (positions >= 0) & (entry >= 0) & (entry < kv_indptr[sequence + 1]) & (entry < num_entries)
    page = framework.cast(kv_indices[entry * valid], "int64")
    return (page * page_size + positions % page_size + 1) * valid - 1


def append_paged_kv_cache(
    append_key: Any, append_value: Any, batch_indices: Any, positions: Any, paged_kv_cache: Any, kv_indices: Any, kv_indptr: Any,
    kv_last_page_len: Any, kv_layout: str = "NHD",
) -> None:  # fmt: skip
    """append_key, append_value: [nnz, num_kv_heads, head_dim]. paged_kv_cache: (k, v), or one [pages, 2, ..]; each
    [pages, page_size, num_kv_heads, head_dim] (NHD) or [pages, num_kv_heads, page_size, head_dim] (HND). A token with a negative batch
    index is not written; nor is one whose position is not in its sequence's pages."""
    k, v = _caches(paged_kv_cache, kv_layout)
    slots = _slots(batch_indices, positions, kv_indices, kv_indptr, k.shape[1 if kv_layout == "NHD" else 2])
    attention_prologue(
        k=append_key, v=append_value, cache=PagedKv(k, v, layout="nhd" if kv_layout == "NHD" else "hnd"), places=TokenPlaces(slot_mapping=slots)
    )


def append_paged_mla_kv_cache(
    append_ckv: Any, append_kpe: Any, batch_indices: Any, positions: Any, ckv_cache: Optional[Any], kpe_cache: Optional[Any],
    kv_indices: Any, kv_indptr: Any, kv_last_page_len: Any,
) -> None:  # fmt: skip
    """append_ckv: [nnz, ckv_dim]; append_kpe: [nnz, kpe_dim]; ckv_cache, kpe_cache: [pages, page_size, dim], of any dimensions. One of
    the caches may be None; then its part is not written."""
    pages = ckv_cache if ckv_cache is not None else kpe_cache
    if pages is None:
        return
    slots = _slots(batch_indices, positions, kv_indices, kv_indptr, pages.shape[1])
    if all(cache is None or (cache.shape[2] % 16 == 0 and cache.shape[2] <= 1024) for cache in (ckv_cache, kpe_cache)):
        mla_prologue(
            None if ckv_cache is None else append_ckv, None if kpe_cache is None else append_kpe, ckv_cache=ckv_cache, kpe_cache=kpe_cache,
            slot_mapping=slots,
        )  # fmt: skip
        return
    ckv, kpe = (append_ckv[:, None] if ckv_cache is not None else None), (append_kpe[:, None] if kpe_cache is not None else None)
    pages = [None if part is None else part[:, :, None] for part in (ckv_cache, kpe_cache)]
    cache = PagedKv(*pages)
    attention_prologue(k=ckv, v=kpe, cache=cache, places=TokenPlaces(slot_mapping=slots))


def get_seq_lens(kv_indptr: Any, kv_last_page_len: Any, page_size: int) -> Any:
    """[batch_size]: the tokens in the cache. A sequence without pages has kv_last_page_len tokens."""
    return (kv_indptr[1:] - kv_indptr[:-1] - 1).clip(0) * page_size + kv_last_page_len


def get_batch_indices_positions(
    append_indptr: Any, seq_lens: Any, nnz: int, batch_indices: Optional[Any] = None, positions: Optional[Any] = None
) -> Tuple[Any, Any]:
    """The sequence and the position of each of nnz new tokens, int32 [nnz]. seq_lens: tokens after this step's were appended. Rows past
    the last sequence get batch index -1 and position 0. batch_indices and positions: where to write; None: new arrays. Some operations
    of the caller's framework."""
    framework = framework_of(append_indptr)
    row = framework.arange(append_indptr, nnz, "int32")
    batch_indices = framework.zeros(row, (nnz,)) if batch_indices is None else batch_indices
    positions = framework.zeros(row, (nnz,)) if positions is None else positions
    if append_indptr.shape[0] < 2:  # no sequences
        batch_indices[...] = -1
        positions[...] = 0
        return batch_indices, positions
    sequence = (row[:, None] >= append_indptr[None, 1:]).sum(1)
    used = sequence < append_indptr.shape[0] - 1
    sequence = sequence * used
    position = (row + seq_lens[sequence] - append_indptr[sequence + 1]) * used
    batch_indices[...] = (sequence + 1) * used - 1
    positions[...] = position
    return batch_indices, positions


_FP8 = {"float8_e4m3fn": "fp8_e4m3", "float8_e5m2": "fp8_e5m2"}


def _name(dtype: Any) -> str:
    return str(getattr(dtype, "name", dtype)).split(".")[-1]


def _dequant_scale(like: Any, quant_scale: float) -> Any:
    """FlashInfer stores x * quant_scale; here the stored value is x / scale."""
    return _once(like, "float32", (float(quant_scale),), lambda scale: [1 / scale if scale != 0 else math.inf])


def _fp8_type(quantize_dtype: Any, *outputs: Any) -> str:
    if quantize_dtype is None:
        given = [one.dtype for one in outputs if one is not None]
        quantize_dtype = given[0] if given else "float8_e4m3fn"
    if _name(quantize_dtype) not in _FP8:
        raise ValueError(f"quantize_dtype is {quantize_dtype}: it must be float8_e4m3fn or float8_e5m2")
    return _name(quantize_dtype)


def _or_new(given: Optional[Any], like: Optional[Any], shape: Any, fp8: str) -> Any:
    return framework_of(like).zeros(like, tuple(shape), fp8) if given is None else given


def _split_rope(cos_sin_cache: Any, is_neox: bool) -> Rope:
    if _name(cos_sin_cache.dtype) != "float32":
        raise ValueError(f"cos_sin_cache is {cos_sin_cache.dtype}: it must be float32")
    return Rope("neox" if is_neox else "interleaved", cos_sin=cos_sin_cache, past_table="zero")


def rope_quantize_fp8_append_paged_kv_cache(
    q_rope: Any, k_rope: Any, q_nope: Optional[Any], k_nope: Optional[Any], v: Optional[Any], cos_sin_cache: Any, pos_ids: Any,
    paged_kv_cache: Tuple[Any, Any], kv_indices: Any, kv_indptr: Any, batch_indices: Any, positions: Any, is_neox: bool = True,
    quantize_dtype: Any = None, quant_scale_q: float = 1.0, quant_scale_kv: float = 1.0, page_size: int = 16, kv_layout: str = "NHD",
    q_rope_out: Optional[Any] = None, q_nope_out: Optional[Any] = None, enable_pdl: bool = False,
) -> Tuple[Any, Any]:  # fmt: skip
    """Rotates q_rope and k_rope, and quantises all parts to fp8: Q into (q_rope_out, q_nope_out), which are returned, K and V into the
    paged cache. GQA: k_rope [nnz, num_kv_heads, rope_dim], v, and paged_kv_cache = (k, v); a head of K is its rotated channels, then the
    others. MLA: k_rope [nnz, rope_dim], no v, and paged_kv_cache = (ckv, kpe), each [pages, page_size, dim].

    One launch if there are no parts without rotation, else two."""
    fp8 = _fp8_type(quantize_dtype, q_rope_out, q_nope_out)
    rope_dim, mla = q_rope.shape[2], len(k_rope.shape) == 2
    nope_dim = 0 if q_nope is None else q_nope.shape[2]
    q_rope_out = _or_new(q_rope_out, q_rope, q_rope.shape, fp8)
    q_nope_out = _or_new(q_nope_out, q_rope, (*q_rope.shape[:2], nope_dim), fp8)
    scale_q, scale_kv = _dequant_scale(q_rope, quant_scale_q), _dequant_scale(q_rope, quant_scale_kv)
    if mla:
        if v is not None:
            raise ValueError("v is given, and k_rope has 2 axes, as for MLA: v must be None")
        ckv, kpe = paged_kv_cache
        layout: Any = "nhd"
        k_cache, v_cache = kpe[:, :, None], ckv[:, :, None]
        k, v = k_rope[:, None], None if k_nope is None else k_nope[:, None]
        rest: Any = None
    else:
        if v is None:
            raise ValueError("v is None: it must be given unless k_rope has 2 axes, as for MLA")
        (k_cache, v_cache), layout = _caches(paged_kv_cache, kv_layout), kv_layout.lower()
        k, rest, rest_cache = k_rope, k_nope, k_cache[..., rope_dim:]
        k_cache = k_cache[..., :rope_dim]
    for name, cache in (("K", k_cache), ("V", v_cache)):
        if _name(cache.dtype) != fp8:
            raise ValueError(f"the cache of {name} is {cache.dtype}: it must be of the type that is stored, {fp8}")
    slots = _slots(batch_indices, positions, kv_indices, kv_indptr, page_size)
    if k_cache.shape[2 if layout == "hnd" else 1] != page_size:
        raise ValueError(f"page_size is {page_size}: the pages of the cache have {k_cache.shape[2 if layout == 'hnd' else 1]} tokens")
    attention_prologue(
        q_rope, k, v, q8_out=q_rope_out, q8_scale=scale_q, rope=_split_rope(cos_sin_cache, is_neox),
        cache=PagedKv(k_cache, None if v is None else v_cache, scale_kv, scale_kv, layout=layout, scaling="tensor"),
        places=TokenPlaces(pos_ids, slots),
    )  # fmt: skip
    if nope_dim > 0 or (rest is not None and rest.shape[2] > 0):
        cache = None if rest is None else PagedKv(rest_cache, None, scale_kv, layout=layout, scaling="tensor")
        attention_prologue(
            q_nope, rest, q8_out=q_nope_out, q8_scale=scale_q, cache=cache, places=TokenPlaces(slot_mapping=slots)
        )
    return q_rope_out, q_nope_out


def rope_quantize_fp8(
    q_rope: Any, k_rope: Any, q_nope: Optional[Any], k_nope: Optional[Any], cos_sin_cache: Any, pos_ids: Any, is_neox: bool = True,
    quantize_dtype: Any = None, quant_scale_q: float = 1.0, quant_scale_kv: float = 1.0, q_rope_out: Optional[Any] = None,
    k_rope_out: Optional[Any] = None, q_nope_out: Optional[Any] = None, k_nope_out: Optional[Any] = None, enable_pdl: bool = False,
    backend: str = "cuda",
) -> Tuple[Any, Any, Any, Any]:  # fmt: skip
    """As rope_quantize_fp8_append_paged_kv_cache, but K goes to (k_rope_out, k_nope_out) as well. Returns all four outputs. A launch for
    each input. k_rope, k_nope: [nnz, num_kv_heads, dim] or [nnz, dim]."""
    if backend != "cuda":
        raise NotImplementedError(f"backend is {backend!r}: supported is 'cuda'")
    fp8 = _fp8_type(quantize_dtype, q_rope_out, k_rope_out, q_nope_out, k_nope_out)
    rope, outputs = _split_rope(cos_sin_cache, is_neox), []
    for x, out, place, rotated, quant_scale in (
        (q_rope, q_rope_out, q_rope, rope, quant_scale_q),
        (k_rope, k_rope_out, k_rope, rope, quant_scale_kv),
        (q_nope, q_nope_out, q_rope, None, quant_scale_q),
        (k_nope, k_nope_out, k_rope, None, quant_scale_kv),
    ):
        out = _or_new(out, place, (*place.shape[:-1], 0) if x is None else x.shape, fp8)
        outputs.append(out)
        if x is None or x.shape[-1] == 0:
            continue
        heads, to = (x[:, None], out[:, None]) if len(x.shape) == 2 else (x, out)
        attention_prologue(
            heads, q8_out=to, q8_scale=_dequant_scale(x, quant_scale), rope=rotated,
            places=None if rotated is None else TokenPlaces(pos_ids),
        )  # fmt: skip
    return tuple(outputs)


def mla_rope_quantize_fp8(
    q_rope: Any, k_rope: Any, q_nope: Any, k_nope: Any, cos_sin_cache: Any, pos_ids: Any, is_neox: bool = True,
    quantize_dtype: Any = None, quant_scale_q: float = 1.0, quant_scale_kv: float = 1.0, q_rope_out: Optional[Any] = None,
    k_rope_out: Optional[Any] = None, q_nope_out: Optional[Any] = None, k_nope_out: Optional[Any] = None, enable_pdl: bool = False,
) -> Tuple[Any, Any, Any, Any]:  # fmt: skip
    """rope_quantize_fp8 of MLA: k_rope [nnz, rope_dim], k_nope [nnz, nope_dim]."""
    return rope_quantize_fp8(
        q_rope, k_rope, q_nope, k_nope, cos_sin_cache, pos_ids, is_neox, quantize_dtype, quant_scale_q, quant_scale_kv, q_rope_out,
        k_rope_out, q_nope_out, k_nope_out,
    )  # fmt: skip


def cake_fused_qk_rmsnorm_rope_append_paged_kv_cache(
    qkv: Any, cos_sin: Any, seq_lens: Any, q_indptr: Any, page_indices: Any, key_cache: Any, value_cache: Any, *, num_q_heads: int,
    num_kv_heads: int, qk_norm_policy: int = 0, q_norm_weight: Optional[Any] = None, k_norm_weight: Optional[Any] = None,
    eps: float = 1e-6, out_q: Optional[Any] = None, out_k: Optional[Any] = None, out_v: Optional[Any] = None,
    clear_unused_last_page_rows: bool = True,
) -> Any:  # fmt: skip
    """qkv: [T, (num_q_heads + 2 * num_kv_heads) * head_dim]; page_indices: [B, max_pages]; seq_lens: [B], tokens after this step's were
    appended; caches [pages, page_size, num_kv_heads, head_dim]. qk_norm_policy: 0 no norm, 1 after the rotation, 2 before. Returns q.
    Any numbers of heads and any type and width of heads. With out_k (out_v), K (V) goes there instead of the cache.

    One launch; to clear the unused rows of the last pages takes some operations of the caller's framework more, and needs seq_lens > 0."""
    if qk_norm_policy not in (0, 1, 2):
        raise ValueError(f"qk_norm_policy is {qk_norm_policy}: it must be 0, 1 or 2")
    if qk_norm_policy != 0 and (q_norm_weight is None or k_norm_weight is None):
        raise ValueError(f"qk_norm_policy is {qk_norm_policy}: q_norm_weight and k_norm_weight must be given")
    q_norm, k_norm = (
        HeadNorm("after_rope" if qk_norm_policy == 1 else "before_rope", weight, eps=eps) if qk_norm_policy else None
        for weight in (q_norm_weight, k_norm_weight)
    )
    head_dim = key_cache.shape[3]
    cache: Optional[PagedKv] = PagedKv(None if out_k is not None else key_cache, None if out_v is not None else value_cache)
    if out_k is not None and out_v is not None:
        cache = None
    result = attention_prologue(
        qkv=qkv, num_q_heads=num_q_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, cache=cache, q_norm=q_norm, k_norm=k_norm,
        rope=Rope(cos_sin=cos_sin, past_table="zero"), q_out=out_q, k_out=out_k, v_out=out_v,
        places=TokenPlaces(cu_seqlens_q=q_indptr, seq_lens=seq_lens, page_table=PageTable(block_table=page_indices)),
    )  # fmt: skip
    if clear_unused_last_page_rows:
        framework, page_size = framework_of(qkv), key_cache.shape[1]
        last = seq_lens - 1
        page = page_indices[framework.arange(last, last.shape[0], "int64"), last // page_size]
        used = framework.arange(last, page_size, "int32")[None] <= (last % page_size)[:, None]
        for pages in (key_cache, value_cache):
            rows = pages[page]
            rows[~used] = 0
            pages[page] = rows
    return result
