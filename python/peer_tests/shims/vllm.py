"""vLLM: vllm._custom_ops and the registered operators torch.ops._C.* over prologue_attention.compat.vllm; references of ours, in plain
torch, for the modules that the tests compare with."""

import contextlib
import importlib
import random
from typing import Any

import pytest

from shims import functions, module, rotate

NOT_OURS = "not an operation of this library"
SKIPPED = [
    ("test_reshape_and_cache\\[", "the packed cache layout of reshape_and_cache: not covered"),
    ("nvfp4", "NVFP4 caches: not covered"),
    ("triton", "vLLM's Triton kernel"),
    ("test_swap_blocks|test_gather_|test_cp_gather|test_copy_blocks|indexer", NOT_OURS),
    ("test_fp8_e4m3_conversion", NOT_OURS + " (convert_fp8)"),
    ("test_concat_and_cache_mla_grouped", "takes addresses of caches: not covered"),
    ("test_concat_and_cache_mla_cpu", "vLLM's CPU build"),
    ("test_rope_module_cache", "tests vLLM's cache of Python modules"),
]


def fp8(kind: str) -> Any:
    import torch

    return torch.float8_e5m2 if kind == "fp8_e5m2" else torch.float8_e4m3fn


def convert_fp8(output: Any, source: Any, scale: float = 1.0, kv_dtype: str = "fp8") -> None:
    """To or from fp8 in bytes: stored value = x / scale."""
    import torch

    if source.dtype == torch.uint8:
        output.copy_(source.view(fp8(kv_dtype)).float() * scale)
    else:
        limit = torch.finfo(fp8(kv_dtype)).max
        output.copy_((source.float() / scale).clamp(-limit, limit).to(fp8(kv_dtype)).view(torch.uint8))


def register(compat: Any) -> None:
    """The operators that the tests call by name."""
    import torch

    made = []
    for library, schema in (
        ("_C", "rotary_embedding(Tensor positions, Tensor! query, Tensor!? key, int head_size, Tensor cos_sin_cache, bool is_neox, "
               "int rope_dim_offset=0, bool inverse=False) -> ()"),
        ("_C", "fused_qk_norm_rope(Tensor! qkv, int num_heads_q, int num_heads_k, int num_heads_v, int head_dim, float eps, Tensor q_weight, "
               "Tensor k_weight, Tensor cos_sin_cache, bool is_neox, Tensor position_ids, int forced_token_heads_per_warp=-1) -> ()"),
        ("_C_cache_ops", "reshape_and_cache_flash(Tensor key, Tensor value, Tensor! key_cache, Tensor! value_cache, Tensor slot_mapping, "
                         "str kv_cache_dtype, Tensor k_scale, Tensor v_scale) -> ()"),
        ("_C_cache_ops", "concat_and_cache_mla_rope_fused(Tensor positions, Tensor! q_pe, Tensor! k_pe, Tensor kv_c, Tensor cos_sin_cache, "
                         "bool is_neox, Tensor slot_mapping, Tensor! kv_cache, str kv_cache_dtype, Tensor kv_cache_scale) -> ()"),
        ("_C_cache_ops", "concat_and_cache_mla(Tensor kv_c, Tensor k_pe, Tensor! kv_cache, Tensor slot_mapping, str kv_cache_dtype, "
                         "Tensor scale, bool skip_scale=False) -> ()"),
    ):  # fmt: skip
        name = schema.partition("(")[0]
        made.append(torch.library.Library(library, "FRAGMENT"))
        made[-1].define(schema)
        for device in ("CPU", "CUDA"):
            made[-1].impl(name, getattr(compat, name), device)
        torch.library.register_fake(f"{library}::{name}", lambda *_: None, lib=made[-1])
    register.libraries = made  # type: ignore[attr-defined]  # they live as long as the process


def modules() -> dict:
    import torch
    from prologue_attention.compat import vllm

    class RotaryEmbedding(torch.nn.Module):
        """vLLM's table in its dtype; forward_native is the reference, forward is ours."""

        def __init__(self, head_size: int, rotary_dim: int, max_position_embeddings: int, base: float, is_neox_style: bool, dtype: Any):
            super().__init__()
            self.head_size, self.rotary_dim, self.is_neox_style = head_size, rotary_dim, is_neox_style
            angles = torch.arange(max_position_embeddings).float()[:, None] * base ** (-torch.arange(0, rotary_dim, 2).float() / rotary_dim)
            self.register_buffer("cos_sin_cache", torch.cat([angles.cos(), angles.sin()], -1).to(dtype), persistent=False)

        def forward_native(self, positions: Any, query: Any, key: Any = None) -> tuple:
            cos, sin = self.cos_sin_cache[positions].to(query.dtype).chunk(2, -1)

            def rotated(x: Any) -> Any:
                heads = x.reshape(*positions.shape, -1, self.head_size)
                return rotate(heads, cos, sin, not self.is_neox_style).reshape(x.shape)

            return tuple(None if x is None else rotated(x) for x in (query, key))

        def forward(self, positions: Any, query: Any, key: Any = None) -> tuple:
            table = self.cos_sin_cache.to(query.device, query.dtype)
            vllm.rotary_embedding(positions, query, key, self.head_size, table, self.is_neox_style)
            return query, key

    def get_rope(head_size: int, max_position: int, is_neox_style: bool, rope_parameters: dict, dtype: Any = None) -> Any:
        rotary_dim = int(head_size * rope_parameters["partial_rotary_factor"])
        return RotaryEmbedding(head_size, rotary_dim, max_position, rope_parameters["rope_theta"], is_neox_style, dtype or torch.float32)

    class RMSNorm(torch.nn.Module):
        def __init__(self, hidden_size: int, eps: float = 1e-6):
            super().__init__()
            self.weight, self.eps = torch.nn.Parameter(torch.ones(hidden_size)), eps

        def forward_native(self, x: Any) -> Any:
            normed = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + self.eps)
            return (normed * self.weight.float()).to(x.dtype)

    return {"RotaryEmbedding": RotaryEmbedding, "get_rope": get_rope, "RMSNorm": RMSNorm}


class Platform:
    """vllm.platforms.current_platform."""

    def is_cuda(self) -> bool:
        return True

    is_cuda_alike = is_cuda

    def is_rocm(self) -> bool:
        return False

    is_cpu = is_xpu = is_rocm

    def has_device_capability(self, number: int) -> bool:
        import torch

        major, minor = torch.cuda.get_device_capability()
        return major * 10 + minor >= number

    def is_device_capability_family(self, number: int) -> bool:
        return False

    def fp8_dtype(self) -> Any:
        return fp8("fp8")


def opcheck(operator: Any, args: tuple, kwargs: Any = None, *, cond: bool = True, test_utils: Any = None, **_: Any) -> Any:
    import torch

    names = ("test_schema", "test_faketensor") if test_utils is None else test_utils
    return torch.library.opcheck(operator, args, kwargs, test_utils=names) if cond else {}


def caches(
    num_blocks: int, block_size: int, num_layers: int, num_heads: int, head_size: int, cache_dtype: str, model_dtype: Any = None,
    seed: Any = None, device: str = "cuda", cache_layout: str = "NHD",
) -> tuple:  # fmt: skip
    """K and V of each layer, [num_blocks, block_size, num_heads, head_size] views of one random buffer, in bytes if they are fp8."""
    import torch

    shape = (num_blocks, 2, block_size, num_heads, head_size)
    order = (0, 1, 2, 3, 4) if cache_layout == "NHD" else (0, 1, 3, 2, 4)
    keys, values = [], []
    for _ in range(num_layers):
        buffer = torch.empty([shape[i] for i in order], dtype=model_dtype, device=device).uniform_(-1, 1)
        if cache_dtype.startswith("fp8"):
            buffer = buffer.to(fp8(cache_dtype)).view(torch.uint8)
        pages = buffer.permute(order)
        keys.append(pages[:, 0])
        values.append(pages[:, 1])
    return keys, values


FIXTURES = {
    "default_vllm_config": pytest.fixture(name="default_vllm_config")(lambda: None),
    "dist_init": pytest.fixture(name="dist_init")(lambda: None),
    "kv_cache_factory": pytest.fixture(name="kv_cache_factory")(lambda: caches),
    "kv_cache_factory_flashinfer": pytest.fixture(name="kv_cache_factory_flashinfer")(lambda: caches),
}


def install(folder: str) -> None:
    import torch
    from prologue_attention.compat import vllm

    def set_random_seed(seed: int) -> None:
        random.seed(seed)
        torch.manual_seed(seed)

    register(vllm)
    ops = module("vllm._custom_ops", **functions(vllm), convert_fp8=convert_fp8)
    module("vllm", _custom_ops=ops)
    module("vllm.platforms", current_platform=Platform())
    module("vllm.utils.torch_utils", set_random_seed=set_random_seed, nvfp4_split_data_scale=None)
    module("vllm.model_executor.layers.quantization.utils.quant_utils",
           scaled_dequantize=lambda x, scale, group_shape=None, out_dtype=None: (x.float() * scale).to(out_dtype))  # fmt: skip
    module("vllm._aiter_ops", rocm_aiter_ops=None)
    module("vllm.config", CompilationConfig=object, VllmConfig=object, set_current_vllm_config=lambda config: contextlib.nullcontext())
    names = modules()
    module("vllm.model_executor.layers.rotary_embedding", RotaryEmbedding=names["RotaryEmbedding"], get_rope=names["get_rope"])
    module("vllm.model_executor.layers.layernorm", RMSNorm=names["RMSNorm"])
    importlib.import_module("tests.kernels")  # the folder's own; its utils imports most of vLLM
    module("tests.kernels.utils", opcheck=opcheck, DEFAULT_OPCHECK_TEST_UTILS=("test_schema", "test_faketensor"))
