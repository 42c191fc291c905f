"""Every operation takes every form of a rope that its contract has: theta, inv_freq, cos and sin with a column for each pair or channel."""

import numpy as np
import oracle
import prologue_attention as prologue
import pytest
from prologue_attention import PagedKv, PageTable, Rope, TokenPlaces

TOKENS, HEADS, DIM = 5, 4, 16
POSITIONS = np.array([3, 0, 39, 7, 11])
FREQUENCIES = oracle.frequencies(DIM)
TABLE = oracle.table(40, DIM)
COS, SIN = TABLE[:, : DIM // 2].copy(), TABLE[:, DIM // 2 :].copy()


def twice(table):
    """As Hugging Face has it: a column for each channel."""
    return np.concatenate([table, table], 1)


ROPES = {
    "theta": Rope(theta=10000.0, rotary_dim=DIM),
    "inv_freq": Rope(inv_freq=FREQUENCIES.astype(np.float32)),
    "cos and sin": Rope(cos=COS, sin=SIN),
    "a column for each channel": Rope(cos=twice(COS), sin=twice(SIN)),
}


def normal(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def same(array):
    return array


def rotary(rope, to=same):
    return prologue.rotary(to(normal(TOKENS, HEADS, DIM)), rope=rope, positions=to(POSITIONS))


def attention_prologue(rope, to=same):
    return prologue.attention_prologue(to(normal(TOKENS, HEADS, DIM)), rope=rope, places=TokenPlaces(to(POSITIONS)))


def mla_prologue(rope, to=same):
    return prologue.mla_prologue(q_pe=to(normal(TOKENS, HEADS, DIM)), rope=rope, positions=to(POSITIONS))


def attention_layer(rope, to=same):
    """With weights such that the output is V, and the K that it writes is the rotated hidden states."""
    heads, wide = normal(TOKENS, HEADS, DIM), HEADS * DIM
    cache = PagedKv(to(np.zeros((2, 8, HEADS, DIM), np.float32)), to(np.zeros((2, 8, HEADS, DIM), np.float32)))
    places = TokenPlaces(to(POSITIONS), to(np.arange(TOKENS)), to(np.array([0, TOKENS], np.int32)), seq_lens=to(np.array([TOKENS], np.int32)), page_table=PageTable(to(np.array([[0, 1]], np.int32))))  # fmt: skip
    weight, one = to(np.concatenate([np.eye(wide, dtype=np.float32)] * 3)), to(np.eye(wide, dtype=np.float32))
    options = dict(num_q_heads=HEADS, num_kv_heads=HEADS, head_dim=DIM, rope=rope, cache=cache, places=places)
    prologue.attention_layer(to(heads.reshape(TOKENS, wide)), weight, one, **options)
    return cache.k[0][:TOKENS]


CALLS = [rotary, attention_prologue, mla_prologue, attention_layer]


FULL = ("a column for each channel",)  # only rotary takes it
CASES = [(call, name) for call in CALLS for name in ROPES if call is rotary or name not in FULL]


@pytest.mark.parametrize("call, name", CASES)
def test_every_operation_takes_every_source(call, name):
    want = oracle.rotate(normal(TOKENS, HEADS, DIM), POSITIONS, FREQUENCIES)
    np.testing.assert_allclose(call(ROPES[name]), want, rtol=0, atol=1e-5)


@pytest.mark.parametrize("call", CALLS[1:])
def test_what_to_give_for_a_column_for_each_channel(call):
    columns = ROPES["a column for each channel"]
    message = r"rope: cos has a column for each of 16 channels, which only rotary takes: if both halves are the same, as Hugging Face has "
    with pytest.raises(NotImplementedError, match=message + r"them, give cos\[..., :8\] and the same of sin"):
        call(columns)
    with pytest.raises(NotImplementedError, match=r"if both columns of a pair are the same, .* give cos\[..., ::2\]"):
        call(columns._replace(style="interleaved"))
    np.testing.assert_array_equal(call(Rope(cos=columns.cos[..., :8], sin=columns.sin[..., :8])), call(ROPES["cos and sin"]))


@pytest.mark.parametrize("call, name", CASES)
def test_with_torch_and_compiled(call, name):
    torch = pytest.importorskip("torch")
    rope = Rope(*[torch.from_numpy(one) if isinstance(one, np.ndarray) else one for one in ROPES[name]])
    want = call(ROPES[name])
    np.testing.assert_array_equal(call(rope, torch.from_numpy).numpy(), want)
    if call is attention_layer:
        return  # its arrays are made inside of it
    if call is rotary:
        run = lambda x, p: prologue.rotary(x, rope=rope, positions=p)  # noqa: E731
    elif call is mla_prologue:
        run = lambda x, p: prologue.mla_prologue(q_pe=x, rope=rope, positions=p)  # noqa: E731
    else:
        run = lambda x, p: prologue.attention_prologue(x, rope=rope, places=TokenPlaces(p))  # noqa: E731
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    np.testing.assert_array_equal(compiled(torch.from_numpy(normal(TOKENS, HEADS, DIM)), torch.from_numpy(POSITIONS)).numpy(), want)


@pytest.mark.parametrize("name", ROPES)
def test_with_jax(name):
    jax = pytest.importorskip("jax")
    pytest.importorskip("jax_tvm_ffi")
    import prologue_attention.jax

    to = jax.numpy.asarray
    rope = Rope(*[to(one) if isinstance(one, np.ndarray) else one for one in ROPES[name]])
    q, positions = to(normal(TOKENS, HEADS, DIM)), to(POSITIONS.astype(np.int32))
    np.testing.assert_array_equal(np.asarray(prologue.jax.rotary(q, rope=rope, positions=positions)), rotary(ROPES[name]))


def test_columns_are_pairs_where_they_can_be():
    x = normal(TOKENS, HEADS, 2 * DIM)  # a table of 16 columns could be 16 pairs or 16 channels: it is pairs, unless told
    for call in (
        lambda **options: prologue.rotary(x, rope=Rope(cos=twice(COS), sin=twice(SIN), **options), positions=POSITIONS),
    ):
        want = oracle.rotate(x, POSITIONS, FREQUENCIES)
        np.testing.assert_allclose(call(width="full"), want, rtol=0, atol=1e-5)
        np.testing.assert_allclose(call(rotary_dim=DIM), want, rtol=0, atol=1e-5)
        np.testing.assert_allclose(call(), oracle.rotate(x, POSITIONS, np.tile(FREQUENCIES, 2)), rtol=0, atol=1e-5)


def test_the_frequencies_of_theta_are_made_once():
    rope = Rope(theta=123.0, rotary_dim=DIM)
    attention_prologue(rope)
    known = prologue._frameworks._FREQUENCIES
    count, made = len(known), [one for key, one in known.items() if key[2] == 123.0]
    attention_prologue(rope._replace(inverse=True))
    assert len(known) == count and len(made) == 1
