"""The operations. The tuple that each passes to the extension is in the order of its list in _arguments.py, where its names are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List, NamedTuple, Optional, Sequence, Tuple, TypeVar, Union, overload

from . import _extension
from ._arguments import ATTENTION_LAYER, ATTENTION_PROLOGUE, GATHER_COS_SIN, MLA_PROLOGUE, PAGED_ATTENTION, REROPE, ROTARY
from ._frameworks import explain, framework_of, groups_with_frequencies, leaves_elements, may_pad, with_frequencies
from ._groups import Array, HeadNorm, Layout, MlaCacheType, PagedKv, PageTable, PastTable, QueryScale, Rope, Rounding, Tail, TokenPlaces
from ._groups import HeadGroup, channels_per_element, flat, flat_groups, flat_places

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._options import MlaOptions, PrologueOptions, RotaryOptions

A = TypeVar("A", bound=Array)
Out = TypeVar("Out", bound=Array)

_NO_NORMS = (None, None, None)


@overload
def rotary(x: A, /, *, rope: Rope, out: Union[None, A, Sequence[A]] = ..., **options: Unpack[RotaryOptions]) -> A: ...
@overload
def rotary(x: A, second: A, /, *, rope: Rope, out: Optional[Sequence[A]] = ..., **options: Unpack[RotaryOptions]) -> Tuple[A, A]: ...
@overload
def rotary(
    x: A, second: A, third: A, /, *, rope: Rope, out: Optional[Sequence[A]] = ..., **options: Unpack[RotaryOptions]
) -> Tuple[A, A, A]: ...
@overload
def rotary(
    x: A, second: A, third: A, fourth: A, /, *, rope: Rope, out: Optional[Sequence[A]] = ..., **options: Unpack[RotaryOptions]
) -> Tuple[A, A, A, A]: ...
@overload
def rotary(*x: A, rope: Rope, out: Union[None, A, Sequence[A]] = ..., **options: Unpack[RotaryOptions]) -> Union[A, Tuple[A, ...]]: ...
def rotary(
    *x: Any,
    rope: Rope,
    positions: Optional[Array] = None,
    out: Any = None,
    inplace: bool = False,
    layout: Optional[Layout] = None,
    tail: Tail = "copy",
    rotate: Optional[Sequence[bool]] = None,
    offset: int = 0,
    offsets: Optional[Array] = None,
    cu_seqlens: Optional[Array] = None,
    max_seqlen: Optional[int] = None,
    faults: Optional[Array] = None,
    token_faults: Optional[Array] = None,
) -> Any:
    """y = rotate(x) for one to four tensors of heads, in one launch (kernels/rotary/rotary.h).

    x: [batch, seq_len, heads, head_dim] or [tokens, heads, head_dim], float32, float16, bfloat16 or float64. All strides are free.
        `layout` names the axes in another order: "sbhd", "bhsd", "hsd".
    rope: see Rope.
    positions: [seq_len] or [batch, seq_len]; with several axes [seq_len], [num_axes, seq_len] or [num_axes, batch, seq_len]. An axis in
        front of seq_len may have one element for all. Any integer dtype and strides. A negative one is padding: no row of the token
        is touched. None: the position is the token's number in its sequence + offset + offsets, where
        offsets is [sequences] or [1]. With cu_seqlens [sequences + 1] the sequences are packed one after another (batch 1).
    out: the results, as many as x; each may be its x itself, and nothing else may overlap. None: new arrays, with zeros where nothing
        is written. inplace: out = x.
    tail: what happens to the channels that are not rotated: "copy", "leave" (as they are in `out`) or "zero".
    rotate: for each x whether it is rotated; one that is not is copied.
    faults: [2] int64 zeros. Faults are counted there: see read_faults. Without it, a fault on the CPU raises IndexError after all
        other tokens are done; on CUDA a rope with past_table "record" needs it.
    token_faults: [batch * seq_len] uint8; a code is written for each faulty token.

    Returns one array for one x, else a tuple. Arithmetic is float32 (float64 for float64), rounded once.
    """
    if not x:
        raise TypeError("rotary takes 1 to 4 arrays: there are 0")
    framework = framework_of(x[0])
    options = (layout, tail) + flat(rope) + (positions, offset, offsets, cu_seqlens, max_seqlen, faults, token_faults)
    if out is not None:
        if not isinstance(out, (tuple, list)):
            out = (out,)
        if inplace or len(out) != len(x):
            raise ValueError(f"out has {len(out)} arrays for {len(x)}" if not inplace else "out and inplace are both given")
    if rotate is not None and len(rotate) != len(x):
        raise ValueError(f"rotate has {len(rotate)} elements for {len(x)} arrays")
    if framework.dispatcher is not None and framework.dispatcher.needed(x):
        return framework.dispatcher.rotary(x, x if inplace else out, rotate, options)
    if inplace:
        out = x
        count = len(x)
        if rotate is None and count <= 2:  # the most frequent calls, without a loop
            tensors = (1, x[0], None, True) if count == 1 else (2, x[0], None, True, x[1], None, True)
            framework.call(ROTARY, tensors + options)
            return x[0] if count == 1 else x
    elif out is None:
        new = framework.zeros_like if leaves_elements(tail, positions, cu_seqlens) else framework.empty_like
        if len(x) == 1 and rotate is None:
            result = new(x[0])
            framework.call(ROTARY, (1, x[0], result, True) + options)
            return result
        if any([framework_of(one) is not framework for one in x]):
            explain(ROTARY, (len(x), *[value for one in x for value in (one, None, True)], *options))
        out = tuple([new(one) for one in x])
    values: List[Any] = [len(x)]
    for i, one in enumerate(x):
        values += (one, None if out[i] is one else out[i], True if rotate is None else bool(rotate[i]))
    framework.call(ROTARY, (*values, *options))
    return out[0] if len(x) == 1 else tuple(out)


def gather_cos_sin(
    cos_sin: A,
    positions: Array,
    *,
    pair_axis: Optional[Array] = None,
    past_table: PastTable = "record",
    out: Optional[A] = None,
) -> A:
    """The cos and sin of each token's position, gathered once for all layers (kernels/token_ops/gather_cos_sin.h). Pass the result as
    Rope(cos_sin=.., per_token=True).

    out[t, i] = cos_sin[p, i], out[t, r/2 + i] = cos_sin[p, r/2 + i], p = positions[pair_axis[i], t]

    cos_sin: [max_position, rotary_dim], cos then sin, float32, float16 or bfloat16, contiguous.
    positions: [num_tokens] or [num_axes, num_tokens], int32 or int64. Outside of the table cos and sin become 0; with past_table
        "identity", cos becomes 1 past its end.
    pair_axis: [rotary_dim / 2] uint8; None: all pairs use axis 0.
    out: [num_tokens, rotary_dim] float32, contiguous; None: a new array.
    """
    framework = framework_of(cos_sin)
    if out is None and len(cos_sin.shape) == 2:
        out = framework.empty(cos_sin, (positions.shape[-1], cos_sin.shape[1]), "float32")
    arguments = (cos_sin, positions, pair_axis, past_table, out)
    if framework.dispatcher is not None and framework.dispatcher.needed(()):
        framework.dispatcher.gather_cos_sin(arguments)
    else:
        framework.call(GATHER_COS_SIN, arguments)
    return out  # type: ignore[return-value]


def rerope(
    cache: PagedKv,
    slot_mapping: Array,
    from_positions: Array,
    to_positions: Array,
    *,
    rope: Rope,
    hadamard_block: int = 0,
    faults: Optional[Array] = None,
    token_faults: Optional[Array] = None,
) -> None:
    """Moves keys that are already in a paged cache to other positions, in place (kernels/rerope/rerope.h): to use the keys of a text again
    where it is no prefix. K is rotated by the new position instead of the old one; V is not touched.

    cache: the one that attention_prologue wrote, of any type and layout. Only k (and its computed scales) change.
    slot_mapping: [num_keys] int32 or int64; page * page_size + offset. A negative one is skipped. Two keys must not share a slot.
    from_positions, to_positions: [num_keys] or [num_axes, num_keys], int32 or int64: the position that each key was rotated by, and the one
        that it shall have. Equal positions leave the key's bytes as they are; a negative one skips the key.
    rope: the one that rotated the keys, but not per_token. hadamard_block: as in the call that wrote the keys.
    faults, token_faults: as in rotary, of keys instead of tokens.

    Keys with a norm after the rotation cannot be moved.
    """
    if cache.k is None:
        raise TypeError("cache.k is None: rerope moves keys")
    framework = framework_of(cache.k)
    arguments = (
        *flat(cache), slot_mapping, from_positions, to_positions, *flat(rope), hadamard_block, faults, token_faults,
    )  # fmt: skip
    if framework.dispatcher is not None and framework.dispatcher.needed_without_gradients(cache.k):
        framework.dispatcher.rerope(arguments)
    else:
        framework.call(REROPE, arguments)


@overload
def attention_prologue(
    q: Optional[Array] = ..., k: Optional[Array] = ..., v: Optional[Array] = ..., *, qkv: Optional[Array] = ..., q8_out: Out,
    q_out: Optional[Array] = ..., **options: Unpack[PrologueOptions],
) -> Out: ...  # fmt: skip
@overload
def attention_prologue(
    q: A, k: Optional[Array] = ..., v: Optional[Array] = ..., *, q8_out: None = ..., q_out: Optional[A] = ...,
    **options: Unpack[PrologueOptions],
) -> A: ...  # fmt: skip
@overload
def attention_prologue(*, qkv: A, q8_out: None = ..., q_out: Optional[A] = ..., **options: Unpack[PrologueOptions]) -> Optional[A]: ...
@overload
def attention_prologue(
    q: None = ..., k: Optional[Array] = ..., v: Optional[Array] = ..., *, q8_out: None = ..., q_out: None = ...,
    **options: Unpack[PrologueOptions],
) -> None: ...  # fmt: skip
def attention_prologue(
    q: Optional[Any] = None,
    k: Optional[Any] = None,
    v: Optional[Any] = None,
    *,
    qkv: Optional[Any] = None,
    num_q_heads: Optional[int] = None,
    num_kv_heads: Optional[int] = None,
    head_dim: Optional[int] = None,
    v_head_dim: Optional[int] = None,
    v_from_k: bool = False,
    cache: Optional[PagedKv] = None,
    rope: Optional[Rope] = None,
    places: Optional[TokenPlaces] = None,
    q_rope: Optional[Array] = None,
    k_rope: Optional[Array] = None,
    q_bias: Optional[Array] = None,
    k_bias: Optional[Array] = None,
    v_bias: Optional[Array] = None,
    q_norm: Optional[HeadNorm] = None,
    k_norm: Optional[HeadNorm] = None,
    v_norm: Optional[HeadNorm] = None,
    hadamard_block: int = 0,
    v_hadamard_block: int = 0,
    q_scale: Optional[QueryScale] = None,
    k_constant: float = 1.0,
    v_constant: float = 1.0,
    rounding: Rounding = "once",
    groups: Optional[Sequence[HeadGroup]] = None,
    q_out: Optional[Any] = None,
    q8_out: Optional[Any] = None,
    q8_scale: Optional[Array] = None,
    k_out: Optional[Array] = None,
    v_out: Optional[Array] = None,
    faults: Optional[Array] = None,
    token_faults: Optional[Array] = None,
) -> Any:
    """Everything between the QKV GEMM and attention, in one launch (kernels/attention_prologue/attention_prologue.h):
    bias, QK-norm, rotation, Hadamard transform and scale of Q; K and V go to their slots of the paged cache, quantised to its type.

    q: [num_tokens, num_q_heads, head_dim]; k, v: [num_tokens, num_kv_heads, head_dim]; float32, float16 or bfloat16, contiguous
        channels, other strides free. Any of them may be None. Or qkv: [num_tokens, (num_q_heads + num_kv_heads) * head_dim +
        num_kv_heads * v_head_dim], with these numbers; with v_from_k it has no columns of V, which is then taken from K (as with v=k).
    cache: where K and V go; None: only to k_out and v_out. Two tokens must not share a slot.
    rope: from cos and sin, cos_sin, inv_freq or theta. None: no rotation.
    places: positions and slots. None: no positions (all 0) and no slots, for calls that need neither.
    q_rope, k_rope: the rotated channels, if they are apart; k_rope may have one head for all (DeepSeek).
    q_bias, k_bias, v_bias: [heads * head_dim] or [heads, head_dim] in the dtype of q.
    hadamard_block: a power of two in 2..512: the transform of each block of channels of Q and K.
    v_hadamard_block: the same of V. Attention's output is then transformed, too, which the same transform undoes; attention_layer does that.
    k_constant, v_constant: what K and V are multiplied by, as their last step; not 0.
    rounding: "once": only at the stores; "per_step": also where separate operations would store.
    groups: up to four HeadGroup: other heads of the same tokens, in the same launch. There may then be no q, k and v at all. Not with
        torch.compile.
    q_out: [num_tokens, num_q_heads, head_dim]; may be q itself; None: a new array, with zeros for padding. q8_out instead: fp8 (or uint8: e4m3), with q8_scale
        [1], which is read, or [num_tokens, num_q_heads], which is computed.
    k_out, v_out: K and V also there, not quantised; may be k and v themselves.
    faults, token_faults: as in rotary.

    Returns q_out, or q8_out, or None without q.
    """
    first = q if q is not None else k if k is not None else v if v is not None else qkv
    groups = groups_with_frequencies(groups)
    if first is None and groups:
        first = groups[0].x
    if first is None:
        raise TypeError("q, k, v and qkv are all None: one of them must be given")
    framework = framework_of(first)
    if isinstance(rope, Rope) and rope.theta is not None:
        rope = with_frequencies(rope, first)
    if q_out is None and q8_out is None:
        padded = may_pad(places)
        new = framework.zeros if padded else framework.empty
        if q is not None and q_rope is not None:
            if len(q.shape) == len(q_rope.shape) == 3:
                q_out = new(q, (*q.shape[:2], q.shape[2] + q_rope.shape[2]))
        elif q is not None:
            q_out = framework.zeros_like(q) if padded else framework.empty_like(q)
        elif qkv is not None and num_q_heads and head_dim and len(qkv.shape) == 2:
            q_out = new(qkv, (qkv.shape[0], num_q_heads, head_dim))
    norms = _NO_NORMS if q_norm is k_norm is v_norm is None else (*flat(q_norm), *flat(k_norm), *flat(v_norm))
    arguments = (
        q, k, v, q_rope, k_rope, qkv, num_q_heads, num_kv_heads, head_dim, v_head_dim, v_from_k, q_out, q8_out, q8_scale,
        *flat(cache), q_bias, k_bias, v_bias, *norms, *flat(rope), *flat_places(places), hadamard_block, v_hadamard_block, *flat(q_scale),
        k_constant, v_constant, rounding, k_out, v_out, faults, token_faults,
        *flat_groups(groups),
    )  # fmt: skip
    if framework.dispatcher is not None and framework.dispatcher.needed_without_gradients((first, k, v)):
        if groups:
            raise NotImplementedError("groups are given: torch.compile takes calls of attention_prologue without them")
        framework.dispatcher.attention_prologue(arguments)
    else:
        framework.call(ATTENTION_PROLOGUE, arguments)
    return q_out if q8_out is None else q8_out


@overload
def mla_prologue(
    kv_c: Optional[Array] = ..., k_pe: Optional[Array] = ..., *, q_pe: A, q_pe_out: Optional[A] = ..., **options: Unpack[MlaOptions]
) -> A: ...
@overload
def mla_prologue(
    kv_c: Optional[Array], k_pe: Optional[Array], q_pe: A, *, q_pe_out: Optional[A] = ..., **options: Unpack[MlaOptions]
) -> A: ...
@overload
def mla_prologue(
    kv_c: Optional[Array] = ..., k_pe: Optional[Array] = ..., q_pe: None = ..., *, q_pe_out: None = ..., **options: Unpack[MlaOptions]
) -> None: ...
def mla_prologue(
    kv_c: Optional[Any] = None,
    k_pe: Optional[Any] = None,
    q_pe: Optional[Any] = None,
    *,
    kv_cache: Optional[Array] = None,
    ckv_cache: Optional[Array] = None,
    kpe_cache: Optional[Array] = None,
    cache_type: Optional[MlaCacheType] = None,
    cache_scale: Optional[Array] = None,
    slot_mapping: Optional[Array] = None,
    norm: Optional[HeadNorm] = None,
    k_pe_norm: Optional[HeadNorm] = None,
    rope: Optional[Rope] = None,
    positions: Optional[Array] = None,
    q_pe_out: Optional[Any] = None,
    kv_c_out: Optional[Array] = None,
    k_pe_out: Optional[Array] = None,
    faults: Optional[Array] = None,
    token_faults: Optional[Array] = None,
) -> Any:
    """The prologue of multi-head latent attention (DeepSeek), in one launch (kernels/mla_prologue/mla_prologue.h): the norm of the
    latent, the rotation of k_pe and of q_pe, and both parts of K into the paged latent cache.

    kv_c: [num_tokens, kv_lora_rank]; k_pe: [num_tokens, qk_rope_head_dim]; both may have an axis of one head in the middle, and any row
        stride. q_pe: [num_tokens, heads, qk_rope_head_dim]. float32, float16 or bfloat16; widths are multiples of 16 up to 1024. Any
        of them may be None.
    kv_cache: [num_pages, page_size, kv_lora_rank + qk_rope_head_dim]; or the parts in arrays of their own, ckv_cache and kpe_cache, each
        [num_pages, page_size, channels]. A float type or fp8; uint8 with cache_type "fp8_e4m3" or "fp8_e5m2".
    cache_type "fp8_ds_mla": kv_cache has vLLM's records, [num_pages, page_size, 656] bytes for 512 and 64 channels: fp8 codes, a float32
        scale for each 128 of them, and k_pe as it is.
    cache_scale: [1] float32: fp8 stores x / cache_scale; None: x.
    slot_mapping: [num_tokens] or shorter, int32 or int64; a negative slot is not written. Two tokens must not share a slot.
    norm: of kv_c: rms over the row, before_rope. None: no norm. k_pe_norm: the same of k_pe, before its rotation (dots3).
    rope: of all qk_rope_head_dim channels. None: no rotation.
    positions: [num_tokens] int32 or int64; a negative one is padding, and nothing of that token is written.
    q_pe_out: as q_pe, for example the last channels of larger heads; may be q_pe itself; None: a new array, with zeros for padding.
    kv_c_out, k_pe_out: the normalised latent and the rotated K also there; may be kv_c and k_pe themselves.
    faults, token_faults: as in rotary.

    Returns q_pe_out, or None without q_pe.
    """
    first = kv_c if kv_c is not None else k_pe if k_pe is not None else q_pe
    if first is None:
        raise TypeError("kv_c, k_pe and q_pe are all None: one of them must be given")
    framework = framework_of(first)
    if isinstance(rope, Rope) and rope.theta is not None:
        rope = with_frequencies(rope, first)
    if q_pe is not None and q_pe_out is None:
        q_pe_out = (framework.empty if positions is None else framework.zeros)(q_pe, tuple(q_pe.shape))
    arguments = (
        kv_c, k_pe, q_pe, kv_cache, ckv_cache, kpe_cache, cache_type, cache_scale, *flat(norm), *flat(k_pe_norm), *flat(rope), positions,
        slot_mapping, q_pe_out, kv_c_out, k_pe_out, faults, token_faults,
    )  # fmt: skip
    if framework.dispatcher is not None and framework.dispatcher.needed_without_gradients((kv_c, k_pe, q_pe)):
        framework.dispatcher.mla_prologue(arguments)
    else:
        framework.call(MLA_PROLOGUE, arguments)
    return q_pe_out


def paged_attention(
    q: A,
    cache: PagedKv,
    *,
    page_table: PageTable,
    cu_seqlens_q: Array,
    seq_lens: Optional[Array] = None,
    scale: Optional[float] = None,
    soft_cap: float = 0.0,
    window: int = 0,
    chunk: int = 0,
    ring_size: int = 0,
    sinks: Optional[Array] = None,
    max_seqlen_q: Optional[int] = None,
    max_seq_len: Optional[int] = None,
    num_decode_seqs: int = 0,
    batch_invariant: bool = False,
    out: Optional[A] = None,
    workspace: Optional[Array] = None,
    counters: Optional[Array] = None,
    faults: Optional[Array] = None,
    token_faults: Optional[Array] = None,
) -> A:
    """Causal, grouped-query attention of new tokens over a paged cache that already holds their K and V
    (kernels/paged_attention/paged_attention.h). Prefill, decode, or both in one batch.

    q: [num_tokens, num_q_heads, head_dim] float32, float16 or bfloat16; contiguous channels.
    cache: any type and layout that the prologue writes; read only.
    cu_seqlens_q: [num_seqs + 1] int32: sequence s owns the rows [cu_seqlens_q[s], cu_seqlens_q[s + 1]).
    seq_lens: [num_seqs] int32, tokens after this step's were added; None: page_table.kv_last_page_len says them.
    scale: of the scores; None: 1 / sqrt(head_dim). soft_cap: soft_cap * tanh(score / soft_cap); 0: none.
    window: tokens that a row sees, its own included; 0: all. chunk: a row sees only its chunk of so many positions (Llama 4).
    sinks: [num_q_heads] in the dtype of q or float32: a score without a value (GPT-OSS).
    ring_size: not 0: position p is at p % ring_size, as in TokenPlaces.
    max_seqlen_q, max_seq_len: bounds known on the host, which must hold for every replay of a captured graph. None: num_tokens, and
        the tokens of all pages that a row of the block table (or kv_indices) has room for. With a ring and a window or chunk, sequences
        of any length: then window + max_seqlen_q - 1 must be at most ring_size; with a ring alone, ring_size. Tighter ones are faster
        on CUDA.
    num_decode_seqs: the first so many sequences have at most one row each. batch_invariant: a row's bits do not depend on the batch.
    out: [num_tokens, num_q_heads, v_head_dim]; must not overlap q; None: a new array, with zeros for rows that no sequence owns.
    workspace: on CUDA scratch of paged_attention_workspace_bytes; None: from torch's allocator (CuPy: must be given).
    counters: on CUDA [264] int32 zeros, which saves a node of the graph.
    faults, token_faults: as in rotary, of rows instead of tokens.
    """
    framework = framework_of(q)
    if out is None and len(q.shape) == 3 and (cache.v is None or len(cache.v.shape) == 4):
        v_dim = q.shape[2] if cache.v is None else cache.v.shape[3] * channels_per_element(cache.v_type)
        out = framework.zeros(q, (q.shape[0], q.shape[1], v_dim))
    arguments = (
        q, out, *flat(cache), cu_seqlens_q, seq_lens, *flat(page_table), scale, soft_cap, window, chunk, ring_size, sinks, max_seqlen_q,
        max_seq_len, num_decode_seqs, batch_invariant, workspace, counters, faults, token_faults,
    )  # fmt: skip
    if framework.dispatcher is not None and framework.dispatcher.needed_without_gradients((q,)):
        framework.dispatcher.paged_attention(arguments)
    else:
        framework.call(PAGED_ATTENTION, arguments)
    return out  # type: ignore[return-value]


def attention_layer(
    hidden_states: A,
    qkv_weight: Array,
    output_weight: Array,
    *,
    num_q_heads: int,
    num_kv_heads: int,
    head_dim: int,
    cache: PagedKv,
    places: TokenPlaces,
    v_head_dim: Optional[int] = None,
    output_bias: Optional[Array] = None,
    rope: Optional[Rope] = None,
    q_bias: Optional[Array] = None,
    k_bias: Optional[Array] = None,
    v_bias: Optional[Array] = None,
    q_norm: Optional[HeadNorm] = None,
    k_norm: Optional[HeadNorm] = None,
    v_norm: Optional[HeadNorm] = None,
    hadamard_block: int = 0,
    v_hadamard_block: int = 0,
    q_scale: Optional[QueryScale] = None,
    k_constant: float = 1.0,
    v_constant: float = 1.0,
    rounding: Rounding = "once",
    k_out: Optional[Array] = None,
    v_out: Optional[Array] = None,
    scale: Optional[float] = None,
    soft_cap: float = 0.0,
    window: int = 0,
    chunk: int = 0,
    ring_size: int = 0,
    sinks: Optional[Array] = None,
    max_seqlen_q: Optional[int] = None,
    max_seq_len: Optional[int] = None,
    num_decode_seqs: int = 0,
    batch_invariant: bool = False,
    seq_lens: Optional[Array] = None,
    out: Optional[A] = None,
    workspace: Optional[Array] = None,
    faults: Optional[Array] = None,
    token_faults: Optional[Array] = None,
) -> A:
    """The attention layer: QKV GEMM, attention prologue, paged attention, output GEMM (layers/attention_layer.h).

    hidden_states: [num_tokens, hidden_size], contiguous rows.
    qkv_weight: [num_q_heads * head_dim + num_kv_heads * (head_dim + v_head_dim), hidden_size]: the rows of q, then k, then v.
    output_weight: [hidden_size, num_q_heads * v_head_dim]. output_bias: [hidden_size].
    places: cu_seqlens_q, page_table and the lengths of the sequences are needed. With cache_lens, seq_lens must be given as well.
    ring_size: 0: that of places.
    out: [num_tokens, hidden_size]; may be hidden_states; None: a new array, in which a row that no sequence owns is output_bias, or zeros.
    workspace: on CUDA; None: from torch's allocator. The others: as in attention_prologue and paged_attention.
    """
    framework = framework_of(hidden_states)
    if isinstance(rope, Rope) and rope.theta is not None:
        rope = with_frequencies(rope, hidden_states)
    clears = out is None
    if out is None:
        out = framework.empty_like(hidden_states)
    arguments = (
        hidden_states, qkv_weight, output_weight, output_bias, out, num_q_heads, num_kv_heads, head_dim, v_head_dim,
        *flat(cache), q_bias, k_bias, v_bias, *flat(q_norm), *flat(k_norm), *flat(v_norm), *flat(rope), *flat_places(places),
        hadamard_block, v_hadamard_block, *flat(q_scale), k_constant, v_constant, rounding, k_out, v_out, faults, token_faults, scale, soft_cap,
        window, chunk, ring_size, sinks, max_seqlen_q, max_seq_len, num_decode_seqs, batch_invariant, seq_lens, workspace, clears,
    )  # fmt: skip
    if framework.dispatcher is not None and framework.dispatcher.needed_without_gradients((hidden_states, qkv_weight, output_weight)):
        framework.dispatcher.attention_layer(arguments)
    else:
        framework.call(ATTENTION_LAYER, arguments)
    return out  # pyright: ignore[reportReturnType]


class Fault(NamedTuple):
    """The first faulty token of a record: a FaultCode in words (kernels/base/faults.h), and how many tokens were skipped."""

    code: str
    token: int
    count: int  # type: ignore[assignment]  # hides tuple.count


def read_faults(faults: Any) -> Optional[Fault]:
    """What the operations recorded in `faults` ([2] int64), or None. Copies it to the host, so on CUDA it waits."""
    first, count = int(faults[0]), int(faults[1])
    text = _extension.decode_faults(first if first < 1 << 63 else first - (1 << 64), count)
    if not text:
        return None
    code, token, skipped = text.rsplit(" ", 2)
    return Fault(code, int(token), int(skipped))


def get_num_threads() -> int:
    """Threads of an operation on the CPU."""
    return int(_extension.get_num_threads())


def set_num_threads(num_threads: int) -> None:
    """Sets the threads of an operation on the CPU, for all callers. At first: one for each processor."""
    _extension.set_num_threads(num_threads)


def built_with_cuda() -> bool:
    """Whether the extension has the CUDA kernels."""
    return bool(_extension.built_with_cuda())
