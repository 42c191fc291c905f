"""rotary of the Hugging Face kernels hub."""

from shims import functions, module

SKIPPED: list = []


def install(folder: str) -> None:
    from prologue_attention.compat import kernels_rotary

    module("rotary", **functions(kernels_rotary))
