"""Attention for Hugging Face transformers:

    import prologue.transformers
    model = AutoModelForCausalLM.from_pretrained(.., attn_implementation="prologue")

Importing this module registers the name. The model's own cache is read where it is, as pages of one sequence each. Causal attention
without dropout, for inference: there are no gradients. Padded batches are not supported: pass sequences of one length, or one at a time.
"""

from typing import Any, Optional, Tuple

import torch
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from . import PagedKv, PageTable, paged_attention


def attention_forward(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Optional[Any],
    scaling: Optional[float] = None,
    dropout: float = 0.0,
    sliding_window: Optional[int] = None,
    softcap: Optional[float] = None,
    s_aux: Optional[Any] = None,
    is_causal: Optional[bool] = None,
    **kwargs: Any,
) -> Tuple[Any, None]:
    """query: [batch, heads, rows, head_dim]; key, value: [batch, kv_heads, length, head_dim], with the new tokens. Returns
    [batch, rows, heads, v_head_dim]. s_aux: sinks."""
    batch, heads, rows, head_dim = query.shape
    length = key.shape[2]
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    if attention_mask is not None or not causal:
        raise NotImplementedError("attn_implementation 'prologue' is for causal attention of sequences without padding")
    if dropout != 0.0:
        raise NotImplementedError(f"dropout is {dropout}: attn_implementation 'prologue' has none")
    if torch.is_grad_enabled() and any([x.requires_grad for x in (query, key, value)]):
        raise NotImplementedError("attn_implementation 'prologue' has no gradients: call the model under torch.no_grad()")
    device = query.device
    out = paged_attention(
        query.transpose(1, 2).reshape(batch * rows, heads, head_dim),
        PagedKv(key, value, layout="hnd"),  # a page of `length` tokens for each sequence
        page_table=PageTable(torch.arange(batch, dtype=torch.int32, device=device)[:, None]),
        cu_seqlens_q=torch.arange(0, batch * rows + 1, rows, dtype=torch.int32, device=device),
        seq_lens=torch.full((batch,), length, dtype=torch.int32, device=device),
        scale=scaling,
        soft_cap=softcap or 0.0,
        window=sliding_window or 0,
        sinks=s_aux,
        max_seqlen_q=rows,
        max_seq_len=length,
    )
    return out.reshape(batch, rows, heads, -1), None


def attention_mask(*args: Any, attention_mask: Optional[Any] = None, **kwargs: Any) -> Optional[Any]:
    """None, or the mask of a padded batch, which attention_forward refuses."""
    if attention_mask is None or bool(attention_mask.all()):
        return None
    return attention_mask


AttentionInterface.register("prologue", attention_forward)
AttentionMaskInterface.register("prologue", attention_mask)
