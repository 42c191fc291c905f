"""prologue.rerope: keys in a cache are moved to other positions."""

import numpy as np
import oracle
import pytest

import prologue_attention as prologue
from prologue_attention import PagedKv, Rope, TokenPlaces

PAGES, PAGE, HEADS, DIM, KEYS = 3, 4, 2, 16, 7


def _cache(dtype=np.float32, layout="nhd", **options):
    shape = (PAGES, PAGE, HEADS, DIM) if layout == "nhd" else (PAGES, HEADS, PAGE, DIM)
    return PagedKv(np.zeros(shape, dtype), None, layout=layout, **options)


def _write(cache, positions, slots, rope, **options):
    k = np.random.default_rng(1).standard_normal((KEYS, HEADS, DIM)).astype(np.float32)
    prologue.attention_prologue(k=k, cache=cache, rope=rope, places=TokenPlaces(positions, slots), **options)
    return cache


@pytest.mark.parametrize("layout", ["nhd", "hnd"])
@pytest.mark.parametrize("hadamard_block", [0, 16])
@pytest.mark.parametrize("inv_freq", [False, True])
def test_moved_keys_are_those_of_the_prologue(layout, hadamard_block, inv_freq):
    rope = Rope(inv_freq=oracle.frequencies(DIM).astype(np.float32)) if inv_freq else Rope(cos_sin=1.25 * oracle.table(99, DIM))
    slots = np.array([5, 0, 11, 3, 7, 1, 2])
    old, new = np.arange(KEYS), np.arange(KEYS)[::-1] + 60
    want = _write(_cache(layout=layout), new, slots, rope, hadamard_block=hadamard_block)
    got = _write(_cache(layout=layout), old, slots, rope, hadamard_block=hadamard_block)
    assert prologue.rerope(got, slots, old, new, rope=rope, hadamard_block=hadamard_block) is None
    np.testing.assert_allclose(got.k, want.k, rtol=0, atol=2e-5)


def test_codes_with_computed_scales():
    rope, slots, old = Rope(cos_sin=oracle.table(99, DIM)), np.arange(KEYS), np.arange(KEYS)
    scales = lambda: np.zeros((PAGES, PAGE, HEADS), np.float32)  # noqa: E731
    caches = [_cache(np.int8, k_scale=scales(), scaling="token_head") for _ in range(2)]
    _write(caches[0], old, slots, rope)
    _write(caches[1], old + 50, slots, rope)
    prologue.rerope(caches[0], slots, old, old + 50, rope=rope)
    got, want = (one.k * one.k_scale[..., None] for one in caches)
    assert np.abs(got - want).max() <= 1.8 * caches[1].k_scale.max()


def test_what_is_not_moved():
    rope, slots, old = Rope(cos_sin=oracle.table(9, DIM)), np.arange(KEYS), np.arange(KEYS)
    cache = _write(_cache(), old, slots, rope)
    kept = cache.k.copy()
    prologue.rerope(cache, slots, old, old, rope=rope)
    prologue.rerope(cache, np.full(KEYS, -1), old, old + 1, rope=rope)
    prologue.rerope(cache, slots, old, np.full(KEYS, -1), rope=rope)
    np.testing.assert_array_equal(cache.k, kept)
    with pytest.raises(IndexError, match="position out of range"):
        prologue.rerope(cache, slots[:1], old[:1], np.array([9]), rope=rope)
    faults, token_faults = np.zeros(2, np.int64), np.zeros(KEYS, np.uint8)
    prologue.rerope(cache, slots + PAGES * PAGE, old, old + 1, rope=rope, faults=faults, token_faults=token_faults)
    assert prologue.read_faults(faults).count == KEYS and (token_faults == token_faults[0]).all() and token_faults[0] != 0
    np.testing.assert_array_equal(cache.k, kept)


def test_several_axes():
    rope = Rope(cos_sin=oracle.table(99, DIM), num_axes=2, pair_axis=np.arange(DIM // 2, dtype=np.uint8) % 2)
    slots, old = np.arange(KEYS), np.stack([np.arange(KEYS), np.arange(KEYS) + 9])
    new = old[::-1].copy()
    want, got = _write(_cache(), new, slots, rope), _write(_cache(), old, slots, rope)
    prologue.rerope(got, slots, old, new, rope=rope)
    np.testing.assert_allclose(got.k, want.k, rtol=0, atol=2e-5)


def test_a_latent_cache_is_one_head():
    """The rotated channels of MLA: the last ones of kv_cache."""
    rope, slots, old = Rope(cos_sin=oracle.table(99, DIM), style="interleaved"), np.arange(KEYS), np.arange(KEYS)
    kv_c, k_pe = (np.random.default_rng(2).standard_normal((KEYS, width)).astype(np.float32) for width in (32, DIM))
    caches = np.zeros((2, PAGES, PAGE, 32 + DIM), np.float32)
    for cache, positions in zip(caches, (old, old + 31)):
        prologue.mla_prologue(kv_c, k_pe, kv_cache=cache, slot_mapping=slots, rope=rope, positions=positions)
    prologue.rerope(PagedKv(caches[0][:, :, None, 32:], None), slots, old, old + 31, rope=rope)
    np.testing.assert_allclose(caches[0], caches[1], rtol=0, atol=2e-5)


def test_errors():
    rope, slots = Rope(cos_sin=oracle.table(9, DIM)), np.arange(3)
    with pytest.raises(TypeError, match="cache.k is None: rerope moves keys"):
        prologue.rerope(PagedKv(), slots, slots, slots, rope=rope)
    for change, message in (
        ({"from_positions": np.arange(2)}, "from_positions has the shape"),
        ({"to_positions": np.zeros((2, 3), int)}, "to_positions has the shape"),
        ({"slot_mapping": np.zeros((3, 1), int)}, "slot_mapping has the shape"),
        ({"rope": rope._replace(num_axes=2, pair_axis=np.zeros(8, np.uint8)), "to_positions": np.zeros((2, 3), int)}, "must be equal"),
    ):
        options = {"slot_mapping": slots, "from_positions": slots, "to_positions": slots, "rope": rope, **change}
        with pytest.raises(ValueError, match=message):
            prologue.rerope(_cache(), **options)
    with pytest.raises(TypeError, match="is bool"):
        prologue.rerope(_cache(), slots, slots.astype(bool), slots, rope=rope)


def test_torch_compiles():
    torch = pytest.importorskip("torch")
    rope = Rope(cos_sin=torch.from_numpy(oracle.table(99, DIM)))
    slots, old = torch.arange(KEYS), torch.arange(KEYS)
    cache = torch.randn(PAGES, PAGE, HEADS, DIM)
    want = cache.clone()
    prologue.rerope(PagedKv(want, None), slots, old, old + 5, rope=rope)

    def move(k):
        prologue.rerope(PagedKv(k, None), slots, old, old + 5, rope=rope)
        return k * 2

    got = torch.compile(move, fullgraph=True, backend="aot_eager")(cache)
    assert torch.equal(got, want * 2) and torch.equal(cache, want)
