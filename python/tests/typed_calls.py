"""Calls as a user writes them, for type checkers: mypy and pyright check this file (test_types.py). It is never run."""

from typing import List, Optional, Sequence, Tuple, Union

import prologue_attention as prologue
from prologue_attention import HeadNorm, PagedKv, PageTable, QueryScale, Rope, TokenPlaces
from typing_extensions import assert_type


class Tensor:
    """An array of some framework."""

    shape: Tuple[int, ...]
    dtype: str


def calls(q: Tensor, k: Tensor, v: Tensor, table: Tensor, positions: Tensor, many: Sequence[Tensor]) -> None:
    rope = Rope(cos_sin=table, past_table="zero")
    cache = PagedKv(k, v, layout="hnd", scaling="token_head", k_type="int4")
    PagedKv(k, k, k_type="mxfp8", v_type="nvfp4", k_block_scale=k, v_block_scale=v, v_block_scale_layout="interleaved_4_tokens")
    places = TokenPlaces(positions=positions, page_table=PageTable(block_table=positions))

    assert_type(prologue.rotary(q, rope=rope), Tensor)
    assert_type(prologue.rotary(q, rope=rope, positions=positions, layout="bhsd", tail="leave", out=q), Tensor)
    assert_type(prologue.rotary(q, k, rope=rope, out=[q, k]), Tuple[Tensor, Tensor])
    assert_type(prologue.rotary(q, k, v, rope=rope, inplace=True, rotate=[True, True, False]), Tuple[Tensor, Tensor, Tensor])
    assert_type(prologue.rotary(q, k, v, q, rope=rope), Tuple[Tensor, Tensor, Tensor, Tensor])
    assert_type(prologue.gather_cos_sin(table, positions, past_table="identity"), Tensor)

    norm = HeadNorm(weight=table, kind="rms", scope="token", placement="after_rope")
    assert_type(prologue.attention_prologue(q, k, v, cache=cache, rope=rope, places=places, q_norm=norm, rounding="per_step"), Tensor)
    assert_type(prologue.attention_prologue(q, k, v, q8_out=k), Tensor)
    assert_type(prologue.attention_prologue(qkv=q, num_q_heads=4, num_kv_heads=2, head_dim=8), Optional[Tensor])
    prologue.attention_prologue(k=k, v=v, cache=cache, q_scale=QueryScale(by_position="llama4", a=0.1, b=8192.0))
    assert_type(prologue.mla_prologue(k, v, q, kv_cache=table, cache_type="fp8_ds_mla"), Tensor)
    prologue.mla_prologue(k, v, kv_cache=table)
    assert_type(prologue.paged_attention(q, cache, page_table=PageTable(block_table=positions), cu_seqlens_q=positions), Tensor)
    layer = prologue.attention_layer(q, k, v, num_q_heads=4, num_kv_heads=2, head_dim=8, cache=cache, places=places)
    assert_type(layer, Tensor)
    assert_type(prologue.read_faults(table), Optional[prologue.Fault])
    assert_type(prologue.built_with_cuda(), bool)


def any_number(many: List[Tensor], rope: Rope) -> Union[Tensor, Tuple[Tensor, ...]]:
    return prologue.rotary(*many, rope=rope)


def wrong(q: Tensor, k: Tensor, table: Tensor) -> None:
    """Each of these lines is an error, which the comment expects (an unused one is an error, too)."""
    Rope(style="gptj", theta=1e4)  # type: ignore[arg-type]
    Rope(cos_sin=table, past_table="none")  # type: ignore[arg-type]
    PagedKv(k, k, layout="NHD")  # type: ignore[arg-type]
    PagedKv(k, k, k_type="fp8")  # type: ignore[arg-type]
    HeadNorm(kind="batch")  # type: ignore[arg-type]
    QueryScale(by_position="yes")  # type: ignore[arg-type]
    prologue.rotary(q, rope=Rope(theta=1e4), tail="keep")  # type: ignore[call-overload]
    prologue.rotary(q, rope=Rope(theta=1e4), layout="bshh")  # type: ignore[call-overload]
    prologue.rotary(q, rope=Rope(theta=1e4), position=q)  # type: ignore[call-overload]
    prologue.rotary(1.0, rope=Rope(theta=1e4))  # type: ignore[call-overload]
    prologue.mla_prologue(q, k, q, cache_type="int8")  # type: ignore[call-overload]
