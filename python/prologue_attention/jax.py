"""The operations for JAX, in and outside of jax.jit. They need the package jax-tvm-ffi.

JAX arrays are not written: an operation returns what it would write. A cache is donated where it is the last use of it
(jax.jit(.., donate_argnums=..)); otherwise XLA copies it first. There are no gradients.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Tuple, TypedDict, overload

import jax
import jax.numpy as jnp
import jax_tvm_ffi  # type: ignore[import-untyped,import-not-found,unused-ignore]

from . import _extension
from ._arguments import ATTENTION_PROLOGUE, PAGED_ATTENTION, ROTARY, Operation
from ._frameworks import leaves_elements, may_pad
from ._groups import HeadNorm, Layout, PagedKv, PageTable, QueryScale, Rope, RotaryTensor, Rounding, Tail, TokenPlaces, channels_per_element

if TYPE_CHECKING:
    from typing_extensions import Unpack


@functools.lru_cache(maxsize=None)
def _register(platform: str) -> str:
    name = f"prologue.{platform}"
    jax_tvm_ffi.register_ffi_target(
        name, _extension.jax, ["attrs.call", "args", "rets"], platform="cpu" if platform == "cpu" else "gpu", allow_cuda_graph=True
    )
    return name


def _is_array(value: Any) -> bool:
    return isinstance(value, jax.ShapeDtypeStruct) or (hasattr(value, "shape") and hasattr(value, "dtype"))


def _call(operation: Operation, arguments: Sequence[Any], written: Sequence[Any]) -> Tuple[Any, ...]:
    """Runs an operation. `written`: those of the arguments that it writes: shapes, for new arrays all of whose elements it writes, or
    arrays, which are replaced.
    Returns what they have become."""
    written = [value for value in written if value is not None]
    outputs = {id(value): i for i, value in enumerate(written)}
    inputs: List[Any] = []
    places: Dict[int, int] = {}
    aliases: Dict[int, int] = {}
    for value in arguments:
        if _is_array(value) and not isinstance(value, jax.ShapeDtypeStruct) and id(value) not in places:
            places[id(value)] = len(inputs)
            if id(value) in outputs:
                aliases[len(inputs)] = outputs[id(value)]
            inputs.append(value)
    lines = [operation.name]
    for value in arguments:
        if value is None:
            lines.append("n")
        elif _is_array(value):
            written_at = outputs.get(id(value))
            lines.append(f"t{places[id(value)]}" if written_at is None else f"t{len(inputs) + written_at}")
        elif isinstance(value, bool):
            lines.append(f"b{int(value)}")
        elif isinstance(value, int):
            lines.append(f"i{value}")
        elif isinstance(value, float):
            lines.append(f"f{value!r}")
        else:
            lines.append(f"s{value}")
    shapes = tuple(jax.ShapeDtypeStruct(value.shape, value.dtype) for value in written)  # type: ignore[no-untyped-call,unused-ignore]
    name = _register("cpu" if jax.default_backend() == "cpu" else "gpu")
    return tuple(jax.ffi.ffi_call(name, shapes, input_output_aliases=aliases)(*inputs, call="\n".join(lines)))


class _RotaryOptions(TypedDict, total=False):
    positions: Optional[jax.Array]
    layout: Optional[Layout]
    tail: Tail
    offset: int
    offsets: Optional[jax.Array]
    cu_seqlens: Optional[jax.Array]
    max_seqlen: Optional[int]


@overload
def rotary(x: jax.Array, /, *, rope: Rope, **options: Unpack[_RotaryOptions]) -> jax.Array: ...
@overload
def rotary(x: jax.Array, second: jax.Array, /, *more: jax.Array, rope: Rope, **options: Unpack[_RotaryOptions]) -> Tuple[jax.Array, ...]: ...
def rotary(
    *x: Any,
    rope: Rope,
    positions: Optional[jax.Array] = None,
    layout: Optional[Layout] = None,
    tail: Tail = "copy",
    offset: int = 0,
    offsets: Optional[jax.Array] = None,
    cu_seqlens: Optional[jax.Array] = None,
    max_seqlen: Optional[int] = None,
) -> Any:
    """prologue_attention.rotary into new arrays. On a GPU a rope with a table needs past_table "zero" or "identity"."""
    new = jnp.zeros if leaves_elements(tail, positions, cu_seqlens) else jax.ShapeDtypeStruct
    outputs: List[Any] = [new(one.shape, one.dtype) for one in x]
    tensors = [value for one, out in zip(x, outputs) for value in RotaryTensor(x=one, out=out, rotate=True)]
    options: Dict[str, Any] = dict(rope=rope, positions=positions, layout=layout, tail=tail, offset=offset, offsets=offsets)
    arguments = ROTARY.arguments(**options, cu_seqlens=cu_seqlens, max_seqlen=max_seqlen)
    results = _call(ROTARY, (len(x), *tensors, *arguments[1:]), outputs)
    return results[0] if len(x) == 1 else results


def attention_prologue(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    cache: PagedKv,
    rope: Optional[Rope] = None,
    places: Optional[TokenPlaces] = None,
    q_bias: Optional[jax.Array] = None,
    k_bias: Optional[jax.Array] = None,
    v_bias: Optional[jax.Array] = None,
    q_norm: Optional[HeadNorm] = None,
    k_norm: Optional[HeadNorm] = None,
    v_norm: Optional[HeadNorm] = None,
    hadamard_block: int = 0,
    v_hadamard_block: int = 0,
    q_scale: Optional[QueryScale] = None,
    k_constant: float = 1.0,
    v_constant: float = 1.0,
    rounding: Rounding = "once",
) -> Tuple[jax.Array, PagedKv]:
    """prologue_attention.attention_prologue. Returns q and the cache with K and V written. On a GPU a rope with a table needs past_table "zero"
    or "identity"."""
    if rope is not None and rope.theta is not None and rope.rotary_dim is not None:
        width = rope.rotary_dim // rope.num_blocks
        inv_freq = jnp.asarray([rope.theta ** (-2.0 * column / width) for column in range(width // 2)], jnp.float32)
        rope = rope._replace(theta=None, inv_freq=inv_freq)
    q_out = (jnp.zeros if may_pad(places) else jax.ShapeDtypeStruct)(q.shape, q.dtype)
    arguments = ATTENTION_PROLOGUE.arguments(
        q=q, k=k, v=v, v_from_k=False, q_out=q_out, cache=cache, q_bias=q_bias, k_bias=k_bias, v_bias=v_bias, q_norm=q_norm, k_norm=k_norm,
        v_norm=v_norm, rope=rope, places=places, hadamard_block=hadamard_block, v_hadamard_block=v_hadamard_block, q_scale=q_scale,
        k_constant=k_constant, v_constant=v_constant, rounding=rounding,
    )  # fmt: skip
    scales = ("k_scale", "v_scale") if cache.scaling == "token_head" else ()
    names = [name for name in ("k", "v", *scales, "k_block_scale", "v_block_scale") if getattr(cache, name) is not None]
    q_result, *written = _call(ATTENTION_PROLOGUE, arguments, [q_out, *(getattr(cache, name) for name in names)])
    return q_result, cache._replace(**dict(zip(names, written)))


def paged_attention(
    q: jax.Array,
    cache: PagedKv,
    *,
    page_table: PageTable,
    cu_seqlens_q: jax.Array,
    seq_lens: Optional[jax.Array] = None,
    scale: Optional[float] = None,
    soft_cap: float = 0.0,
    window: int = 0,
    chunk: int = 0,
    ring_size: int = 0,
    sinks: Optional[jax.Array] = None,
    max_seqlen_q: Optional[int] = None,
    max_seq_len: Optional[int] = None,
    num_decode_seqs: int = 0,
    workspace_bytes: int = 0,
) -> jax.Array:
    """prologue_attention.paged_attention. workspace_bytes: on a GPU, of the scratch memory."""
    v_dim = q.shape[2] if cache.v is None else cache.v.shape[3] * channels_per_element(cache.v_type)
    out = jnp.zeros((q.shape[0], q.shape[1], v_dim), q.dtype)
    workspace = jax.ShapeDtypeStruct((workspace_bytes,), jnp.uint8) if workspace_bytes > 0 else None  # type: ignore[no-untyped-call,unused-ignore]
    arguments = PAGED_ATTENTION.arguments(
        q=q, out=out, cache=cache, cu_seqlens_q=cu_seqlens_q, seq_lens=seq_lens, page_table=page_table, scale=scale, soft_cap=soft_cap,
        window=window, chunk=chunk, ring_size=ring_size, sinks=sinks, max_seqlen_q=max_seqlen_q, max_seq_len=max_seq_len,
        num_decode_seqs=num_decode_seqs, batch_invariant=False, workspace=workspace,
    )  # fmt: skip
    result: jax.Array = _call(PAGED_ATTENTION, arguments, [out, workspace])[0]
    return result
