"""rope_cos_sin beside the rotary modules of transformers, for every rope type that it has."""

import json

import numpy as np
import oracle
import prologue_attention as prologue
import pytest

LLAMA = {"hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "rope_theta": 10000.0}
FACTORS = [1.0 + 0.05 * i for i in range(32)]
SCALINGS = {
    "default": {},
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 2.0},
    "yarn": {"factor": 8.0, "original_max_position_embeddings": 64},
    "yarn with mscale": {"factor": 40.0, "original_max_position_embeddings": 64, "mscale": 1.0, "mscale_all_dim": 0.7, "beta_fast": 24},
    "yarn, not truncated": {"factor": 32.0, "original_max_position_embeddings": 128, "truncate": False, "attention_factor": 1.25},
    "longrope": {"factor": 4.0, "original_max_position_embeddings": 128, "short_factor": FACTORS, "long_factor": [2 * f for f in FACTORS]},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 128},
    "proportional": {"partial_rotary_factor": 0.5},
}
ROWS = np.arange(512)


def rope_of(name, theta=10000.0):
    return {"rope_type": name.split()[0].rstrip(","), "rope_theta": theta, **SCALINGS[name]}


def theirs(module, length=ROWS.size, **options):
    """cos and sin of a rotary module: [length, columns], the first half of them."""
    import torch

    with torch.no_grad():
        cos, sin = module(torch.zeros(1, 1, 1), torch.arange(length)[None], **options)
    half = cos.shape[-1] // 2
    return np.concatenate([cos[0, :, :half].numpy(), sin[0, :, :half].numpy()], 1)


def assert_close(table, want):
    """Frequencies are correctly rounded steps, torch's are within 2 units in the last place of them: an angle of up to 512 radians then
    differs by 512 * 2 * 2^-23 radians, and cos and sin by that and an attention factor of up to 1.5."""
    assert table.shape == want.shape
    np.testing.assert_allclose(table, want, rtol=0, atol=1.5 * 512 * 2 * 2.0**-23)


@pytest.fixture(scope="module")
def llama():
    transformers = pytest.importorskip("transformers")
    from transformers.models.llama import modeling_llama

    return transformers.LlamaConfig, modeling_llama.LlamaRotaryEmbedding


@pytest.mark.parametrize("name", SCALINGS)
def test_as_transformers_computes_it(name, llama):
    make_config, make_module = llama
    config = make_config(**{**LLAMA, "rope_theta": None}, rope_parameters=rope_of(name))
    length = 128 if name == "longrope" else 512
    want = theirs(make_module(config), length)
    rope = prologue.rope_cos_sin(config)
    assert_close(rope.cos_sin[:length], want)
    np.testing.assert_array_equal(prologue.rope_cos_sin(config.to_dict()).cos_sin, rope.cos_sin)
    np.testing.assert_array_equal(prologue.rope_cos_sin(json.dumps(config.to_dict())).cos_sin, rope.cos_sin)
    assert rope.style == "neox" and rope.rotary_dim == want.shape[1]


@pytest.mark.parametrize("name, length", [("dynamic", 2048), ("longrope", 512)])
def test_long_sequences(name, length, llama):
    make_config, make_module = llama
    config = make_config(**{**LLAMA, "rope_theta": None}, rope_parameters=rope_of(name))
    rope = prologue.rope_cos_sin(config, length, sequence_length=length)
    assert_close(rope.cos_sin[:512], theirs(make_module(config), length)[:512])
    assert not np.array_equal(rope.cos_sin, prologue.rope_cos_sin(config, length).cos_sin)


def test_every_type_of_transformers_is_here():
    pytest.importorskip("transformers")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    assert set(ROPE_INIT_FUNCTIONS) | {"default"} == {name.split()[0].rstrip(",") for name in SCALINGS}


@pytest.mark.parametrize("layer_type", ["sliding_attention", "full_attention"])
def test_parameters_of_each_layer_type(layer_type):
    transformers = pytest.importorskip("transformers")
    from transformers.models.gemma3 import modeling_gemma3

    parameters = {"full_attention": rope_of("linear", 1e6), "sliding_attention": rope_of("default")}
    config = transformers.Gemma3TextConfig(hidden_size=64, num_attention_heads=2, head_dim=32, num_hidden_layers=6, max_position_embeddings=512, rope_parameters=parameters)  # fmt: skip
    want = theirs(modeling_gemma3.Gemma3RotaryEmbedding(config), layer_type=layer_type)
    assert_close(prologue.rope_cos_sin(config, layer_type=layer_type).cos_sin, want)
    old = {"head_dim": 32, "max_position_embeddings": 512, "rope_theta": 1e6, "rope_local_base_freq": 10000.0, "rope_scaling": {"type": "linear", "factor": 4.0}}  # fmt: skip
    assert_close(prologue.rope_cos_sin({"text_config": old}, layer_type=layer_type).cos_sin, want)
    with pytest.raises(ValueError, match="layer_type is None: .* it must be one of 'full_attention', 'sliding_attention'"):
        prologue.rope_cos_sin(config)


@pytest.mark.parametrize("layer_type", ["sliding_attention", "full_attention"])
def test_layers_with_heads_of_another_size(layer_type):
    transformers = pytest.importorskip("transformers")
    from transformers.models.gemma4 import modeling_gemma4

    config = transformers.Gemma4TextConfig(hidden_size=64, num_attention_heads=2, head_dim=32, global_head_dim=64, num_hidden_layers=6, max_position_embeddings=512)  # fmt: skip
    want = theirs(modeling_gemma4.Gemma4TextRotaryEmbedding(config), layer_type=layer_type)
    assert_close(prologue.rope_cos_sin(config, layer_type=layer_type).cos_sin, want)


def test_a_part_of_the_head():
    pytest.importorskip("transformers")
    from transformers.models.phi import configuration_phi, modeling_phi

    config = configuration_phi.PhiConfig(hidden_size=128, num_attention_heads=2, partial_rotary_factor=0.5, max_position_embeddings=512)
    rope = prologue.rope_cos_sin(config)
    assert rope.rotary_dim == 32
    assert_close(rope.cos_sin, theirs(modeling_phi.PhiRotaryEmbedding(config)))


@pytest.mark.parametrize("family, mrope, sections", [("qwen2_vl", "contiguous", [16, 8, 8]), ("qwen3_vl", "interleaved", [12, 10, 10])])
def test_axes_of_mrope(family, mrope, sections):
    transformers = pytest.importorskip("transformers")
    import torch
    from transformers.models.qwen2_vl import modeling_qwen2_vl
    from transformers.models.qwen3_vl import modeling_qwen3_vl

    rng = np.random.default_rng(3)
    positions = rng.integers(0, 512, (3, 7))
    q, k = (rng.standard_normal((1, heads, 7, 64)).astype(np.float32) for heads in (4, 2))
    parameters = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": sections, "mrope_interleaved": mrope == "interleaved"}
    sizes = dict(
        hidden_size=256, num_attention_heads=4, num_key_value_heads=2, head_dim=64, max_position_embeddings=512, rope_parameters=parameters
    )  # fmt: skip
    if family == "qwen2_vl":
        config = transformers.Qwen2VLTextConfig(**sizes)
        rotary = modeling_qwen2_vl.Qwen2VLRotaryEmbedding(config)
        apply = modeling_qwen2_vl.apply_rotary_pos_emb
    else:
        config = transformers.Qwen3VLTextConfig(**sizes)
        rotary = modeling_qwen3_vl.Qwen3VLTextRotaryEmbedding(config)
        apply = modeling_qwen3_vl.apply_rotary_pos_emb
    cos, sin = rotary(torch.zeros(1), torch.from_numpy(positions)[:, None])
    rope = prologue.rope_cos_sin(config, mrope=mrope)
    assert rope.num_axes == 3
    got = prologue.rotary(q[0].swapaxes(0, 1).copy(), k[0].swapaxes(0, 1).copy(), rope=rope, positions=positions)
    for ours, want in zip(got, apply(torch.from_numpy(q), torch.from_numpy(k), cos, sin)):
        np.testing.assert_allclose(ours, want[0].numpy().swapaxes(0, 1), atol=2e-5)


# ---- Without transformers.


def test_axes_of_sections():
    config = {**LLAMA, "rope_scaling": {"type": "mrope", "mrope_section": [20, 6, 6]}}
    assert prologue.rope_cos_sin(config, 4).num_axes == 1
    rope = prologue.rope_cos_sin(config, 4, mrope="contiguous")
    assert rope.num_axes == 3 and rope.pair_axis.dtype == np.uint8
    assert rope.pair_axis.tolist() == [0] * 20 + [1] * 6 + [2] * 6
    rope = prologue.rope_cos_sin(config, 4, mrope="interleaved")
    assert rope.pair_axis.tolist() == [0, 1, 2] * 6 + [0] * 14


def test_the_table_in_double_precision():
    rope = prologue.rope_cos_sin({**LLAMA, "rope_theta": 500.0}, 300, precision="exact")
    np.testing.assert_array_equal(rope.cos_sin, oracle.table(300, 64, 500.0))
    assert rope.cos_sin.dtype == np.float32


def test_the_rope_rotates():
    rope = prologue.rope_cos_sin(LLAMA, 16, precision="exact", style="interleaved")
    x = np.random.default_rng(1).standard_normal((5, 2, 64)).astype(np.float32)
    want = oracle.rotate(x, np.arange(5), oracle.frequencies(64), "interleaved")
    np.testing.assert_allclose(prologue.rotary(x, rope=rope), want, atol=1e-5)


def test_beside_a_tensor():
    torch = pytest.importorskip("torch")
    rope = prologue.rope_cos_sin(LLAMA, 8, like=torch.zeros(1))
    assert isinstance(rope.cos_sin, torch.Tensor) and rope.cos_sin.shape == (8, 64)
    np.testing.assert_array_equal(rope.cos_sin.numpy(), prologue.rope_cos_sin(LLAMA, 8).cos_sin)


def test_dimensions_of_a_config():
    assert prologue.rope_cos_sin({**LLAMA, "head_dim": 48}, 4).rotary_dim == 48
    assert prologue.rope_cos_sin({**LLAMA, "head_dim": 192, "qk_rope_head_dim": 32}, 4).rotary_dim == 32
    assert prologue.rope_cos_sin(LLAMA, 4, head_dim=16).rotary_dim == 16
    assert prologue.rope_cos_sin(LLAMA).cos_sin.shape == (512, 64)
    phi3 = {**LLAMA, "original_max_position_embeddings": 128, "rope_scaling": {"type": "su", "short_factor": FACTORS, "long_factor": FACTORS}}
    longrope = {**LLAMA, "rope_scaling": {**SCALINGS["longrope"], "rope_type": "longrope", "long_factor": FACTORS}}
    np.testing.assert_array_equal(prologue.rope_cos_sin(phi3).cos_sin, prologue.rope_cos_sin(longrope).cos_sin)


@pytest.mark.parametrize(
    "config, options, error, message",
    [
        ({**LLAMA, "rope_scaling": {"rope_type": "axial"}}, {}, NotImplementedError, "rope_type is 'axial': supported are default, linear,"),
        ({**LLAMA, "rope_scaling": {"type": "linear"}}, {}, ValueError, "the config has no factor, which rope_type 'linear' needs"),
        ({**LLAMA, "rope_scaling": {"type": "yarn"}}, {}, ValueError, "the config has no factor, which rope_type 'yarn' needs"),
        ({**LLAMA, "rope_scaling": {"type": "longrope", "short_factor": FACTORS}}, {}, ValueError, "the config has no long_factor"),
        ({**LLAMA, "rope_scaling": {"type": "linear", "factor": "4"}}, {}, TypeError, "factor is '4': it must be a number"),
        ({**LLAMA, "rope_scaling": {"type": "linear", "factor": 0.5}}, {}, ValueError, "linear factor is 0.5: it must be a number not below 1"),
        ({"rope_theta": 1e4}, {}, ValueError, "neither head_dim nor 'hidden_size': give head_dim"),
        ({"head_dim": 8}, {}, ValueError, "max_position is None, and the config has no max_position_embeddings"),
        ({**LLAMA, "partial_rotary_factor": 1.5}, {}, ValueError, "partial_rotary_factor is 1.5 of head_dim 64"),
        (LLAMA, {"max_position": 0}, ValueError, "max_position is 0"),
        (LLAMA, {"precision": "float16"}, ValueError, "precision is 'float16': it must be one of 'reference', 'exact'"),
        (LLAMA, {"mrope": "contiguous"}, ValueError, "the config has no mrope_section, which mrope 'contiguous' needs"),
        ({**LLAMA, "mrope_section": [16, 8, 8]}, {"mrope": "both"}, ValueError, "mrope is 'both': it must be one of 'contiguous', 'interleaved'"),
        ({**LLAMA, "mrope_section": [16, 8]}, {"mrope": "contiguous"}, ValueError, r"mrope_section is \[16, 8\]: its sum must be the 32 pairs"),
        ({**LLAMA, "mrope_section": [16, "16"]}, {"mrope": "contiguous"}, TypeError, r"mrope_section is \[16, '16'\]: it must be a list of whole"),
        ({**LLAMA, "mrope_section": 32}, {"mrope": "contiguous"}, TypeError, "mrope_section is 32: it must be a list of whole numbers"),
        ({**LLAMA, "mrope_section": [16, 16]}, {"mrope": "interleaved"}, ValueError, "there are 2 sections: interleaved ones must be 3"),
        (3, {}, TypeError, "config is int: it must be a config of transformers, its dict or its JSON"),
    ],
)
def test_errors(config, options, error, message):
    with pytest.raises(error, match=message):
        prologue.rope_cos_sin(config, **options)
