import numpy as np
import oracle
import prologue_attention as prologue
import pytest
from prologue_attention import HeadNorm, PagedKv, PageTable, Rope, TokenPlaces

jax = pytest.importorskip("jax")
pytest.importorskip("jax_tvm_ffi")
import prologue_attention.jax  # noqa: E402


def test_rotary_in_and_outside_of_jit(rng):
    q, k = rng.standard_normal((5, 4, 8)).astype(np.float32), rng.standard_normal((5, 2, 8)).astype(np.float32)
    positions = rng.integers(0, 40, 5).astype(np.int32)
    run = lambda q, k, p: prologue.jax.rotary(q, k, rope=Rope("interleaved", theta=10000.0, rotary_dim=8), positions=p)  # noqa: E731
    for call in (run, jax.jit(run)):
        for y, x in zip(call(jax.numpy.asarray(q), jax.numpy.asarray(k), jax.numpy.asarray(positions)), (q, k)):
            want = oracle.rotate(x, positions, oracle.frequencies(8), "interleaved")
            np.testing.assert_allclose(np.asarray(y), want, rtol=0, atol=2e-6)


def test_bfloat16(rng):
    x = jax.numpy.asarray(rng.standard_normal((5, 4, 8)), jax.numpy.bfloat16)
    y = prologue.jax.rotary(x, rope=Rope(theta=10000.0, rotary_dim=8))
    want = oracle.rotate(np.asarray(x).astype(np.float64), np.arange(5), oracle.frequencies(8))
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(np.asarray(y), want.astype(np.float32).astype(x.dtype))


@pytest.mark.parametrize("jit", [False, True])
def test_prologue_and_attention_have_the_bits_of_numpy(rng, jit):
    normal = lambda *shape: rng.standard_normal(shape).astype(np.float32)  # noqa: E731
    arrays = {
        "q": normal(5, 4, 16), "k": normal(5, 2, 16), "v": normal(5, 2, 16), "table": oracle.table(32, 16), "norm": normal(16),
        "k_cache": normal(6, 4, 2, 16), "v_cache": normal(6, 4, 2, 16), "cu": np.array([0, 3, 5], np.int32),
        "lens": np.array([5, 2], np.int32), "pages": np.array([[5, 2], [0, 4]], np.int32),
    }  # fmt: skip

    def attend(a, module):
        cache, table, norm = PagedKv(a["k_cache"], a["v_cache"]), PageTable(a["pages"]), HeadNorm(weight=a["norm"])
        places = TokenPlaces(cu_seqlens_q=a["cu"], seq_lens=a["lens"], page_table=table)
        q = module.attention_prologue(
            a["q"], a["k"], a["v"], cache=cache, rope=Rope(cos_sin=a["table"]), places=places, q_norm=norm, k_norm=norm
        )
        if module is prologue.jax:
            q, cache = q
        return module.paged_attention(q, cache, page_table=table, cu_seqlens_q=a["cu"], seq_lens=a["lens"]), cache.k

    given = {name: jax.numpy.asarray(array) for name, array in arrays.items()}
    run = lambda a: attend(a, prologue.jax)  # noqa: E731
    got, k_cache = jax.jit(run)(given) if jit else run(given)
    np.testing.assert_array_equal(np.asarray(given["k_cache"]), arrays["k_cache"])  # the caller's array is as it was
    want, _ = attend(arrays, prologue)
    np.testing.assert_array_equal(np.asarray(got), want)
    np.testing.assert_array_equal(np.asarray(k_cache), arrays["k_cache"])


@pytest.mark.parametrize("jit", [False, True])
def test_rows_that_no_sequence_owns_become_zeros(jit):
    call = jax.jit if jit else lambda function: function
    x, table = jax.numpy.ones((5, 2, 8)), jax.numpy.asarray(oracle.table(9, 8))
    cu, padded = jax.numpy.asarray([0, 2, 3], jax.numpy.int32), jax.numpy.asarray([0, 1, 2, -1, -1], jax.numpy.int32)
    cache = PagedKv(jax.numpy.ones((3, 4, 2, 8)), jax.numpy.ones((3, 4, 2, 8)))
    pages, lengths = PageTable(jax.numpy.asarray([[2], [0]], jax.numpy.int32)), jax.numpy.asarray([2, 1], jax.numpy.int32)
    rope = Rope(theta=10000.0, rotary_dim=8)
    places = TokenPlaces(padded, padded)
    results = [
        call(lambda x: prologue.jax.rotary(x, rope=rope, positions=padded))(x),
        call(lambda x: prologue.jax.rotary(x, rope=rope, cu_seqlens=cu))(x),
        call(lambda x: prologue.jax.attention_prologue(x, x, x, cache=cache, rope=Rope(cos_sin=table), places=places)[0])(x),
        call(lambda x: prologue.jax.paged_attention(x, cache, page_table=pages, cu_seqlens_q=cu, seq_lens=lengths))(x),
    ]
    for result in results:
        result = np.asarray(result)
        assert (result[3:] == 0).all() and (result[:3] != 0).any(axis=(1, 2)).all()


def test_errors(rng):
    x = jax.numpy.zeros((5, 2, 8))
    with pytest.raises(TypeError, match="prologue_attention.jax"):
        prologue.rotary(x, rope=Rope(theta=10000.0, rotary_dim=8), inplace=True)
    with pytest.raises(TypeError, match="prologue_attention.jax"):
        prologue.rotary(x, rope=Rope(theta=10000.0, rotary_dim=8))
    with pytest.raises(Exception, match="rotary_dim is 10"):
        jax.block_until_ready(prologue.jax.rotary(x, rope=Rope(theta=10000.0, rotary_dim=10)))
