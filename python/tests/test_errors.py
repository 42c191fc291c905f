"""Errors say what to do: arrays of two frameworks, wrong axes, dtypes, tensors without memory, torch.func."""

import numpy as np
import prologue_attention as prologue
import pytest
from prologue_attention import PagedKv, PageTable, Rope, TokenPlaces

ROPE = Rope(theta=10000.0, rotary_dim=8)
Q, K = np.zeros((6, 4, 8), np.float32), np.zeros((6, 2, 8), np.float32)
CACHE = PagedKv(np.zeros((3, 4, 2, 8), np.float32), np.zeros((3, 4, 2, 8), np.float32))


def reshaped(*shape):
    return Q.reshape(shape)


AXES = "3 axes, [num_tokens, heads, head_dim]"
ALL_HEADS = ". If a row has all heads of a token, reshape(6, -1, head_dim) makes it so"
BATCH = ". If its axes are batch, seq_len, heads, head_dim, reshape(6, 4, 8) makes it so"


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: prologue.rotary(reshaped(6, 32), rope=ROPE),
         "x has the shape [6, 32]: it must have 3 axes, [tokens, heads, head_dim], or 4, [batch, seq_len, heads, head_dim]" + ALL_HEADS),
        (lambda: prologue.attention_prologue(reshaped(6, 32), K, K), f"q has the shape [6, 32]: it must have {AXES}{ALL_HEADS}"),
        (lambda: prologue.attention_prologue(reshaped(2, 3, 4, 8), K, K), f"q has the shape [2, 3, 4, 8]: it must have {AXES}{BATCH}"),
        (lambda: prologue.attention_prologue(Q, K.reshape(6, 16), K), f"k has the shape [6, 16]: it must have {AXES}{ALL_HEADS}"),
        (lambda: prologue.attention_prologue(Q, K, K, k_out=K.reshape(2, 3, 2, 8)),
         f"k_out has the shape [2, 3, 2, 8]: it must have {AXES}. If its axes are batch, seq_len, heads, head_dim, reshape(6, 2, 8) makes it so"),
        (lambda: prologue.attention_prologue(qkv=reshaped(2, 3, 32), num_q_heads=1, num_kv_heads=1, head_dim=8),
         "qkv has the shape [2, 3, 32]: it must have 2 axes"),
        (lambda: prologue.mla_prologue(q_pe=reshaped(6, 32), rope=Rope(cos_sin=np.zeros((9, 8), np.float32))),
         f"q_pe has the shape [6, 32]: it must have {AXES}{ALL_HEADS}"),
        (lambda: prologue.paged_attention(reshaped(192), CACHE, page_table=PageTable(), cu_seqlens_q=np.zeros(2, np.int32)),
         f"q has the shape [192]: it must have {AXES}. If it is one token, reshape(1, -1, head_dim) makes it so"),
        (lambda: prologue.attention_layer(reshaped(2, 3, 32), Q, Q, num_q_heads=4, num_kv_heads=2, head_dim=8, cache=CACHE, places=TokenPlaces()),
         "hidden_states has the shape [2, 3, 32]: it must have 2 axes, [num_tokens, hidden_size]. reshape(6, 32) makes it so"),
        (lambda: prologue.gather_cos_sin(np.zeros((2, 3, 4), np.float32), np.arange(2)), "cos_sin has the shape [2, 3, 4]: it must have 2 axes"),
    ],
)  # fmt: skip
def test_a_wrong_number_of_axes_comes_with_the_reshape(call, message):
    with pytest.raises(ValueError) as error:
        call()
    assert str(error.value) == message


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: prologue.rotary(Q, K.astype(np.float16), rope=ROPE), "the second tensor is float16: it must be float32, the dtype of x"),
        (lambda: prologue.attention_prologue(Q, K.astype(np.float16), K), "k is float16: it must be float32, the dtype of q"),
        (lambda: prologue.rotary(Q.astype(np.complex64), rope=ROPE), "x is complex64: no operation takes complex numbers"),
        (lambda: prologue.mla_prologue(q_pe=Q, q_pe_out=Q.astype(np.float16)), "q_pe_out is float16: it must be float32, the dtype of q_pe"),
    ],
)  # fmt: skip
def test_a_wrong_dtype_names_both(call, message):
    with pytest.raises(TypeError) as error:
        call()
    assert str(error.value) == message


def test_arrays_of_two_frameworks():
    torch = pytest.importorskip("torch")
    message = "rotary: x[0] is a torch tensor, x[1] a NumPy array: convert one of them, all arrays of a call must be of one framework"
    for options in ({}, {"inplace": True}, {"out": (torch.zeros(6, 4, 8), K)}):
        with pytest.raises(TypeError) as error:
            prologue.rotary(torch.from_numpy(Q), K, rope=ROPE, **options)
        assert str(error.value) == message
    with pytest.raises(TypeError, match=r"rotary: x\[0\] is a NumPy array, x\[1\] a torch tensor"):
        prologue.rotary(Q, torch.from_numpy(K), rope=ROPE)
    frozen = np.arange(6)
    frozen.flags.writeable = False
    with pytest.raises(TypeError, match=r"rotary: x\[0\] is a torch tensor, positions a NumPy array"):
        prologue.rotary(torch.from_numpy(Q), rope=ROPE, positions=frozen)


def test_meta_tensors_have_shapes_only():
    torch = pytest.importorskip("torch")
    q, k = torch.zeros(6, 4, 8, device="meta"), torch.zeros(6, 2, 8, device="meta")
    cache = PagedKv(torch.zeros(3, 4, 2, 8, device="meta"), torch.zeros(3, 4, 2, 8, device="meta"))
    one, other = prologue.rotary(q, k, rope=ROPE)
    assert one.is_meta and one.shape == q.shape and other.shape == k.shape
    assert prologue.attention_prologue(q, k, k, cache=cache).is_meta
    ids = torch.zeros(2, dtype=torch.int32, device="meta")
    assert prologue.paged_attention(q, cache, page_table=PageTable(ids[None]), cu_seqlens_q=ids, seq_lens=ids[:1]).shape == q.shape
    message = "attention_prologue: k is a meta tensor, which has no data, but q is on cpu: all tensors of a call must be on one device"
    with pytest.raises(ValueError) as error:
        prologue.attention_prologue(torch.from_numpy(Q), k, k)
    assert str(error.value) == message


def test_transforms_of_torch_func():
    torch = pytest.importorskip("torch")
    q = torch.from_numpy(Q)
    with pytest.raises(NotImplementedError, match=r"rotary: x\[0\] is batched by torch.func.vmap, which operations do not support"):
        torch.func.vmap(lambda x: prologue.rotary(x, rope=ROPE))(q[None])
    with pytest.raises(NotImplementedError, match="attention_prologue: q is batched by torch.func.vmap"):
        torch.func.vmap(lambda x: prologue.attention_prologue(x))(q[None])
    for transform in (torch.func.grad, torch.func.jacrev):
        with pytest.raises(NotImplementedError, match=r"rotary: x\[0\] is a tensor of torch.func \(grad, jvp, ..\)"):
            transform(lambda x: prologue.rotary(x, rope=ROPE).sum())(q)
    with pytest.raises(NotImplementedError, match=r"rotary: x\[0\] is a tensor of torch.func"):
        torch.func.jvp(lambda x: prologue.rotary(x, rope=ROPE), (q,), (q,))


def test_a_sparse_tensor():
    torch = pytest.importorskip("torch")
    with pytest.raises(ValueError, match=r"rotary: x\[0\] is torch.sparse_coo: it must be a dense tensor"):
        prologue.rotary(torch.from_numpy(Q).to_sparse(), rope=ROPE)
