"""The functions of prologue.compat, against their systems' definitions in NumPy float64 (oracle.py), for NumPy and torch."""

import numpy as np
import oracle
import pytest
from prologue.compat import flash_attn, flashinfer, kernels_rotary, liger, sglang, transformer_engine, vllm

FRAMEWORKS = ["numpy", "torch"]


@pytest.fixture(params=FRAMEWORKS)
def to(request):
    """Converts a NumPy array to one of the framework's, over the same memory."""
    if request.param == "numpy":
        return lambda array: array
    torch = pytest.importorskip("torch")
    return lambda array: torch.from_numpy(array)


def normal(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def close(got, want, atol=3e-6):
    np.testing.assert_allclose(np.asarray(got), want, rtol=0, atol=atol)


def half_tables(rows, dim):
    table = oracle.table(rows, dim)
    return np.ascontiguousarray(table[:, : dim // 2]), np.ascontiguousarray(table[:, dim // 2 :])


# ---- flash_attn


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("conjugate", [False, True])
def test_flash_attn_apply_rotary(rng, to, interleaved, conjugate):
    x, (cos, sin) = normal(rng, 2, 5, 3, 16), half_tables(20, 12)
    offsets = np.array([3, 15], np.int32)
    style = "interleaved" if interleaved else "neox"
    got = flash_attn.apply_rotary(to(x), to(cos), to(sin), to(offsets), interleaved=interleaved, conjugate=conjugate)
    positions = offsets[:, None] + np.arange(5)
    close(got, oracle.rotate(x, positions, oracle.frequencies(12), style, inverse=conjugate))
    got = flash_attn.apply_rotary(to(x), to(cos), to(sin), 4, interleaved=interleaved)
    close(got, oracle.rotate(x, 4 + np.arange(5), oracle.frequencies(12), style))


def test_flash_attn_leaves_what_is_past_the_table(rng, to):
    x, (cos, sin) = normal(rng, 1, 5, 3, 8), half_tables(3, 8)
    got = np.asarray(flash_attn.apply_rotary(to(x), to(cos), to(sin)))
    close(got[:, :3], oracle.rotate(x[:, :3], np.arange(3), oracle.frequencies(8)))
    np.testing.assert_array_equal(got[:, 3:], x[:, 3:])


def test_flash_attn_varlen(rng, to):
    x, (cos, sin) = normal(rng, 7, 2, 8), half_tables(20, 8)
    cu = np.array([0, 4, 7], np.int32)
    with pytest.raises(ValueError, match="max_seqlen is None"):
        flash_attn.apply_rotary_emb(to(x), to(cos), to(sin), cu_seqlens=to(cu))
    got = flash_attn.apply_rotary_emb(to(x), to(cos), to(sin), seqlen_offsets=to(np.array([2, 9], np.int32)), cu_seqlens=to(cu), max_seqlen=4)
    close(got, oracle.rotate(x, [2, 3, 4, 5, 9, 10, 11], oracle.frequencies(8)))


def test_flash_attn_packed_in_place(rng, to):
    (cos, sin), (cos_k, sin_k) = half_tables(9, 8), half_tables(9, 4)
    qkv = normal(rng, 2, 5, 3, 4, 8)
    before, given = qkv.copy(), to(qkv)
    assert flash_attn.apply_rotary_emb_qkv_(given, to(cos), to(sin)) is given
    for i in range(2):
        close(qkv[:, :, i], oracle.rotate(before[:, :, i], np.arange(5), oracle.frequencies(8)))
    np.testing.assert_array_equal(qkv[:, :, 2], before[:, :, 2])
    qkv = normal(rng, 2, 5, 8, 8)  # 4 heads of q, 2 of k, 2 of v
    before = qkv.copy()
    flash_attn.apply_rotary_emb_qkv_(to(qkv), to(cos), to(sin), to(cos_k), to(sin_k), interleaved=True, seqlen_offsets=3, num_heads_q=4)
    close(qkv[:, :, :4], oracle.rotate(before[:, :, :4], 3 + np.arange(5), oracle.frequencies(8), "interleaved"))
    close(qkv[:, :, 4:6], oracle.rotate(before[:, :, 4:6], 3 + np.arange(5), oracle.frequencies(4), "interleaved"))
    np.testing.assert_array_equal(qkv[:, :, 6:], before[:, :, 6:])
    kv = normal(rng, 2, 5, 2, 4, 8)
    before, given = kv.copy(), to(kv)
    assert flash_attn.apply_rotary_emb_kv_(given, to(cos), to(sin)) is given
    close(kv[:, :, 0], oracle.rotate(before[:, :, 0], np.arange(5), oracle.frequencies(8)))
    np.testing.assert_array_equal(kv[:, :, 1], before[:, :, 1])
    with pytest.raises(ValueError, match="num_heads_q is None"):
        flash_attn.apply_rotary_emb_qkv_(to(normal(rng, 2, 5, 8, 8)), to(cos), to(sin))


@pytest.mark.parametrize("inplace", [False, True])
def test_flash_attn_gradients(rng, inplace):
    torch = pytest.importorskip("torch")
    (cos, sin), gradient = map(torch.from_numpy, half_tables(9, 8)), normal(rng, 2, 5, 3, 8)
    x = torch.randn(2, 5, 3, 8, requires_grad=True)
    y = flash_attn.apply_rotary_emb(x if not inplace else x * 1, cos, sin, inplace=inplace)
    y.backward(torch.from_numpy(gradient))
    close(x.grad, oracle.rotate(gradient, np.arange(5), oracle.frequencies(8), inverse=True))
    qkv = torch.randn(2, 5, 3, 4, 8, requires_grad=True)
    gradient = normal(rng, 2, 5, 3, 4, 8)
    flash_attn.apply_rotary_emb_qkv_(qkv * 1, cos, sin).backward(torch.from_numpy(gradient))
    close(qkv.grad[:, :, 1], oracle.rotate(gradient[:, :, 1], np.arange(5), oracle.frequencies(8), inverse=True))
    close(qkv.grad[:, :, 2], gradient[:, :, 2])


# ---- liger, kernels_rotary


@pytest.mark.parametrize("batch_rows", [1, 2])
def test_liger(rng, to, batch_rows):
    q, k = normal(rng, 2, 4, 5, 8), normal(rng, 2, 2, 5, 8)
    positions = np.array([[3, 4, 5, 6, 7], [1, 0, 9, 2, 2]])[:batch_rows]
    angle = positions[..., None] * oracle.frequencies(8)
    full = np.concatenate([angle, angle], -1)
    got = liger.liger_rotary_pos_emb(to(q), to(k), to(np.cos(full).astype(np.float32)), to(np.sin(full).astype(np.float32)))
    for y, x in zip(got, (q, k)):
        want = oracle.rotate(x.swapaxes(1, 2), np.broadcast_to(positions, (2, 5)), oracle.frequencies(8))
        close(y, want.swapaxes(1, 2))


def test_kernels_rotary(rng, to):
    x, (cos, sin) = normal(rng, 2, 5, 3, 12), half_tables(5, 8)
    cos, sin = to(cos[:, None]), to(sin[:, None])
    want = oracle.rotate(x, np.arange(5), oracle.frequencies(8))
    y = x.copy()
    for conj, expected in ((False, want), (True, x)):  # in place: there and back
        kernels_rotary.apply_rotary(to(y[..., :4]), to(y[..., 4:8]), cos, sin, to(y[..., :4]), to(y[..., 4:8]), conj)
        close(y, expected)
    first, second = np.ascontiguousarray(x[..., :4]), np.ascontiguousarray(x[..., 4:8])  # halves of different arrays
    out1, out2 = np.zeros_like(first), np.zeros_like(second)
    kernels_rotary.apply_rotary(to(first), to(second), cos, sin, to(out1), to(out2), False)
    close(np.concatenate([out1, out2], -1), want[..., :8])


@pytest.mark.parametrize("columns", [4, 8])
@pytest.mark.parametrize("unsqueeze_dim", [1, 2])
def test_kernels_rotary_transformers(rng, to, columns, unsqueeze_dim):
    q, k = normal(rng, 2, 5, 4, 8), normal(rng, 2, 5, 2, 8)
    cos, sin = half_tables(5, 8)
    tables = [to(np.concatenate([table] * (columns // 4), -1)[None]) for table in (cos, sin)]
    order = (0, 2, 1, 3) if unsqueeze_dim == 1 else (0, 1, 2, 3)
    got = kernels_rotary.apply_rotary_transformers(*(to(x.transpose(order)) for x in (q, k)), *tables, unsqueeze_dim)
    for y, x in zip(got, (q, k)):
        close(y, oracle.rotate(x, np.arange(5), oracle.frequencies(8)).transpose(order))


# ---- vllm


@pytest.mark.parametrize("shape", ["rows of a packed qkv", "heads", "batch"])
def test_vllm_rotary_embedding(rng, to, shape):
    table, inv_freq = to(oracle.table(40, 8)), oracle.frequencies(8)
    if shape == "batch":
        positions, q, k = rng.integers(0, 40, (2, 3)), normal(rng, 2, 3, 64), normal(rng, 2, 3, 32)
    elif shape == "heads":
        positions, q, k = rng.integers(0, 40, 5), normal(rng, 5, 4, 16), normal(rng, 5, 2, 16)
    else:
        qkv = normal(rng, 5, 128)
        positions, q, k = rng.integers(0, 40, 5), qkv[:, :64], qkv[:, 64:96]
    q_before, k_before = q.copy(), k.copy()
    assert vllm.rotary_embedding(to(positions), to(q), to(k), 16, table, False, rope_dim_offset=8) is None
    for x, before in ((q, q_before), (k, k_before)):
        heads = before.reshape(*positions.shape, -1, 16)
        close(x.reshape(heads.shape), oracle.rotate(heads, positions, inv_freq, "interleaved", offset=8))
    vllm.rotary_embedding(to(positions), to(q), None, 16, table, False, 8, True)
    close(q, q_before)


@pytest.mark.parametrize("kind, scales", [("auto", [1.0]), ("fp8", [0.5]), ("fp8_e5m2", [0.25]), ("fp8_e4m3", [0.5, 2.0])])
def test_vllm_reshape_and_cache_flash(rng, to, kind, scales):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    key, value = normal(rng, 6, 2, 16), normal(rng, 6, 2, 16)
    slots = np.array([9, -1, 0, 3])  # key and value are padded
    storage = np.zeros((2, 5, 4, 2, 16), np.float32 if kind == "auto" else np.uint8)
    scale = np.array(scales, np.float32)
    vllm.reshape_and_cache_flash(to(key), to(value), to(storage[0]), to(storage[1]), to(slots), kind, to(scale), to(scale))
    flat = storage.reshape(2, 20, 2, 16)
    for cache, x in zip(flat, (key, value)):
        want = x[[0, 2, 3]]
        if kind != "auto":
            element = ml_dtypes.float8_e5m2 if kind == "fp8_e5m2" else ml_dtypes.float8_e4m3fn
            want = (want / scale.reshape(1, -1, 1)).astype(element).view(np.uint8)
        np.testing.assert_array_equal(cache[[9, 0, 3]], want)
        assert (np.delete(cache, [9, 0, 3], 0) == 0).all()
    with pytest.raises(NotImplementedError, match="nvfp4"):
        vllm.reshape_and_cache_flash(to(key), to(value), to(storage[0]), to(storage[1]), to(slots), "nvfp4", to(scale), to(scale))


def test_vllm_fused_qk_norm_rope(rng, to):
    qkv, weights, positions = normal(rng, 5, 8 * 16), (normal(rng, 16), normal(rng, 16)), rng.integers(0, 40, 5)
    before = qkv.reshape(5, 8, 16).copy()
    vllm.fused_qk_norm_rope(to(qkv), 4, 2, 2, 16, 1e-5, to(weights[0]), to(weights[1]), to(oracle.table(40, 8)), True, to(positions))
    after = qkv.reshape(5, 8, 16)
    for part, weight in ((slice(0, 4), weights[0]), (slice(4, 6), weights[1])):
        close(after[:, part], oracle.rotate(oracle.rms_norm(before[:, part], weight, 1e-5), positions, oracle.frequencies(8)), 1e-5)
    np.testing.assert_array_equal(after[:, 6:], before[:, 6:])


def test_vllm_mla(rng, to):
    kv_c, k_pe, q_pe = normal(rng, 5, 32), normal(rng, 5, 8), normal(rng, 5, 3, 8)
    slots, scale, positions = np.array([7, 0, -1, 3, 4]), np.ones(1, np.float32), rng.integers(0, 40, 5)
    cache = np.zeros((3, 4, 40), np.float32)
    vllm.concat_and_cache_mla(to(kv_c), to(k_pe), to(cache), to(slots), "auto", to(scale))
    written = [0, 1, 3, 4]
    np.testing.assert_array_equal(cache.reshape(12, 40)[slots[written]], np.concatenate([kv_c, k_pe], 1)[written])
    assert (np.delete(cache.reshape(12, 40), slots[written], 0) == 0).all()
    cache[:] = 0
    want_q = oracle.rotate(q_pe, positions, oracle.frequencies(8), "interleaved")
    want_k = oracle.rotate(k_pe[:, None], positions, oracle.frequencies(8), "interleaved")[:, 0]
    vllm.concat_and_cache_mla_rope_fused(
        to(positions), to(q_pe), to(k_pe), to(kv_c), to(oracle.table(40, 8)), False, to(slots), to(cache), "auto", to(scale)
    )
    close(q_pe, want_q)
    close(cache.reshape(12, 40)[slots[written]], np.concatenate([kv_c, want_k], 1)[written])


# ---- flashinfer


def llama31(dim, theta=5e5, scale=8, low=1, high=4, context=8192):
    """As transformers' llama3: by wavelength."""
    result = []
    for frequency in oracle.frequencies(dim, theta):
        wavelength = 2 * np.pi / frequency
        if wavelength < context / high:
            result.append(frequency)
        elif wavelength > context / low:
            result.append(frequency / scale)
        else:
            smooth = (context / wavelength - low) / (high - low)
            result.append((1 - smooth) * frequency / scale + smooth * frequency)
    return np.array(result)


@pytest.mark.parametrize("interleave", [False, True])
@pytest.mark.parametrize("form", ["plain", "scaled", "llama31"])
def test_flashinfer_ropes(rng, to, interleave, form):
    q, k = normal(rng, 7, 4, 64), normal(rng, 7, 2, 64)
    indptr, offsets = np.array([0, 4, 7], np.int32), np.array([100, 2000], np.int32)
    positions = np.array([100, 101, 102, 103, 2000, 2001, 2002], np.int32)
    name, options, inv_freq = {
        "plain": ("rope", {}, oracle.frequencies(48)),
        "scaled": ("rope", {"rope_scale": 2.0, "rope_theta": 1e5}, oracle.frequencies(48, 1e5) / 2),
        "llama31": ("llama31_rope", {}, llama31(48)),
    }[form]
    options.update(rotary_dim=48, interleave=interleave)
    want = [oracle.rotate(x, positions, inv_freq, "interleaved" if interleave else "neox") for x in (q, k)]
    for suffix, where in (("", (to(indptr), to(offsets))), ("_pos_ids", (to(positions),))):
        got = getattr(flashinfer, f"apply_{name}{suffix}")(to(q), to(k), *where, **options)
        close(got[0], want[0])
        close(got[1], want[1])
        q_inplace, k_inplace = q.copy(), k.copy()
        assert getattr(flashinfer, f"apply_{name}{suffix}_inplace")(to(q_inplace), to(k_inplace), *where, **options) is None
        close(q_inplace, want[0])
        close(k_inplace, want[1])


@pytest.mark.parametrize("is_neox", [False, True])
def test_flashinfer_with_cos_sin_cache(rng, to, is_neox):
    q, k, positions = normal(rng, 5, 64), normal(rng, 5, 32), rng.integers(0, 40, 5).astype(np.int32)
    style = "neox" if is_neox else "interleaved"
    want = [oracle.rotate(x.reshape(5, -1, 16), positions, oracle.frequencies(8), style).reshape(x.shape) for x in (q, k)]
    table = to(oracle.table(40, 8))
    got = flashinfer.apply_rope_with_cos_sin_cache(to(positions), to(q), to(k), 16, table, is_neox)
    close(got[0], want[0])
    close(got[1], want[1])
    flashinfer.apply_rope_with_cos_sin_cache_inplace(to(positions), to(q), to(k), 16, table, is_neox)
    close(q, want[0])
    close(k, want[1])
    with pytest.raises(ValueError, match="must be float32"):
        flashinfer.apply_rope_with_cos_sin_cache(to(positions), to(q), to(k), 16, to(oracle.table(40, 8, dtype=np.float16)))


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("one_tensor", [False, True])
def test_flashinfer_append(rng, to, layout, one_tensor):
    key, value = normal(rng, 6, 2, 8), normal(rng, 6, 2, 8)
    storage = np.zeros((5, 2, 4, 2, 8) if layout == "NHD" else (5, 2, 2, 4, 8), np.float32)
    cache = to(storage) if one_tensor else (to(storage[:, 0]), to(storage[:, 1]))
    batch_indices, positions = np.array([0, 0, 1, -1, 1, 1], np.int32), np.array([3, 4, 0, 2, 1, 9], np.int32)  # the last has no page
    indices, indptr, last = np.array([4, 1, 2], np.int32), np.array([0, 2, 3], np.int32), np.array([1, 2], np.int32)
    flashinfer.append_paged_kv_cache(
        to(key), to(value), to(batch_indices), to(positions), cache, to(indices), to(indptr), to(last), layout
    )
    for i, x in enumerate((key, value)):
        pages = storage[:, i] if layout == "NHD" else storage[:, i].swapaxes(1, 2)
        slots = pages.reshape(20, 2, 8)
        np.testing.assert_array_equal(slots[[19, 4, 8, 9]], x[[0, 1, 2, 4]])
        assert (np.delete(slots, [19, 4, 8, 9], 0) == 0).all()


# ---- sglang


@pytest.mark.parametrize("fused", [False, True])
def test_sglang(rng, to, fused):
    q, k, v = normal(rng, 5, 4, 16), normal(rng, 5, 2, 16), normal(rng, 5, 2, 16)
    positions, where = rng.integers(0, 40, 5), np.array([7, 0, 3, 9, 1])
    want = [oracle.rotate(x, positions, oracle.frequencies(16)) for x in (q, k)]
    k_buffer, v_buffer = np.zeros((10, 2 * 16), np.float32), np.zeros((10, 2, 16), np.float32)
    arguments = sglang.FusedSetKVBufferArg(to(v), to(k_buffer), to(v_buffer), to(where)) if fused else None
    sglang.apply_rope_with_cos_sin_cache_inplace(
        to(q), to(k), to(oracle.table(40, 16)), to(positions), is_neox=True, fused_args=arguments
    )
    close(q, want[0])
    close(k, want[1])
    if fused:
        np.testing.assert_array_equal(k_buffer[where].reshape(5, 2, 16), k)
        np.testing.assert_array_equal(v_buffer[where], v)
        arguments.k_scale = 0.5
        with pytest.raises(NotImplementedError, match="must be None"):
            sglang.apply_rope_with_cos_sin_cache_inplace(
                to(q), to(k), to(oracle.table(40, 16)), to(positions), is_neox=True, fused_args=arguments
            )


# ---- transformer_engine


def angles(rows, dim, interleaved):
    angle = np.arange(rows)[:, None] * oracle.frequencies(dim)
    full = np.repeat(angle, 2, 1) if interleaved else np.concatenate([angle, angle], 1)
    return full.astype(np.float32)[:, None, None]


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("layout", ["sbhd", "bshd"])
@pytest.mark.parametrize("options", [{}, {"start_positions": [3, 20]}, {"cp_size": 2, "cp_rank": 1}])
def test_transformer_engine(rng, to, interleaved, layout, options):
    x, style = normal(rng, 2, 6, 3, 16), "interleaved" if interleaved else "neox"
    positions = np.broadcast_to(np.arange(6), (2, 6))
    if "cp_size" in options:
        positions = np.broadcast_to([3, 4, 5, 6, 7, 8], (2, 6))  # the middle two chunks of four
    if "start_positions" in options:
        positions = positions + np.array(options["start_positions"])[:, None]
        options = {"start_positions": to(np.array(options["start_positions"], np.int32))}
    want = oracle.rotate(x, positions, oracle.frequencies(12), style)
    order = (1, 0, 2, 3) if layout == "sbhd" else (0, 1, 2, 3)
    freqs = to(angles(40, 12, interleaved))
    given = to(np.ascontiguousarray(x.transpose(order)))
    got = transformer_engine.apply_rotary_pos_emb(given, freqs, layout, interleaved=interleaved, fused=True, **options)
    close(np.asarray(got).transpose(order), want, 3e-5)  # float32 angles

    qkv = normal(rng, 2, 6, 3, 64)  # 3 groups of 2 heads of q, one of k, one of v
    q, k, v = (qkv[..., begin:end].reshape(2, 6, -1, 16) for begin, end in ((0, 32), (32, 48), (48, 64)))
    other = to(angles(40, 16, interleaved))
    for k_freqs, k_dim in ((freqs, 12), (other, 16)):
        got = transformer_engine.apply_fused_qkv_rotary_pos_emb(
            to(np.ascontiguousarray(qkv.transpose(order))), freqs, k_freqs, [32, 16, 16], layout, interleaved=interleaved, **options
        )
        got = [np.asarray(one).transpose(order) for one in got]
        close(got[0], oracle.rotate(q, positions, oracle.frequencies(12), style), 3e-5)
        close(got[1], oracle.rotate(k, positions, oracle.frequencies(k_dim), style), 3e-5)
        np.testing.assert_array_equal(got[2], v)


def test_transformer_engine_thd(rng, to):
    x, cu = normal(rng, 10, 3, 16), np.array([0, 4, 10], np.int32)
    freqs = to(angles(40, 16, False))
    got = transformer_engine.apply_rotary_pos_emb(to(x), freqs, "thd", cu_seqlens=to(cu))
    close(got, oracle.rotate(x, [0, 1, 2, 3, 0, 1, 2, 3, 4, 5], oracle.frequencies(16)), 3e-5)
    got = transformer_engine.apply_rotary_pos_emb(to(x), freqs, "thd", cu_seqlens=to(2 * cu), cp_size=2, cp_rank=0)
    close(got, oracle.rotate(x, [0, 1, 6, 7, 0, 1, 2, 9, 10, 11], oracle.frequencies(16)), 3e-5)
    with pytest.raises(ValueError, match="cu_seqlens is None"):
        transformer_engine.apply_rotary_pos_emb(to(x), freqs, "thd")
    with pytest.raises(ValueError, match="cp_rank is 2"):
        transformer_engine.apply_rotary_pos_emb(to(x), freqs, "thd", cu_seqlens=to(cu), cp_size=2, cp_rank=2)
