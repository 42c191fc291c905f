"""Tiny random models of the families that transformers' AutoModelForCausalLM knows, made from the fields of their configurations."""

import re
from typing import Any, Dict, Tuple

import torch
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

WINDOW = 6  # of sliding layers and chunks

# Integer fields by name, and what they become if they are larger.
_SIZES = [
    (r"vocab_size(_per_layer_input)?", 64),
    (r"hidden_size|d_model|n_embd|embed_dim|word_embed_proj_dim|embedding_size|emb_dim|hidden_dim|lru_width", 32),
    (r"hidden_size_per_layer_input", 32),
    (r"num_hidden_layers|n_layers?|num_layers|(decoder|encoder)_layers|num_(en|de)coder_layers", 2),
    (r"((swa|linear)_)?num_attention_heads|n_heads?|(decoder|encoder)_attention_heads|num_heads|num_(en|de)coder_attention_heads", 4),
    (r"((swa|linear|num_global)_)?(num_)?key_value_heads|multi_query_heads|num_kv_heads", 2),
    (r".*intermediate_size.*|.*ffn_(dim|hidden_size)|n_inner|dim_ff|dff|d_ff", 32),
    (r"n_routed_experts|num_(local_)?experts|moe_num_experts|n_shared_experts|num_shared_experts|zero_expert_num", 4),
    (r"num_experts_per_tok(en)?|moe_k|moe_topk|top_k_experts|experts_top_k|moe_top_k", 2),
    (r"n_group|topk_group|num_expert_groups", 1),
    (r"attention_window_size|window_size|attention_chunk_size", WINDOW),
    (r"q_lora_rank|kv_lora_rank|o_lora_rank", 16),
    (r"qk_rope_head_dim|qk_nope_head_dim|rotary_dim", 8),
    (r"(swa_)?v_head_dim", 12),
    (r"max_position_embeddings|n_positions|max_seq_len|n_ctx|max_target_positions|block_size", 128),
    (r"mamba_d_state|state_size|ssm_state_size", 8),
    (r"mamba_d_head|mamba_head_dim|mamba_headdim", 16),
    (r"mamba_n_heads|mamba_num_heads|n_mamba_heads", 4),
    (r"linear_num_key_heads|linear_num_heads|index_n_heads", 2),
    (r"linear_num_value_heads|index_topk", 4),
    (r"linear_((key|value)_)?head_dim", 8),
    (r"index_head_dim", 16),
]  # fmt: skip
_SIZES = [(re.compile(pattern), size) for pattern, size in _SIZES]

# Fields that a family needs besides.
_ROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}
_FIELDS: Dict[str, Dict[str, Any]] = {
    "bailing_hybrid": {"n_group": 1, "topk_group": 1, "num_experts": 4},
    "bamba": {"attn_layer_indices": [1]},
    "cohere_compass_text": {"rope_parameters": {"full_attention": _ROPE, "sliding_attention": _ROPE}},
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 1e4},
        "ffn_config": {"hidden_size": 32, "ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "deepseek_v2": {"num_experts_per_tok": 2, "topk_method": "greedy"},
    "dory": {
        "num_hidden_layers": 3, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "n_input_layers": 1,
        "n_output_layers": 1, "n_recurrent_layers": 1,
    },
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "nemotron": {"num_key_value_heads": 2},
    "nemotron_h": {"n_groups": 1},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "roc_bert": {"pronunciation_embed_dim": 8, "shape_embed_dim": 8, "shape_vocab_size": 64, "pronunciation_vocab_size": 64},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"layers_block_type": ["linear_attention", "hybrid"] * 2, "num_hidden_layers": 4},
    "zamba2": {"layers_block_type": ["linear_attention", "hybrid"] * 2, "num_hidden_layers": 4},
}  # fmt: skip

# Families that are not compared, and why.
_PARTS = "is made of several models, and its text model has no entry of its own"
_DRAFT = "reads the states of another model"
EXCLUDED = {
    "blt": _PARTS, "emu3": _PARTS, "fuyu": _PARTS, "got_ocr2": _PARTS, "mllama": _PARTS, "moss_transcribe_diarize": _PARTS,
    "musicgen": _PARTS, "musicgen_melody": _PARTS, "phi4_multimodal": _PARTS,
    "gemma4_assistant": _DRAFT, "gemma4_unified_assistant": _DRAFT,
    "falcon": "has a table of attention classes of its own, and raises KeyError for other names",
    "dots3_note_text": "chooses keys by an indexer, like deepseek_v32", "qwen4_exp_text": "chooses keys by an indexer, like deepseek_v32",
}  # fmt: skip

# Families whose attention paged_attention cannot do, and what the error says.
REFUSED = {
    "axk2": "passes indices", "deepseek_v32": "passes indices", "glm_moe_dsa": "passes indices", "hy_v4": "passes indices",
    "inkling_text": "passes position_bias", "deepseek_v4": "keys with a gap between them", "doge": "there is no bias of scores",
}  # fmt: skip


def has_sdpa(family: str) -> bool:
    model = MODEL_FOR_CAUSAL_LM_MAPPING[CONFIG_MAPPING[family]]
    return model._supports_sdpa or model._supports_attention_backend


def families() -> list:
    """The names of the families that are compared: one for each model class, and of a model with parts its text model."""
    names = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    found: Dict[str, str] = {}
    for name, model in names.items():
        if name in EXCLUDED or name in REFUSED or name + "_text" in names:
            continue
        if model not in found or re.sub("[-_]", "", name) in model.lower():  # exaone, too, is LlamaForCausalLM
            found[model] = name
    return list(found.values())


def _config(family: str) -> Any:
    """With two layers, or one of each kind, and 32 channels."""
    kind = CONFIG_MAPPING[family]
    default = kind()
    fields = {name: default.__dict__.get(name) for name in default.to_dict()}
    given: Dict[str, Any] = {}
    for name, value in fields.items():
        if name.endswith("token_id"):
            given[name] = {"pad_token_id": 0, "bos_token_id": 1}.get(name, 2)
        elif isinstance(value, int) and not isinstance(value, bool):
            for pattern, size in _SIZES:
                if pattern.fullmatch(name) and value > size:
                    given[name] = size
    if "qk_rope_head_dim" in fields:  # latent attention: K and V have all heads
        given["num_key_value_heads"] = 4
    if "is_decoder" in fields:
        given["is_decoder"] = True
    for name, size in (("head_dim", 8), ("attention_head_dim", 8), ("global_head_dim", 16), ("sliding_window", WINDOW)):
        if name in fields:
            given[name] = size
    if "use_sliding_window" in fields:
        given.update(use_sliding_window=True, max_window_layers=1)
    types = fields.get("layer_types")
    if isinstance(types, list) and types:
        kinds = list(dict.fromkeys(types))
        given["layer_types"] = (kinds * 2)[: max(2, len(kinds))]
        given["num_hidden_layers"] = len(given["layer_types"])
    if isinstance(fields.get("mlp_layer_types"), list):
        given["mlp_layer_types"] = [fields["mlp_layer_types"][-1]] * given["num_hidden_layers"]
    given.update(_FIELDS.get(family, {}))
    return kind(**given)


def build(family: str) -> Tuple[Any, Any]:
    """The same model with eager attention, and with ours."""
    torch.manual_seed(3)
    models = []
    for implementation in ("eager", "prologue"):
        config = _config(family)
        kind = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
        models.append(kind._from_config(config, attn_implementation=implementation).eval())
    eager, ours = models
    with torch.no_grad():
        for name, x in eager.named_parameters():
            if x.dim() == 2 and "A_log" not in name:  # so that attention is not nearly uniform
                x.normal_(0, 1.5 * x.shape[-1] ** -0.5)
            elif "sink" in name:
                x.normal_()
    ours.load_state_dict(eager.state_dict())
    return eager, ours
