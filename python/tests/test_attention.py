import numpy as np
import oracle
import prologue_attention as prologue
import pytest
from prologue_attention import HeadGroup, HeadNorm, PagedKv, PageTable, QueryScale, Rope, TokenPlaces

TOKENS, Q_HEADS, KV_HEADS, DIM, PAGES, PAGE = 7, 4, 2, 16, 6, 4


@pytest.fixture
def step(rng):
    """Three sequences with 3, 1 and 3 new tokens, after 2, 6 and 0 in the cache."""
    counts, before = np.array([3, 1, 3]), np.array([2, 6, 0])
    block_table = np.array([[5, 2, -1], [0, 4, -1], [3, -1, -1]], np.int32)
    positions = np.concatenate([b + np.arange(n) for b, n in zip(before, counts)])
    sequence = np.repeat(np.arange(3), counts)
    slots = block_table[sequence, positions // PAGE] * PAGE + positions % PAGE
    return {
        "q": rng.standard_normal((TOKENS, Q_HEADS, DIM)).astype(np.float32),
        "k": rng.standard_normal((TOKENS, KV_HEADS, DIM)).astype(np.float32),
        "v": rng.standard_normal((TOKENS, KV_HEADS, DIM)).astype(np.float32),
        "positions": positions,
        "slots": slots,
        "block_table": block_table,
        "cu_seqlens_q": np.array([0, 3, 4, 7], np.int32),
        "cache_lens": before.astype(np.int32),
        "seq_lens": (before + counts).astype(np.int32),
    }


def caches(rng, layout="nhd", dtype=np.float32):
    shape = (PAGES, PAGE, KV_HEADS, DIM) if layout == "nhd" else (PAGES, KV_HEADS, PAGE, DIM)
    return rng.standard_normal(shape).astype(dtype), rng.standard_normal(shape).astype(dtype)


def in_slots(cache, slots, layout="nhd"):
    cache = cache if layout == "nhd" else cache.swapaxes(1, 2)
    return cache.reshape(PAGES * PAGE, *cache.shape[2:])[slots]


ROPE = Rope(cos_sin=oracle.table(64, DIM))


def rotated(x, positions, rotary_dim=DIM):
    return oracle.rotate(x, positions, oracle.frequencies(rotary_dim))


@pytest.mark.parametrize("layout", ["nhd", "hnd"])
@pytest.mark.parametrize("given", ["slots", "cache_lens", "seq_lens", "CSR"])
def test_rotates_and_writes_only_its_slots(rng, step, layout, given):
    k_cache, v_cache = caches(rng, layout)
    k_before, v_before = k_cache.copy(), v_cache.copy()
    q_before = step["q"].copy()
    table = PageTable(step["block_table"])
    places = {
        "slots": TokenPlaces(step["positions"], step["slots"]),
        "cache_lens": TokenPlaces(cu_seqlens_q=step["cu_seqlens_q"], cache_lens=step["cache_lens"], page_table=table),
        "seq_lens": TokenPlaces(cu_seqlens_q=step["cu_seqlens_q"], seq_lens=step["seq_lens"], page_table=table),
        "CSR": TokenPlaces(
            cu_seqlens_q=step["cu_seqlens_q"],
            page_table=PageTable(
                kv_indptr=np.array([0, 2, 4, 5], np.int32),
                kv_indices=np.array([5, 2, 0, 4, 3], np.int32),
                kv_last_page_len=np.array([1, 3, 3], np.int32),
            ),
        ),
    }[given]
    q = prologue.attention_prologue(
        step["q"], step["k"], step["v"], cache=PagedKv(k_cache, v_cache, layout=layout), rope=ROPE, places=places
    )
    np.testing.assert_allclose(q, rotated(step["q"], step["positions"]), rtol=0, atol=2e-6)
    np.testing.assert_allclose(in_slots(k_cache, step["slots"], layout), rotated(step["k"], step["positions"]), rtol=0, atol=2e-6)
    np.testing.assert_array_equal(in_slots(v_cache, step["slots"], layout), step["v"])
    others = np.setdiff1d(np.arange(PAGES * PAGE), step["slots"])
    for after, before in ((k_cache, k_before), (v_cache, v_before)):
        np.testing.assert_array_equal(in_slots(after, others, layout), in_slots(before, others, layout))
    np.testing.assert_array_equal(step["q"], q_before)


def test_bias_norms_partial_rotation_and_scale(rng, step):
    q_bias, k_bias, v_bias = (rng.standard_normal(heads * DIM).astype(np.float32) for heads in (Q_HEADS, KV_HEADS, KV_HEADS))
    q_weight, k_weight, k_shift = (rng.standard_normal(DIM).astype(np.float32) for _ in range(3))
    k_out, v_out = np.empty_like(step["k"]), np.empty_like(step["v"])
    q = prologue.attention_prologue(
        step["q"], step["k"], step["v"],
        rope=Rope(rotary_dim=8, cos_sin=oracle.table(64, 8)), places=TokenPlaces(step["positions"]),
        q_bias=q_bias, k_bias=k_bias, v_bias=v_bias,
        q_norm=HeadNorm(weight=q_weight, eps=1e-5, weight_offset=1.0),
        k_norm=HeadNorm("after_rope", k_weight, k_shift, kind="layer", eps=1e-3),
        v_norm=HeadNorm(eps=1e-6), q_scale=QueryScale(0.5, "llama4", a=0.1, b=4.0), k_out=k_out, v_out=v_out,
    )  # fmt: skip
    positions = step["positions"]
    want = oracle.rms_norm(step["q"] + q_bias.reshape(Q_HEADS, DIM).astype(np.float64), q_weight, 1e-5, 1.0)
    want = rotated(want, positions, 8) * 0.5 * (1 + 0.1 * np.log(1 + (positions + 1) // 4))[:, None, None]
    np.testing.assert_allclose(q, want, rtol=0, atol=1e-5)
    want = rotated(step["k"] + k_bias.reshape(KV_HEADS, DIM).astype(np.float64), positions, 8)
    np.testing.assert_allclose(k_out, oracle.layer_norm(want, k_weight, k_shift, 1e-3), rtol=0, atol=1e-5)
    np.testing.assert_allclose(v_out, oracle.rms_norm(step["v"] + v_bias.reshape(KV_HEADS, DIM).astype(np.float64)), rtol=0, atol=1e-5)


def test_constants_of_k_and_v(rng, step):
    """MiMo V2 multiplies V. The cache and k_out, v_out have the products."""
    k_cache, v_cache = caches(rng)
    k_out, v_out = np.empty_like(step["k"]), np.empty_like(step["v"])
    prologue.attention_prologue(
        None, step["k"], step["v"], cache=PagedKv(k_cache, v_cache), rope=ROPE, places=TokenPlaces(step["positions"], step["slots"]),
        k_norm=HeadNorm(eps=1e-6), k_constant=1.2, v_constant=0.707, k_out=k_out, v_out=v_out,
    )  # fmt: skip
    np.testing.assert_allclose(k_out, 1.2 * rotated(oracle.rms_norm(step["k"]), step["positions"]), rtol=0, atol=1e-5)
    np.testing.assert_array_equal(v_out, step["v"] * np.float32(0.707))
    np.testing.assert_array_equal(in_slots(k_cache, step["slots"]), k_out)
    np.testing.assert_array_equal(in_slots(v_cache, step["slots"]), v_out)


def groups_of(rng):
    """The q heads and the k head of an indexer, and a gate packed behind q."""
    index_q, index_k = (rng.standard_normal((TOKENS, heads, 32)).astype(np.float32) for heads in (3, 1))
    packed = rng.standard_normal((TOKENS, Q_HEADS, 2 * DIM)).astype(np.float32)
    cache = np.zeros((3, 8, 1, 32), np.float32)  # pages of 8 tokens
    norm = HeadNorm(kind="layer", weight=rng.standard_normal(32).astype(np.float32), bias=rng.standard_normal(32).astype(np.float32))
    return packed, cache, [
        HeadGroup(x=index_q, rope=ROPE, hadamard_block=32, constant=0.5, out=np.empty_like(index_q)),
        HeadGroup(x=index_k, norm=norm, rope=ROPE, cache=PagedKv(cache)),
        HeadGroup(x=packed[..., DIM:], activation="sigmoid", out=np.empty((TOKENS, Q_HEADS, DIM), np.float32)),
    ]


def test_groups(rng, step):
    """They are what calls of their own make of them; the same again, with a plan."""
    places = TokenPlaces(step["positions"], step["slots"])
    for _ in range(4):
        packed, cache, groups = groups_of(rng)
        k_cache, v_cache = caches(rng)
        result = prologue.attention_prologue(
            packed[..., :DIM], step["k"], step["v"], cache=PagedKv(k_cache, v_cache), rope=ROPE, places=places, groups=groups
        )
        np.testing.assert_allclose(result, rotated(packed[..., :DIM], step["positions"]), rtol=0, atol=1e-5)
        index_q, index_k, gate = groups
        want = prologue.attention_prologue(
            index_q.x, rope=ROPE, places=TokenPlaces(step["positions"]), hadamard_block=32, q_scale=QueryScale(constant=0.5)
        )
        np.testing.assert_array_equal(index_q.out, want)
        want = prologue.attention_prologue(index_k.x, rope=ROPE, places=TokenPlaces(step["positions"]), q_norm=index_k.norm)
        np.testing.assert_array_equal(cache.reshape(24, 1, 32)[step["slots"]], want)
        np.testing.assert_allclose(gate.out, 1 / (1 + np.exp(-packed[..., DIM:])), rtol=1e-6, atol=0)


def test_groups_alone(rng, step):
    _, cache, groups = groups_of(rng)
    assert prologue.attention_prologue(groups=groups, places=TokenPlaces(step["positions"], step["slots"])) is None
    want = groups[0].out.copy()
    groups[0].out[:] = 0
    prologue.attention_prologue(groups=groups, places=TokenPlaces(step["positions"], step["slots"]))
    np.testing.assert_array_equal(groups[0].out, want)
    other = rng.standard_normal(groups[0].x.shape).astype(np.float32)
    plan = prologue.Plan(
        prologue.attention_prologue, groups=groups, places=TokenPlaces(step["positions"], step["slots"]), changing=["groups[0].x"]
    )
    for x in (other, groups[0].x):
        plan(x)
        prologue.attention_prologue(groups=[groups[0]._replace(x=x, out=want)], places=TokenPlaces(step["positions"]))
        np.testing.assert_array_equal(groups[0].out, want)
    for wrong, error, message in [
        ([HeadGroup(x=x)], ValueError, r"groups\[0\]: out, q8_out and cache are all null"),
        ([HeadGroup(x=x, out=x[:, :1])], ValueError, "the heads of x"),
        ([HeadGroup(x=x, out=x, constant=0.0)], ValueError, r"groups\[0\]: constant is 0"),
        ([HeadGroup(x=x, out=x, activation="relu")], ValueError, "activation is 'relu'"),
        ([HeadGroup(x=x, out=x)] * 5, ValueError, "there are 5 groups: it must be at most 4"),
        ([HeadGroup(x=x, cache=PagedKv(np.zeros((6, 4, 2, 32), np.float32)))], ValueError, "has 2 heads, x 3"),
        ([x], TypeError, "is not of its class"),
    ]:
        with pytest.raises(error, match=message):
            prologue.attention_prologue(groups=wrong, places=TokenPlaces(step["positions"], step["slots"]))


def test_packed_qkv_in_place(rng, step):
    qkv = np.concatenate([step[name].reshape(TOKENS, -1) for name in "qkv"], 1)
    k_cache, v_cache = caches(rng)
    q = qkv[:, : Q_HEADS * DIM].reshape(TOKENS, Q_HEADS, DIM)
    q = np.lib.stride_tricks.as_strided(qkv, (TOKENS, Q_HEADS, DIM), (qkv.strides[0], DIM * 4, 4))
    result = prologue.attention_prologue(
        qkv=qkv, num_q_heads=Q_HEADS, num_kv_heads=KV_HEADS, head_dim=DIM, q_out=q,
        cache=PagedKv(k_cache, v_cache), rope=ROPE, places=TokenPlaces(step["positions"], step["slots"]),
    )  # fmt: skip
    assert result is q
    np.testing.assert_allclose(qkv[:, : Q_HEADS * DIM].reshape(q.shape), rotated(step["q"], step["positions"]), rtol=0, atol=2e-6)
    np.testing.assert_array_equal(qkv[:, -KV_HEADS * DIM :].reshape(step["v"].shape), step["v"])
    np.testing.assert_array_equal(in_slots(v_cache, step["slots"]), step["v"])


def test_packed_q_and_k_with_v_from_k(rng, step):
    """Gemma 4: V is K as it is projected, with a norm of its own."""
    qk = np.concatenate([step[name].reshape(TOKENS, -1) for name in "qk"], 1)
    numbers = {"num_q_heads": Q_HEADS, "num_kv_heads": KV_HEADS, "head_dim": DIM}
    steps = {"rope": ROPE, "places": TokenPlaces(step["positions"]), "k_norm": HeadNorm(eps=1e-6), "v_norm": HeadNorm(eps=1e-6)}
    k_out, v_out, k_want, v_want = (np.empty_like(step["k"]) for _ in range(4))
    q = prologue.attention_prologue(qkv=qk, v_from_k=True, **numbers, **steps, k_out=k_out, v_out=v_out)
    want = prologue.attention_prologue(step["q"], step["k"], step["k"], **steps, k_out=k_want, v_out=v_want)
    np.testing.assert_array_equal(q, want)
    np.testing.assert_array_equal(k_out, k_want)
    np.testing.assert_array_equal(v_out, v_want)
    np.testing.assert_allclose(v_out, oracle.rms_norm(step["k"]), rtol=0, atol=1e-5)
    for options, message in (
        ({"qkv": qk, **numbers}, "axis 1 must have 128 elements, the rows of q, k and v"),
        ({"qkv": qk, **numbers, "v_from_k": True, "v_head_dim": 8}, "v_head_dim is 8: V that is taken from K has head_dim, 16"),
        ({"q": step["q"], "k": step["k"], "v_from_k": True}, "give k as v"),
    ):
        with pytest.raises(ValueError, match=message):
            prologue.attention_prologue(**options, **steps, k_out=k_out, v_out=v_out)


def test_packed_qkv_in_place_for_one_token(rng, step):
    """The stride of an axis of size 1 says nothing."""
    rows = (step["q"][:1], step["k"][:1], step["v"][:1])
    for offset in (0, 3):  # in rows of their own, and in wider ones
        qkv = np.zeros((1, (Q_HEADS + 2 * KV_HEADS) * DIM + offset), np.float32)[:, offset:]
        qkv[:] = np.concatenate([one.reshape(1, -1) for one in rows], 1)
        q, k, v = np.split(qkv.reshape(1, Q_HEADS + 2 * KV_HEADS, DIM), [Q_HEADS, Q_HEADS + KV_HEADS], 1)
        assert np.shares_memory(q, qkv) and np.shares_memory(v, qkv)
        prologue.attention_prologue(
            qkv=qkv, num_q_heads=Q_HEADS, num_kv_heads=KV_HEADS, head_dim=DIM, q_out=q, k_out=k, v_out=v, rope=ROPE,
            places=TokenPlaces(step["positions"][:1]),
        )  # fmt: skip
        np.testing.assert_allclose(q, rotated(rows[0], step["positions"][:1]), rtol=0, atol=2e-6)
        np.testing.assert_allclose(k, rotated(rows[1], step["positions"][:1]), rtol=0, atol=2e-6)
        np.testing.assert_array_equal(v, rows[2])


@pytest.mark.parametrize("k_type, v_type", [("float32", "float16"), ("float16", "float32"), ("float32", "int8"), ("int8", "float32")])
def test_one_of_k_and_v_has_the_type_of_the_call(rng, step, k_type, v_type):
    """In the prologue, in attention and in the layer."""
    shape, options = (PAGES, PAGE, KV_HEADS, DIM), {"scaling": "token_head"} if "int8" in (k_type, v_type) else {}
    for name, kind in (("k_scale", k_type), ("v_scale", v_type)):
        options[name] = np.zeros(shape[:3], np.float32) if kind == "int8" else None
    cache = PagedKv(np.zeros(shape, k_type), np.zeros(shape, v_type), **options)
    places = TokenPlaces(cu_seqlens_q=step["cu_seqlens_q"], seq_lens=step["seq_lens"], page_table=PageTable(step["block_table"]))
    q = prologue.attention_prologue(step["q"], step["k"], step["v"], cache=cache, rope=ROPE, places=places)
    numbers = []
    for codes, scale, want in ((cache.k, cache.k_scale, rotated(step["k"], step["positions"])), (cache.v, cache.v_scale, step["v"])):
        numbers.append(codes.astype(np.float64) * (1 if scale is None else scale[..., None]))
        error = abs(in_slots(numbers[-1], step["slots"]) - want)
        assert error.max() <= {"float32": 2e-6, "float16": 2e-3, "int8": abs(want).max() / 200}[codes.dtype.name]
    batch = {"cu_seqlens_q": step["cu_seqlens_q"], "seq_lens": step["seq_lens"]}
    got = prologue.paged_attention(q, cache, page_table=PageTable(step["block_table"]), **batch)
    want = oracle.attention(q, *numbers, [[5, 2], [0, 4], [3]], step["cu_seqlens_q"], step["seq_lens"])
    np.testing.assert_allclose(got, want, rtol=0, atol=5e-6)
    identity = np.eye(Q_HEADS * DIM, dtype=np.float32)
    hidden = np.concatenate([step[name].reshape(TOKENS, -1) for name in "qkv"], 1)
    out = prologue.attention_layer(
        hidden, np.eye(hidden.shape[1], dtype=np.float32), np.concatenate([identity, np.zeros((64, 64), np.float32)]), num_q_heads=Q_HEADS,
        num_kv_heads=KV_HEADS, head_dim=DIM, cache=cache, rope=ROPE, places=places,
    )  # fmt: skip
    np.testing.assert_allclose(out[:, : Q_HEADS * DIM], got.reshape(TOKENS, -1), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["window", "chunk"])
def test_a_ring_holds_the_window_of_a_long_sequence(rng, name):
    """A window of 33 over 200 tokens in a ring of 48, without bounds: in steps of 16 and of 1, by the operations and by the layer."""
    tokens, ring, heads, dim = 200, 48, 2, 8
    q, k, v = (rng.standard_normal((tokens, heads, dim)).astype(np.float32) for _ in range(3))
    history = (k[None], v[None])
    want = np.zeros_like(q)
    for row in range(tokens):
        first = max(0, row - 32) if name == "window" else row // 33 * 33
        part = tuple(one[:, first : row + 1] for one in history)
        want[row] = oracle.attention(q[row : row + 1], *part, [[0]], [0, 1], [row + 1 - first])[0]
    hidden, identity = np.concatenate([one.reshape(tokens, -1) for one in (q, k, v)], 1), np.eye(heads * dim, dtype=np.float32)
    output_weight = np.concatenate([identity, np.zeros((2 * heads * dim, heads * dim), np.float32)])
    by_operations, by_layer = np.zeros_like(want), np.zeros((tokens, heads * dim), np.float32)
    caches = [PagedKv(*np.zeros((2, 3, 16, heads, dim), np.float32)) for _ in range(2)]
    table, begin = PageTable(np.array([[2, 0, 1]], np.int32)), 0
    while begin < tokens:
        count = 16 if begin < 160 else 1
        end = min(begin + count, tokens)
        lengths = {"cu_seqlens_q": np.array([0, end - begin], np.int32), "seq_lens": np.array([end], np.int32)}
        places, rows = TokenPlaces(**lengths, ring_size=ring, page_table=table), slice(begin, end)
        prologue.attention_prologue(k=k[rows], v=v[rows], cache=caches[0], places=places)
        by_operations[rows] = prologue.paged_attention(q[rows], caches[0], page_table=table, **lengths, ring_size=ring, **{name: 33})
        by_layer[rows] = prologue.attention_layer(
            hidden[rows], np.eye(hidden.shape[1], dtype=np.float32), output_weight, num_q_heads=heads, num_kv_heads=heads, head_dim=dim,
            cache=caches[1], places=places, **{name: 33},
        )[:, : heads * dim]  # fmt: skip
        begin = end
    np.testing.assert_allclose(by_operations, want, rtol=0, atol=3e-6)
    np.testing.assert_allclose(by_layer, want.reshape(tokens, -1), rtol=0, atol=3e-6)


def test_rings_that_cannot_be_right(rng):
    q, cache = np.zeros((5, 2, 8), np.float32), PagedKv(*np.zeros((2, 3, 4, 2, 8), np.float32))
    table = PageTable(np.zeros((1, 3), np.int32))
    batch = {"cu_seqlens_q": np.array([0, 5], np.int32), "seq_lens": np.array([13], np.int32)}
    with pytest.raises(ValueError, match=r"window is 9: it must lie in 1..8 .* the ring of 12 tokens and max_seqlen_q is 5"):
        prologue.paged_attention(q, cache, page_table=table, **batch, ring_size=12, window=9)
    with pytest.raises(IndexError, match="at token 0; 5 tokens were skipped"):  # without a window a ring holds a sequence of its size
        prologue.paged_attention(q, cache, page_table=table, **batch, ring_size=12)
    places = TokenPlaces(**batch, ring_size=12, page_table=table)
    with pytest.raises(ValueError, match="ring_size is 8, and that of places 12: they must be equal"):
        prologue.attention_layer(
            np.zeros((5, 16), np.float32), np.zeros((48, 16), np.float32), np.zeros((16, 16), np.float32), num_q_heads=2, num_kv_heads=2,
            head_dim=8, cache=cache, places=places, ring_size=8, window=4,
        )  # fmt: skip


def test_inv_freq_needs_no_bound(rng, step):
    inv_freq = oracle.frequencies(DIM).astype(np.float32)
    positions = np.array([0, 1, 5, 777, 65535, 2**20 - 1, 3])
    got = prologue.attention_prologue(step["q"], rope=Rope(inv_freq=inv_freq), places=TokenPlaces(positions))
    np.testing.assert_allclose(got, oracle.rotate(step["q"], positions, inv_freq.astype(np.float64)), rtol=0, atol=3e-6)
    positions[2] = 2**20
    with pytest.raises(IndexError, match="position out of range at token 2"):
        prologue.attention_prologue(step["q"], rope=Rope(inv_freq=inv_freq), places=TokenPlaces(positions))
    for rope, message in (
        (Rope(theta=1e4), "theta is given, which only rotary takes without rotary_dim"),
        (Rope(angles=np.zeros((9, 8), np.float32)), "angles is given, which only rotary takes"),
        (Rope(inv_freq=inv_freq.astype(np.float64)), "inv_freq is float64, which only rotary takes: it must be float32"),
    ):
        with pytest.raises(NotImplementedError, match=message):
            prologue.attention_prologue(step["q"], rope=rope, places=TokenPlaces(positions))


def test_int8_cache_with_a_scale_for_each_token(rng, step):
    k_cache, v_cache = np.zeros((PAGES, PAGE, KV_HEADS, DIM), np.int8), np.zeros((PAGES, PAGE, KV_HEADS, DIM), np.int8)
    k_scale, v_scale = np.zeros((PAGES, PAGE, KV_HEADS), np.float32), np.zeros((PAGES, PAGE, KV_HEADS), np.float32)
    cache = PagedKv(k_cache, v_cache, k_scale, v_scale, scaling="token_head")
    prologue.attention_prologue(step["q"], step["k"], step["v"], cache=cache, rope=ROPE, places=TokenPlaces(step["positions"], step["slots"]))
    for codes, scales, want in ((k_cache, k_scale, rotated(step["k"], step["positions"])), (v_cache, v_scale, step["v"])):
        scale = in_slots(scales[..., None], step["slots"])
        np.testing.assert_allclose(scale[..., 0], abs(want).max(-1) / 127, rtol=1e-6)
        assert (abs(in_slots(codes, step["slots"]) * scale - want) <= 0.5001 * scale).all()


def test_int4_in_bytes_and_fp8_by_name(rng, step):
    k_cache = np.zeros((PAGES, PAGE, KV_HEADS, DIM // 2), np.uint8)
    v_cache = np.zeros((PAGES, PAGE, KV_HEADS, DIM), np.uint8)
    k_scale = np.zeros((PAGES, PAGE, KV_HEADS), np.float32)
    v_scale = k_scale.copy()
    cache = PagedKv(k_cache, v_cache, k_scale, v_scale, scaling="token_head", k_type="int4", v_type="fp8_e4m3")
    prologue.attention_prologue(step["q"], step["k"], step["v"], cache=cache, rope=ROPE, places=TokenPlaces(step["positions"], step["slots"]))
    packed = in_slots(k_cache, step["slots"])
    codes = np.stack([packed & 15, packed >> 4], -1).reshape(*packed.shape[:-1], DIM).astype(np.int8)
    codes = np.where(codes > 7, codes - 16, codes)
    scale = in_slots(k_scale[..., None], step["slots"])
    assert (abs(codes * scale - rotated(step["k"], step["positions"])) <= 0.5001 * scale).all()
    np.testing.assert_allclose(in_slots(v_scale[..., None], step["slots"])[..., 0], abs(step["v"]).max(-1) / 448, rtol=1e-6)


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
E4M3 = np.array([(-1) ** (code >> 7) * (2.0 ** ((code >> 3 & 15) - 7) * (1 + (code & 7) / 8) if code & 120 else (code & 7) / 512) for code in range(256)])
E4M3[[127, 255]] = np.nan


def decoded(kind, codes, scales, factor=1.0):
    """The numbers of a block-scaled cache, by the definitions of the formats."""
    if kind != "mxfp8":
        codes = np.stack([codes & 15, codes >> 4], -1).reshape(*codes.shape[:-1], -1)
    values = (E4M3 if kind == "mxfp8" else E2M1)[codes]
    scale = E4M3[scales] * factor if kind == "nvfp4" else 2.0 ** (scales.astype(np.float64) - 127)
    return values * scale.repeat(values.shape[-1] // scale.shape[-1], -1)


@pytest.mark.parametrize("layout", ["nhd", "hnd"])
@pytest.mark.parametrize("k_type, v_type", [("mxfp8", "nvfp4"), ("nvfp4", "mxfp4"), ("mxfp4", "mxfp8")])
def test_block_scaled_caches(rng, layout, k_type, v_type):
    dim, pages, page, heads = 64, 3, 4, 2
    q, k, v = (rng.standard_normal((6, n, dim)).astype(np.float32) for n in (4, heads, heads))

    def zeros(width):
        return np.zeros((pages, page, heads, width) if layout == "nhd" else (pages, heads, page, width), np.uint8)

    def side(kind):
        return zeros(dim if kind == "mxfp8" else dim // 2), zeros(dim // 16 if kind == "nvfp4" else dim // 32)

    (k_cache, k_blocks), (v_cache, v_blocks) = side(k_type), side(v_type)
    factors = {kind: np.array([0.01], np.float32) if kind == "nvfp4" else None for kind in (k_type, v_type)}
    cache = PagedKv(
        k_cache, v_cache, factors[k_type], factors[v_type], layout, k_type=k_type, v_type=v_type, k_block_scale=k_blocks, v_block_scale=v_blocks
    )
    slots = np.array([5, 0, 7, 2, 9, 11])
    prologue.attention_prologue(q, k, v, cache=cache, places=TokenPlaces(slot_mapping=slots))
    for kind, codes, scales, want in ((k_type, k_cache, k_blocks, k), (v_type, v_cache, v_blocks, v)):
        if layout == "hnd":
            codes, scales = codes.transpose(0, 2, 1, 3), scales.transpose(0, 2, 1, 3)
        factor = 1.0 if factors[kind] is None else 0.01
        got = decoded(kind, codes, scales, factor).reshape(-1, heads, dim)[slots]
        steps = {"mxfp8": 1 / 8, "mxfp4": 0.34, "nvfp4": 0.25}[kind]  # of the largest number of a block
        block = 16 if kind == "nvfp4" else 32
        largest = abs(want).reshape(6, heads, -1, block).max(-1).repeat(block, -1)
        assert (abs(got - want) <= steps * largest).all()
        assert abs(got - want).max() > 0

    table, ends, lengths = PageTable(np.array([[1, 0, 2]], np.int32)), np.array([0, 6], np.int32), np.array([12], np.int32)
    got = prologue.paged_attention(q, cache, page_table=table, cu_seqlens_q=ends, seq_lens=lengths)
    plain = []
    for kind, codes, scales in ((k_type, k_cache, k_blocks), (v_type, v_cache, v_blocks)):
        plain.append(decoded(kind, codes, scales, 1.0 if factors[kind] is None else 0.01).astype(np.float32))
    want = prologue.paged_attention(q, PagedKv(*plain, layout=layout), page_table=table, cu_seqlens_q=ends, seq_lens=lengths)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_block_scaled_caches_are_refused_with_a_reason(rng):
    k = rng.standard_normal((2, 1, 64)).astype(np.float32)
    codes, blocks = np.zeros((2, 4, 1, 32), np.uint8), np.zeros((2, 4, 1, 4), np.uint8)
    good = PagedKv(codes, codes.copy(), k_type="nvfp4", v_type="nvfp4", k_block_scale=blocks, v_block_scale=blocks.copy())

    def call(**changes):
        prologue.attention_prologue(k.copy(), k, k, cache=good._replace(**changes), places=TokenPlaces(slot_mapping=np.arange(2)))

    call()
    for changes, message in (
        ({"k_block_scale": None}, "k_cache is nvfp4: its block_scale must be given"),
        ({"k_block_scale": blocks[..., :2]}, "k_block_scale .* the blocks of a head"),
        ({"v_block_scale": blocks[:1].copy()}, "v_block_scale .* the pages"),
        ({"k_type": "int4", "scaling": "tensor", "k_scale": np.ones(1, np.float32)}, "only mxfp8, mxfp4 and nvfp4 have scales of blocks"),
        ({"k_block_scale_layout": "swizzled"}, "k_block_scale_layout is 'swizzled'"),
        ({"k": np.zeros((2, 4, 1, 64), np.uint8), "k_type": "mxfp8", "k_block_scale": blocks[..., :2].copy(), "k_scale": np.ones(1, np.float32)},
         "k_scale is given, but k_cache is mxfp8"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            call(**changes)
    with pytest.raises(TypeError, match="k_block_scale is int32"):
        call(k_block_scale=blocks.astype(np.int32))


def test_the_transform_of_v_is_undone_by_itself(rng):
    q, k, v = (rng.standard_normal((3, n, 64)).astype(np.float32) for n in (4, 2, 2))
    v_out, k_out = np.zeros_like(v), np.zeros_like(k)
    prologue.attention_prologue(q, k, v, k_out=k_out, v_out=v_out, v_hadamard_block=32)
    signs = np.array([[(-1.0) ** bin(i & j).count("1") for j in range(32)] for i in range(32)])
    want = (v.reshape(3, 2, 2, 32) @ signs / np.sqrt(32)).reshape(v.shape)
    np.testing.assert_allclose(v_out, want, atol=1e-5)
    again = np.zeros_like(v)
    prologue.attention_prologue(q, k, v_out, k_out=k_out, v_out=again, v_hadamard_block=32)
    np.testing.assert_allclose(again, v, atol=1e-5)


def test_fp8_query(rng, step):
    q8, scale = np.zeros(step["q"].shape, np.uint8), np.zeros((TOKENS, Q_HEADS), np.float32)
    assert prologue.attention_prologue(step["q"], rope=ROPE, places=TokenPlaces(step["positions"]), q8_out=q8, q8_scale=scale) is q8
    np.testing.assert_allclose(scale, abs(rotated(step["q"], step["positions"])).max(-1) / 448, rtol=1e-6)


@pytest.mark.parametrize("layout", ["nhd", "hnd"])
@pytest.mark.parametrize("options", [{}, {"window": 3}, {"soft_cap": 2.0}, {"scale": 0.3}, {"sinks": True}])
def test_attention(rng, step, layout, options):
    k_cache, v_cache = caches(rng, layout)
    options = dict(options)
    if "sinks" in options:
        options["sinks"] = rng.standard_normal(Q_HEADS).astype(np.float32)
    got = prologue.paged_attention(
        step["q"], PagedKv(k_cache, v_cache, layout=layout), page_table=PageTable(step["block_table"]),
        cu_seqlens_q=step["cu_seqlens_q"], seq_lens=step["seq_lens"], **options,
    )  # fmt: skip
    tables = [[5, 2], [0, 4], [3]]
    want = oracle.attention(step["q"], k_cache, v_cache, tables, step["cu_seqlens_q"], step["seq_lens"], layout=layout, **options)
    np.testing.assert_allclose(got, want, rtol=0, atol=3e-6)


def test_attention_over_csr_and_two_head_sizes(rng, step):
    k_cache = rng.standard_normal((PAGES, PAGE, KV_HEADS, DIM)).astype(np.float32)
    v_cache = rng.standard_normal((PAGES, PAGE, KV_HEADS, 6)).astype(np.float32)
    table = PageTable(
        kv_indptr=np.array([0, 2, 4, 5], np.int32),
        kv_indices=np.array([5, 2, 0, 4, 3], np.int32),
        kv_last_page_len=np.array([1, 3, 3], np.int32),
    )
    batch = {"page_table": table, "cu_seqlens_q": step["cu_seqlens_q"]}
    got = prologue.paged_attention(step["q"], PagedKv(k_cache, v_cache), **batch)
    np.testing.assert_array_equal(got, prologue.paged_attention(step["q"], PagedKv(k_cache, v_cache), **batch, max_seq_len=12))
    want = oracle.attention(step["q"], k_cache, v_cache, [[5, 2], [0, 4], [3]], step["cu_seqlens_q"], step["seq_lens"])
    assert got.shape == (TOKENS, Q_HEADS, 6)
    np.testing.assert_allclose(got, want, rtol=0, atol=3e-6)


@pytest.mark.parametrize("in_place", [False, True])
def test_layer(rng, step, in_place):
    hidden = 24
    x = rng.standard_normal((TOKENS, hidden)).astype(np.float32)
    before = x.astype(np.float64)
    qkv_weight = rng.standard_normal(((Q_HEADS + 2 * KV_HEADS) * DIM, hidden)).astype(np.float32)
    output_weight = rng.standard_normal((hidden, Q_HEADS * DIM)).astype(np.float32)
    output_bias = rng.standard_normal(hidden).astype(np.float32)
    q_weight, k_weight = rng.standard_normal(DIM).astype(np.float32), rng.standard_normal(DIM).astype(np.float32)
    k_cache, v_cache = caches(rng)
    got = prologue.attention_layer(
        x, qkv_weight, output_weight, num_q_heads=Q_HEADS, num_kv_heads=KV_HEADS, head_dim=DIM, output_bias=output_bias,
        cache=PagedKv(k_cache, v_cache), rope=ROPE, q_norm=HeadNorm(weight=q_weight), k_norm=HeadNorm(weight=k_weight),
        places=TokenPlaces(cu_seqlens_q=step["cu_seqlens_q"], seq_lens=step["seq_lens"], page_table=PageTable(step["block_table"])),
        out=x if in_place else None,
    )  # fmt: skip
    qkv = before @ qkv_weight.astype(np.float64).T
    q, k, v = np.split(qkv.reshape(TOKENS, -1, DIM), [Q_HEADS, Q_HEADS + KV_HEADS], 1)
    q = rotated(oracle.rms_norm(q, q_weight), step["positions"])
    k = rotated(oracle.rms_norm(k, k_weight), step["positions"])
    np.testing.assert_allclose(in_slots(k_cache, step["slots"]), k, rtol=0, atol=2e-5)
    np.testing.assert_allclose(in_slots(v_cache, step["slots"]), v, rtol=0, atol=2e-5)
    attended = oracle.attention(q, k_cache, v_cache, [[5, 2], [0, 4], [3]], step["cu_seqlens_q"], step["seq_lens"])
    want = attended.reshape(TOKENS, -1) @ output_weight.astype(np.float64).T + output_bias
    assert (got is x) == in_place
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-4)


def test_faults(rng, step):
    k_cache, v_cache = caches(rng)
    slots = step["slots"].copy()
    slots[2] = PAGES * PAGE
    slots[4] = -1
    before = k_cache.copy()
    with pytest.raises(IndexError, match="slot out of range at token 2; 1 token was skipped"):
        prologue.attention_prologue(step["q"], step["k"], step["v"], cache=PagedKv(k_cache, v_cache), rope=ROPE, places=TokenPlaces(step["positions"], slots))
    untouched = np.setdiff1d(np.arange(PAGES * PAGE), np.delete(slots, [2, 4]))
    np.testing.assert_array_equal(in_slots(k_cache, untouched), in_slots(before, untouched))
    faults = np.zeros(2, np.int64)
    table = step["block_table"].copy()
    table[1, 0] = PAGES
    out = prologue.paged_attention(
        step["q"], PagedKv(k_cache, v_cache), page_table=PageTable(table), cu_seqlens_q=step["cu_seqlens_q"], seq_lens=step["seq_lens"], faults=faults
    )
    assert prologue.read_faults(faults) == ("page out of range", 3, 1) and (out[3] == 0).all()


def test_errors(rng, step):
    k_cache, v_cache = caches(rng)
    cache, q, k, v = PagedKv(k_cache, v_cache), step["q"], step["k"], step["v"]
    places, table = TokenPlaces(step["positions"], step["slots"]), PageTable(step["block_table"])
    batch = {"page_table": table, "cu_seqlens_q": step["cu_seqlens_q"], "seq_lens": step["seq_lens"]}
    before = k_cache.copy()
    call, attend = prologue.attention_prologue, prologue.paged_attention
    cases = [
        (lambda: call(), TypeError, "all None"),
        (lambda: call(q, qkv=q, places=places), ValueError, "one or the other"),
        (lambda: call(q, k, v, cache=PagedKv(), rope=ROPE, places=places), ValueError, "both k and v are None"),
        (lambda: call(q, k, v, cache=cache, rope=ROPE, places=TokenPlaces(step["positions"])), ValueError, "slot"),
        (lambda: call(q, k[:, :, :8], v, cache=cache, rope=ROPE, places=places), ValueError, "8 channels"),
        (lambda: call(q, k[:5], v, cache=cache, rope=ROPE, places=places), ValueError, "axis 0 must have 7"),
        (lambda: call(q[:, :, ::2], rope=ROPE, places=places), ValueError, "stride of 2 along axis 2"),
        (lambda: call(q, k, v, cache=PagedKv(k_cache, v_cache[:3]), rope=ROPE, places=places), ValueError, "the pages"),
        (lambda: call(q, k, v, cache=PagedKv(k_cache, v_cache, layout="nch"), rope=ROPE, places=places), ValueError, "layout is 'nch'"),
        (lambda: call(q, k, v, cache=PagedKv(k_cache, v_cache, k_type="fp8"), rope=ROPE, places=places), ValueError, "k_type is 'fp8'"),
        (lambda: call(q, k, v, cache=cache, rope=ROPE, places=TokenPlaces(step["positions"][:3], step["slots"])), ValueError, "axis 0"),
        (lambda: call(q, k, v, cache=cache, rope=ROPE, places=places, q_bias=q[0, 0]), ValueError, r"\[64\] or \[4, 16\]"),
        (lambda: call(q, k, v, cache=cache, rope=ROPE, places=places, q_norm=HeadNorm(weight=q[0, 0, :5])), ValueError, r"\[5\]"),
        (lambda: call(q, k, v, cache=cache, rope=ROPE, places=places, hadamard_block=3), ValueError, "hadamard_block"),
        (lambda: call(q, k, v, cache=cache, rope=ROPE, places=places, v_constant=0.0), ValueError, "v_constant is 0: it must be finite"),
        (lambda: call(q, k, v, cache=cache, rope=ROPE, places=places, rounding="twice"), ValueError, "rounding is 'twice'"),
        (lambda: call(q.astype(np.float64), rope=ROPE, places=places), NotImplementedError, "float64"),
        (lambda: attend(q, cache, **{**batch, "cu_seqlens_q": batch["cu_seqlens_q"].astype(np.int64)}), TypeError, "int64: it must be int32"),
        (lambda: attend(q, cache, **{**batch, "seq_lens": None}), ValueError, "seq_lens"),
        (lambda: attend(q, cache, **{**batch, "page_table": PageTable(step["block_table"][:2])}), ValueError, "one row for each sequence"),
        (lambda: attend(q, cache, **batch, out=q), ValueError, "overlap"),
        (lambda: attend(q, cache, **batch, window=-1), ValueError, "window"),
    ]
    for run, error, message in cases:
        with pytest.raises(error, match=message):
            run()
    np.testing.assert_array_equal(k_cache, before)
