"""Attention for Hugging Face transformers:

    import prologue_attention.transformers
    model = AutoModelForCausalLM.from_pretrained(.., attn_implementation="prologue")

Importing this module registers the name. The model's own cache is read where it is. For inference: there are no gradients and no dropout.

The mask is that of transformers' "sdpa": a boolean [batch, 1, rows, keys], or None where is_causal says enough. Whoever made or changed
it, only its elements count: attention_forward divides its rows into sequences of paged_attention (see Sequences). Windows, chunks, packed
sequences, padding, static caches and bidirectional blocks therefore need no code of their own. What paged_attention cannot do is an error:
a row that sees keys with a gap between them, heads with masks of their own, a bias.
"""

import inspect
from typing import Any, NamedTuple, Optional, Tuple

import torch
import transformers
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.utils import TransformersKwargs  # type: ignore[attr-defined]

from . import PagedKv, PageTable, paged_attention

if "q_length" not in inspect.signature(sdpa_mask).parameters:
    raise ImportError(f"transformers is {transformers.__version__}: {__name__} needs a newer one, whose sdpa_mask has q_length")

# Arguments of an attention function that do not change its result: the mask says what they say, or they are for others.
_WITHOUT_EFFECT = {*TransformersKwargs.__annotations__, "sliding_window", "use_cache", "deterministic"} - {"output_attentions"}


class Sequences(NamedTuple):
    """What each row of a mask sees, as sequences of paged_attention. Sequence s owns the rows [cu_seqlens_q[s], cu_seqlens_q[s + 1]) of
    batch * rows. They are the last of its seq_lens[s] tokens, whose keys are those of element batch[s] from starts[s] on. From row to row
    the last visible key advances by one; the first one stays, or advances too where the row is `window` keys wide."""

    cu_seqlens_q: Any  # [sequences + 1] int32
    seq_lens: Any  # [sequences] int32
    batch: Any  # [sequences]
    starts: Optional[Any]  # [sequences]; None: all 0
    window: int
    max_seqlen_q: int
    max_seq_len: int


def _require(condition: Any, message: str) -> None:
    if torch.compiler.is_compiling():
        torch._assert_async(condition, message)
    elif not condition:
        raise NotImplementedError(f"attn_implementation 'prologue': {message}")


def _visible(mask: Any, query: Any, length: int, name: str) -> Any:
    """The mask as a boolean [batch, rows, keys]."""
    batch, _, rows, _ = query.shape
    if mask.dim() != 4 or mask.shape[-1] != length or not (mask.dtype == torch.bool or mask.is_floating_point()):
        shape = f"[batch, heads, rows, {length} keys]"
        raise ValueError(f"{name} is {mask.dtype} {list(mask.shape)}: it must be boolean or float {shape}")
    if mask.dtype != torch.bool:
        lowest = max(torch.finfo(mask.dtype).min, torch.finfo(query.dtype).min)
        visible = mask == 0
        _require((visible | (mask <= lowest)).all(), f"{name} has values other than 0 and {lowest}, and there is no bias of scores")
        mask = visible
    if mask.shape[1] > 1 and mask.stride(1) != 0:
        _require((mask == mask[:, :1]).all(), f"{name} differs between heads: it must be the same for all")
    return mask[:, 0].expand(batch, rows, length)


def _intervals(visible: Any, name: str) -> Tuple[Any, Any]:
    """The first key that each row sees, and the one after the last: [batch, rows] each. 0 and 0 for a row that sees none."""
    count = visible.sum(-1)
    first = visible.byte().argmax(-1)  # the first of equal elements
    runs = visible[..., 0] + (visible[..., 1:] & ~visible[..., :-1]).sum(-1)
    message = f"{name} lets a row see keys with a gap between them: it must see all from the first to the last one"
    if not torch.compiler.is_compiling() and (runs > 1).any():
        element, row = (runs > 1).nonzero()[0].tolist()
        message = message.replace("a row", f"row {row} of element {element}", 1)
    _require((runs <= 1).all(), message)
    return first, first + count


def _row_by_row(first: Any, end: Any, length: int) -> Sequences:
    """A sequence for each row. No size depends on the data, so a compiled graph can hold it."""
    batch, rows = first.shape
    number = torch.arange(batch * rows + 1, device=first.device)
    return Sequences(number.int(), (end - first).flatten().int(), number[:-1] // rows, first.flatten(), 0, 1, length)


def _divided(first: Any, end: Any) -> Sequences:
    """As few sequences as the rows allow."""
    batch, rows = first.shape
    widest = (end - first).max()
    follows = (end[:, 1:] == end[:, :-1] + 1) & (first[:, 1:] == torch.maximum(first[:, :-1], end[:, 1:] - widest))
    follows |= (end[:, 1:] == 0) & (end[:, :-1] == 0)  # rows that see nothing are rows before the first token of a sequence
    begins = torch.ones_like(first, dtype=torch.bool)
    begins[:, 1:] = ~follows
    begin = begins.flatten().nonzero()[:, 0]
    boundaries = torch.cat([begin, begin.new_full((1,), batch * rows)])
    starts = first.flatten()[begin]
    lengths = end.flatten()[boundaries[1:] - 1] - starts
    window, max_rows, max_length, last_start = torch.stack([widest, boundaries.diff().max(), lengths.max(), starts.max()]).tolist()
    return Sequences(
        boundaries.int(), lengths.int(), begin // rows, starts if last_start > 0 else None, window if window < max_length else 0, max_rows,
        max(max_length, 1),
    )  # fmt: skip


def _sequences_of_causal(query: Any, length: int, causal: bool, name: str) -> Sequences:
    """Without a mask, as transformers' sdpa_attention_forward."""
    batch, _, rows, _ = query.shape
    number = torch.arange(batch * rows + 1, device=query.device)
    if not causal and rows > 1:
        return Sequences(number.int(), number.new_full((batch * rows,), length).int(), number[:-1] // rows, None, 0, 1, length)
    if length < rows:
        raise NotImplementedError(f"attn_implementation 'prologue': {name} is None for {rows} rows and {length} keys: there must be one")
    if rows > 1:  # keys behind the rows are the unfilled part of a static cache
        length = rows
    return Sequences(number[::rows].int(), number.new_full((batch,), length).int(), number[:batch], None, 0, rows, length)


def _sequences(mask: Any, query: Any, length: int, name: str) -> Sequences:
    if torch.compiler.is_compiling():
        return _row_by_row(*_intervals(_visible(mask, query, length, name), name), length)
    state = None if mask.is_inference() else (mask._version, query.shape[0], query.shape[2], query.dtype, length)
    known, sequences = getattr(mask, "_prologue_sequences", (None, None))
    if known is None or known != state:
        sequences = _divided(*_intervals(_visible(mask, query, length, name), name))
        mask._prologue_sequences = state, sequences  # for the other layers
    return sequences  # type: ignore[return-value]


def _tokens_as_pages(x: Any) -> Tuple[Any, int]:
    """x [batch, heads, length, channels] as pages of one token each, and the distance of two elements in pages: key i of element b is page
    b * distance + i. Pages between those of two elements are parts of other heads, and not used."""
    batch, heads, length, channels = x.shape
    if x.stride(2) == 0 or (batch > 1 and x.stride(0) % x.stride(2) != 0):
        x = x.contiguous()
    distance = x.stride(0) // x.stride(2) if batch > 1 else length
    sizes = ((batch - 1) * distance + length, heads, 1, channels)
    return x.as_strided(sizes, (x.stride(2), x.stride(1), x.stride(2), 1)), distance


def _paged(key: Any, value: Any, sequences: Sequences) -> Tuple[Any, Any, Any]:
    """key and value as pages, and the block table of the sequences."""
    if sequences.starts is None:  # a page for each element of the batch
        return key, value, sequences.batch[:, None].int()
    k, distance = _tokens_as_pages(key)
    v, distance_of_v = _tokens_as_pages(value)
    if distance != distance_of_v:
        (k, distance), (v, _) = _tokens_as_pages(key.contiguous()), _tokens_as_pages(value.contiguous())
    first = sequences.batch * distance + sequences.starts
    return k, v, (first[:, None] + torch.arange(sequences.max_seq_len, device=key.device)).int()


def attention_forward(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Optional[Any],
    scaling: Optional[float] = None,
    dropout: float = 0.0,
    softcap: Optional[float] = None,
    s_aux: Optional[Any] = None,
    is_causal: Optional[bool] = None,
    **kwargs: Any,
) -> Tuple[Any, None]:
    """query: [batch, heads, rows, head_dim]; key, value: [batch, kv_heads, length, head_dim], with the new tokens. Returns
    [batch, rows, heads, v_head_dim]. attention_mask: see above; one of floats has 0 and the lowest number. s_aux: sinks."""
    batch, heads, rows, head_dim = query.shape
    length = key.shape[2]
    owner = type(module).__name__
    unknown = [name for name, given in kwargs.items() if given is not None and given is not False and name not in _WITHOUT_EFFECT]
    if unknown:
        raise NotImplementedError(f"attn_implementation 'prologue': {owner} passes {', '.join(unknown)}, which is not supported")
    if key.shape[0] != batch or value.shape[:3] != key.shape[:3]:
        shapes = [list(x.shape) for x in (query, key, value)]
        raise ValueError(f"query, key and value of {owner} are {shapes}: batch, kv heads and length must be equal")
    if dropout != 0.0:
        raise NotImplementedError(f"dropout is {dropout}: attn_implementation 'prologue' has none")
    if torch.is_grad_enabled() and any([x.requires_grad for x in (query, key, value)]):
        raise NotImplementedError("attn_implementation 'prologue' has no gradients: call the model under torch.no_grad()")
    name = f"the mask of {owner}"
    if attention_mask is None:
        packed = kwargs.get("cu_seq_lens_q")
        if packed is not None and packed.shape[0] > batch + 1:
            raise NotImplementedError("cu_seq_lens_q is given without a mask: for packed sequences pass position_ids and use_cache=False")
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        sequences = _sequences_of_causal(query, length, causal, name)
    else:
        if not torch.compiler.is_compiling() and hasattr(attention_mask, "_prologue_written"):
            name += f", {attention_mask._prologue_written},"
        sequences = _sequences(attention_mask, query, length, name)
    key, value = [x if x.stride(3) == 1 else x.contiguous() for x in (key, value)]
    k, v, block_table = _paged(key, value, sequences)
    out = paged_attention(
        query.transpose(1, 2).reshape(batch * rows, heads, head_dim),
        PagedKv(k, v, layout="hnd"),
        page_table=PageTable(block_table),
        cu_seqlens_q=sequences.cu_seqlens_q,
        seq_lens=sequences.seq_lens,
        scale=scaling,
        soft_cap=softcap or 0.0,
        window=sequences.window,
        sinks=s_aux,
        max_seqlen_q=sequences.max_seqlen_q,
        max_seq_len=sequences.max_seq_len,
    )
    return out.reshape(batch, rows, heads, -1), None


def _written(function: Any) -> str:
    """A mask function as it was written: and_masks(sliding_window_overlay, causal_mask_function)."""
    held = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    parts = [part for one in held for part in (one if isinstance(one, tuple) else (one,)) if callable(part)]
    name = getattr(function, "__qualname__", repr(function)).split(".<locals>")[0]
    return f"{name}({', '.join(map(_written, parts))})" if parts else name


def attention_mask(*, q_length: int, kv_length: int, q_offset: Any = 0, kv_offset: int = 0, **arguments: Any) -> Optional[Any]:
    """The mask of "sdpa". That leaves the mask of a single row out even where keys behind the row are unfilled: this one does not."""
    filled = isinstance(q_offset, int) and kv_offset + kv_length == q_offset + q_length
    arguments["allow_is_causal_skip"] = arguments.get("allow_is_causal_skip", True) and (q_length > 1 or filled)
    arguments.update(q_length=q_length, kv_length=kv_length, q_offset=q_offset, kv_offset=kv_offset)
    if torch.compiler.is_compiling():
        return sdpa_mask(**arguments)
    with torch.inference_mode(False), torch.no_grad():  # a tensor of inference mode does not count the writes to it, see _sequences
        mask = sdpa_mask(**arguments)
    if mask is not None:
        setattr(mask, "_prologue_written", _written(arguments.get("mask_function")))
    return mask


AttentionInterface.register("prologue", attention_forward)
AttentionMaskInterface.register("prologue", attention_mask)
