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
    buffers: tuple = ()  # what older checkpoints also have in each layer; a loader must skip it
    problems: int = 0


def change(name, *edits):
    return {"name": name, "edits": list(edits)}


def same(name, *edits):
    return change(name, *edits) | {"same": True}


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
            *unit("input_layernorm.weight", "post_attention_layernorm.weight", "model.norm.weight")],
           buffers=("model.layers.{}.self_attn.rotary_emb.inv_freq",)),
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
                   head_dim=32, num_hidden_layers=3, query_pre_attn_scalar=16, sliding_window=16, sliding_window_pattern=3,
                   rope_theta=1000000.0, rope_local_base_freq=10000.0, rope_scaling={"rope_type": "linear", "factor": 8.0},
                   rms_norm_eps=1e-6, tie_word_embeddings=..., attn_logit_softcapping=None, final_logit_softcapping=None, attention_bias=False),
           [same("the layers listed", remove("sliding_window_pattern"),
                 put("layer_types", ["sliding_attention", "sliding_attention", "full_attention"])),
            change("another window", put("sliding_window", 17)), change("no window", put("sliding_window", 512)),
            change("global layers elsewhere", put("sliding_window_pattern", 2)),
            change("another local base", put("rope_local_base_freq", 1000000.0)), change("another global base", put("rope_theta", 10000.0)),
            change("no scaling", put("rope_scaling", None)), change("query_pre_attn_scalar is the head dimension", put("query_pre_attn_scalar", 32)),
            *unit("q_norm.weight", "k_norm.weight", "post_attention_layernorm.weight", "pre_feedforward_layernorm.weight",
                  "post_feedforward_layernorm.weight", "model.norm.weight", value=0.0)],
           norm_offset=1.0),
    Family("qwen3_moe", "experts in some layers (decoder_sparse_step, mlp_only_layers), weights of the chosen experts normalised",
           decoder("Qwen3MoeForCausalLM", "qwen3_moe", num_hidden_layers=4, intermediate_size=32, moe_intermediate_size=16, num_experts=6,
                   num_experts_per_tok=2, norm_topk_prob=True, decoder_sparse_step=2, mlp_only_layers=[1], rms_norm_eps=1e-6,
                   num_attention_heads=2, num_key_value_heads=1, rope_theta=1000000.0, attention_bias=False, use_sliding_window=False,
                   sliding_window=None, output_router_logits=False),
           [change("norm_topk_prob off", put("norm_topk_prob", False)), change("one expert a token", put("num_experts_per_tok", 1)),
            change("three experts a token", put("num_experts_per_tok", 3)), *unit("q_norm.weight", "k_norm.weight")]),
    Family("qwen3_moe_sparse", "experts in all layers, weights of the chosen experts normalised: what GGUF files can hold",
           decoder("Qwen3MoeForCausalLM", "qwen3_moe", moe_intermediate_size=16, num_experts=4, num_experts_per_tok=2, norm_topk_prob=True,
                   decoder_sparse_step=1, mlp_only_layers=[], rms_norm_eps=1e-6, num_attention_heads=2, num_key_value_heads=1,
                   rope_theta=1000000.0, attention_bias=False, use_sliding_window=False, sliding_window=None, output_router_logits=False),
           [change("norm_topk_prob off", put("norm_topk_prob", False)), change("one expert a token", put("num_experts_per_tok", 1))]),
    Family("mixtral", "experts in all layers",
           decoder("MixtralForCausalLM", "mixtral", num_local_experts=4, num_experts_per_tok=2, intermediate_size=16, rope_theta=1000000.0,
                   sliding_window=None, num_attention_heads=2, num_key_value_heads=1, head_dim=None),
           [change("one expert a token", put("num_experts_per_tok", 1)), change("a window", put("sliding_window", 16)),
            change("another theta", put("rope_theta", 10000.0))]),
    Family("gemma2", "soft caps of scores and logits, norms before and after, a window in every other layer, its own scale of Q",
           decoder("Gemma2ForCausalLM", "gemma2", hidden_act=GELU_TANH, hidden_activation=GELU_TANH, num_attention_heads=2,
                   num_key_value_heads=1, head_dim=32, query_pre_attn_scalar=16, sliding_window=16, attn_logit_softcapping=2.0,
                   final_logit_softcapping=20.0, rms_norm_eps=1e-6, tie_word_embeddings=..., rope_scaling=..., attention_bias=False),
           [same("the layers listed", put("layer_types", ["sliding_attention", "full_attention"])),
            change("no cap of the scores", put("attn_logit_softcapping", None)),
            change("no cap of the logits", put("final_logit_softcapping", None)), change("no window", put("sliding_window", 512)),
            change("another window", put("sliding_window", 15)), change("query_pre_attn_scalar is the head dimension", put("query_pre_attn_scalar", 32)),
            change("the window in the other layer", put("layer_types", ["full_attention", "sliding_attention"])),
            *unit("input_layernorm.weight", "post_attention_layernorm.weight", "pre_feedforward_layernorm.weight",
                  "post_feedforward_layernorm.weight", value=0.0)],
           norm_offset=1.0, gains={"q_proj": 2.5, "k_proj": 2.5}),
    Family("gpt_oss", "attention sinks, a window in every other layer, YaRN that does not truncate, biases, experts with a clamped SwiGLU",
           decoder("GptOssForCausalLM", "gpt_oss", attention_bias=True, intermediate_size=24, num_local_experts=4, num_experts_per_tok=2,
                   experts_per_token=2, swiglu_limit=1.0, sliding_window=16, layer_types=["sliding_attention", "full_attention"],
                   rope_theta=150000.0,
                   rope_scaling={"rope_type": "yarn", "factor": 8.0, "beta_fast": 4.0, "beta_slow": 0.25, "truncate": False,
                                 "original_max_position_embeddings": 64}),
           [change("no sinks", fill("self_attn.sinks", -8192.0)), change("another clamp", put("swiglu_limit", 7.0)),
            change("no window", put("sliding_window", 512)), change("another window", put("sliding_window", 15)),
            change("a window in the other layer", put("layer_types", ["full_attention", "sliding_attention"])),
            change("truncate on", put("rope_scaling/truncate", True)), change("no scaling", put("rope_scaling/factor", 1.0)),
            *unbias("q_proj.bias", "k_proj.bias", "v_proj.bias", "o_proj.bias", "router.bias", "gate_up_proj_bias", "down_proj_bias")],
           experts_are_in_out=True),
    *(Family(name, what + "LayerNorm and biases, a quarter of each head rotated, one fused matrix for Q, K and V",
             decoder("GPTNeoXForCausalLM", "gpt_neox", num_attention_heads=2, num_key_value_heads=..., head_dim=..., intermediate_size=64,
                     hidden_act="gelu", rms_norm_eps=..., layer_norm_eps=1e-5, rope_theta=..., rope_scaling=..., rotary_pct=0.25,
                     rotary_emb_base=10000, use_parallel_residual=parallel, max_position_embeddings=256),
             [change("the other residual", put("use_parallel_residual", not parallel)), change("all of the head rotated", put("rotary_pct", 1.0)),
              change("half of the head rotated", put("rotary_pct", 0.5)), change("another base", put("rotary_emb_base", 100)),
              change("another activation", put("hidden_act", "relu")),
              *unit("input_layernorm.weight", "post_attention_layernorm.weight"),
              *unbias("input_layernorm.bias", "post_attention_layernorm.bias", "final_layer_norm.bias", "query_key_value.bias",
                      "attention.dense.bias", "dense_h_to_4h.bias", "dense_4h_to_h.bias")],
             buffers=tuple(f"gpt_neox.layers.{{}}.attention.{b}" for b in ("rotary_emb.inv_freq", "masked_bias", "bias")))
      for name, what, parallel in (("gpt_neox", "attention and MLP in parallel, ", True),
                                   ("gpt_neox_sequential", "MLP after attention, ", False))),
    Family("gptj", "neighbours rotated together in a part of each head, attention and MLP in parallel after one LayerNorm, a bias of the logits",
           {"architectures": ["GPTJForCausalLM"], "model_type": "gptj", "vocab_size": 64, "n_positions": 256, "n_embd": 32, "n_layer": 2,
            "n_head": 2, "n_inner": None, "rotary_dim": 8, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
            "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16"},
           [change("all of the head rotated", put("rotary_dim", 16)), change("less of the head rotated", put("rotary_dim", 4)),
            change("another activation", put("activation_function", "relu")), change("another epsilon", put("layer_norm_epsilon", 0.5)),
            *unit("ln_1.weight"), *unbias("ln_1.bias", "ln_f.bias", "fc_in.bias", "fc_out.bias", "lm_head.bias")]),
    Family("phi", "two fifths of each head rotated, attention and MLP in parallel after one LayerNorm, biases, also of the logits",
           decoder("PhiForCausalLM", "phi", num_attention_heads=2, num_key_value_heads=None, head_dim=..., intermediate_size=128,
                   hidden_act="gelu_new", rms_norm_eps=..., layer_norm_eps=1e-5, partial_rotary_factor=0.4, qk_layernorm=False),
           [change("all of the head rotated", put("partial_rotary_factor", 1.0)),
            change("half of the head rotated", put("partial_rotary_factor", 0.5)), change("another theta", put("rope_theta", 100.0)),
            *unit("input_layernorm.weight"),
            *unbias("input_layernorm.bias", "q_proj.bias", "k_proj.bias", "v_proj.bias", "dense.bias", "fc1.bias", "fc2.bias",
                    "final_layernorm.bias", "lm_head.bias")]),
    Family("phi3", "LongRoPE, fused matrices, a window",
           decoder("Phi3ForCausalLM", "phi3", num_attention_heads=2, num_key_value_heads=2, head_dim=..., max_position_embeddings=512,
                   original_max_position_embeddings=64, sliding_window=100,
                   rope_scaling={"type": "longrope", "short_factor": [1.0, 1.1, 1.2, 1.3, 1.5, 1.7, 2.0, 2.5],
                                 "long_factor": [1.2, 1.7, 2.5, 4.0, 6.0, 9.0, 13.0, 20.0]}),
           [change("no scaling", put("rope_scaling", None)),
            change("other short factors", put("rope_scaling/short_factor", [1.0] * 8)),
            change("other long factors", put("rope_scaling/long_factor", [1.0] * 8)),
            change("another original length", put("original_max_position_embeddings", 128)),
            change("another maximum length", put("max_position_embeddings", 65536)), change("no window", put("sliding_window", None))],
           rope_length=True, extra_lengths=(65,)),
    Family("phi4_mini", "LongRoPE on three quarters of each head, grouped heads, in the layout of transformers 5",
           decoder("Phi3ForCausalLM", "phi3", hidden_size=48, num_attention_heads=3, num_key_value_heads=1, head_dim=...,
                   max_position_embeddings=1024, original_max_position_embeddings=64, sliding_window=262144, tie_word_embeddings=True,
                   rope_theta=..., rope_scaling=...,
                   rope_parameters={"rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.75,
                                    "original_max_position_embeddings": 64, "short_factor": [1.0, 1.1, 1.3, 1.5, 1.8, 2.2],
                                    "long_factor": [1.0, 1.5, 3.0, 6.0, 12.0, 20.0]}),
           [change("other short factors", put("rope_parameters/short_factor", [1.0] * 6)),
            change("other long factors", put("rope_parameters/long_factor", [1.0] * 6)),
            change("another maximum length", put("max_position_embeddings", 131072)),
            change("attention_factor given", put("rope_parameters/attention_factor", 1.0)),
            change("half of the head rotated", put("rope_parameters/partial_rotary_factor", 0.5),
                   put("rope_parameters/short_factor", [1.0, 1.3, 1.8, 2.2]), put("rope_parameters/long_factor", [1.0, 3.0, 12.0, 20.0]))],
           rope_length=True, extra_lengths=(65,)),
    Family("stablelm", "LayerNorm, a quarter of each head rotated, biases of Q, K and V",
           decoder("StableLmForCausalLM", "stablelm", num_attention_heads=2, num_key_value_heads=2, head_dim=..., rms_norm_eps=...,
                   layer_norm_eps=1e-5, partial_rotary_factor=0.25, use_qkv_bias=True, qk_layernorm=False, use_parallel_residual=False),
           [change("half of the head rotated", put("partial_rotary_factor", 0.5)), change("another theta", put("rope_theta", 50.0)),
            *unbias("q_proj.bias", "k_proj.bias", "v_proj.bias", "input_layernorm.bias", "post_attention_layernorm.bias", "model.norm.bias"),
            *unit("input_layernorm.weight", "post_attention_layernorm.weight", "model.norm.weight")]),
    Family("stablelm_parallel", "a LayerNorm for each head of Q and K, attention and MLP in parallel, grouped heads",
           decoder("StableLmForCausalLM", "stablelm", hidden_size=64, head_dim=..., rms_norm_eps=..., layer_norm_eps=1e-5,
                   partial_rotary_factor=0.25, use_qkv_bias=False, qk_layernorm=True, use_parallel_residual=True),
           [change("half of the head rotated", put("partial_rotary_factor", 0.5)), change("another theta", put("rope_theta", 50.0)),
            *unit("q_layernorm.norms.0.weight", "q_layernorm.norms.3.weight", "k_layernorm.norms.1.weight"),
            *unbias("input_layernorm.bias")]),
    Family("glm4", "neighbours rotated together in half of each head, norms before and after, biases of Q, K and V",
           decoder("Glm4ForCausalLM", "glm4", attention_bias=True, partial_rotary_factor=0.5),
           [change("all of the head rotated", put("partial_rotary_factor", 1.0)), change("another theta", put("rope_theta", 100.0)),
            *unbias("q_proj.bias", "k_proj.bias", "v_proj.bias"),
            *unit("post_self_attn_layernorm.weight", "post_mlp_layernorm.weight", "post_attention_layernorm.weight")]),
    Family("olmo2", "norms only after attention and MLP, norms of Q and K over all heads",
           decoder("Olmo2ForCausalLM", "olmo2", hidden_size=64, head_dim=..., rms_norm_eps=1e-6, rope_theta=500000.0, attention_bias=False),
           [change("another theta", put("rope_theta", 10000.0)), change("another epsilon", put("rms_norm_eps", 0.5)),
            *unit("q_norm.weight", "k_norm.weight", "post_attention_layernorm.weight", "post_feedforward_layernorm.weight")]),
    Family("cohere", "LayerNorm without bias, attention and MLP in parallel, neighbours rotated together, scaled logits",
           decoder("CohereForCausalLM", "cohere", hidden_size=48, num_attention_heads=3, num_key_value_heads=1, head_dim=..., rms_norm_eps=...,
                   layer_norm_eps=1e-5, logit_scale=0.25, use_qk_norm=False, rope_scaling=..., tie_word_embeddings=..., attention_bias=False),
           [change("logits not scaled", put("logit_scale", 1.0)), change("another theta", put("rope_theta", 100.0)),
            change("another epsilon", put("layer_norm_eps", 0.5)), *unit("input_layernorm.weight", "model.norm.weight")]),
    Family("cohere2", "as Cohere, with a window in some layers, and no rope in the others",
           decoder("Cohere2ForCausalLM", "cohere2", hidden_size=48, num_attention_heads=3, num_key_value_heads=1, head_dim=..., rms_norm_eps=...,
                   layer_norm_eps=1e-5, logit_scale=0.25, use_qk_norm=False, rope_scaling=..., tie_word_embeddings=..., attention_bias=False,
                   sliding_window=16, sliding_window_pattern=2),
           [same("the layers listed", remove("sliding_window_pattern"), put("layer_types", ["sliding_attention", "full_attention"])),
            change("another window", put("sliding_window", 17)), change("no window", put("sliding_window", 512)),
            change("a window and rope in both", put("layer_types", ["sliding_attention", "sliding_attention"])),
            change("logits not scaled", put("logit_scale", 1.0)), change("another theta", put("rope_theta", 100.0))]),
    Family("qwen2_vl", "three position axes, one contiguous section each; the text model of a checkpoint with a vision tower",
           decoder("Qwen2VLForConditionalGeneration", "qwen2_vl", num_attention_heads=2, num_key_value_heads=1, head_dim=..., rms_norm_eps=1e-6,
                   use_sliding_window=False, sliding_window=64, max_window_layers=2, rope_theta=50.0,
                   rope_scaling={"type": "mrope", "mrope_section": [2, 3, 3]}, vision_start_token_id=60, vision_end_token_id=61,
                   image_token_id=62, video_token_id=63,
                   vision_config={"model_type": "qwen2_vl", "depth": 1, "embed_dim": 8, "hidden_size": 32, "mlp_ratio": 1, "num_heads": 1,
                                  "in_channels": 3, "patch_size": 2, "spatial_merge_size": 1, "temporal_patch_size": 1}),
           [change("other sections", put("rope_scaling/mrope_section", [4, 2, 2])), change("positions of text", {"positions": "text"}),
            change("another theta", put("rope_theta", 10000.0)), *unbias("q_proj.bias", "k_proj.bias", "v_proj.bias")],
           mrope=True),
    Family("qwen3_vl", "three position axes, interleaved; the text model of a checkpoint with a vision tower",
           {"architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl", "image_token_id": 62, "video_token_id": 63,
            "vision_start_token_id": 60, "vision_end_token_id": 61, "tie_word_embeddings": True,
            "text_config": decoder("Qwen3VLTextModel", "qwen3_vl_text", architectures=..., rms_norm_eps=1e-6, attention_bias=False,
                                   rope_theta=50.0, tie_word_embeddings=True, torch_dtype=..., dtype="bfloat16",
                                   rope_scaling={"mrope_interleaved": True, "mrope_section": [4, 2, 2], "rope_type": "default"}),
            "vision_config": {"model_type": "qwen3_vl", "depth": 1, "hidden_size": 8, "intermediate_size": 8, "num_heads": 1, "in_channels": 3,
                              "patch_size": 2, "spatial_merge_size": 1, "temporal_patch_size": 1, "out_hidden_size": 32,
                              "num_position_embeddings": 4, "deepstack_visual_indexes": []}},
           [change("other sections", put("text_config/rope_scaling/mrope_section", [6, 1, 1])), change("positions of text", {"positions": "text"}),
            change("another theta", put("text_config/rope_theta", 10000.0)), *unit("q_norm.weight", "k_norm.weight")],
           mrope=True, rope_at=("text_config",)),
    Family("llama4_text", "attention in chunks, layers without rope whose Q grows with the position, norms of Q and K without weights",
           decoder("Llama4ForCausalLM", "llama4_text", num_hidden_layers=3, intermediate_size=16, intermediate_size_mlp=48, moe_layers=[],
                   num_local_experts=1, num_experts_per_tok=1, interleave_moe_layer_step=1, no_rope_layers=[1, 0, 1], attention_chunk_size=48,
                   attn_temperature_tuning=True, floor_scale=16, attn_scale=0.5, use_qk_norm=True, attention_bias=False, rope_theta=500000.0,
                   num_attention_heads=2, num_key_value_heads=1,
                   rope_scaling={"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
                                 "rope_type": "llama3"}),
           [change("another chunk", put("attention_chunk_size", 40)), change("no chunks", put("attention_chunk_size", 512)),
            change("no temperature", put("attn_temperature_tuning", False)), change("another floor_scale", put("floor_scale", 24)),
            change("another attn_scale", put("attn_scale", 0.1)), change("no norms", put("use_qk_norm", False)),
            change("rope in all layers", put("no_rope_layers", [1, 1, 1])), change("no scaling", put("rope_scaling", None)),
            same("layers by their interval", remove("no_rope_layers"), put("no_rope_layer_interval", 2))]),
]
