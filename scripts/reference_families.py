"""The models that make_reference_models.py makes: config.json as it is on the Hub, only smaller, and what each is there for.

Windows, original lengths and chunks are shorter than the longest prompt (200 tokens). Token ids below 60 are text.
"""

import dataclasses


@dataclasses.dataclass
class Family:
    name: str
    exercises: str
    config: dict
    changes: list
    dtype: str = "bfloat16"
    seed: int = 1
    norm_offset: float = 0.0  # a norm multiplies by offset + weight
    gains: dict = dataclasses.field(default_factory=dict)
    experts_are_in_out: bool = False
    rope_length: bool = False  # the frequencies depend on the length of the whole sequence
    extra_lengths: tuple = ()
    mrope: bool = False
    rope_at: tuple = ()  # where config.json has the rope's keys
    max_shard_size: str = ""
    problems: int = 0


def change(name, *edits):
    return {"name": name, "edits": list(edits)}


def put(key, value):
    return {"config": key.split("/"), "value": value}


def remove(key):
    return {"config": key.split("/")}


def fill(tensor_suffix, value):
    return {"tensor_suffix": tensor_suffix, "fill": value}


def unbias(*suffixes):
    return [change(f"{s} = 0", fill(s, 0.0)) for s in suffixes]


def unit(*suffixes, value=1.0):
    return [change(f"{s} = {value:g}", fill(s, value)) for s in suffixes]


def decoder(architecture, model_type, **more):
    """What most families share. A key whose value is ... is left out."""
    config = {"architectures": [architecture], "model_type": model_type, "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48,
              "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "hidden_act": "silu",
              "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "rope_scaling": None,
              "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None, "torch_dtype": "bfloat16"} | more
    return {k: v for k, v in config.items() if v is not ...}


LLAMA = ("LlamaForCausalLM", "llama")
GELU_TANH = "gelu_pytorch_tanh"

FAMILIES = [
    Family("llama2", "halves rotated together, as many heads of K and V as of Q, no head_dim in config.json",
           decoder(*LLAMA, num_attention_heads=2, num_key_value_heads=2, head_dim=..., rope_scaling=...),
           [change("another theta", put("rope_theta", 300.0)), change("another epsilon", put("rms_norm_eps", 0.5)),
            *unit("input_layernorm.weight", "post_attention_layernorm.weight", "model.norm.weight")]),
    Family("llama3", "Llama 3 scaling, grouped heads, tied embeddings",
           decoder(*LLAMA, rope_theta=500000.0, tie_word_embeddings=True,
                   rope_scaling={"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
                                 "rope_type": "llama3"}),
           [change("no scaling", put("rope_scaling", None)), change("another factor", put("rope_scaling/factor", 2.0)),
            change("another low_freq_factor", put("rope_scaling/low_freq_factor", 3.0)),
            change("another high_freq_factor", put("rope_scaling/high_freq_factor", 32.0)),
            change("another original length", put("rope_scaling/original_max_position_embeddings", 512)),
            change("another theta", put("rope_theta", 10000.0))]),
    Family("llama_linear", "linear scaling, in the old spelling; biases of all projections; float32 weights",
           decoder(*LLAMA, num_attention_heads=2, num_key_value_heads=1, intermediate_size=32, torch_dtype="float32",
                   attention_bias=True, mlp_bias=True, rope_scaling={"type": "linear", "factor": 4.0}),
           [change("no scaling", put("rope_scaling", None)), change("another factor", put("rope_scaling/factor", 2.0)),
            *unbias("q_proj.bias", "k_proj.bias", "v_proj.bias", "o_proj.bias", "gate_proj.bias", "up_proj.bias", "down_proj.bias")],
           dtype="float32"),
    Family("llama_dynamic", "dynamic NTK scaling: past max_position_embeddings the frequencies depend on the length of the sequence",
           decoder(*LLAMA, max_position_embeddings=64, rope_scaling={"rope_type": "dynamic", "factor": 4.0}),
           [change("no scaling", put("rope_scaling", None)), change("another factor", put("rope_scaling/factor", 2.0)),
            change("another original length", put("max_position_embeddings", 128))],
           rope_length=True, extra_lengths=(65,)),
    Family("llama_yarn", "YaRN with all its options, in the layout of transformers 5",
           decoder(*LLAMA, rope_theta=..., rope_scaling=...,
                   rope_parameters={"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64,
                                    "beta_fast": 2.0, "beta_slow": 0.25, "attention_factor": 1.3}),
           [change("no scaling", put("rope_parameters", {"rope_type": "default", "rope_theta": 10000.0})),
            change("another factor", put("rope_parameters/factor", 16.0)),
            change("another original length", put("rope_parameters/original_max_position_embeddings", 256)),
            change("beta_fast by default", remove("rope_parameters/beta_fast")),
            change("beta_slow by default", remove("rope_parameters/beta_slow")),
            change("attention_factor from the factor", remove("rope_parameters/attention_factor")),
            change("attention_factor from mscale", put("rope_parameters/mscale", 1.5), put("rope_parameters/mscale_all_dim", 0.5),
                   remove("rope_parameters/attention_factor")),
            change("truncate off", put("rope_parameters/truncate", False))]),
    Family("smollm3", "layers without rope",
           decoder("SmolLM3ForCausalLM", "smollm3", num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=1, head_dim=...,
                   no_rope_layer_interval=3, no_rope_layers=[1, 0, 1], tie_word_embeddings=True, rope_theta=5000000.0, use_sliding_window=False,
                   sliding_window=None, attention_bias=False, mlp_bias=False),
           [change("rope in all layers", put("no_rope_layers", [1, 1, 1])), change("rope in other layers", put("no_rope_layers", [1, 1, 0])),
            change("layers from the interval", remove("no_rope_layers"))]),
    Family("mistral", "a sliding window in all layers; the checkpoint is in two files",
           decoder("MistralForCausalLM", "mistral", sliding_window=16),
           [change("no window", put("sliding_window", None)), change("a window one longer", put("sliding_window", 17)),
            change("another theta", put("rope_theta", 500.0))],
           max_shard_size="35KB"),
    Family("qwen2", "biases of Q, K and V; a window only in later layers; float16 weights",
           decoder("Qwen2ForCausalLM", "qwen2", num_attention_heads=2, num_key_value_heads=1, head_dim=..., num_hidden_layers=3,
                   use_sliding_window=True, sliding_window=24, max_window_layers=1, rms_norm_eps=1e-6, rope_theta=1000000.0, torch_dtype="float16"),
           [*unbias("q_proj.bias", "k_proj.bias", "v_proj.bias"), change("no window", put("use_sliding_window", False)),
            change("a window in all layers", put("max_window_layers", 0)), change("a window in the last layer", put("max_window_layers", 2)),
            change("another window", put("sliding_window", 20)), change("another theta", put("rope_theta", 10000.0))],
           dtype="float16"),
    Family("qwen3", "norms of Q and K, in the layout of transformers 5; tied embeddings",
           decoder("Qwen3ForCausalLM", "qwen3", rope_theta=..., rope_scaling=..., torch_dtype=..., dtype="bfloat16", rms_norm_eps=1e-6,
                   attention_bias=False, use_sliding_window=False, sliding_window=None, max_window_layers=2, tie_word_embeddings=True,
                   layer_types=["full_attention", "full_attention"], rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}),
           [*unit("q_norm.weight", "k_norm.weight"), change("another theta", put("rope_parameters/rope_theta", 10000.0)),
            change("a window in the second layer", put("layer_types", ["full_attention", "sliding_attention"]), put("sliding_window", 16),
                   put("use_sliding_window", True))]),
    Family("gemma3", "norms of Q and K, norms before and after, a base and a window for local layers, another base and linear scaling for global layers",
           decoder("Gemma3ForCausalLM", "gemma3_text", hidden_act=..., hidden_activation=GELU_TANH, num_attention_heads=2, num_key_value_heads=1,
                   head_dim=32, num_hidden_layers=3, query_pre_attn_scalar=24, sliding_window=16, sliding_window_pattern=3,
                   rope_theta=1000000.0, rope_local_base_freq=10000.0, rope_scaling={"rope_type": "linear", "factor": 8.0},
                   rms_norm_eps=1e-6, tie_word_embeddings=..., attn_logit_softcapping=None, final_logit_softcapping=None, attention_bias=False),
           [change("another window", put("sliding_window", 17)), change("no window", put("sliding_window", 512)),
            change("global layers elsewhere", put("sliding_window_pattern", 2)),
            change("another local base", put("rope_local_base_freq", 1000000.0)), change("another global base", put("rope_theta", 10000.0)),
            change("no scaling", put("rope_scaling", None)), change("another query_pre_attn_scalar", put("query_pre_attn_scalar", 32)),
            *unit("q_norm.weight", "k_norm.weight", "post_attention_layernorm.weight", "pre_feedforward_layernorm.weight",
                  "post_feedforward_layernorm.weight", "model.norm.weight", value=0.0)],
           norm_offset=1.0),
]
