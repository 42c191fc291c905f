"""What holds for the arguments and results of every operation: zero tokens are a no-op, inputs may be read-only, shapes are compared (not
counts), bool is no index, and a new result has no undefined element."""

import numpy as np
import oracle
import prologue_attention as prologue
import pytest
from prologue_attention import HeadNorm, PagedKv, PageTable, Rope, TokenPlaces
from prologue_attention.compat import flash_attn, flashinfer, kernels_rotary, liger, sglang, transformer_engine, vllm

Q_HEADS, KV_HEADS, DIM, PAGES, PAGE, HIDDEN, RANK = 4, 2, 16, 7, 3, 24, 32
TABLE = oracle.table(40, DIM)


@pytest.fixture(params=["numpy", "torch"])
def to(request):
    """Converts a NumPy array to one of the framework's, over the same memory."""
    if request.param == "numpy":
        return lambda array: array
    torch = pytest.importorskip("torch")
    return torch.from_numpy


@pytest.fixture
def poison(monkeypatch):
    """New arrays that are not asked to be zeros are full of NaN."""
    for name in ("empty", "empty_like"):
        make = getattr(np, name)

        def poisoned(*arguments, make=make, **options):
            array = make(*arguments, **options)
            array.view(np.uint8 if array.dtype.itemsize == 1 else array.dtype).fill(127 if array.dtype.itemsize == 1 else np.nan)
            return array

        monkeypatch.setattr(np, name, poisoned)
    try:
        import torch
    except ImportError:
        yield
        return
    torch.use_deterministic_algorithms(True)  # fills with NaN what is not initialised
    yield
    torch.use_deterministic_algorithms(False)


def test_the_poison_works(poison, to):
    one = to(np.zeros((2, 3), np.float32))
    framework = prologue._frameworks.framework_of(one)
    for made in (framework.empty(one, (4, 5)), framework.empty(one, (4, 5), "float32"), framework.empty_like(one)):
        assert np.isnan(np.asarray(made)).all()
    for made in (framework.zeros(one, (4, 5)), framework.zeros(one, (4, 5), "float32"), framework.zeros_like(one)):
        assert (np.asarray(made) == 0).all()


# ---- Each operation as (function, positional arguments, keyword arguments), for a number of tokens in two sequences.


def _normal(*shape):
    return np.random.default_rng(sum(shape) + len(shape)).standard_normal(shape).astype(np.float32)


def _batch(n):
    first = (n + 1) // 2
    return {
        "block_table": np.array([[5, 2, 1], [0, 4, 6]], np.int32)[: 2 if n else 0],
        "cu_seqlens_q": np.array([0, first, n] if n else [0], np.int32),
        "seq_lens": np.array([first + 2, n - first][: 2 if n else 0], np.int32),
    }


def _cache():
    return PagedKv(_normal(PAGES, PAGE, KV_HEADS, DIM), _normal(PAGES, PAGE, KV_HEADS, DIM) + 1)


def _positions(n):
    return np.arange(n) + 3, np.arange(n) + 6  # slots, too


def _outs(n):
    return {"k_out": _normal(n, KV_HEADS, DIM), "v_out": _normal(n, KV_HEADS, DIM)}


def _faults(n):
    return {"faults": np.zeros(2, np.int64), "token_faults": np.zeros(n, np.uint8)}


def _q_and_k(n):
    return _normal(n, Q_HEADS, DIM), _normal(n, KV_HEADS, DIM)


def rotary(n):
    return prologue.rotary, _q_and_k(n), {"rope": Rope(cos_sin=TABLE), "positions": _positions(n)[0]}


def rotary_out(n):
    rope = Rope(cos=TABLE[:, :6].copy(), sin=TABLE[:, 6:12].copy(), num_axes=2, pair_axis=np.array([0, 1, 0, 1, 1, 1], np.uint8))
    positions = np.stack([np.arange(n), np.arange(n)[::-1]])
    return prologue.rotary, _q_and_k(n), {"rope": rope, "positions": positions, "out": _q_and_k(n), **_faults(n)}


def rotary_packed(n):
    batch = _batch(n)
    offsets = np.arange(len(batch["seq_lens"]))
    options = {"rope": Rope(inv_freq=oracle.frequencies(DIM)), "cu_seqlens": batch["cu_seqlens_q"], "offsets": offsets}
    return prologue.rotary, (_normal(n, Q_HEADS, DIM),), options


def gather_cos_sin(n):
    return prologue.gather_cos_sin, (TABLE, np.arange(n)), {"pair_axis": np.zeros(DIM // 2, np.uint8)}


def attention_prologue(n):
    positions, slots = _positions(n)
    options = {
        "cache": _cache(), "rope": Rope(cos_sin=TABLE), "places": TokenPlaces(positions, slots), "q_bias": _normal(Q_HEADS * DIM),
        "k_bias": _normal(KV_HEADS * DIM), "v_bias": _normal(KV_HEADS * DIM), "q_norm": HeadNorm(weight=_normal(Q_HEADS, DIM)),
        "k_norm": HeadNorm(weight=_normal(DIM), bias=_normal(DIM), kind="layer"), **_outs(n), **_faults(n),
    }  # fmt: skip
    return prologue.attention_prologue, (*_q_and_k(n), _normal(n, KV_HEADS, DIM)), options


def attention_prologue_packed(n):
    batch = _batch(n)
    scales = (np.zeros((PAGES, PAGE, KV_HEADS), np.float32), np.zeros((PAGES, PAGE, KV_HEADS), np.float32))
    codes = (np.zeros((PAGES, PAGE, KV_HEADS, DIM), np.int8), np.zeros((PAGES, PAGE, KV_HEADS, DIM), np.int8))
    options = {
        "qkv": _normal(n, (Q_HEADS + 2 * KV_HEADS) * DIM), "num_q_heads": Q_HEADS, "num_kv_heads": KV_HEADS, "head_dim": DIM,
        "cache": PagedKv(*codes, *scales, scaling="token_head"), "rope": Rope(inv_freq=oracle.frequencies(DIM).astype(np.float32)),
        "places": TokenPlaces(
            cu_seqlens_q=batch["cu_seqlens_q"], seq_lens=batch["seq_lens"], page_table=PageTable(batch["block_table"]),
            position_offsets=np.arange(len(batch["seq_lens"])),
        ),
        "q_norm": HeadNorm(weight=_normal(Q_HEADS * DIM), scope="token"),
    }  # fmt: skip
    return prologue.attention_prologue, (), options


def attention_prologue_fp8(n):
    cache = PagedKv(
        np.zeros((PAGES, PAGE, KV_HEADS, DIM), np.uint8), None, np.ones(KV_HEADS, np.float32), scaling="head", k_type="fp8_e4m3"
    )
    options = {
        "q_rope": _normal(n, Q_HEADS, 6), "k_rope": _normal(n, 1, 6), "rope": Rope(cos_sin=TABLE[:, :6].copy()), "cache": cache,
        "places": TokenPlaces(*_positions(n)), "q8_out": np.zeros((n, Q_HEADS, DIM), np.uint8),
        "q8_scale": np.zeros((n, Q_HEADS), np.float32),
    }  # fmt: skip
    return prologue.attention_prologue, (_normal(n, Q_HEADS, 10), _normal(n, KV_HEADS, 10)), options


def mla_prologue(n):
    positions, slots = _positions(n)
    options = {
        "kv_cache": np.zeros((PAGES, PAGE, RANK + DIM), np.uint8), "cache_type": "fp8_e4m3", "cache_scale": np.ones(1, np.float32),
        "slot_mapping": slots, "norm": HeadNorm(weight=_normal(RANK)), "rope": Rope(cos_sin=TABLE), "positions": positions,
        "kv_c_out": _normal(n, RANK), "k_pe_out": _normal(n, DIM), **_faults(n),
    }  # fmt: skip
    return prologue.mla_prologue, (_normal(n, RANK), _normal(n, DIM), _normal(n, Q_HEADS, DIM)), options


def paged_attention(n):
    batch = _batch(n)
    options = {"page_table": PageTable(batch.pop("block_table")), **batch, "sinks": _normal(Q_HEADS), **_faults(n)}
    return prologue.paged_attention, (_normal(n, Q_HEADS, DIM), _cache()), options


def paged_attention_csr(n):
    lengths = _batch(n)["seq_lens"]
    pages = -(-lengths // PAGE)
    table = PageTable(
        kv_indptr=np.concatenate([[0], np.cumsum(pages)]).astype(np.int32), kv_indices=np.arange(pages.sum(), dtype=np.int32),
        kv_last_page_len=((lengths - 1) % PAGE + 1).astype(np.int32),
    )  # fmt: skip
    scale = np.full(1, 0.5, np.float32)
    codes = np.random.default_rng(1).integers(-100, 100, (2, PAGES, PAGE, KV_HEADS, DIM)).astype(np.int8)
    cache = PagedKv(*codes, scale, scale.copy(), scaling="tensor")
    options = {"page_table": table, "cu_seqlens_q": _batch(n)["cu_seqlens_q"], "out": _normal(n, Q_HEADS, DIM)}
    return prologue.paged_attention, (_normal(n, Q_HEADS, DIM), cache), options


def attention_layer(n):
    batch = _batch(n)
    places = TokenPlaces(cu_seqlens_q=batch["cu_seqlens_q"], seq_lens=batch["seq_lens"], page_table=PageTable(batch["block_table"]))
    options = {
        "num_q_heads": Q_HEADS, "num_kv_heads": KV_HEADS, "head_dim": DIM, "cache": _cache(), "places": places,
        "output_bias": _normal(HIDDEN), "rope": Rope(cos_sin=TABLE), **_faults(n),
    }  # fmt: skip
    weights = (_normal((Q_HEADS + 2 * KV_HEADS) * DIM, HIDDEN), _normal(HIDDEN, Q_HEADS * DIM))
    return prologue.attention_layer, (_normal(n, HIDDEN), *weights), options


OPERATIONS = [
    rotary, rotary_out, rotary_packed, gather_cos_sin, attention_prologue, attention_prologue_packed, attention_prologue_fp8, mla_prologue,
    paged_attention, paged_attention_csr, attention_layer,
]  # fmt: skip
WRITTEN = {"out", "k_out", "v_out", "kv_c_out", "k_pe_out", "q8_out", "q8_scale", "kv_cache", "faults", "token_faults"}


def is_written(make, path):
    """`path`: the names and numbers that lead to an array among the arguments."""
    if path[0] == "cache":  # the scales are computed where int8 is stored
        return path[1] in ("k", "v") or make is attention_prologue_packed
    return path[0] in WRITTEN


def leaves(value, path=()):
    """All arrays of a value, as (path, array)."""
    if isinstance(value, np.ndarray):
        yield path, value
    elif hasattr(value, "_asdict"):
        yield from leaves(value._asdict(), path)
    elif isinstance(value, dict):
        for name, one in value.items():
            yield from leaves(one, (*path, name))
    elif isinstance(value, tuple):
        for i, one in enumerate(value):
            yield from leaves(one, (*path, i))


def mapped(value, change, path=()):
    """The value with change(path, array) in place of each array."""
    if isinstance(value, np.ndarray):
        return change(path, value)
    if hasattr(value, "_asdict"):
        return value._replace(**mapped(value._asdict(), change, path))
    if isinstance(value, dict):
        return {name: mapped(one, change, (*path, name)) for name, one in value.items()}
    if isinstance(value, tuple):
        return tuple(mapped(one, change, (*path, i)) for i, one in enumerate(value))
    return value


def run(make, n, change=lambda path, array: array):
    """The results of an operation: what it returns, and what it writes."""
    function, positional, options = make(n)
    positional, options = mapped(positional, change), mapped(options, change)
    result = function(*positional, **options)
    results = result if isinstance(result, tuple) else () if result is None else (result,)
    return [np.asarray(one).copy() for one in results], {
        path: np.asarray(array).copy() for path, array in leaves((positional, options)) if is_written(make, path[1:])
    }


def same(got, want):
    for one, other in zip(got[0], want[0]):
        np.testing.assert_array_equal(one, other)
    for path in want[1]:
        np.testing.assert_array_equal(got[1][path], want[1][path], err_msg=str(path))


operations = pytest.mark.parametrize("make", OPERATIONS, ids=lambda make: make.__name__)


# ---- Zero tokens


@operations
@pytest.mark.parametrize("n", [5, 1])
def test_the_operations_run(make, n, to):
    results, _ = run(make, n, lambda path, array: to(array))
    assert results or make is attention_prologue_fp8
    assert all(np.isfinite(one.astype(np.float32)).all() for one in results)


@operations
def test_zero_tokens_are_a_no_op(make, to):
    before = [np.array(array) for _, array in leaves(make(0)[1:])]
    results, _ = run(make, 0, lambda path, array: to(array))
    assert all(one.shape[0] == 0 for one in results)
    for array, (path, after) in zip(before, leaves(make(0)[1:])):
        np.testing.assert_array_equal(array, after, err_msg=str(path))


def test_zero_tokens_without_pages_or_bounds(to):
    empty = lambda *shape: to(np.zeros(shape, np.int32))  # noqa: E731
    q, cache = to(_normal(0, Q_HEADS, DIM)), PagedKv(*(to(one) for one in _cache()[:2]))
    for options in ({}, {"max_seqlen_q": 0, "max_seq_len": 0}):
        out = prologue.paged_attention(q, cache, page_table=PageTable(empty(0, 0)), cu_seqlens_q=empty(1), seq_lens=empty(0), **options)
        assert tuple(out.shape) == (0, Q_HEADS, DIM)
    csr = PageTable(kv_indptr=empty(1), kv_indices=empty(0), kv_last_page_len=empty(0))
    assert tuple(prologue.paged_attention(q, cache, page_table=csr, cu_seqlens_q=empty(1)).shape) == (0, Q_HEADS, DIM)


def test_zero_tokens_of_compat(to):
    f = lambda *shape: to(np.zeros(shape, np.float32))  # noqa: E731
    i = lambda *shape: to(np.zeros(shape, np.int32))  # noqa: E731
    cos, sin, table, one = f(9, 8), f(9, 8), f(9, 16), to(np.ones(1, np.float32))
    pages, page_table = (f(3, 4, 2, 16), f(3, 4, 2, 16)), (i(0), i(1), i(0))
    flash_attn.apply_rotary_emb(f(0, 3, 2, 16), cos, sin)
    flash_attn.apply_rotary_emb(f(0, 2, 16), cos, sin, cu_seqlens=i(1), max_seqlen=0)
    flash_attn.apply_rotary_emb_qkv_(f(0, 3, 3, 2, 16), cos, sin)
    flash_attn.apply_rotary_emb_qkv_(f(0, 3, 6, 16), cos, sin, num_heads_q=2)
    flash_attn.apply_rotary_emb_kv_(f(0, 3, 2, 2, 16), cos, sin)
    liger.liger_rotary_pos_emb(f(1, 4, 0, 16), f(1, 2, 0, 16), f(1, 0, 16), f(1, 0, 16))
    kernels_rotary.apply_rotary(f(1, 0, 2, 8), f(1, 0, 2, 8), f(0, 1, 8), f(0, 1, 8), f(1, 0, 2, 8), f(1, 0, 2, 8), False)
    kernels_rotary.apply_rotary_transformers(f(1, 4, 0, 16), f(1, 2, 0, 16), f(1, 0, 16), f(1, 0, 16))
    for shape in ((0, 64), (0, 4, 16)):
        vllm.rotary_embedding(i(0), f(*shape), f(0, 32), 16, table, True)
    vllm.reshape_and_cache_flash(f(0, 2, 16), f(0, 2, 16), *pages, i(0), "auto", one, one)
    vllm.fused_qk_norm_rope(f(0, 128), 4, 2, 2, 16, 1e-5, f(16), f(16), table, True, i(0))
    q, k, v = vllm.fused_qknorm_rope_cache(f(0, 128), f(16), f(16), table, i(0), i(0), *pages, 4, 2, 16, 16, 1e-5)
    assert (tuple(q.shape), tuple(k.shape), tuple(v.shape)) == ((0, 64), (0, 32), (0, 32))
    vllm.concat_and_cache_mla(f(0, 512), f(0, 64), f(3, 4, 576), i(0), "auto", one)
    vllm.concat_and_cache_mla_rope_fused(i(0), f(0, 3, 8), f(0, 8), f(0, 32), f(9, 8), False, i(0), f(3, 4, 40), "auto", one)
    flashinfer.apply_rope(f(0, 4, 16), f(0, 2, 16), i(1), i(0))
    flashinfer.apply_llama31_rope_pos_ids(f(0, 4, 16), f(0, 2, 16), i(0))
    q, k = flashinfer.apply_rope_with_cos_sin_cache(i(0), f(0, 64), f(0, 32), 16, table)
    assert (tuple(q.shape), tuple(k.shape)) == ((0, 64), (0, 32))
    flashinfer.append_paged_kv_cache(f(0, 2, 16), f(0, 2, 16), i(0), i(0), pages, *page_table)
    flashinfer.append_paged_mla_kv_cache(f(0, 32), f(0, 8), i(0), i(0), f(3, 4, 32), f(3, 4, 8), *page_table)
    assert [tuple(one.shape) for one in flashinfer.get_batch_indices_positions(i(1), i(0), 0)] == [(0,), (0,)]
    flashinfer.cake_fused_qk_rmsnorm_rope_append_paged_kv_cache(
        f(0, 128), table, i(0), i(1), i(0, 2), *pages, num_q_heads=4, num_kv_heads=2
    )
    sglang.apply_rope_inplace(f(0, 4, 16), f(0, 2, 16), table, i(0), is_neox=True)
    sglang.apply_rope_inplace_with_kvcache(f(0, 4, 16), f(0, 2, 16), f(0, 32), f(9, 32), f(9, 2, 16), table, i(0), i(0), is_neox=True)
    sglang.fused_qk_norm_rope(f(0, 128), 4, 2, 2, 16, 1e-5, f(16), f(16), 1e4, True, i(0), 1.0, 0.0, 0.0, 1.0)
    freqs = f(9, 1, 1, 16)
    for layout, shape in (("sbhd", (0, 2, 3, 16)), ("bshd", (2, 0, 3, 16)), ("bshd", (0, 2, 3, 16))):
        transformer_engine.apply_rotary_pos_emb(f(*shape), freqs, layout)
        q, k, v = transformer_engine.apply_fused_qkv_rotary_pos_emb(f(*shape[:3], 64), freqs, freqs, [32, 16, 16], layout)
        assert (tuple(q.shape), tuple(k.shape)) == ((*shape[:2], 6, 16), shape)
    transformer_engine.apply_rotary_pos_emb(f(0, 3, 16), freqs, "thd", cu_seqlens=i(1))


# ---- Read-only arrays


@operations
def test_inputs_may_be_read_only(make):
    def freeze(path, array):
        if not is_written(make, path):
            array = array.copy()
            array.flags.writeable = False
        return array

    same(run(make, 5, freeze), run(make, 5))


@operations
def test_what_is_written_must_not_be_read_only(make):
    function, positional, options = make(5)
    for path, array in leaves(options):
        if not is_written(make, path):
            continue
        before = array.copy()
        array.flags.writeable = False
        name = "out" if path[0] == "out" else path[-1]
        with pytest.raises(ValueError, match=f"{name}.* is read-only: the call writes it"):
            function(*positional, **options)
        np.testing.assert_array_equal(array, before)
        array.flags.writeable = True


def test_in_place_needs_an_array_that_can_be_written():
    x = _normal(5, 2, 8)
    x.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        prologue.rotary(x, rope=Rope(theta=1e4, rotary_dim=8), inplace=True)


def test_read_only_arrays_of_narrow_types():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = _normal(5, 2, 8).astype(ml_dtypes.bfloat16)
    want = prologue.rotary(x, rope=Rope(theta=1e4, rotary_dim=8))
    x.flags.writeable = False
    np.testing.assert_array_equal(prologue.rotary(x, rope=Rope(theta=1e4, rotary_dim=8)), want)
    with pytest.raises(ValueError, match="read-only"):
        prologue.rotary(want, rope=Rope(theta=1e4, rotary_dim=8), out=x)
    same_row = np.broadcast_to(_normal(1, 2, 8), (5, 2, 8))  # NumPy makes such views read-only
    positions = np.broadcast_to(np.array([3]), 5)
    got = prologue.rotary(same_row, rope=Rope(theta=1e4, rotary_dim=8), positions=positions)
    np.testing.assert_allclose(got, oracle.rotate(same_row, positions, oracle.frequencies(8)), rtol=0, atol=2e-6)


# ---- Shapes

# Arrays whose shape says the sizes of the call, and scratch.
FREE = {
    (rotary, 0), (rotary, 1), (rotary_out, 0), (rotary_out, 1), (rotary_packed, 0), (gather_cos_sin, 0), (attention_layer, "workspace"),
}  # fmt: skip


def other_shapes(shape):
    """Shapes of as many elements."""
    shapes = {(*shape, 1), (1, *shape), (int(np.prod(shape)),), (*shape[:-2], *shape[:-3:-1])}
    for axis, size in enumerate(shape):
        if size % 2 == 0:
            shapes.add((*shape[:axis], 2, size // 2, *shape[axis + 1 :]))
            shapes.add((*shape[:axis], size // 2, 2, *shape[axis + 1 :]))
    for axis in range(len(shape) - 1):
        shapes.add((*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :]))
        if shape[axis] % 2 == 0:
            shapes.add((*shape[:axis], shape[axis] // 2, shape[axis + 1] * 2, *shape[axis + 2 :]))
    return sorted(shapes - {shape})


# Two forms of one thing: the result must be the same.
def may_be(make, path, shape):
    name = path[-1]
    return (
        (str(name).endswith("_bias") and path[0] != "output_bias" and shape in ((Q_HEADS, DIM), (KV_HEADS, DIM)))
        or (make is attention_prologue_packed and path == ("q_norm", "weight") and shape == (Q_HEADS, DIM))
        or (name == "positions" and shape[0] == 1 and len(shape) == 2 and make not in (mla_prologue, rotary_out))
        or (make is rotary_out and name == "positions" and shape == (2, 1, 5))
        or (make is gather_cos_sin and path == (1,) and shape == (1, 5))
        or (make is mla_prologue and path == ("norm", "weight") and shape == (1, RANK))
        or (make is mla_prologue and path in ((0,), (1,), ("kv_c_out",), ("k_pe_out",)) and len(shape) == 3 and shape[1] == 1)
    )


@operations
def test_shapes_are_compared_and_not_counts(make):
    want = run(make, 5)
    count = 0
    for path, array in leaves({i: one for i, one in enumerate(make(5)[1])} | make(5)[2]):
        if (make, path[0]) in FREE or path[0] in ("qkv",):
            continue
        for shape in other_shapes(array.shape):
            change = lambda at, one: one.reshape(shape) if at == path else one  # noqa: B023, E731
            if may_be(make, path, shape):
                got = run(make, 5, change)
                for a, b in zip(got[0], want[0]):
                    np.testing.assert_array_equal(a, b.reshape(a.shape))
                continue
            count += 1
            _, positional, options = make(5)
            kept = {at: one.copy() for at, one in leaves((positional, options))}
            with pytest.raises((ValueError, TypeError, NotImplementedError)):
                make(5)[0](*mapped(positional, change), **mapped(options, change))
                pytest.fail(f"{path} of the shape {shape} in place of {array.shape} was accepted")
            for at, one in leaves((positional, options)):
                np.testing.assert_array_equal(one, kept[at], err_msg=str(at))
    assert count >= 5


def test_weights_of_the_wrong_shape():
    q, places = _normal(3, 4, 8), TokenPlaces(np.arange(3))
    call = lambda **options: prologue.attention_prologue(q, rope=Rope(cos_sin=oracle.table(9, 8)), places=places, **options)  # noqa: E731
    for options, message in (
        ({"q_bias": _normal(8, 4)}, r"q_bias has the shape \[8, 4\]: it must be \[32\] or \[4, 8\]"),
        ({"q_norm": HeadNorm(weight=_normal(8, 4))}, r"norm weight has the shape \[8, 4\]: it must be \[8\] or \[4, 8\]"),
        ({"q_norm": HeadNorm(weight=_normal(32))}, r"norm weight has the shape \[32\]: it must be \[8\] or \[4, 8\]"),
        ({"q_norm": HeadNorm(weight=_normal(1, 8))}, r"norm weight has the shape \[1, 8\]"),
        ({"q_norm": HeadNorm(weight=_normal(8), bias=_normal(4, 8), kind="layer")}, "they must be alike"),
    ):
        with pytest.raises(ValueError, match=message):
            call(**options)
    flat = call(q_norm=HeadNorm(weight=_normal(32), scope="token"))
    np.testing.assert_array_equal(flat, call(q_norm=HeadNorm(weight=_normal(32).reshape(4, 8), scope="token")))
    each = oracle.rms_norm(q.reshape(3, 32), _normal(32)).reshape(3, 4, 8)
    np.testing.assert_allclose(flat, oracle.rotate(each, np.arange(3), oracle.frequencies(8)), rtol=0, atol=3e-6)


def test_heads_that_do_not_fit():
    q, k, v = _normal(3, 4, 8), _normal(3, 2, 8), _normal(3, 2, 8)
    rope, places = Rope(cos_sin=oracle.table(9, 8)), TokenPlaces(np.arange(3), np.arange(3))
    cache = PagedKv(np.zeros((2, 4, 2, 8), np.float32), np.zeros((2, 4, 2, 6), np.float32))
    with pytest.raises(ValueError, match="v_cache has heads of 6 channels, and v of 8"):
        prologue.attention_prologue(q, k, v, cache=cache, rope=rope, places=places)
    qkv = np.concatenate([one.reshape(3, -1) for one in (q, k, v)], 1)
    with pytest.raises(ValueError, match="v_cache has heads of 6 channels, and v of 8"):
        prologue.attention_prologue(qkv=qkv, num_q_heads=4, num_kv_heads=2, head_dim=8, cache=cache, rope=rope, places=places)
    with pytest.raises(ValueError, match="q_rope has the shape .*: axis 2 must have 4 elements, rotary_dim of the rope"):
        prologue.attention_prologue(q, q_rope=q, rope=Rope(cos_sin=oracle.table(9, 4)), places=TokenPlaces(np.arange(3)))
    with pytest.raises(ValueError, match="it must be one or the other"):
        prologue.attention_prologue(qkv=qkv, q_rope=q, num_q_heads=4, num_kv_heads=2, head_dim=8, rope=rope, places=places)


# ---- Positions


@operations
def test_bool_is_no_index(make, to):
    names = {"positions", "slot_mapping", "cu_seqlens_q", "cu_seqlens", "seq_lens", "offsets", "position_offsets", "pair_axis"}
    names |= {"block_table", "kv_indptr", "kv_indices", "kv_last_page_len", "token_faults", "q8_out"}
    found = [path for path, _ in leaves(make(5)[2]) if path[-1] in names] + ([(1,)] if make is gather_cos_sin else [])
    assert found or make is rotary_packed
    for path in found:
        with pytest.raises(TypeError, match="is bool"):
            run(make, 5, lambda at, array: to(array.astype(bool) if at == path else array))  # noqa: B023


def test_position_axes_are_in_front():
    """With several axes, and a batch of as many sequences."""
    x, rope = _normal(2, 5, 3, 8), Rope(theta=1e4, rotary_dim=8, num_axes=2, pair_axis=np.array([0, 1, 0, 1], np.uint8))
    per_sequence = np.random.default_rng(3).integers(0, 99, (2, 5))
    want = oracle.rotate(x, per_sequence, oracle.frequencies(8))
    got = prologue.rotary(x, rope=rope, positions=per_sequence[None])  # one axis for all pairs
    np.testing.assert_allclose(got, want, rtol=0, atol=3e-5)
    by_axis = prologue.rotary(x, rope=rope, positions=per_sequence)  # [num_axes, seq_len], for both sequences
    np.testing.assert_array_equal(by_axis, prologue.rotary(x, rope=rope, positions=np.stack([per_sequence] * 2, 1)))
    np.testing.assert_array_equal(by_axis[0], prologue.rotary(x[:1], rope=rope, positions=per_sequence)[0])
    for shape in ((3, 5), (3, 2, 5)):
        with pytest.raises(ValueError, match=r"with 2 position axes it must be \[5\], \[2, 5\] or \[2, 3, 5\]"):
            prologue.rotary(_normal(3, 5, 3, 8), rope=rope, positions=np.zeros(shape, int))


# ---- New results have no undefined element


def rows_are_zero(result, rows):
    result = np.asarray(result)
    assert np.isfinite(result.astype(np.float32)).all()
    assert (result[rows] == 0).all() and (np.delete(result, rows, 0) != 0).any()


PADDED = np.array([0, -1, 2, -1, 4])  # positions


@pytest.mark.parametrize("through", ["call", "faults"])
def test_padding_of_rotary_becomes_zeros(poison, to, through):
    x, rope = to(_normal(5, 2, 8)), Rope(theta=1e4, rotary_dim=8)
    options = {"faults": to(np.zeros(2, np.int64))} if through == "faults" else {}
    rows_are_zero(prologue.rotary(x, rope=rope, positions=to(PADDED), **options), [1, 3])
    rows_are_zero(prologue.rotary(x, rope=rope, cu_seqlens=to(np.array([0, 2, 3], np.int32)), **options), [3, 4])
    for one in prologue.rotary(x, x, rope=rope, positions=to(PADDED), rotate=[True, False], **options):
        rows_are_zero(one, [1, 3])
    half = prologue.rotary(x, rope=rope._replace(rotary_dim=4), tail="leave", **options)
    assert (np.asarray(half)[..., 4:] == 0).all() and (np.asarray(half)[..., :4] != 0).all()
    none = prologue.rotary(x, rope=rope, cu_seqlens=to(np.zeros(1, np.int32)), **options)
    assert (np.asarray(none) == 0).all()


def test_padding_of_the_prologues_becomes_zeros(poison, to):
    q, rope = to(_normal(5, Q_HEADS, DIM)), Rope(cos_sin=to(TABLE))
    rows_are_zero(prologue.attention_prologue(q, rope=rope, places=TokenPlaces(to(PADDED))), [1, 3])
    table = PageTable(to(np.array([[5, 2], [0, 4]], np.int32)))
    derived = TokenPlaces(cu_seqlens_q=to(np.array([0, 2, 3], np.int32)), seq_lens=to(np.array([4, 1], np.int32)), page_table=table)
    rows_are_zero(prologue.attention_prologue(q, rope=rope, places=derived), [3, 4])
    qkv = to(_normal(5, (Q_HEADS + 2 * KV_HEADS) * DIM))
    cache = PagedKv(*(to(one) for one in _cache()[:2]))
    sizes = {"num_q_heads": Q_HEADS, "num_kv_heads": KV_HEADS, "head_dim": DIM}
    rows_are_zero(prologue.attention_prologue(qkv=qkv, **sizes, cache=cache, rope=rope, places=derived), [3, 4])
    apart = prologue.attention_prologue(q, q_rope=q, rope=rope._replace(rotary_dim=DIM), places=TokenPlaces(to(PADDED)))
    rows_are_zero(apart, [1, 3])
    rows_are_zero(prologue.mla_prologue(q_pe=q, rope=rope, positions=to(PADDED)), [1, 3])


def test_rows_that_no_sequence_owns_become_zeros(poison, to):
    q, cache = to(_normal(5, Q_HEADS, DIM)), PagedKv(*(to(one) for one in _cache()[:2]))
    table, lengths = PageTable(to(np.array([[5, 2], [0, 4]], np.int32))), to(np.array([4, 1], np.int32))

    def call(cu, table, lengths):
        return prologue.paged_attention(q, cache, page_table=table, cu_seqlens_q=to(cu), seq_lens=lengths)

    rows_are_zero(call(np.array([0, 2, 3], np.int32), table, lengths), [3, 4])
    nothing = call(np.zeros(1, np.int32), PageTable(to(np.zeros((0, 2), np.int32))), to(np.zeros(0, np.int32)))
    assert (np.asarray(nothing) == 0).all()


@pytest.mark.parametrize("bias", [None, _normal(HIDDEN)])
def test_rows_of_the_layer_that_no_sequence_owns(to, bias):
    """They are what the output projection makes of zeros, whatever the workspace holds."""
    function, positional, options = attention_layer(5)
    options.update(places=options["places"]._replace(cu_seqlens_q=np.array([0, 2, 3], np.int32), seq_lens=np.array([4, 1], np.int32)))
    workspace = np.full(1 << 16, 255, np.uint8)  # bytes of NaN
    options.update(token_faults=None, output_bias=bias, workspace=workspace[-workspace.ctypes.data % 64 :])
    out = function(*mapped(positional, lambda path, array: to(array)), **mapped(options, lambda path, array: to(array)))
    assert np.isfinite(np.asarray(out)).all()
    np.testing.assert_array_equal(np.asarray(out)[3:], np.broadcast_to(0 if bias is None else bias, (2, HIDDEN)))


def test_padding_of_compat_becomes_zeros(poison, to):
    x, k, (cos, sin) = _normal(5, 4, 16), _normal(5, 2, 16), (TABLE[:, :8].copy(), TABLE[:, 8:].copy())
    cu, positions = to(np.array([0, 2, 3], np.int32)), to(PADDED.astype(np.int32))
    rows_are_zero(flash_attn.apply_rotary_emb(to(x), to(cos), to(sin), cu_seqlens=cu, max_seqlen=2), [3, 4])
    for one in flashinfer.apply_rope(to(x), to(k), cu, to(np.array([0, 1], np.int32))):
        rows_are_zero(one, [3, 4])
    for one in flashinfer.apply_rope_pos_ids(to(x), to(k), positions):
        rows_are_zero(one, [1, 3])
    freqs = to(np.concatenate([np.arange(9)[:, None] * oracle.frequencies(16)] * 2, 1).astype(np.float32)[:, None, None])
    rows_are_zero(transformer_engine.apply_rotary_pos_emb(to(x), freqs, "thd", cu_seqlens=cu), [3, 4])
    whole = to(np.array([0, 4, 8], np.int32))  # over two ranks: 2 and 2 tokens on this one
    rows_are_zero(transformer_engine.apply_rotary_pos_emb(to(x), freqs, "thd", cu_seqlens=whole, cp_size=2, cp_rank=0), [4])
    qkv, pages, slots = to(_normal(5, 128)), [to(np.zeros((3, 4, 2, 16), np.float32)) for _ in range(2)], to(np.arange(5))
    weights = to(_normal(16)), to(_normal(16))
    for one in vllm.fused_qknorm_rope_cache(qkv, *weights, to(TABLE), positions, slots, *pages, 4, 2, 16, 16, 1e-5):
        rows_are_zero(one, [1, 3])


def test_padding_of_fp8_becomes_zeros(poison, to):
    pytest.importorskip("ml_dtypes")
    q, k = _normal(5, 4, 16), _normal(5, 2, 16)
    outputs = flashinfer.rope_quantize_fp8(to(q), to(k), None, None, to(TABLE), to(PADDED.astype(np.int32)))
    for one in outputs[:2]:
        rows_are_zero(one.float() if hasattr(one, "float") else one.astype(np.float32), [1, 3])
