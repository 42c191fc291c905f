"""flash-attn 2.8.3: flash_attn.ops.triton.rotary.apply_rotary, and the functions of flash_attn.layers.rotary.

As there, a position past the end of cos and sin leaves its token unrotated, and gradients are those of x, not of cos and sin.
"""

from typing import Any, Dict, Optional, Union

from .. import Rope, rotary
from .._frameworks import framework_of


def _rope(cos: Any, sin: Any, interleaved: bool, conjugate: bool) -> Rope:
    return Rope("interleaved" if interleaved else "neox", cos=cos, sin=sin, inverse=conjugate, past_table="identity")


def _offsets(seqlen_offsets: Any) -> Dict[str, Any]:
    return {"offset": seqlen_offsets} if isinstance(seqlen_offsets, int) else {"offsets": seqlen_offsets}


def apply_rotary(
    x: Any,
    cos: Any,
    sin: Any,
    seqlen_offsets: Union[int, Any] = 0,
    cu_seqlens: Optional[Any] = None,
    max_seqlen: Optional[int] = None,
    interleaved: bool = False,
    inplace: bool = False,
    conjugate: bool = False,
) -> Any:
    """x: [batch, seqlen, nheads, headdim], or with cu_seqlens [batch + 1] [total_seqlen, nheads, headdim]. cos, sin: [seqlen_ro,
    rotary_dim / 2]. seqlen_offsets: an int, or [batch]."""
    if cu_seqlens is not None and max_seqlen is None:
        raise ValueError("max_seqlen is None: with cu_seqlens it must be given")
    options = _offsets(seqlen_offsets)
    if cu_seqlens is not None:
        options.update(cu_seqlens=cu_seqlens, max_seqlen=max_seqlen)
    return rotary(x, rope=_rope(cos, sin, interleaved, conjugate), inplace=inplace, **options)


def _in_place(x: Any, run: Any) -> Any:
    """Runs run(x, conjugate), which rotates x in place; with gradients, if torch needs them."""
    dispatcher = framework_of(x).dispatcher
    if dispatcher is not None and x.requires_grad:
        from ._torch import rotated_in_place

        return rotated_in_place(x, run)
    run(x, False)
    return x


def apply_rotary_emb(
    x: Any,
    cos: Any,
    sin: Any,
    interleaved: bool = False,
    inplace: bool = False,
    seqlen_offsets: Union[int, Any] = 0,
    cu_seqlens: Optional[Any] = None,
    max_seqlen: Optional[int] = None,
) -> Any:
    """apply_rotary, with gradients."""

    def run(part: Any, conjugate: bool) -> Any:
        return apply_rotary(part, cos, sin, seqlen_offsets, cu_seqlens, max_seqlen, interleaved, inplace, conjugate)

    return _in_place(x, run) if inplace else run(x, False)


apply_rotary_emb_func = apply_rotary_emb


def apply_rotary_emb_qkv_(
    qkv: Any,
    cos: Any,
    sin: Any,
    cos_k: Optional[Any] = None,
    sin_k: Optional[Any] = None,
    interleaved: bool = False,
    seqlen_offsets: Union[int, Any] = 0,
    num_heads_q: Optional[int] = None,
) -> Any:
    """qkv: [batch, seqlen, 3, nheads, headdim], or [batch, seqlen, num_heads_q + 2 * num_heads_k, headdim]. Q and K are rotated in
    place; returns qkv. cos_k, sin_k: of K, if they are not those of Q."""
    if len(qkv.shape) not in (4, 5):
        raise ValueError(f"qkv has the shape {list(qkv.shape)}: it must have 4 or 5 axes")
    if len(qkv.shape) == 5 and qkv.shape[2] != 3:
        raise ValueError(f"qkv has the shape {list(qkv.shape)}: axis 2 must have 3 elements, q, k and v")
    if len(qkv.shape) == 4:
        if num_heads_q is None:
            raise ValueError("num_heads_q is None: with 4 axes it must be given")
        if not 0 < num_heads_q < qkv.shape[2] or (qkv.shape[2] - num_heads_q) % 2 != 0:
            raise ValueError(
                f"num_heads_q is {num_heads_q}, and qkv has {qkv.shape[2]} heads: it must have num_heads_q + 2 * num_heads_k of them"
            )

    def run(packed: Any, conjugate: bool) -> None:
        if len(packed.shape) == 5:
            q, k = packed[:, :, 0], packed[:, :, 1]
        else:
            num_heads_k = (packed.shape[2] - num_heads_q) // 2
            q, k = packed[:, :, :num_heads_q], packed[:, :, num_heads_q : num_heads_q + num_heads_k]
        options = _offsets(seqlen_offsets)
        rope = _rope(cos, sin, interleaved, conjugate)
        if cos_k is None and sin_k is None:
            rotary(q, k, rope=rope, inplace=True, **options)
        else:
            rotary(q, rope=rope, inplace=True, **options)
            rope_k = _rope(cos if cos_k is None else cos_k, sin if sin_k is None else sin_k, interleaved, conjugate)
            rotary(k, rope=rope_k, inplace=True, **options)

    return _in_place(qkv, run)


def apply_rotary_emb_kv_(kv: Any, cos: Any, sin: Any, interleaved: bool = False, seqlen_offsets: Union[int, Any] = 0) -> Any:
    """kv: [batch, seqlen, 2, nheads, headdim]. K is rotated in place; returns kv."""
    if len(kv.shape) != 5 or kv.shape[2] != 2:
        raise ValueError(f"kv has the shape {list(kv.shape)}: it must be [batch, seqlen, 2, nheads, headdim]")

    def run(packed: Any, conjugate: bool) -> None:
        rotary(packed[:, :, 0], rope=_rope(cos, sin, interleaved, conjugate), inplace=True, **_offsets(seqlen_offsets))

    return _in_place(kv, run)
