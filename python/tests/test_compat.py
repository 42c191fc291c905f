"""The functions of prologue_attention.compat, against their systems' definitions in NumPy float64 (oracle.py), for NumPy and torch."""

import numpy as np
import oracle
import pytest
from prologue_attention.compat import flash_attn, flashinfer, kernels_rotary, liger, sglang, transformer_engine, vllm

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
    for heads, num_heads_q in ((5, 2), (4, 4), (4, 5), (4, 0), (4, -2)):
        qkv = normal(rng, 2, 5, heads, 8)
        before = qkv.copy()
        with pytest.raises(ValueError, match=rf"num_heads_q is {num_heads_q}, and qkv has {heads} heads: it must have"):
            flash_attn.apply_rotary_emb_qkv_(to(qkv), to(cos), to(sin), num_heads_q=num_heads_q)
        np.testing.assert_array_equal(qkv, before)


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
    half = [to(f(angle).astype(np.float32)) for f in (np.cos, np.sin)]
    for y, x in zip(liger.liger_rotary_pos_emb_gpt_oss(to(q), to(k), *half), (q, k)):
        want = oracle.rotate(x.swapaxes(1, 2), np.broadcast_to(positions, (2, 5)), oracle.frequencies(8))
        close(y, want.swapaxes(1, 2))


def test_liger_of_a_part_of_the_head_and_of_pictures(rng, to):
    q, k = normal(rng, 1, 4, 5, 8), normal(rng, 1, 2, 5, 8)
    angle = np.arange(5)[:, None] * oracle.frequencies(4)
    cos, sin = (to(np.concatenate([f(angle), f(angle)], -1).astype(np.float32)) for f in (np.cos, np.sin))
    for y, x in zip(liger.liger_rotary_pos_emb(to(q), to(k), cos[None], sin[None]), (q, k)):
        close(y, oracle.rotate(x.swapaxes(1, 2), np.arange(5), oracle.frequencies(4)).swapaxes(1, 2))
    q, k = (np.ascontiguousarray(x[0].swapaxes(0, 1)[..., :4]) for x in (q, k))
    for y, x in zip(liger.liger_rotary_pos_emb_vision(to(q), to(k), cos, sin), (q, k)):
        close(y, oracle.rotate(x[None], np.arange(5), oracle.frequencies(4))[0])


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


@pytest.mark.parametrize("rotary_dim", [0, 8, 16])
def test_vllm_fused_qknorm_rope_cache(rng, to, rotary_dim):
    qkv, weight_q, weight_k = normal(rng, 5, (4 + 2 + 2) * 16), normal(rng, 16), normal(rng, 16)
    positions, slots = rng.integers(0, 40, 5), np.array([7, -1, 3])  # shorter than the tokens
    q, k, v = np.split(qkv.reshape(5, 8, 16).copy(), [4, 6], 1)
    want = [oracle.rms_norm(x, weight, 1e-5, weight_offset=1) for x, weight in ((q, weight_q), (k, weight_k))]
    if rotary_dim:
        want = [oracle.rotate(x, positions, oracle.frequencies(rotary_dim)) for x in want]
    caches = np.zeros((3, 4, 2, 16), np.float32), np.zeros((3, 4, 2, 16), np.float32)
    got = vllm.fused_qknorm_rope_cache(
        to(qkv), to(weight_q), to(weight_k), to(oracle.table(40, max(rotary_dim, 2))), to(positions), to(slots), to(caches[0]),
        to(caches[1]), 4, 2, 16, rotary_dim, 1e-5, norm_weight_bias=1.0,
    )  # fmt: skip
    for one, x in zip(got, (*want, v)):
        close(one, x.reshape(5, -1), 1e-5)
    for cache, x in zip(caches, (want[1], v)):
        rows = cache.reshape(12, 2, 16)
        close(rows[[7, 3]], x[[0, 2]], 1e-5)
        assert (np.delete(rows, [7, 3], 0) == 0).all()


@pytest.mark.parametrize("rank, dim", [(512, 64), (32, 8)])  # one launch, and two
def test_vllm_mla(rng, to, rank, dim):
    kv_c, k_pe, q_pe = normal(rng, 5, rank), normal(rng, 5, dim), normal(rng, 5, 3, dim)
    slots, scale, positions = np.array([7, 0, -1, 3, 4]), np.ones(1, np.float32), rng.integers(0, 40, 5)
    cache = np.zeros((3, 4, rank + dim), np.float32)
    vllm.concat_and_cache_mla(to(kv_c), to(k_pe), to(cache), to(slots), "auto", to(scale))
    written = [0, 1, 3, 4]
    np.testing.assert_array_equal(cache.reshape(12, -1)[slots[written]], np.concatenate([kv_c, k_pe], 1)[written])
    assert (np.delete(cache.reshape(12, -1), slots[written], 0) == 0).all()
    cache[:] = 0
    want_q = oracle.rotate(q_pe, positions, oracle.frequencies(dim), "interleaved")
    want_k = oracle.rotate(k_pe[:, None], positions, oracle.frequencies(dim), "interleaved")[:, 0]
    vllm.concat_and_cache_mla_rope_fused(
        to(positions), to(q_pe), to(k_pe), to(kv_c), to(oracle.table(40, dim)), False, to(slots), to(cache), "auto", to(scale)
    )
    close(q_pe, want_q)
    close(cache.reshape(12, -1)[slots[written]], np.concatenate([kv_c, want_k], 1)[written])


def test_vllm_mla_records(rng, to):
    kv_c, k_pe, q_pe = (normal(rng, *shape).astype(np.float16) for shape in ((5, 512), (5, 1, 64), (5, 3, 64)))
    slots, scale, positions = np.array([7, 0, -1, 3, 4]), np.ones(1, np.float32), rng.integers(0, 40, 5)
    rotated, cache, fused = k_pe.copy(), np.zeros((3, 4, 656), np.uint8), np.zeros((3, 4, 656), np.uint8)
    table = to(oracle.table(40, 64).astype(np.float16))
    vllm.concat_and_cache_mla_rope_fused(
        to(positions), to(q_pe), to(rotated), to(kv_c), table, False, to(slots), to(fused), "fp8_ds_mla", to(scale)
    )
    vllm.concat_and_cache_mla(to(kv_c), to(rotated), to(cache), to(slots), "fp8_ds_mla", to(scale))
    np.testing.assert_array_equal(cache, fused)
    record = cache.reshape(12, 656)[3]
    scales = record[512:528].view(np.float32)
    largest = np.abs(kv_c[3].astype(np.float32)).reshape(4, 128).max(1)
    np.testing.assert_array_equal(scales, np.exp2(np.ceil(np.log2(np.maximum(largest / np.float32(448), np.float32(1e-4))))))
    np.testing.assert_array_equal(record[528:].view(np.float16), rotated[3, 0])
    want = oracle.rotate(k_pe.astype(np.float32), positions, oracle.frequencies(64), "interleaved")
    np.testing.assert_allclose(rotated.astype(np.float32), want, atol=4e-3)


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


@pytest.mark.parametrize("page", [2**27, 2**28, 2**28 + 1])
def test_flashinfer_append_beyond_32_bits(rng, to, page):
    """Pages of 16 tokens: slots from 2^31 on were lost, and those past 2^32 another's."""
    import mmap

    key = normal(rng, 1, 1, 2)
    pages = 2**28 + 3
    try:
        memory = mmap.mmap(-1, pages * 16 * 2 * 4, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000))
    except OSError as error:
        pytest.skip(f"no address space for the cache: {error}")
    cache = np.frombuffer(memory, np.float32).reshape(pages, 16, 1, 2)
    one = lambda value: to(np.array([value], np.int32))  # noqa: E731
    indptr, last = to(np.array([0, 1], np.int32)), one(6)
    flashinfer.append_paged_mla_kv_cache(
        to(key[:, 0]), to(key[:, 0]), one(0), one(5), to(cache[:, :, 0]), None, one(page), indptr, last
    )
    np.testing.assert_array_equal(cache[page, 5], key[0])
    for other in (0, 1, page - 1, page + 1):
        assert (cache[other] == 0).all()


def test_flashinfer_append_of_padding_alone(rng, to):
    key, cache = normal(rng, 3, 2, 8), (np.zeros((5, 4, 2, 8), np.float32), np.zeros((5, 4, 2, 8), np.float32))
    none, some = np.full(3, -1, np.int32), np.array([0, 1, 2], np.int32)
    i = lambda *values: to(np.array(values, np.int32))  # noqa: E731
    for batch_indices, indices, indptr in (
        (none, i(), i(0)), (none, i(), i(0, 0)), (none, i(4), i(0, 1)), (some, i(), i(0)), (some, i(), i(0, 0, 0)),
        (some + 1, i(4), i(0, 1)), (some, i(4), i(3, 9, 9)),
    ):  # fmt: skip
        arguments = (to(batch_indices), to(some), tuple(map(to, cache)), indices, indptr, i())
        flashinfer.append_paged_kv_cache(to(key), to(key), *arguments)
        assert not cache[0].any() and not cache[1].any()
    for bad in (np.zeros(3, bool), np.zeros(3, np.float32)):
        with pytest.raises(TypeError, match="positions is .*: it must be integers"):
            flashinfer.append_paged_kv_cache(to(key), to(key), to(none), to(bad), tuple(map(to, cache)), i(), i(0), i())
    batch, positions = flashinfer.get_batch_indices_positions(i(0), i(), 3)
    assert np.asarray(batch).tolist() == [-1, -1, -1] and np.asarray(positions).tolist() == [0, 0, 0]


def test_flashinfer_and_sglang_scales_of_zero(rng, to):
    pytest.importorskip("ml_dtypes")
    q, k, positions = normal(rng, 3, 2, 16), normal(rng, 3, 1, 16), to(np.arange(3, dtype=np.int32))
    outputs = flashinfer.rope_quantize_fp8(to(q), to(k), None, None, to(oracle.table(9, 16)), positions, quant_scale_q=0.0)
    codes = [one.float().numpy() if hasattr(one, "float") else one.astype(np.float32) for one in outputs[:2]]
    assert not codes[0].any() and codes[1].any()  # x * 0
    calls = [
        (lambda: flashinfer.apply_rope_pos_ids(to(q), to(k), positions, rope_scale=0.0), "rope_scale not 0"),
        (lambda: flashinfer.apply_rope_pos_ids(to(q), to(k), positions, rope_scale=2.0, rope_theta=0.0), "rope_theta must be positive"),
        (lambda: flashinfer.apply_llama31_rope_pos_ids(to(q), to(k), positions, low_freq_factor=4), "they must differ"),
    ]
    qkv, weight = to(normal(rng, 3, 64)), to(normal(rng, 16))
    for base, factor in ((1e4, 0.0), (0.0, 1.0), (-1.0, 2.0)):
        call = lambda base=base, factor=factor: sglang.fused_qk_norm_rope(  # noqa: E731
            qkv, 2, 1, 1, 16, 1e-5, weight, weight, base, True, positions, factor, 0.0, 1.0, 1.0
        )
        calls.append((call, "base must be positive, and factor not 0"))
    for call, message in calls:
        with pytest.raises(ValueError, match=message):
            call()


def flashinfer_pages():
    """Two sequences of 2 and 1 pages of 4 tokens; token 3 is padding."""
    batch_indices, positions = np.array([0, 0, 1, -1, 1, 1], np.int32), np.array([3, 4, 0, 2, 1, 2], np.int32)
    indices, indptr, last = np.array([4, 1, 2], np.int32), np.array([0, 2, 3], np.int32), np.array([1, 3], np.int32)
    return batch_indices, positions, indices, indptr, last, [19, 4, 8, 9, 10], [0, 1, 2, 4, 5]


@pytest.mark.parametrize("rank, dim", [(512, 64), (32, 8)])
def test_flashinfer_append_mla(rng, to, rank, dim):
    batch_indices, positions, indices, indptr, last, slots, tokens = flashinfer_pages()
    ckv, kpe = normal(rng, 6, rank), normal(rng, 6, dim)
    caches = np.zeros((5, 4, rank), np.float32), np.zeros((5, 4, dim), np.float32)
    flashinfer.append_paged_mla_kv_cache(
        to(ckv), to(kpe), to(batch_indices), to(positions), to(caches[0]), to(caches[1]), to(indices), to(indptr), to(last)
    )
    for cache, x in zip(caches, (ckv, kpe)):
        want = np.zeros_like(cache)
        want.reshape(20, -1)[slots] = x[tokens]
        np.testing.assert_array_equal(cache, want)


def test_flashinfer_lengths_and_positions(to):
    indptr, last = np.array([0, 3, 3, 4], np.int32), np.array([2, 0, 4], np.int32)
    seq_lens = flashinfer.get_seq_lens(to(indptr), to(last), 16)
    np.testing.assert_array_equal(np.asarray(seq_lens), [34, 0, 4])
    batch, positions = flashinfer.get_batch_indices_positions(to(np.array([0, 2, 2, 5], np.int32)), seq_lens, 6)
    np.testing.assert_array_equal(np.asarray(batch), [0, 0, 2, 2, 2, -1])
    np.testing.assert_array_equal(np.asarray(positions), [32, 33, 1, 2, 3, 0])


def fp8(to, shape, kind):
    """An array of zeros of the framework, and the same memory as NumPy's."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.zeros(shape, getattr(ml_dtypes, kind))
    if to(np.zeros(1)) is not None and type(to(np.zeros(1))).__module__ == "torch":
        import torch

        return torch.from_numpy(array.view(np.uint8)).view(getattr(torch, kind)), array
    return array, array


@pytest.mark.parametrize("nope", [0, 16])
@pytest.mark.parametrize("form", ["mla", "NHD", "HND"])
@pytest.mark.parametrize("kind", ["float8_e4m3fn", "float8_e5m2"])
def test_flashinfer_rope_quantize(rng, to, kind, form, nope):
    batch_indices, positions, indices, indptr, _, slots, tokens = flashinfer_pages()
    pos_ids, table = rng.integers(0, 40, 6).astype(np.int32), oracle.table(40, 8)
    heads = () if form == "mla" else (2,)
    q, k = normal(rng, 6, 4, 8 + nope), normal(rng, 6, *heads, 8 + nope)
    v = None if form == "mla" else normal(rng, 6, 2, 8 + nope)
    want_q, want_k = (oracle.rotate(x, pos_ids, oracle.frequencies(8), "interleaved") for x in (q, k.reshape(6, -1, 8 + nope)))
    shape = (5, 4) if form == "mla" else (5, 4, 2) if form == "NHD" else (5, 2, 4)
    widths = (nope, 8) if form == "mla" else (8 + nope, 8 + nope)
    if form == "mla" and nope == 0:
        pytest.skip("MLA has channels that are not rotated")
    caches = [fp8(to, (*shape, width), kind) for width in widths]
    split = [None if x is None else to(np.ascontiguousarray(x)) for x in (q[..., :8], k[..., :8], q[..., 8:], k[..., 8:])]
    if nope == 0:
        split[2:] = None, None
    q_rope, q_nope = flashinfer.rope_quantize_fp8_append_paged_kv_cache(
        split[0], split[1], split[2], split[3], None if v is None else to(v), to(table), to(pos_ids), (caches[0][0], caches[1][0]),
        to(indices), to(indptr), to(batch_indices), to(positions), is_neox=False, quantize_dtype=caches[0][0].dtype, quant_scale_q=2.0,
        quant_scale_kv=0.5, page_size=4, kv_layout="NHD" if form == "mla" else form,
    )  # fmt: skip
    number = lambda x: (x.float().numpy() if hasattr(x, "float") else x.astype(np.float32))  # noqa: E731
    tolerance = dict(rtol=0.07 if kind == "float8_e4m3fn" else 0.14, atol=0.02)
    np.testing.assert_allclose(number(q_rope), want_q[..., :8] * 2, **tolerance)
    if nope:
        np.testing.assert_allclose(number(q_nope), want_q[..., 8:] * 2, **tolerance)
    parts = (want_k[..., 8:], want_k[..., :8]) if form == "mla" else (want_k, v)
    for (_, cache), x in zip(caches, parts):
        pages = cache.astype(np.float32)
        rows = (pages.swapaxes(1, 2) if form == "HND" else pages).reshape(20, *x.shape[1:])
        np.testing.assert_allclose(rows[slots], x[tokens] * 0.5, **tolerance)
        assert (np.delete(rows, slots, 0) == 0).all()
    outputs = flashinfer.rope_quantize_fp8(
        *split, to(table), to(pos_ids), is_neox=False, quantize_dtype=caches[0][0].dtype, quant_scale_kv=0.5
    )
    np.testing.assert_allclose(number(outputs[1]).reshape(6, -1, 8), want_k[..., :8] * 0.5, **tolerance)
    assert outputs[3].shape[-1] == nope


@pytest.mark.parametrize("policy", [0, 1, 2])
@pytest.mark.parametrize("to_cache", [True, False])
def test_flashinfer_cake(rng, to, policy, to_cache):
    qkv, weight_q, weight_k = normal(rng, 5, (4 + 2 + 2) * 16), normal(rng, 16), normal(rng, 16)
    q_indptr, seq_lens = np.array([0, 2, 5], np.int32), np.array([6, 3], np.int32)  # the first has 4 tokens in the cache
    page_indices = np.array([[3, 1], [2, 9]], np.int32)
    positions, slots = np.array([4, 5, 0, 1, 2]), [4, 5, 8, 9, 10]
    q, k, v = np.split(qkv.reshape(5, 8, 16), [4, 6], 1)
    want = []
    for x, weight in ((q, weight_q), (k, weight_k)):
        x = oracle.rms_norm(x, weight) if policy == 2 else x
        x = oracle.rotate(x, positions, oracle.frequencies(16))
        want.append(oracle.rms_norm(x, weight) if policy == 1 else x)
    caches = np.ones((4, 4, 2, 16), np.float32), np.ones((4, 4, 2, 16), np.float32)
    out_k, out_v = np.zeros_like(k), np.zeros_like(v)
    got = flashinfer.cake_fused_qk_rmsnorm_rope_append_paged_kv_cache(
        to(qkv), to(oracle.table(40, 16)), to(seq_lens), to(q_indptr), to(page_indices), to(caches[0]), to(caches[1]), num_q_heads=4,
        num_kv_heads=2, qk_norm_policy=policy, q_norm_weight=to(weight_q), k_norm_weight=to(weight_k),
        out_k=None if to_cache else to(out_k), out_v=None if to_cache else to(out_v),
    )  # fmt: skip
    close(got, want[0], 1e-5)
    for cache, out, x in zip(caches, (out_k, out_v), (want[1], v)):
        rows = np.ones((16, 2, 16))
        rows[[6, 7, 11]] = 0  # past the ends of both sequences, in their last pages
        if to_cache:
            rows[slots] = x
        else:
            close(out, x, 1e-5)
        close(cache.reshape(16, 2, 16), rows, 1e-5)


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


@pytest.mark.parametrize("yarn", [False, True])
def test_sglang_fused_qk_norm_rope(rng, to, yarn):
    qkv, weight_q, weight_k = normal(rng, 5, (4 + 2 + 2) * 16), normal(rng, 16), normal(rng, 16)
    positions = rng.integers(0, 40, 5).astype(np.int32)
    factor, low, high, attention_factor = (4.0, 1.0, 5.0, 1.25) if yarn else (1.0, 0.0, 0.0, 1.0)
    frequencies = oracle.frequencies(12)
    if yarn:
        blend = np.clip((np.arange(6) - low) / (high - low), 0, 1)
        frequencies = frequencies / factor * blend + frequencies * (1 - blend)
    q, k, v = np.split(qkv.reshape(5, 8, 16).copy(), [4, 6], 1)
    want_q, want_k = (oracle.rms_norm(x, w, 1e-5) for x, w in ((q, weight_q), (k, weight_k)))
    for x in (want_q, want_k):
        x[...] = oracle.rotate(x, positions, frequencies)
        x[..., :12] *= attention_factor
    sglang.fused_qk_norm_rope(
        to(qkv), 4, 2, 2, 16, 1e-5, to(weight_q), to(weight_k), 10000.0, True, to(positions), factor, low, high, attention_factor, 12
    )
    close(qkv.reshape(5, 8, 16), np.concatenate([want_q, want_k, v], 1), 1e-5)


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
    starts = np.array([3, 20], np.int32)
    got = transformer_engine.apply_rotary_pos_emb(
        to(x), freqs, "thd", start_positions=to(starts), cu_seqlens=to(2 * cu), cp_size=2, cp_rank=1
    )
    positions = np.array([2, 3, 4, 5, 3, 4, 5, 6, 7, 8]) + np.repeat(starts, [4, 6])
    close(got, oracle.rotate(x, positions, oracle.frequencies(16)), 3e-5)
    with pytest.raises(ValueError, match="cu_seqlens is None"):
        transformer_engine.apply_rotary_pos_emb(to(x), freqs, "thd")
    with pytest.raises(ValueError, match="cp_rank is 2"):
        transformer_engine.apply_rotary_pos_emb(to(x), freqs, "thd", cu_seqlens=to(cu), cp_size=2, cp_rank=2)
