"""The options of the operations, for the overloads of _operations.py: what a type checker knows of a call. help() has them with their
defaults. tests/test_names.py compares both."""

from typing import Optional, Sequence, TypedDict

from ._groups import Array, HeadGroup, HeadNorm, Layout, MlaCacheType, PagedKv, QueryScale, Rope, Rounding, Tail, TokenPlaces


class _FaultOptions(TypedDict, total=False):
    faults: Optional[Array]
    token_faults: Optional[Array]


class RotaryOptions(_FaultOptions, total=False):
    positions: Optional[Array]
    inplace: bool
    layout: Optional[Layout]
    tail: Tail
    rotate: Optional[Sequence[bool]]
    offset: int
    offsets: Optional[Array]
    cu_seqlens: Optional[Array]
    max_seqlen: Optional[int]


class PrologueOptions(_FaultOptions, total=False):
    """Those of attention_prologue but q, q8_out and qkv, which tell what it returns."""

    num_q_heads: Optional[int]
    num_kv_heads: Optional[int]
    head_dim: Optional[int]
    v_head_dim: Optional[int]
    v_from_k: bool
    cache: Optional[PagedKv]
    rope: Optional[Rope]
    places: Optional[TokenPlaces]
    q_rope: Optional[Array]
    k_rope: Optional[Array]
    q_bias: Optional[Array]
    k_bias: Optional[Array]
    v_bias: Optional[Array]
    q_norm: Optional[HeadNorm]
    k_norm: Optional[HeadNorm]
    v_norm: Optional[HeadNorm]
    hadamard_block: int
    v_hadamard_block: int
    q_scale: Optional[QueryScale]
    k_constant: float
    v_constant: float
    rounding: Rounding
    groups: Optional[Sequence[HeadGroup]]
    q8_scale: Optional[Array]
    k_out: Optional[Array]
    v_out: Optional[Array]


class MlaOptions(_FaultOptions, total=False):
    """Those of mla_prologue but q_pe, which tells what it returns."""

    kv_cache: Optional[Array]
    ckv_cache: Optional[Array]
    kpe_cache: Optional[Array]
    cache_type: Optional[MlaCacheType]
    cache_scale: Optional[Array]
    slot_mapping: Optional[Array]
    norm: Optional[HeadNorm]
    k_pe_norm: Optional[HeadNorm]
    rope: Optional[Rope]
    positions: Optional[Array]
    kv_c_out: Optional[Array]
    k_pe_out: Optional[Array]
