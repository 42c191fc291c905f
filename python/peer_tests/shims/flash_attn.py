"""flash-attn: flash_attn.layers.rotary, and references of ours for what the tests compare with."""

from typing import Any

from shims import functions, module, need_triton, rotate

SKIPPED = [("test_compilation_count", "counts how often Triton compiles flash-attn's own kernel")]


def unpad_input(x: Any, mask: Any) -> tuple:
    """The rows of x [batch, seqlen, ..] where mask is set, their numbers, the first row of each sequence, and the longest sequence."""
    import torch

    lengths = mask.sum(-1, dtype=torch.int32)
    indices = mask.flatten().nonzero().flatten()
    cu_seqlens = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return x.flatten(0, 1)[indices], indices, cu_seqlens, int(lengths.max()), lengths


def pad_input(x: Any, indices: Any, batch: int, seqlen: int) -> Any:
    """The inverse, with zeros elsewhere."""
    out = x.new_zeros(batch * seqlen, *x.shape[1:])
    return out.index_copy(0, indices, x).unflatten(0, (batch, seqlen))


def install(folder: str) -> None:
    from prologue_attention.compat import flash_attn

    need_triton()
    module("flash_attn.bert_padding", unpad_input=unpad_input, pad_input=pad_input)
    module("flash_attn.ops.triton.rotary", apply_rotary=flash_attn.apply_rotary)
    module(
        "flash_attn.layers.rotary",
        **functions(flash_attn),
        apply_rotary_emb_torch=lambda x, cos, sin, interleaved=False: rotate(x, cos, sin, interleaved),
    )
