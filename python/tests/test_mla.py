import numpy as np
import oracle
import prologue_attention as prologue
import pytest
from prologue_attention import HeadNorm, Rope

TOKENS, HEADS, RANK, DIM, PAGES, PAGE = 9, 5, 512, 64, 3, 8
ROPE = Rope("interleaved", cos_sin=oracle.table(40, DIM))


@pytest.fixture
def step(rng):
    normal = lambda *shape: rng.standard_normal(shape).astype(np.float32)  # noqa: E731
    slots = rng.permutation(PAGES * PAGE)[:TOKENS]
    slots[4] = -1
    return {
        "kv_c": normal(TOKENS, RANK), "k_pe": normal(TOKENS, DIM), "q_pe": normal(TOKENS, HEADS, DIM), "weight": normal(RANK),
        "positions": rng.integers(0, 40, TOKENS), "slots": slots, "written": [t for t in range(TOKENS) if t != 4],
    }  # fmt: skip


def rotated(x, positions):
    heads = x if x.ndim == 3 else x[:, None]
    return oracle.rotate(heads, positions, oracle.frequencies(DIM), "interleaved").reshape(x.shape)


def close(got, want, atol=3e-6):
    np.testing.assert_allclose(got, want, rtol=3e-6, atol=atol)


@pytest.mark.parametrize("apart", [False, True])
def test_writes_only_its_slots(step, apart):
    pages = np.full((PAGES, PAGE, RANK + DIM), np.nan, np.float32)
    parts = np.full((PAGES, PAGE, RANK), np.nan, np.float32), np.full((PAGES, PAGE, DIM), np.nan, np.float32)
    caches = {"ckv_cache": parts[0], "kpe_cache": parts[1]} if apart else {"kv_cache": pages}
    query = np.zeros((TOKENS, HEADS, RANK + DIM), np.float32)
    kv_c_out, k_pe_out = np.empty_like(step["kv_c"]), np.empty_like(step["k_pe"])
    out = prologue.mla_prologue(
        step["kv_c"], step["k_pe"][:, None], step["q_pe"], **caches, slot_mapping=step["slots"], norm=HeadNorm(weight=step["weight"]),
        rope=ROPE, positions=step["positions"], q_pe_out=query[:, :, RANK:], kv_c_out=kv_c_out, k_pe_out=k_pe_out,
    )  # fmt: skip
    latent = oracle.rms_norm(step["kv_c"], step["weight"])
    k, q = rotated(step["k_pe"], step["positions"]), rotated(step["q_pe"], step["positions"])
    assert out.shape == (TOKENS, HEADS, DIM) and np.shares_memory(out, query)
    close(query[:, :, RANK:], q)
    assert (query[:, :, :RANK] == 0).all()
    close(kv_c_out, latent, 1e-5)
    close(k_pe_out, k)
    rows = np.concatenate(parts, 2) if apart else pages
    rows = rows.reshape(PAGES * PAGE, RANK + DIM)
    np.testing.assert_array_equal(rows[step["slots"][step["written"]]], np.concatenate([kv_c_out, k_pe_out], 1)[step["written"]])
    assert np.isnan(np.delete(rows, step["slots"][step["written"]], 0)).all()


def test_norm_of_k(step):
    """dots3: K's rotated channels have a norm before the rotation."""
    weight = step["weight"][:DIM]
    k_pe_out = np.empty_like(step["k_pe"])
    k_pe_norm = HeadNorm(weight=weight, eps=1e-5)
    prologue.mla_prologue(k_pe=step["k_pe"], k_pe_norm=k_pe_norm, rope=ROPE, positions=step["positions"], k_pe_out=k_pe_out)
    close(k_pe_out, rotated(oracle.rms_norm(step["k_pe"], weight, 1e-5), step["positions"]), 1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_records(step, dtype):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    kind = np.float16 if dtype == "float16" else ml_dtypes.bfloat16
    kv_c, k_pe = step["kv_c"].astype(kind), step["k_pe"].astype(kind)
    cache = np.zeros((PAGES, PAGE, 656), np.uint8)
    assert prologue.mla_prologue(kv_c, k_pe, kv_cache=cache, cache_type="fp8_ds_mla", slot_mapping=step["slots"]) is None
    records = cache.reshape(-1, 656)[step["slots"][step["written"]]]
    x = kv_c.astype(np.float32)[step["written"]].reshape(-1, 4, 128)
    scales = np.exp2(np.ceil(np.log2(np.maximum(np.abs(x).max(2) / np.float32(448), np.float32(1e-4)))))
    np.testing.assert_array_equal(np.ascontiguousarray(records[:, 512:528]).view(np.float32), scales)
    codes = np.ascontiguousarray(records[:, :512]).view(ml_dtypes.float8_e4m3fn)
    want = (x / scales[:, :, None]).astype(ml_dtypes.float8_e4m3fn).reshape(-1, 512)
    np.testing.assert_array_equal(codes.view(np.uint8), want.view(np.uint8))
    np.testing.assert_array_equal(records[:, 528:], np.ascontiguousarray(k_pe[step["written"]]).view(np.uint8))
    assert (np.delete(cache.reshape(-1, 656), step["slots"][step["written"]], 0) == 0).all()


def test_fp8_with_a_scale(step):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    cache, scale = np.zeros((PAGES, PAGE, RANK + DIM), np.uint8), np.array([0.25], np.float32)
    prologue.mla_prologue(
        step["kv_c"], step["k_pe"], kv_cache=cache, cache_type="fp8_e4m3", cache_scale=scale, slot_mapping=step["slots"][:7]
    )
    both = np.concatenate([step["kv_c"], step["k_pe"]], 1)
    written = [t for t in step["written"] if t < 7]
    want = (both[written] * 4).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    np.testing.assert_array_equal(cache.reshape(-1, RANK + DIM)[step["slots"][written]], want)


def test_in_place_and_only_a_part(step):
    q = step["q_pe"].copy()
    assert prologue.mla_prologue(q_pe=q, rope=ROPE, positions=step["positions"], q_pe_out=q) is q
    close(q, rotated(step["q_pe"], step["positions"]))
    latent = step["kv_c"].copy()
    prologue.mla_prologue(latent, norm=HeadNorm(weight=step["weight"], weight_offset=1.0), kv_c_out=latent)
    close(latent, oracle.rms_norm(step["kv_c"], step["weight"], weight_offset=1.0), 2e-5)


def test_inv_freq_needs_no_bound(step):
    inv_freq = oracle.frequencies(DIM).astype(np.float32)
    step["positions"][3] = 2**20 - 1
    got = prologue.mla_prologue(q_pe=step["q_pe"], rope=Rope("interleaved", inv_freq=inv_freq), positions=step["positions"])
    close(got, oracle.rotate(step["q_pe"], step["positions"], inv_freq.astype(np.float64), "interleaved"))


def test_faults(step):
    faults, flags = np.zeros(2, np.int64), np.zeros(TOKENS, np.uint8)
    step["positions"][2], step["slots"][5] = 99, PAGES * PAGE
    cache = np.zeros((PAGES, PAGE, RANK + DIM), np.float32)
    arguments = dict(kv_cache=cache, rope=ROPE, positions=step["positions"], slot_mapping=step["slots"])
    q = prologue.mla_prologue(step["kv_c"], step["k_pe"], step["q_pe"], **arguments, faults=faults, token_faults=flags)
    assert prologue.read_faults(faults) == ("position out of range", 2, 2)
    assert flags.tolist() == [0, 0, 1, 0, 0, 2, 0, 0, 0]
    assert (q[2] == 0).all() and not (q[5] == 0).any()
    with pytest.raises(IndexError, match="position out of range at token 2; 2 tokens were skipped"):
        prologue.mla_prologue(step["kv_c"], step["k_pe"], step["q_pe"], **arguments)


@pytest.mark.parametrize(
    "change, error, message",
    [
        ({"kv_c": None, "k_pe": None, "q_pe": None}, TypeError, "kv_c, k_pe and q_pe are all None"),
        ({"kv_cache": np.zeros((1, 2, 575), np.float32)}, ValueError, "kv_lora_rank \\+ qk_rope_head_dim"),
        ({"kv_cache": np.zeros((1, 2, 576), np.float16)}, None, None),
        ({"cache_type": "fp8_e4m3"}, TypeError, "kv_cache is float32, and cache_type is fp8_e4m3"),
        ({"kv_cache": np.zeros((1, 2, 656), np.uint8)}, ValueError, "kv_lora_rank \\+ qk_rope_head_dim"),
        ({"kv_cache": np.zeros((1, 2, 640), np.uint8), "cache_type": "fp8_ds_mla"}, ValueError, "the bytes of a record"),
        ({"kv_cache": np.zeros((1, 2, 656), np.float32), "cache_type": "fp8_ds_mla"}, TypeError, "its elements must be of one byte"),
        ({"cache_type": "int4"}, ValueError, "cache_type is 'int4'"),
        ({"cache_type": "fp8_ds_mla", "kv_cache": None}, ValueError, "but kv_cache is None"),
        ({"ckv_cache": np.zeros((1, 2, 512), np.float32)}, ValueError, "it is one or the other"),
        ({"k_pe": np.zeros((TOKENS, 2, DIM), np.float32)}, ValueError, "one head for all"),
        ({"slot_mapping": np.zeros(TOKENS + 1, np.int64)}, ValueError, "slot_mapping has 10 elements: it must have 1 to 9"),
        ({"slot_mapping": None}, ValueError, "slot_mapping is null"),
        ({"cache_scale": np.ones(2, np.float32)}, ValueError, "it must be one number"),
        ({"kv_c_out": np.zeros((TOKENS, 4), np.float32)}, ValueError, "kv_c_out has the shape"),
    ],
)
def test_refusals(step, change, error, message):
    arguments = {"kv_c": step["kv_c"], "k_pe": step["k_pe"], "q_pe": step["q_pe"], "rope": ROPE, "positions": step["positions"]}
    arguments |= {"slot_mapping": np.full(TOKENS, -1), "kv_cache": np.zeros((1, 2, 576), np.float32), **change}
    if error is None:
        prologue.mla_prologue(**arguments)
    else:
        with pytest.raises(error, match=message):
            prologue.mla_prologue(**arguments)
