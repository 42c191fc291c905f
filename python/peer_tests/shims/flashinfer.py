"""FlashInfer. The tests' references are in their own tests/test_helpers."""

from typing import Any

from shims import functions, module

SKIPPED = [
    ("nvfp4", "NVFP4 caches: not covered"),
    ("cutile", "cuda.tile's kernel: not covered"),
]


def compute_capability(device: Any) -> tuple:
    import torch

    return torch.cuda.get_device_capability(device)


def install(folder: str) -> None:
    from prologue_attention.compat import flashinfer

    names = functions(flashinfer)
    for name in ("flashinfer", "flashinfer.rope", "flashinfer.page"):
        module(name, **names)
    module("flashinfer.fp4_quantization", e2m1_and_ufp8sf_scale_to_float=None)
    module("flashinfer.utils", get_compute_capability=compute_capability)
    module("flashinfer.cutile.cutile_common", is_cuda_tile_available=lambda: False)
