"""The table of cos and sin that a Hugging Face config describes. The formulas are the library's (layers/rope/rope_scaling.h)."""

import json
from typing import Any, Dict, List, Literal, Mapping, Optional, Tuple, Union

from . import _extension
from ._frameworks import framework_of, numpy_framework
from ._groups import Array, Rope, RopeStyle

_SCHEMES = ("default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional")
_NAMES = {"su": "longrope", "mrope": "default"}  # older names


def rope_cos_sin(
    config: Any,
    max_position: Optional[int] = None,
    *,
    layer_type: Optional[str] = None,
    sequence_length: int = 0,
    style: RopeStyle = "neox",
    precision: Literal["reference", "exact"] = "reference",
    head_dim: Optional[int] = None,
    mrope: Optional[Literal["contiguous", "interleaved"]] = None,
    like: Optional[Array] = None,
) -> Rope:
    """The Rope of a Hugging Face model; its cos_sin is the table, [max_position, rotary_dim] float32, cos then sin.

    config: a config of transformers, its dict, or its JSON. Read are rope_theta and rope_scaling, or rope_parameters (transformers 5),
        partial_rotary_factor, and head_dim (DeepSeek: qk_rope_head_dim) or hidden_size / num_attention_heads. Of a model with a
        text_config, that one. Types: default, linear, dynamic, yarn, longrope, llama3 and proportional.
    max_position: rows of the table; None: max_position_embeddings.
    layer_type: for a config with parameters for each type of layer (Gemma 3): which, such as "sliding_attention".
    sequence_length: dynamic and longrope have other frequencies for long sequences: for prompt and new tokens of this length; 0: within
        the original context. All keys of a sequence must have been rotated with the same ones.
    style: a config does not say it: "interleaved" for GPT-J, Cohere, GLM and Llama 4, and others whose pairs are (x[2i], x[2i + 1]).
    precision: "reference": the float32 steps of transformers; "exact": float64, rounded once.
    head_dim: None: that of the config.
    mrope: how the pairs of mrope_section are given to position axes (time, height, width). "contiguous": first all pairs of the first axis,
        then those of the next (Qwen2-VL, Qwen2.5-VL, GLM-4.1V); "interleaved": in turn (Qwen3-VL). Then num_axes and pair_axis are set, and
        positions are [num_axes, tokens]. None: one position for each token, as for text alone.
    like: the arrays are of the same framework, on the same device; None: of NumPy.
    """
    values = _values(config, layer_type)
    parameters = _parameters(values, layer_type)

    def number(name: str, default: Optional[float] = None) -> float:
        value = parameters.get(name)
        value = values.get(name) if value is None else value
        value = default if value is None else value
        if value is None:
            raise ValueError(f"rope_cos_sin: the config has no {name}, which rope_type {scheme!r} needs")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"rope_cos_sin: {name} is {value!r}: it must be a number")
        return float(value)

    def factors(name: str) -> Optional[List[float]]:
        value = parameters.get(name)
        if value is None:
            raise ValueError(f"rope_cos_sin: the config has no {name}, which rope_type {scheme!r} needs")
        return [float(one) for one in value]

    stated = parameters.get("rope_type") or parameters.get("type") or "default"
    scheme = _NAMES.get(stated, stated)
    if scheme not in _SCHEMES:
        raise NotImplementedError(f"rope_cos_sin: rope_type is {stated!r}: supported are {', '.join(_SCHEMES)}")
    if head_dim is None:
        head_dim = _head_dim(values)
    partial = number("partial_rotary_factor", 1.0)
    rotary_dim = int(head_dim) if scheme == "proportional" else int(head_dim * partial)
    if not 0.0 < partial <= 1.0 or rotary_dim < 2 or rotary_dim % 2 != 0:
        raise ValueError(
            f"rope_cos_sin: partial_rotary_factor is {partial} of head_dim {head_dim}: it must lie in 0..1 and leave an even number of channels"
        )
    context = values.get("max_position_embeddings")
    if max_position is None:
        max_position = context
    if max_position is None:
        raise ValueError("rope_cos_sin: max_position is None, and the config has no max_position_embeddings: give max_position")
    original = _original(values, parameters, scheme)
    options: Dict[str, Any] = dict(
        rotary_dim=rotary_dim, theta=number("rope_theta", 10000.0), scheme=scheme, factor=1.0, original_max_position=original,
        attention_factor=None, beta_fast=32.0, beta_slow=1.0, mscale=0.0, mscale_all_dim=0.0, truncate=True, low_freq_factor=1.0,
        high_freq_factor=4.0, partial_rotary_factor=partial, short_factors=None, long_factors=None, sequence_length=sequence_length,
        max_position=max_position, precision=precision,
    )  # fmt: skip
    if scheme in ("yarn", "longrope"):
        has_original = any(one.get("original_max_position_embeddings") for one in (values, parameters))
        extension = context / original if context and original and (has_original or scheme == "longrope") else None
        options.update(factor=number("factor", extension), attention_factor=parameters.get("attention_factor"))
    elif scheme != "default":
        options.update(factor=number("factor", 1.0 if scheme == "proportional" else None))
    if scheme == "yarn":  # 0 means not given there
        for name in ("beta_fast", "beta_slow", "mscale", "mscale_all_dim"):
            options[name] = float(parameters.get(name) or options[name])
        options["truncate"] = bool(parameters.get("truncate", True))
    elif scheme == "longrope":
        options.update(short_factors=factors("short_factor"), long_factors=factors("long_factor"))
    elif scheme == "llama3":
        options.update({name: number(name) for name in ("low_freq_factor", "high_freq_factor")})
    table = _extension.rope_cos_sin(*[options[name] for name in _extension.ROPE_COS_SIN])
    framework = numpy_framework() if like is None else framework_of(like)
    rope = Rope(style, rotary_dim, cos_sin=framework.from_host(like, table))
    if mrope is None:
        return rope
    sections, pair_axis = _axes(values, parameters, mrope, rotary_dim)
    return rope._replace(num_axes=len(sections), pair_axis=framework.from_host(like, pair_axis))


def _axes(values: Mapping[str, Any], parameters: Mapping[str, Any], mrope: str, rotary_dim: int) -> Tuple[List[int], Any]:
    """The sections of MRoPE, and the axis of each pair."""
    if mrope not in ("contiguous", "interleaved"):
        raise ValueError(f"rope_cos_sin: mrope is {mrope!r}: it must be one of 'contiguous', 'interleaved'")
    stated = parameters.get("mrope_section") or values.get("mrope_section")
    if stated is None:
        raise ValueError(f"rope_cos_sin: the config has no mrope_section, which mrope {mrope!r} needs")
    if not isinstance(stated, (list, tuple)) or not all(type(one) is int for one in stated):
        raise TypeError(f"rope_cos_sin: mrope_section is {stated!r}: it must be a list of whole numbers")
    sections = list(stated)
    if sum(sections) != rotary_dim // 2:
        raise ValueError(f"rope_cos_sin: mrope_section is {sections}: its sum must be the {rotary_dim // 2} pairs of rotary_dim {rotary_dim}")
    return sections, _extension.mrope_pair_axis(sections, mrope == "interleaved")


def _values(config: Any, layer_type: Optional[str]) -> Mapping[str, Any]:
    """The config as a dict."""
    if isinstance(config, (str, bytes)):
        config = json.loads(config)
    if layer_type is not None and hasattr(config, "per_layer_config"):  # Gemma 4: heads of another size in some layers
        try:
            config = config.per_layer_config[layer_type]
        except (KeyError, ValueError):
            pass
    values = config if isinstance(config, Mapping) else config.to_dict() if hasattr(config, "to_dict") else None
    if not isinstance(values, Mapping):
        raise TypeError(f"rope_cos_sin: config is {type(config).__name__}: it must be a config of transformers, its dict or its JSON")
    text = values.get("text_config")
    return text if isinstance(text, Mapping) else values


def _parameters(values: Mapping[str, Any], layer_type: Optional[str]) -> Mapping[str, Any]:
    """rope_parameters or rope_scaling, of the layer type where each has its own."""
    parameters: Mapping[str, Any] = values.get("rope_parameters") or values.get("rope_scaling") or {}
    types = [name for name, of_type in parameters.items() if isinstance(of_type, Mapping)]
    if types:
        if layer_type not in types:
            known = ", ".join(map(repr, types))
            raise ValueError(f"rope_cos_sin: layer_type is {layer_type!r}: the config has parameters for each type: it must be one of {known}")
        of_type = parameters[layer_type]
        return of_type  # type: ignore[no-any-return]
    if layer_type == "sliding_attention" and values.get("rope_local_base_freq") is not None:  # Gemma 3 before transformers 5
        return {"rope_theta": values["rope_local_base_freq"]}
    return parameters


def _head_dim(values: Mapping[str, Any]) -> int:
    for name in ("qk_rope_head_dim", "head_dim"):
        if values.get(name):
            return int(values[name])
    try:
        return int(values["hidden_size"]) // int(values["num_attention_heads"])
    except KeyError as missing:
        raise ValueError(f"rope_cos_sin: the config has neither head_dim nor {missing}: give head_dim") from None


def _original(values: Mapping[str, Any], parameters: Mapping[str, Any], scheme: str) -> int:
    """The context that the model was trained with first; 0: the config does not say it. Phi 3 has it outside of the parameters."""
    context = values.get("max_position_embeddings")
    if scheme == "dynamic":
        return int(context or 0)
    name = "original_max_position_embeddings"
    found: Union[None, int, float] = values.get(name) or parameters.get(name) or context
    return int(found or 0)
