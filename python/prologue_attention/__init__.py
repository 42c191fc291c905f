"""The attention prologue for torch, NumPy, CuPy and JAX: everything between the QKV GEMM and attention in one kernel.

Arrays are passed without a copy. On CUDA an operation is enqueued on the caller's current stream; it never waits and can be captured.
Bad input raises ValueError or TypeError with the value and the rule; a case that is not implemented, NotImplementedError. The contracts,
with every rule for strides, aliasing and rounding, are in the library's headers, which the docstrings name.
"""

from ._groups import Array, HeadGroup, HeadNorm, PagedKv, PageTable, QueryScale, Rope, TokenPlaces
from ._operations import (
    Fault,
    attention_layer,
    attention_prologue,
    built_with_cuda,
    gather_cos_sin,
    get_num_threads,
    mla_prologue,
    paged_attention,
    read_faults,
    rerope,
    rotary,
    set_num_threads,
)
from ._plan import Plan
from ._rope_table import rope_cos_sin

__version__ = "0.1.0"
__all__ = [
    "Array",
    "Fault",
    "HeadGroup",
    "HeadNorm",
    "PagedKv",
    "PageTable",
    "Plan",
    "QueryScale",
    "Rope",
    "TokenPlaces",
    "attention_layer",
    "attention_prologue",
    "built_with_cuda",
    "gather_cos_sin",
    "get_num_threads",
    "mla_prologue",
    "paged_attention",
    "read_faults",
    "rerope",
    "rope_cos_sin",
    "rotary",
    "set_num_threads",
]
