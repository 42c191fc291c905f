"""TransformerEngine 2.20: apply_rotary_pos_emb and apply_fused_qkv_rotary_pos_emb of transformer_engine.pytorch.attention.rope.

freqs are angles, [s2, 1, 1, d2] float32; the kernel computes their cos and sin. Gradients are those of the tensors, not of freqs. With
context parallelism the positions are made by some operations of the caller's framework. A position past freqs raises (CPU) or gives zeros
(CUDA).
"""

from typing import Any, Dict, List, Optional, Tuple

from .. import Rope, rotary
from .._frameworks import framework_of

_LAYOUTS = {"sbhd": "sbhd", "bshd": "bshd", "thd": "shd"}


def _rope(freqs: Any, interleaved: bool, on_cuda: bool) -> Rope:
    if len(freqs.shape) != 4 or freqs.shape[1] != 1 or freqs.shape[2] != 1:
        raise ValueError(f"freqs has the shape {list(freqs.shape)}: it must be [s2, 1, 1, d2]")
    style: Any = "interleaved" if interleaved else "neox"
    return Rope(style, freqs.shape[3], angles=freqs[:, 0, 0], width="full", past_table="zero" if on_cuda else "record")


def _on_cuda(x: Any) -> bool:
    return "cuda" in str(getattr(x, "device", "cpu"))


def _chunk_positions(index: Any, length: Any, cp_size: int, cp_rank: int) -> Any:
    """The position of a rank's token `index` of a sequence that has `length` tokens on this rank: chunk cp_rank from the front, then
    chunk cp_rank from the back."""
    half = length // 2
    return index + cp_rank * half + (index >= half) * (length * cp_size - 2 * (cp_rank + 1) * half)


def _positions(t: Any, tensor_format: str, start_positions: Any, cu_seqlens: Any, cp_size: int, cp_rank: int) -> Any:
    """Those of context parallelism: [tokens] ("thd"), [seq_len], or [batch, seq_len] with start_positions."""
    if not 0 <= cp_rank < cp_size:
        raise ValueError(f"cp_rank is {cp_rank}: it must lie in 0..cp_size - 1, {cp_size - 1}")
    length = t.shape[tensor_format.index("s" if "s" in tensor_format else "t")]
    index = framework_of(t).arange(t, length, "int64")
    if tensor_format == "thd":
        ends = cu_seqlens // cp_size
        sequence = (index[:, None] >= ends[None, 1:-1]).sum(1)
        begin = ends[sequence]
        positions = _chunk_positions(index - begin, ends[sequence + 1] - begin, cp_size, cp_rank)
        positions = positions if start_positions is None else positions + start_positions[sequence]
        return (positions + 1) * (index < ends[-1]) - 1  # tokens behind the last sequence are padding
    if length % 2 != 0:
        raise ValueError(f"a sequence has {length} tokens on this rank: with context parallelism it must be even")
    positions = _chunk_positions(index, length, cp_size, cp_rank)
    return positions if start_positions is None else positions[None] + start_positions[:, None]


def _dense(x: Any) -> Any:
    return framework_of(x).contiguous(x)


def apply_rotary_pos_emb(
    t: Any,
    freqs: Any,
    tensor_format: str = "sbhd",
    start_positions: Optional[Any] = None,
    interleaved: bool = False,
    fused: bool = False,
    cu_seqlens: Optional[Any] = None,
    cp_size: int = 1,
    cp_rank: int = 0,
) -> Any:
    """t: [s, b, h, d], [b, s, h, d] or [t, h, d]. start_positions: [b], added to the positions. cu_seqlens: [b + 1], for "thd"; with
    context parallelism those of the whole sequences. fused has no effect. The result is contiguous."""
    if tensor_format not in _LAYOUTS:
        raise ValueError(f"tensor_format is {tensor_format!r}: it must be one of 'sbhd', 'bshd', 'thd'")
    if tensor_format == "thd" and cu_seqlens is None:
        raise ValueError("cu_seqlens is None: with 'thd' it must be given")
    options: Dict[str, Any] = {}
    layout: Any = _LAYOUTS[tensor_format]
    if cp_size > 1:
        options["positions"] = _positions(t, tensor_format, start_positions, cu_seqlens, cp_size, cp_rank)
    else:
        options["offsets"] = start_positions
        if tensor_format == "thd":
            options["cu_seqlens"] = cu_seqlens
    return _dense(rotary(t, rope=_rope(freqs, interleaved, _on_cuda(t)), layout=layout, **options))


def apply_fused_qkv_rotary_pos_emb(
    qkv: Any,
    q_freqs: Any,
    k_freqs: Any,
    qkv_split_arg_list: List[int],
    tensor_format: str = "sbhd",
    start_positions: Optional[Any] = None,
    interleaved: bool = False,
    cu_seqlens: Optional[Any] = None,
    cp_size: int = 1,
    cp_rank: int = 0,
) -> Tuple[Any, Any, Any]:
    """qkv: [s, b, h, sum of the split] (or "bshd"), h groups of query heads, a key head and a value head. Returns q with
    h * split[0] / split[1] heads, k and v, each in a new tensor."""
    if tensor_format not in ("sbhd", "bshd"):
        raise ValueError(f"tensor_format is {tensor_format!r}: it must be 'sbhd' or 'bshd'")
    q_size, k_size, v_size = qkv_split_arg_list
    if qkv.shape[3] != q_size + k_size + v_size or k_size != v_size or q_size % k_size != 0:
        raise ValueError(f"qkv_split_arg_list is {list(qkv_split_arg_list)}: the last axis of qkv has {qkv.shape[3]} elements")
    groups = qkv.shape[2]
    framework = framework_of(qkv)
    options: Dict[str, Any] = {}
    if cp_size > 1:
        if start_positions is not None:
            raise NotImplementedError("start_positions is given, and cp_size is more than 1: it is one or the other")
        positions = _positions(qkv, tensor_format, None, None, cp_size, cp_rank)
    elif tensor_format == "bshd":
        positions = framework.arange(qkv, qkv.shape[1], "int64")
    # A group has heads at one stride, so the groups become sequences: with those of the batch, or (bshd) with the batch among the tokens.
    if tensor_format == "sbhd":
        length, batch = qkv.shape[:2]
        packed = qkv.reshape(length, batch * groups, qkv.shape[3])
        if cp_size > 1:
            options["positions"] = positions
        elif start_positions is not None:
            options["offsets"] = (start_positions[:, None] + framework.array(qkv, [0] * groups, "int64")[None]).reshape(-1)
    else:
        batch, length = qkv.shape[:2]
        packed = qkv.reshape(batch * length, groups, qkv.shape[3])
        starts = framework.array(qkv, [0] * batch, "int64") if start_positions is None else start_positions
        options["positions"] = (starts[:, None] + positions[None]).reshape(-1)

    def heads(begin: int, end: int) -> Any:
        return packed[:, :, begin:end].reshape(*packed.shape[:2], (end - begin) // k_size, k_size)

    q, k, v = heads(0, q_size), heads(q_size, q_size + k_size), heads(q_size + k_size, q_size + k_size + v_size)
    q_rope, k_rope = (_rope(freqs, interleaved, _on_cuda(qkv)) for freqs in (q_freqs, k_freqs))
    if q_freqs is k_freqs:
        results = rotary(q, k, v, rope=q_rope, rotate=[True, True, False], layout="sbhd", **options)
    else:
        results = (
            rotary(q, rope=q_rope, layout="sbhd", **options),
            *rotary(k, v, rope=k_rope, rotate=[True, False], layout="sbhd", **options),
        )
    return tuple(one.reshape(*qkv.shape[:2], groups * one.shape[2], k_size) for one in results)
