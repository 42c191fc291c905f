"""Loads the extension: TVM-FFI functions, one for each operation."""

import pathlib
from typing import Any, Callable

import tvm_ffi

tvm_ffi.register_error("NotImplementedError", NotImplementedError)
_module = tvm_ffi.load_module(str(pathlib.Path(__file__).with_name("_prologue.so")))


def declare(name: str, *items: str) -> None:
    """Declares the values of a function or a group, in the order in which they are passed: "NAME" for one value, "NAME GROUP" for a
    group, which is declared before. The extension finds values by these names (src/arguments.h)."""
    _module.declare(name, *items)


def function(name: str, *items: str) -> Callable[..., Any]:
    """A function of the extension, declared."""
    declare(name, *items)
    return getattr(_module, name)  # type: ignore[no-any-return]


get_num_threads = function("get_num_threads")
set_num_threads = function("set_num_threads", "num_threads")
built_with_cuda = function("built_with_cuda")
decode_faults = function("decode_faults", "first", "count")
reinterpret = function("reinterpret", "array", "dtype")
ROPE_COS_SIN = (
    "rotary_dim", "theta", "scheme", "factor", "original_max_position", "attention_factor", "beta_fast", "beta_slow", "mscale",
    "mscale_all_dim", "truncate", "low_freq_factor", "high_freq_factor", "partial_rotary_factor", "short_factors", "long_factors",
    "sequence_length", "max_position", "precision",
)  # fmt: skip
rope_cos_sin = function("rope_cos_sin", *ROPE_COS_SIN)
mrope_pair_axis = function("mrope_pair_axis", "sections", "interleaved")
make_plan = _module.make_plan
jax = _module.jax
