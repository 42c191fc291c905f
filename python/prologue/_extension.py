"""Loads the extension: TVM-FFI functions, one for each operation."""

import pathlib

import tvm_ffi

tvm_ffi.register_error("NotImplementedError", NotImplementedError)
_module = tvm_ffi.load_module(str(pathlib.Path(__file__).with_name("_prologue.so")))

rotary = _module.rotary
gather_cos_sin = _module.gather_cos_sin
attention_prologue = _module.attention_prologue
mla_prologue = _module.mla_prologue
paged_attention = _module.paged_attention
attention_layer = _module.attention_layer
get_num_threads = _module.get_num_threads
set_num_threads = _module.set_num_threads
built_with_cuda = _module.built_with_cuda
decode_faults = _module.decode_faults
reinterpret = _module.reinterpret
jax = _module.jax
