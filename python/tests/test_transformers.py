"""prologue_attention.transformers beside transformers' own attention: in every family of its text models, and on masks of every kind.

PROLOGUE_TEST_MODELS=all runs each family in all cases; otherwise most families run in three of them."""

import os
from unittest.mock import patch

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
import prologue_attention as prologue  # noqa: E402
import prologue_attention.transformers  # noqa: E402
import tiny_models  # noqa: E402
from torch.nn.functional import scaled_dot_product_attention  # noqa: E402
from transformers import CompileConfig  # noqa: E402

transformers.logging.set_verbosity_error()


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """For tiny models, threads only wait for each other."""
    before = torch.get_num_threads(), prologue.get_num_threads()
    torch.set_num_threads(1), prologue.set_num_threads(1)
    yield
    torch.set_num_threads(before[0]), prologue.set_num_threads(before[1])


EVERYTHING = os.environ.get("PROLOGUE_TEST_MODELS") == "all"

ROWS = 13
LENGTHS = (ROWS, 9, 4)  # of a padded batch
IDS = torch.randint(3, 60, (len(LENGTHS), ROWS), generator=torch.Generator().manual_seed(1))
LEFT = torch.tensor([[0] * (ROWS - n) + [1] * n for n in LENGTHS])
RIGHT = LEFT.flip(1)
PACKED = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 0, 1, 2, 3, 4, 5], [*range(ROWS)], [0, 1] + [*range(11)]])


def prefill(mask=None, **arguments):
    def run(model):
        logits = model(IDS, attention_mask=mask, **arguments).logits
        return logits if mask is None else logits[mask.bool()]

    return run


def decode(mask=None, **arguments):
    """The logits of each generated token. The tokens are equal too, or later logits would differ."""

    def run(model):
        out = model.generate(
            IDS, attention_mask=torch.ones_like(IDS) if mask is None else mask, max_new_tokens=5, min_new_tokens=5, do_sample=False,
            output_logits=True, return_dict_in_generate=True, **arguments,
        )  # fmt: skip
        return torch.stack(list(out.logits), 1)

    return run


STATIC = {"cache_implementation": "static", "disable_compile": True}
CASES = {
    "prefill": prefill(),
    "prefill, padded left": prefill(LEFT),
    "prefill, padded right": prefill(RIGHT),
    "packed sequences": prefill(position_ids=PACKED, use_cache=False),
    "decode": decode(),
    "decode, padded left": decode(LEFT),
    "static cache": decode(**STATIC),
    "static cache, padded left": decode(LEFT, **STATIC),
    "prefill in chunks": decode(prefill_chunk_size=4),
    "prefill in chunks, static cache, padded left": decode(LEFT, prefill_chunk_size=4, **STATIC),
}

# What transformers itself does not run: two have no cache of its kinds, and a static cache takes a V narrower than K for one of K's width.
NOT_RUN = {
    (family, name) for family in ("minimax", "recurrent_gemma", "mimo_v2_flash") for name in CASES
    if "prefill in chunks" in name and (family != "mimo_v2_flash" or "static" in name)
}  # fmt: skip

# Those with windows, chunks, sinks, soft caps, latent attention and one head for all run in all cases.
ALWAYS = ("llama", "mistral", "qwen3", "gemma2", "gemma3_text", "gpt_oss", "llama4_text", "deepseek_v3", "phi", "gpt_neox", "falcon_h1")


def chosen(family):
    names = list(CASES)
    if family not in ALWAYS and not EVERYTHING:
        first = tiny_models.families().index(family)
        names = [names[(first + i) % len(names)] for i in (0, 3, 6)]
    return [name for name in names if (family, name) not in NOT_RUN]


def assert_same(got, want):
    torch.testing.assert_close(got, want, rtol=0, atol=1e-5 * max(1.0, want.abs().max().item()))


@pytest.mark.parametrize("family", tiny_models.families())
@torch.no_grad()
def test_the_same_logits_as_eager(family):
    """Among the public reports that these cases hold: static caches (transformers#46914), packed sequences (transformers#44911 and
    #39814), Llama 4's chunks (transformers#37351)."""
    if not tiny_models.has_sdpa(family):
        pytest.skip(f"{family} has no SDPA in transformers {transformers.__version__}")
    eager, ours = tiny_models.build(family)
    for name in chosen(family):
        want = CASES[name](eager)
        assert want.isfinite().all() and want.abs().max() > 0
        with patch.object(prologue.transformers, "paged_attention", wraps=prologue.paged_attention) as operation:
            try:
                assert_same(CASES[name](ours), want)
            except Exception as error:
                raise AssertionError(f"{family}, {name}: {error}") from error
        operation.assert_called()


@pytest.mark.parametrize("family, reason", tiny_models.REFUSED.items())
@torch.no_grad()
def test_families_that_are_refused(family, reason):
    _, ours = tiny_models.build(family)
    for name in ("prefill", "decode, padded left"):
        with pytest.raises(NotImplementedError, match=reason):
            CASES[name](ours)


@torch.no_grad()
def test_packed_sequences_do_not_see_each_other():
    """transformers#44911, transformers#39814: as one sequence after another."""
    _, ours = tiny_models.build("llama")
    packed = ours(IDS[:1, :11], position_ids=torch.tensor([[0, 1, 2, 3, 0, 1, 2, 0, 1, 2, 3]]), use_cache=False).logits
    apart = [ours(IDS[:1, first:end]).logits for first, end in ((0, 4), (4, 7), (7, 11))]
    assert_same(packed, torch.cat(apart, 1))


@torch.no_grad()
def test_the_allocated_length_of_a_static_cache_is_not_the_filled_one():
    """transformers#46914: also in a forward pass without generate, and after the cache was reset."""
    eager, ours = tiny_models.build("gemma2")
    cache = transformers.StaticCache(config=ours.config, max_cache_len=40)
    for _ in range(2):
        for first, end in ((0, 7), (7, 8), (8, ROWS)):
            assert_same(ours(IDS[:, first:end], cache=cache).logits, eager(IDS[:, :end]).logits[:, first:])
        cache.reset()


@torch.no_grad()
def test_chunks():
    """transformers#37351: a row sees only its chunk, whose count begins at the first token that is not padding."""
    eager, ours = tiny_models.build("llama4_text")
    assert_same(ours(IDS).logits, eager(IDS).logits)
    ours.config.attention_chunk_size = 64
    assert (ours(IDS).logits - eager(IDS).logits).abs().max() > 0.1


@pytest.mark.parametrize("family", ["llama", "gpt_oss"] if EVERYTHING else ["llama"])
@torch.no_grad()
def test_a_static_cache_compiles_into_one_graph(family):
    eager, ours = tiny_models.build(family)
    torch._dynamo.reset()
    how = CompileConfig(backend="aot_eager", fullgraph=True, mode=None)
    how._compile_all_devices = True
    assert_same(decode(LEFT, cache_implementation="static", compile_config=how)(ours), decode(LEFT)(eager))
    compiled = torch.compile(ours, backend="aot_eager", fullgraph=True)
    assert_same(prefill(LEFT)(compiled), prefill(LEFT)(eager))
    with pytest.raises(RuntimeError, match="keys with a gap between them"):
        compiled(IDS, attention_mask=torch.tensor([[1] * 5 + [0] + [1] * (ROWS - 6)] * 3))


@torch.inference_mode()
def test_inference_mode():
    eager, ours = tiny_models.build("gemma3_text")
    for name in ("prefill, padded left", "static cache, padded left"):
        assert_same(CASES[name](ours), CASES[name](eager))


@torch.no_grad()
def test_a_mask_of_the_user():
    """[batch, 1, rows, keys], boolean or as it is added to scores; a block of rows that see each other, as a prefix or an image."""
    eager, ours = tiny_models.build("llama")
    visible = torch.ones(ROWS, ROWS, dtype=torch.bool).tril()[None, None].repeat(len(LENGTHS), 1, 1, 1)
    visible[1, :, :6, :6] = True
    visible[2, :, 5:9, 5:9] = True
    added = torch.where(visible, 0.0, torch.finfo(torch.float32).min)
    want = eager(IDS, attention_mask=added).logits
    assert_same(ours(IDS, attention_mask=visible).logits, want)
    assert_same(ours(IDS, attention_mask=added).logits, want)
    assert_same(ours(IDS, attention_mask=torch.where(visible, 0.0, -torch.inf)).logits, want)
    for model in (eager, ours):
        model.config.is_causal = False
        for layer in model.model.layers:
            layer.self_attn.is_causal = False
    for mask in (None, LEFT):
        assert_same(prefill(mask)(ours), prefill(mask)(eager))


class Layer:
    is_causal = True


def forward(mask, q, k, v, **arguments):
    return prologue.transformers.attention_forward(Layer(), q, k, v, mask, **arguments)[0]


def random_tensors(batch=3, heads=4, kv_heads=2, rows=7, keys=11, layout="bhsd", seed=5):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((heads, rows, 16), (kv_heads, keys, 16), (kv_heads, keys, 8))
    if layout == "bhsd":
        return tuple(torch.randn(batch, *shape, generator=generator) for shape in shapes)
    return tuple(torch.randn(batch, n, h, d, generator=generator).transpose(1, 2) for h, n, d in shapes)


def sdpa(mask, q, k, v):
    out = scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True).transpose(1, 2)
    return torch.where(mask.any(-1).transpose(1, 2)[..., None], out, 0.0)


def from_intervals(first, end, keys):
    number = torch.arange(keys)
    return ((number >= first[..., None]) & (number < end[..., None]))[:, None]


def masks_of_chance(seed, batch=3, rows=7, keys=11):
    """Intervals that nothing but chance relates, or a window, chunk and padding of chance in one batch."""
    generator = torch.Generator().manual_seed(seed)
    chance = lambda low, high, *shape: torch.randint(low, high, shape, generator=generator)  # noqa: E731
    if seed < 8:
        first = chance(0, keys, batch, rows)
        return from_intervals(first, first + (chance(0, keys, batch, rows) % (keys + 1 - first)), keys)
    end = torch.arange(rows) + chance(1, keys - rows + 2, batch, 1)
    padding = chance(0, 6, batch, 1)
    size = chance(1, 6).item()
    first = torch.maximum(padding, end - size if seed % 2 else (end - 1 - padding) // size * size + padding)
    return from_intervals(first, torch.maximum(first, end), keys)


def tensors_of_chance(seed):
    q, k, v = random_tensors(layout=("bhsd", "bshd")[seed % 2], seed=seed)
    if seed % 4 == 3:  # strides of K and V that differ, and a view of a longer cache
        v, k = v.contiguous(), torch.cat([k, k], 2)[:, :, 3:14]
    if seed % 5 == 4:
        k = k.transpose(2, 3).contiguous().transpose(2, 3)
    return q, k, v


@pytest.mark.parametrize("seed", range(20))
@torch.no_grad()
def test_any_interval_of_each_row(seed):
    mask, tensors = masks_of_chance(seed), tensors_of_chance(seed)
    torch.testing.assert_close(forward(mask, *tensors), sdpa(mask, *tensors), rtol=0, atol=1e-6)


@pytest.mark.skipif(not (torch.cuda.is_available() and prologue.built_with_cuda()), reason="needs a GPU and a build with CUDA")
@torch.no_grad()
def test_cuda():
    """Intervals of chance; and a padded batch with caches of both kinds, of which generate compiles the static one."""
    for seed in range(20):
        mask, tensors = masks_of_chance(seed), tensors_of_chance(seed)
        for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 3e-2)):
            tensors = [x.to(dtype) for x in tensors]  # keeps strides
            want = sdpa(mask, *[x.float() for x in tensors])
            got = forward(mask.cuda(), *[x.cuda() for x in tensors])
            torch.testing.assert_close(got.float().cpu(), want, rtol=0, atol=tolerance)
    eager, ours = tiny_models.build("gpt_oss")
    want = decode(LEFT)(eager)
    ours.cuda()
    for arguments in ({}, {"cache_implementation": "static"}):
        got = ours.generate(
            IDS.cuda(), attention_mask=LEFT.cuda(), max_new_tokens=5, min_new_tokens=5, do_sample=False, output_logits=True,
            return_dict_in_generate=True, **arguments,
        )  # fmt: skip
        torch.testing.assert_close(torch.stack(list(got.logits), 1).cpu(), want, rtol=0, atol=1e-3)


def test_the_division_is_as_coarse_as_it_can_be():
    def sequences(mask):
        mask = mask.expand(-1, 1, -1, -1)
        return prologue.transformers._sequences(mask, torch.empty(*mask.shape[:3], 16), mask.shape[-1], "mask")

    causal = torch.ones(3, 1, 6, 9, dtype=torch.bool).tril(1)  # one token before the step, two free slots behind it
    divided = sequences(causal)
    assert divided.cu_seqlens_q.tolist() == [0, 6, 12, 18] and divided.seq_lens.tolist() == [7] * 3
    assert (divided.starts, divided.window, divided.max_seqlen_q, divided.max_seq_len) == (None, 0, 6, 7)
    windowed = sequences(causal & ~causal.tril(-2))  # a window of 3
    assert windowed.cu_seqlens_q.tolist() == [0, 6, 12, 18] and windowed.window == 3 and windowed.starts is None
    padded = sequences(causal & (torch.arange(9) >= torch.tensor([0, 2, 4])[:, None])[:, None, None])
    assert padded.cu_seqlens_q.tolist() == [0, 6, 7, 12, 15, 18]  # the rows of padding see nothing
    assert padded.starts.tolist() == [0, 0, 2, 0, 4] and padded.seq_lens.tolist() == [7, 0, 5, 0, 3]
    packed = sequences(causal & ~(torch.arange(6)[:, None] >= 3).logical_and(torch.arange(9) < 4))
    assert packed.cu_seqlens_q.tolist() == [0, 3, 6, 9, 12, 15, 18] and packed.starts.tolist() == [0, 4] * 3
    assert sequences(torch.zeros(2, 1, 4, 4, dtype=torch.bool)).seq_lens.tolist() == [0, 0]


@torch.no_grad()
def test_a_mask_that_is_written_between_layers():
    q, k, v = random_tensors()
    mask = torch.ones(3, 1, 7, 11, dtype=torch.bool).tril(4)
    forward(mask, q, k, v)
    mask[:, :, :, 0] = False
    torch.testing.assert_close(forward(mask, q, k, v), sdpa(mask, q, k, v), rtol=0, atol=1e-6)


@torch.no_grad()
def test_without_a_mask():
    q, k, v = random_tensors()
    unfilled = torch.ones(3, 1, 7, 11, dtype=torch.bool).tril()  # the prefill of a static cache
    torch.testing.assert_close(forward(None, q, k, v), sdpa(unfilled, q, k, v), rtol=0, atol=1e-6)
    everything = torch.ones_like(unfilled)
    torch.testing.assert_close(forward(None, q, k, v, is_causal=False), sdpa(everything, q, k, v), rtol=0, atol=1e-6)
    torch.testing.assert_close(forward(None, q[:, :, :1], k, v), sdpa(everything[:, :, :1], q[:, :, :1], k, v), rtol=0, atol=1e-6)
    with pytest.raises(NotImplementedError, match="the mask of Layer is None for 7 rows and 3 keys"):
        forward(None, q, k[:, :, :3], v[:, :, :3])


@torch.no_grad()
def test_what_is_refused():
    q, k, v = random_tensors()
    mask = torch.ones(3, 1, 7, 11, dtype=torch.bool).tril(4)
    gap = mask.clone()
    gap[1, :, 3, 2] = False
    for arguments, message in (
        (dict(mask=gap), "the mask of Layer lets row 3 of element 1 see keys with a gap"),
        (dict(mask=torch.cat([mask, gap, mask, mask], 1)), "differs between heads"),
        (dict(mask=mask * 0.5), "values other than 0 and"),
        (dict(mask=mask, dropout=0.1), "dropout is 0.1"),
        (dict(mask=mask, position_bias=q), "Layer passes position_bias"),
        (dict(mask=mask, indices=q, sliding_window=3), "Layer passes indices,"),
        (dict(mask=mask, output_attentions=True), "Layer passes output_attentions,"),
        (dict(mask=None, cu_seq_lens_q=torch.tensor([0, 3, 7, 14, 21])), "cu_seq_lens_q is given without a mask"),
    ):
        with pytest.raises(NotImplementedError, match=message):
            forward(q=q, k=k, v=v, **arguments)
    for arguments, message in (
        (dict(mask=mask[..., :9]), r"torch.bool \[3, 1, 7, 9\]: it must be .* 11 keys"),
        (dict(mask=mask.long()), "torch.int64"),
        (dict(mask=mask, k=k[:1]), "batch, kv heads and length must be equal"),
    ):
        with pytest.raises(ValueError, match=message):
            forward(**{"q": q, "k": k, "v": v, **arguments})
    with torch.enable_grad(), pytest.raises(NotImplementedError, match="no gradients"):
        forward(mask, q.clone().requires_grad_(), k, v)


@torch.no_grad()
def test_a_refusal_names_the_mask_function():
    _, ours = tiny_models.build("mistral")
    mask = LEFT.clone()
    mask[:, 8] = 0
    function = r"and_masks\(sliding_window_overlay, causal_mask_function\)"
    with pytest.raises(NotImplementedError, match=f"the mask of MistralAttention, {function}, lets row"):
        ours(IDS, attention_mask=mask)
