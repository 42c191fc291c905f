"""SGLang: its rope functions, and what the test files use of its test tools. The file compares with FlashInfer's function except on
ROCm, where it has a reference in plain torch; FlashInfer would be ours here, too, so is_hip() is True."""

from shims import functions, module, need_triton

SKIPPED: list = []


def install(folder: str) -> None:
    from prologue_attention.compat import flashinfer, sglang

    need_triton()
    names = functions(sglang)
    for name in ("sglang.jit_kernel.rope", "sglang.kernels.ops.attention.rope", "sglang.kernels.ops.attention.fused_qknorm_rope"):
        module(name, **names)
    module("sgl_kernel", **names)
    module("flashinfer.rope", **functions(flashinfer))
    for name in ("sglang.kernels.jit", "sglang.jit_kernel.utils", "sglang.kernels.jit.utils"):
        module(name, get_ci_test_range=lambda full, short: full)
    module("sglang.srt.utils", is_hip=lambda: True, is_cuda=lambda: True)
    module("sglang.test.ci.ci_register", register_cuda_ci=lambda **_: None, register_amd_ci=lambda **_: None)
