"""The descriptions that several operations share. Each is the C++ struct of the same name; the extension finds its fields by name. Make
one by keyword, once, and pass it in every call."""

from typing import Any, Literal, NamedTuple, Optional, Protocol, Sequence, Tuple


class Array(Protocol):
    """An array of torch, NumPy, CuPy or JAX. It must have DLPack, which the types of JAX do not say."""

    @property
    def shape(self) -> Any: ...

    @property
    def dtype(self) -> Any: ...


RopeStyle = Literal["neox", "interleaved"]
RopeWidth = Literal["half", "full"]
PastTable = Literal["record", "zero", "identity"]
NormPlacement = Literal["before_rope", "after_rope"]
NormKind = Literal["rms", "layer"]
NormScope = Literal["head", "token"]
PositionScale = Literal["none", "llama4", "logn"]
CacheLayout = Literal["nhd", "hnd"]
CacheScaling = Literal["none", "tensor", "head", "token_head"]
CacheType = Literal["float32", "float16", "bfloat16", "fp8_e4m3", "fp8_e5m2", "int8", "int4", "uint4", "mxfp8", "mxfp4", "nvfp4"]
BlockScaleLayout = Literal["linear", "interleaved_4_tokens"]
MlaCacheType = Literal["fp8_e4m3", "fp8_e5m2", "fp8_ds_mla"]
Rounding = Literal["once", "per_step"]
HeadActivation = Literal["none", "sigmoid"]
Tail = Literal["copy", "leave", "zero"]
Layout = Literal[
    "shd", "sdh", "hsd", "hds", "dsh", "dhs", "bshd", "bsdh", "bhsd", "bhds", "bdsh", "bdhs", "sbhd", "sbdh", "shbd", "shdb", "sdbh", "sdhb",
    "hbsd", "hbds", "hsbd", "hsdb", "hdbs", "hdsb", "dbsh", "dbhs", "dsbh", "dshb", "dhbs", "dhsb",
]  # fmt: skip


class Rope(NamedTuple):
    """How heads are rotated (kernels/base/rope.h). Exactly one source of cos and sin must be given.

    The rotated channels are [rotary_offset, rotary_offset + rotary_dim). They form num_blocks adjacent blocks of
    w = rotary_dim / num_blocks channels. For each pair of a block, (a, b) = (a cos - b sin, a sin + b cos).

    style: "neox": pair i is (x[i], x[i + w/2]); "interleaved": pair i is (x[2i], x[2i + 1]).
    rotary_dim: None: what follows from the columns of the source. Must be given with theta.
    cos, sin: [rows, w / 2] or [rows, w]; row = position. float32, float16, bfloat16 or (for rotary of float64) float64.
    cos_sin: [rows, w]: cos, then sin, each w / 2 columns.
    angles: as cos; the kernel computes their cos and sin. Only for rotary.
    inv_freq: [w / 2] float32, for rotary also float64; angle = position * inv_freq[column].
    theta: angle = position * theta ** (-2 * column / w). The power is a float64 in rotary, a float32 in the other operations.
    width: "half": one column for each pair; "full": one for each channel (Hugging Face's cos and sin). None: what rotary_dim and the
        columns say; if there is no rotary_dim either, "full" for cos and sin with more columns than a head has pairs, else "half".
    per_token: row = token, not position. Then cos, sin, cos_sin or angles may also be [batch, seq_len, columns].
    attention_factor: multiplies cos and sin.
    inverse: the inverse rotation (-sin). inverse_by_own_sine: for width "full", each channel's own sine, as Paddle's gradient.
    max_position: a bound on positions; None: the rows of the table; for rotary without a table none, for the other operations 2^20.
    past_table: what happens to a token whose position is at or past the bound. "record": its rows become zeros, and it is a fault;
        "zero": zeros; "identity": it is not rotated.
    num_axes: position axes, 1 to 4. pair_axis: [rotary_dim / 2] uint8, the axis of each pair; None: each block has its own.
    """

    style: RopeStyle = "neox"
    rotary_dim: Optional[int] = None
    cos: Optional[Array] = None
    sin: Optional[Array] = None
    cos_sin: Optional[Array] = None
    angles: Optional[Array] = None
    inv_freq: Optional[Array] = None
    theta: Optional[float] = None
    width: Optional[RopeWidth] = None
    per_token: bool = False
    attention_factor: float = 1.0
    rotary_offset: int = 0
    num_blocks: int = 1
    inverse: bool = False
    inverse_by_own_sine: bool = False
    max_position: Optional[int] = None
    past_table: PastTable = "record"
    num_axes: int = 1
    pair_axis: Optional[Array] = None


class HeadNorm(NamedTuple):
    """The norm of each head of Q, K or V (kernels/attention_prologue/attention_prologue.h).

    rms: x / sqrt(mean(x^2) + eps) * (weight_offset + weight)
    layer: (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * (weight_offset + weight) + bias

    placement: "before_rope" or "after_rope". kind: "rms" or "layer".
    scope: "head", or "token": one norm over all heads of the token (OLMo 2).
    weight: [head_dim] or [heads, head_dim], for scope "token" also [heads * head_dim], in the operation's dtype or float32; None: no
        weight. bias: of the shape and dtype of weight, only for "layer".
    weight_offset: 1 for Gemma, whose checkpoints hold weight - 1.
    """

    placement: NormPlacement = "before_rope"
    weight: Optional[Array] = None
    bias: Optional[Array] = None
    eps: float = 1e-6
    kind: NormKind = "rms"
    scope: NormScope = "head"
    weight_offset: float = 0.0


class PageTable(NamedTuple):
    """The pages of the sequences, in one of two forms (kernels/base/views.h). All arrays are int32.

    block_table: [num_seqs, max_pages_per_seq]; entry i is the page of tokens i * page_size and on.
    kv_indptr [num_seqs + 1], kv_indices [..]: sequence s has the pages kv_indices[kv_indptr[s]:kv_indptr[s + 1]] (FlashInfer).
    kv_last_page_len: [num_seqs], 1 to page_size: then the table also says how long a sequence is.
    """

    block_table: Optional[Array] = None
    kv_indptr: Optional[Array] = None
    kv_indices: Optional[Array] = None
    kv_last_page_len: Optional[Array] = None


class TokenPlaces(NamedTuple):
    """The position and the slot of each token: given, or derived from the lengths of the sequences
    (kernels/attention_prologue/attention_prologue.h).

    Given. positions: [num_tokens] or [num_axes, num_tokens], int32 or int64; a negative one is padding, and nothing of that token is
        written. slot_mapping: [num_tokens] or shorter, page * page_size + offset; a negative one is not written to the cache.
    Derived, where one of them is not given. cu_seqlens_q: [num_seqs + 1] int32, the first row of each sequence. cache_lens: [num_seqs]
        int32, tokens in the cache before this step; or seq_lens: after it; or kv_last_page_len of the page table.
        Position = cache position + position_offsets (one for each sequence, or one for all). The slot follows from page_table.
    ring_size: not 0: cache position p is stored at p % ring_size.
    """

    positions: Optional[Array] = None
    slot_mapping: Optional[Array] = None
    cu_seqlens_q: Optional[Array] = None
    cache_lens: Optional[Array] = None
    seq_lens: Optional[Array] = None
    ring_size: int = 0
    position_offsets: Optional[Array] = None
    page_table: Optional[PageTable] = None


class QueryScale(NamedTuple):
    """Q is multiplied by constant * f(position) (kernels/attention_prologue/attention_prologue.h).

    by_position: "none": f = 1; "llama4": f = 1 + a log(1 + floor((position + 1) / b)); "logn": f = max(1, log(position + 1) / log(b)).
    """

    constant: float = 1.0
    by_position: PositionScale = "none"
    a: float = 0.0
    b: float = 1.0


class PagedKv(NamedTuple):
    """One layer's paged KV cache (kernels/base/views.h). Slot s is at offset s % page_size of page s / page_size.

    layout: "nhd": k and v are [num_pages, page_size, num_kv_heads, head_dim]; "hnd": [num_pages, num_kv_heads, page_size, head_dim].
        Channels are contiguous, other strides are free: views of an interleaved buffer are fine.
    k, v: of types of their own: float32, float16, bfloat16, fp8, int8, or for types without a dtype uint8 with k_type, v_type: "fp8_e4m3",
        "fp8_e5m2", "int8", "mxfp8"; "int4", "uint4", "mxfp4", "nvfp4" (two channels in a byte, the even one in the low half). One of them may
        be None.
    scaling: "none" (fp8 with scale 1), "tensor" (k_scale, v_scale: [1]), "head" ([num_kv_heads]), or "token_head": the prologue computes
        and writes them, [num_pages, page_size, num_kv_heads] in the layout's order; for uint4 [.., 2], scale and zero point. float32. It says
        nothing of the block-scaled types mxfp8, mxfp4 and nvfp4.
    k_block_scale, v_block_scale: of block-scaled types, uint8 or fp8_e4m3, [num_pages, page_size, num_kv_heads, blocks] in the layout's
        order: a scale for each block of 32 channels (mxfp8, mxfp4: 2 ** (byte - 127)) or 16 (nvfp4: e4m3, and all of them times k_scale,
        v_scale: [1], None = 1). The prologue computes and writes them.
    k_block_scale_layout, v_block_scale_layout: "interleaved_4_tokens": the scales of four tokens are transposed (vLLM's V on SM100).
    """

    k: Optional[Array] = None
    v: Optional[Array] = None
    k_scale: Optional[Array] = None
    v_scale: Optional[Array] = None
    layout: CacheLayout = "nhd"
    scaling: CacheScaling = "none"
    k_type: Optional[CacheType] = None
    v_type: Optional[CacheType] = None
    k_block_scale: Optional[Array] = None
    v_block_scale: Optional[Array] = None
    k_block_scale_layout: BlockScaleLayout = "linear"
    v_block_scale_layout: BlockScaleLayout = "linear"


def channels_per_element(cache_type: Optional[CacheType]) -> int:
    """The channels of an element of k or v."""
    return 2 if cache_type in ("int4", "uint4", "mxfp4", "nvfp4") else 1


class HeadGroup(NamedTuple):
    """Other heads that attention_prologue computes in the same launch (kernels/attention_prologue/attention_prologue.h): those of an indexer,
    or a gate. Their steps are those of K, in this order, and then the activation.

    x: [num_tokens, heads, head_dim] in the dtype of q; a view of packed rows is fine: [q | gate] of each head are two views.
    bias: [heads * head_dim] or [heads, head_dim]. norm: of each head. rope: with a table, a bound and a past_table of its own.
    hadamard_block, constant: as those of K. activation: "none" or "sigmoid".
    out: as x, may be x itself; or q8_out: fp8 (or uint8: e4m3) with q8_scale [1] or [num_tokens, heads], as those of q. At least one of
        them or the cache is given.
    cache: only its k, of these heads; its pages may have a size of their own. The slots are those of the call.
    """

    x: Array
    bias: Optional[Array] = None
    norm: Optional[HeadNorm] = None
    rope: Optional[Rope] = None
    hadamard_block: int = 0
    constant: float = 1.0
    activation: HeadActivation = "none"
    out: Optional[Array] = None
    q8_out: Optional[Array] = None
    q8_scale: Optional[Array] = None
    cache: Optional[PagedKv] = None


class RotaryTensor(NamedTuple):
    """One of the tensors that rotary rotates: a group of the extension, of which there are one to four."""

    x: Array
    out: Optional[Array]  # None: x itself
    rotate: bool


_NONE = (None,)


def flat(group: Optional[Tuple[Any, ...]]) -> Tuple[Any, ...]:
    """A group as the extension reads it. Older Dynamo cannot trace the sum of a tuple and a named one, so that is unpacked."""
    if group is None:
        return _NONE
    if not isinstance(group, tuple):
        raise TypeError(f"{group!r} is not of its class (Rope, PagedKv, ..)")
    return (True, *group)


def flat_groups(groups: Optional[Sequence[HeadGroup]]) -> Tuple[Any, ...]:
    """Several groups of heads: their number, and each."""
    if not groups:
        return _NONE
    values: Tuple[Any, ...] = (len(groups),)
    for group in groups:
        for value, kind in zip(group, HeadGroup._fields):
            values += flat(value) if kind in ("norm", "rope", "cache") else (value,)
    return values


def flat_places(places: Optional[TokenPlaces]) -> Tuple[Any, ...]:
    return _NONE if places is None else (True, *places[:-1], *flat(places[-1]))
