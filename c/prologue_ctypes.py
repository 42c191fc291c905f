"""The C interface of Prologue for Python's ctypes. Written by c/generate.py from the C++ headers; do not change it by hand.

    import prologue_ctypes as pl
    pl.load("libprologue.so")
    params = pl.NormParams(num_tokens=2, width=64, dtype=pl.DTYPE_F32, ...)   # other members: the defaults
    pl.norm(params, pl.Execution(num_threads=2))                              # raises pl.Error

A function has the name of C's without prologue_. Structs are passed as they are. A pointer inside of a struct is an address (an int,
or None): ctypes.addressof(array), or tensor.data_ptr(). Keep what it points to alive. What C returns through its last argument
(plans, contexts, sizes) is the result here. prologue.h documents everything.
"""
import ctypes
from ctypes import POINTER, Structure, byref, c_bool, c_char_p, c_double, c_float, c_int32, c_int64, c_uint8, c_uint32, c_uint64, c_void_p

HEADER_VERSION = 100
_library = None


class Error(Exception):
    """code: one of STATUS_*."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code = code


def load(path):
    """Loads the shared library; once, before anything else."""
    global _library
    library = ctypes.CDLL(path)
    library.prologue_last_error_message.restype = c_char_p
    if library.prologue_check_version(c_int32(HEADER_VERSION)) != 0:  # before what another version may not have is looked up
        raise Error(STATUS_UNSUPPORTED, library.prologue_last_error_message().decode())
    library.prologue_version.restype = c_int32
    for name, (result, arguments, _) in FUNCTIONS.items():
        function = getattr(library, "prologue_" + name)
        function.restype = result
        function.argtypes = arguments
    for struct in STRUCTS:
        function = getattr(library, struct._init_name)
        function.restype = None
        function.argtypes = [POINTER(struct)]
    _library = library


def _loaded():
    if _library is None:
        raise RuntimeError("prologue_ctypes: call load() with the path of libprologue.so first")
    return _library


def version():
    return _loaded().prologue_version()


def last_error_message():
    return _loaded().prologue_last_error_message().decode()


def _check(status):
    if status != 0:
        raise Error(status, last_error_message())


def _call(name, arguments):
    _, types, has_out = FUNCTIONS[name]
    function = getattr(_loaded(), "prologue_" + name)
    arguments = [byref(a) if isinstance(a, Structure) else a for a in arguments]
    if not has_out:
        result = function(*arguments)
        return result.decode() if isinstance(result, bytes) else result
    out = types[-1]._type_()
    _check(function(*arguments, byref(out)))
    return out if isinstance(out, (Structure, c_void_p)) else out.value


class _Struct(Structure):
    """Members that are not given have the library's defaults. To set a name that is no member is an error."""

    __slots__ = ()

    def __init__(self, **members):
        super().__init__()
        getattr(_loaded(), self._init_name)(byref(self))
        for name, value in members.items():
            setattr(self, name, value)


STATUS_OK = 0
STATUS_INVALID_ARGUMENT = 1
STATUS_UNSUPPORTED = 2
STATUS_NOT_FOUND = 3
STATUS_DATA_LOSS = 4
STATUS_RESOURCE_EXHAUSTED = 5
STATUS_DEVICE_ERROR = 6
DTYPE_UNSET = 0
DTYPE_F32 = 1
DTYPE_F16 = 2
DTYPE_BF16 = 3
DTYPE_F64 = 4
DTYPE_FP8_E4M3 = 5
DTYPE_FP8_E5M2 = 6
DTYPE_INT8 = 7
DTYPE_INT4 = 8
DTYPE_UINT4 = 9
DTYPE_INT16 = 10
DTYPE_INT32 = 11
DTYPE_INT64 = 12
DTYPE_UINT8 = 13
DTYPE_UINT16 = 14
DTYPE_UINT32 = 15
DTYPE_UINT64 = 16
DTYPE_FP4_E2M1 = 17
DEVICE_CPU = 0
DEVICE_CUDA = 1
FAULT_CODE_NONE = 0
FAULT_CODE_POSITION_OUT_OF_RANGE = 1
FAULT_CODE_SLOT_OUT_OF_RANGE = 2
FAULT_CODE_TOKEN_ID_OUT_OF_RANGE = 3
FAULT_CODE_PAGE_OUT_OF_RANGE = 4
FAULT_CODE_SEQUENCE_TOO_LONG = 5
FAULT_CODE_QUERY_ROWS_OUT_OF_RANGE = 6
FAULT_CODE_LOGITS_NOT_A_NUMBER = 7
KV_SCALING_NONE = 0
KV_SCALING_TENSOR = 1
KV_SCALING_HEAD = 2
KV_SCALING_TOKEN_HEAD = 3
KV_SCALING_MX = 4
KV_SCALING_NV = 5
BLOCK_SCALE_LAYOUT_LINEAR = 0
BLOCK_SCALE_LAYOUT_INTERLEAVED_4_TOKENS = 1
NORM_KIND_RMS = 0
NORM_KIND_LAYER = 1
ROPE_STYLE_NEOX = 0
ROPE_STYLE_INTERLEAVED = 1
ROPE_SOURCE_TABLE = 0
ROPE_SOURCE_PER_TOKEN = 1
ROPE_SOURCE_INV_FREQ = 2
ROPE_SOURCE_THETA = 3
ROPE_SOURCE_ANGLES = 4
ROPE_SOURCE_ANGLES_PER_TOKEN = 5
ROPE_WIDTH_UNSET = 0
ROPE_WIDTH_HALF = 1
ROPE_WIDTH_FULL = 2
PAST_TABLE_RECORD = 0
PAST_TABLE_ZERO = 1
PAST_TABLE_IDENTITY = 2
WEIGHT_FORMAT_DENSE = 0
WEIGHT_FORMAT_Q8_0 = 1
WEIGHT_FORMAT_Q4_0 = 2
WEIGHT_FORMAT_Q4_1 = 3
WEIGHT_FORMAT_Q5_0 = 4
WEIGHT_FORMAT_Q5_1 = 5
WEIGHT_FORMAT_Q4_K = 6
WEIGHT_FORMAT_Q5_K = 7
WEIGHT_FORMAT_Q6_K = 8
WEIGHT_FORMAT_F8_E4M3 = 9
WEIGHT_FORMAT_I8 = 10
WEIGHT_FORMAT_Q2_K = 11
WEIGHT_FORMAT_Q3_K = 12
WEIGHT_FORMAT_IQ4_NL = 13
WEIGHT_FORMAT_IQ4_XS = 14
WEIGHT_FORMAT_MXFP4 = 15
WEIGHT_FORMAT_I4_32 = 16
WEIGHT_FORMAT_I4_64 = 17
WEIGHT_FORMAT_I4_128 = 18
WEIGHT_FORMAT_NVFP4 = 19
WEIGHT_SCALING_BLOCKS = 0
WEIGHT_SCALING_ROWS = 1
WEIGHT_SCALING_SQUARES = 2
ROPE_PRECISION_REFERENCE = 0
ROPE_PRECISION_EXACT = 1
ROPE_SCALING_KIND_NONE = 0
ROPE_SCALING_KIND_LINEAR = 1
ROPE_SCALING_KIND_DYNAMIC_NTK = 2
ROPE_SCALING_KIND_YARN = 3
ROPE_SCALING_KIND_LONG_ROPE = 4
ROPE_SCALING_KIND_LLAMA3 = 5
ROPE_SCALING_KIND_PROPORTIONAL = 6
ROPE_SCALING_KIND_VERBATIM = 7
ROTARY_TAIL_COPY = 0
ROTARY_TAIL_LEAVE = 1
ROTARY_TAIL_ZERO = 2
NORM_PLACEMENT_NONE = 0
NORM_PLACEMENT_BEFORE_ROPE = 1
NORM_PLACEMENT_AFTER_ROPE = 2
NORM_SCOPE_HEAD = 0
NORM_SCOPE_TOKEN = 1
POSITION_SCALE_NONE = 0
POSITION_SCALE_LLAMA4 = 1
POSITION_SCALE_LOGN = 2
ROUNDING_ONCE = 0
ROUNDING_PER_STEP = 1
HEAD_ACTIVATION_NONE = 0
HEAD_ACTIVATION_SIGMOID = 1
ACTIVATION_KIND_SILU = 0
ACTIVATION_KIND_GELU_TANH = 1
ACTIVATION_KIND_GELU = 2
ACTIVATION_KIND_RELU = 3
ACTIVATION_KIND_RELU2 = 4
ACTIVATION_KIND_CLAMPED_SWIGLU = 5
EXPERT_WEIGHTING_SOFTMAX_THEN_TOP_K = 0
EXPERT_WEIGHTING_TOP_K_THEN_SOFTMAX = 1
EXPERT_WEIGHTING_SIGMOID = 2
MAX_HEAD_DIM = 1024
UNSET_STRIDE = -1
MAX_WEIGHT_SEGMENTS = 4
MAX_HEAD_GROUPS = 4
PAGED_ATTENTION_COUNTERS = 264
MAX_RANKS = 8
MAX_EXPERTS = 1024
MAX_EXPERTS_PER_TOKEN = 32
MAX_CHAIN = 16
MAX_TOP_LOGPROBS = 20
MAX_STEP_GROUPS = 8


class Execution(_Struct):
    __slots__ = ()
    _init_name = "prologue_execution_init"
    _fields_ = [
        ("device", c_int32),
        ("num_threads", c_int32),
        ("stream", c_void_p),
        ("reserved", c_uint64 * 2),
    ]


class FaultRecord(_Struct):
    __slots__ = ()
    _init_name = "prologue_fault_record_init"
    _fields_ = [
        ("first", c_uint64),
        ("count", c_uint64),
    ]


class Fault(_Struct):
    __slots__ = ()
    _init_name = "prologue_fault_init"
    _fields_ = [
        ("code", c_int32),
        ("token", c_int64),
        ("count", c_uint64),
    ]


class HeadsView(_Struct):
    __slots__ = ()
    _init_name = "prologue_heads_view_init"
    _fields_ = [
        ("data", c_void_p),
        ("token_stride", c_int64),
        ("head_stride", c_int64),
    ]


class MutableHeadsView(_Struct):
    __slots__ = ()
    _init_name = "prologue_mutable_heads_view_init"
    _fields_ = [
        ("data", c_void_p),
        ("token_stride", c_int64),
        ("head_stride", c_int64),
    ]


class IndexView(_Struct):
    __slots__ = ()
    _init_name = "prologue_index_view_init"
    _fields_ = [
        ("data", c_void_p),
        ("type", c_int32),
    ]


class PageStrides(_Struct):
    __slots__ = ()
    _init_name = "prologue_page_strides_init"
    _fields_ = [
        ("page", c_int64),
        ("token", c_int64),
        ("head", c_int64),
    ]


class KvFormat(_Struct):
    __slots__ = ()
    _init_name = "prologue_kv_format_init"
    _fields_ = [
        ("type", c_int32),
        ("scaling", c_int32),
    ]


class PagedHeads(_Struct):
    __slots__ = ()
    _init_name = "prologue_paged_heads_init"
    _fields_ = [
        ("data", c_void_p),
        ("head_dim", c_int64),
        ("format", KvFormat),
        ("strides", PageStrides),
        ("scale", c_void_p),
        ("scale_strides", PageStrides),
        ("block_scale", c_void_p),
        ("block_scale_layout", c_int32),
        ("reserved", c_uint64 * 2),
    ]


class PagedKvView(_Struct):
    __slots__ = ()
    _init_name = "prologue_paged_kv_view_init"
    _fields_ = [
        ("k", PagedHeads),
        ("v", PagedHeads),
        ("num_pages", c_int64),
        ("page_size", c_int64),
        ("num_kv_heads", c_int64),
        ("reserved", c_uint64 * 2),
    ]


class PageTable(_Struct):
    __slots__ = ()
    _init_name = "prologue_page_table_init"
    _fields_ = [
        ("block_table", c_void_p),
        ("block_table_stride", c_int64),
        ("max_pages_per_seq", c_int64),
        ("kv_indptr", c_void_p),
        ("kv_indices", c_void_p),
        ("num_kv_indices", c_int64),
        ("kv_last_page_len", c_void_p),
        ("reserved", c_uint64 * 2),
    ]


class RopeColumns(_Struct):
    __slots__ = ()
    _init_name = "prologue_rope_columns_init"
    _fields_ = [
        ("data", c_void_p),
        ("batch_stride", c_int64),
        ("row_stride", c_int64),
        ("column_stride", c_int64),
    ]


class Rope(_Struct):
    __slots__ = ()
    _init_name = "prologue_rope_init"
    _fields_ = [
        ("style", c_int32),
        ("rotary_dim", c_int64),
        ("rotary_offset", c_int64),
        ("num_blocks", c_int64),
        ("inverse", c_int32),
        ("inverse_by_own_sine", c_int32),
        ("source", c_int32),
        ("type", c_int32),
        ("width", c_int32),
        ("cos", RopeColumns),
        ("sin", RopeColumns),
        ("angles", RopeColumns),
        ("inv_freq", c_void_p),
        ("theta", c_double),
        ("attention_factor", c_double),
        ("max_position", c_int64),
        ("past_table", c_int32),
        ("num_axes", c_int64),
        ("pair_axis", c_void_p),
        ("reserved", c_uint64 * 4),
    ]


class PackedRows(_Struct):
    __slots__ = ()
    _init_name = "prologue_packed_rows_init"
    _fields_ = [
        ("data", c_void_p),
        ("format", c_int32),
        ("rows", c_int64),
        ("scaling", c_int32),
    ]


class PackedWeight(_Struct):
    __slots__ = ()
    _init_name = "prologue_packed_weight_init"
    _fields_ = [
        ("num_segments", c_int32),
        ("segments", PackedRows * 4),
        ("reserved", c_uint64 * 2),
    ]


class PackWeightParams(_Struct):
    __slots__ = ()
    _init_name = "prologue_pack_weight_params_init"
    _fields_ = [
        ("format", c_int32),
        ("rows", c_int64),
        ("cols", c_int64),
        ("blocks", c_void_p),
        ("packed", c_void_p),
        ("reserved", c_uint64 * 4),
    ]


class RopeTableParams(_Struct):
    __slots__ = ()
    _init_name = "prologue_rope_table_params_init"
    _fields_ = [
        ("rotary_dim", c_int64),
        ("theta", c_double),
        ("scaling", c_int32),
        ("precision", c_int32),
        ("sequence_length", c_int64),
        ("factor", c_double),
        ("original_max_position", c_int64),
        ("attention_factor", c_double),
        ("beta_fast", c_double),
        ("beta_slow", c_double),
        ("mscale", c_double),
        ("mscale_all_dim", c_double),
        ("truncate", c_int32),
        ("low_freq_factor", c_double),
        ("high_freq_factor", c_double),
        ("partial_rotary_factor", c_double),
        ("short_factors", c_void_p),
        ("long_factors", c_void_p),
        ("short_attention_factor", c_double),
        ("long_attention_factor", c_double),
        ("inv_freq", c_void_p),
        ("freq_factors", c_void_p),
        ("reserved", c_uint64 * 8),
    ]


class RotaryStrides(_Struct):
    __slots__ = ()
    _init_name = "prologue_rotary_strides_init"
    _fields_ = [
        ("batch", c_int64),
        ("token", c_int64),
        ("head", c_int64),
        ("channel", c_int64),
    ]


class RotaryTensor(_Struct):
    __slots__ = ()
    _init_name = "prologue_rotary_tensor_init"
    _fields_ = [
        ("x", c_void_p),
        ("y", c_void_p),
        ("num_heads", c_int64),
        ("x_strides", RotaryStrides),
        ("y_strides", RotaryStrides),
        ("rotate", c_int32),
        ("reserved", c_uint64 * 1),
    ]


class RotaryPositions(_Struct):
    __slots__ = ()
    _init_name = "prologue_rotary_positions_init"
    _fields_ = [
        ("ids", IndexView),
        ("axis_stride", c_int64),
        ("batch_stride", c_int64),
        ("token_stride", c_int64),
        ("offset", c_int64),
        ("offsets", IndexView),
        ("offsets_stride", c_int64),
        ("num_seqs", c_int64),
        ("cu_seqlens", IndexView),
        ("max_seqlen", c_int64),
        ("reserved", c_uint64 * 4),
    ]


class RotaryParams(_Struct):
    __slots__ = ()
    _init_name = "prologue_rotary_params_init"
    _fields_ = [
        ("batch", c_int64),
        ("seq_len", c_int64),
        ("head_dim", c_int64),
        ("dtype", c_int32),
        ("num_tensors", c_int64),
        ("tensors", RotaryTensor * 4),
        ("tail", c_int32),
        ("rope", Rope),
        ("positions", RotaryPositions),
        ("faults", c_void_p),
        ("token_faults", c_void_p),
        ("reserved", c_uint64 * 8),
    ]


class ReropeParams(_Struct):
    __slots__ = ()
    _init_name = "prologue_rerope_params_init"
    _fields_ = [
        ("num_keys", c_int64),
        ("cache", PagedKvView),
        ("rope", Rope),
        ("slot_mapping", IndexView),
        ("from_positions", IndexView),
        ("to_positions", IndexView),
        ("position_axis_stride", c_int64),
        ("hadamard_block", c_int64),
        ("faults", c_void_p),
        ("token_faults", c_void_p),
        ("reserved", c_uint64 * 8),
    ]


class QkvBias(_Struct):
    __slots__ = ()
    _init_name = "prologue_qkv_bias_init"
    _fields_ = [
        ("q", c_void_p),
        ("k", c_void_p),
        ("v", c_void_p),
    ]


class HeadNorm(_Struct):
    __slots__ = ()
    _init_name = "prologue_head_norm_init"
    _fields_ = [
        ("placement", c_int32),
        ("kind", c_int32),
        ("scope", c_int32),
        ("eps", c_float),
        ("weight_offset", c_float),
        ("weight", c_void_p),
        ("weight_head_stride", c_int64),
        ("bias", c_void_p),
        ("weight_type", c_int32),
        ("reserved", c_uint64 * 2),
    ]


class TokenPlaces(_Struct):
    __slots__ = ()
    _init_name = "prologue_token_places_init"
    _fields_ = [
        ("positions", IndexView),
        ("position_axis_stride", c_int64),
        ("slot_mapping", IndexView),
        ("slot_mapping_len", c_int64),
        ("num_seqs", c_int64),
        ("cu_seqlens_q", c_void_p),
        ("cache_lens", c_void_p),
        ("seq_lens", c_void_p),
        ("page_table", PageTable),
        ("ring_size", c_int64),
        ("position_offsets", IndexView),
        ("position_offset_per_seq", c_int32),
        ("reserved", c_uint64 * 4),
    ]


class QueryScale(_Struct):
    __slots__ = ()
    _init_name = "prologue_q_scale_init"
    _fields_ = [
        ("constant", c_float),
        ("by_position", c_int32),
        ("a", c_float),
        ("b", c_float),
        ("reserved", c_uint64 * 2),
    ]


class QuantizedQuery(_Struct):
    __slots__ = ()
    _init_name = "prologue_quantized_query_init"
    _fields_ = [
        ("data", c_void_p),
        ("token_stride", c_int64),
        ("head_stride", c_int64),
        ("scaling", c_int32),
        ("scale", c_void_p),
        ("type", c_int32),
        ("reserved", c_uint64 * 2),
    ]


class HeadGroup(_Struct):
    __slots__ = ()
    _init_name = "prologue_head_group_init"
    _fields_ = [
        ("in", HeadsView),
        ("num_heads", c_int64),
        ("head_dim", c_int64),
        ("bias", c_void_p),
        ("norm", HeadNorm),
        ("rope", Rope),
        ("hadamard_block", c_int64),
        ("constant", c_float),
        ("activation", c_int32),
        ("out", MutableHeadsView),
        ("q8_out", QuantizedQuery),
        ("cache", PagedHeads),
        ("num_pages", c_int64),
        ("page_size", c_int64),
        ("reserved", c_uint64 * 6),
    ]


class AttentionPrologueParams(_Struct):
    __slots__ = ()
    _init_name = "prologue_attention_prologue_params_init"
    _fields_ = [
        ("num_tokens", c_int64),
        ("num_q_heads", c_int64),
        ("num_kv_heads", c_int64),
        ("head_dim", c_int64),
        ("dtype", c_int32),
        ("q", HeadsView),
        ("k", HeadsView),
        ("v", HeadsView),
        ("q_rope", HeadsView),
        ("k_rope", HeadsView),
        ("bias", QkvBias),
        ("q_norm", HeadNorm),
        ("k_norm", HeadNorm),
        ("v_norm", HeadNorm),
        ("rope", Rope),
        ("places", TokenPlaces),
        ("hadamard_block", c_int64),
        ("q_scale", QueryScale),
        ("rounding", c_int32),
        ("q_out", MutableHeadsView),
        ("q8_out", QuantizedQuery),
        ("k_out", MutableHeadsView),
        ("v_out", MutableHeadsView),
        ("cache", PagedKvView),
        ("faults", c_void_p),
        ("token_faults", c_void_p),
        ("k_constant", c_float),
        ("v_constant", c_float),
        ("groups", c_void_p),
        ("num_groups", c_int64),
        ("v_hadamard_block", c_int64),
        ("reserved", c_uint64 * 4),
    ]


class AddBiasParams(_Struct):
    __slots__ = ()
    _init_name = "prologue_add_bias_params_init"
    _fields_ = [
        ("num_tokens", c_int64),
        ("width", c_int64),
        ("dtype", c_int32),
        ("x", c_void_p),
        ("x_stride", c_int64),
        ("bias", c_void_p),
        ("y", c_void_p),
        ("y_stride", c_int64),
        ("reserved", c_uint64 * 4),
    ]


class QkNormParams(_Struct):
    __slots__ = ()
    _init_name = "prologue_qk_norm_params_init"
    _fields_ = [
        ("num_tokens", c_int64),
        ("num_heads", c_int64),
        ("head_dim", c_int64),
        ("dtype", c_int32),
        ("x", HeadsView),
        ("y", MutableHeadsView),
        ("norm", HeadNorm),
        ("positions", IndexView),
        ("reserved", c_uint64 * 4),
    ]


class HadamardParams(_Struct):
    __slots__ = ()
    _init_name = "prologue_hadamard_params_init"
    _fields_ = [
        ("num_tokens", c_int64),
        ("num_heads", c_int64),
        ("head_dim", c_int64),
        ("dtype", c_int32),
        ("x", HeadsView),
        ("y", MutableHeadsView),
        ("block", c_int64),
        ("positions", IndexView),
        ("reserved", c_uint64 * 4),
    ]


class QueryScaleParams(_Struct):
    __slots__ = ()
    _init_name = "prologue_query_scale_params_init"
    _fields_ = [
        ("num_tokens", c_int64),
        ("num_heads", c_int64),
        ("head_dim", c_int64),
        ("dtype", c_int32),
        ("x", HeadsView),
        ("y", MutableHeadsView),
        ("q_scale", QueryScale),
        ("positions", IndexView),
        ("reserved", c_uint64 * 4),
    ]


class KvWriteParams(_Struct):
    __slots__ = ()
    _init_name = "prologue_kv_write_params_init"
    _fields_ = [
        ("num_tokens", c_int64),
        ("num_kv_heads", c_int64),
        ("head_dim", c_int64),
        ("dtype", c_int32),
        ("k", HeadsView),
        ("v", HeadsView),
        ("cache", PagedKvView),
        ("slot_mapping", IndexView),
        ("positions", IndexView),
        ("max_position", c_int64),
        ("faults", c_void_p),
        ("num_axes", c_int64),
        ("position_axis_stride", c_int64),
        ("past_table", c_int32),
        ("slot_mapping_len", c_int64),
        ("reserved", c_uint64 * 4),
    ]


class MlaCachePart(_Struct):
    __slots__ = ()
    _init_name = "prologue_mla_cache_part_init"
    _fields_ = [
        ("data", c_void_p),
        ("format", KvFormat),
        ("page_stride", c_int64),
        ("token_stride", c_int64),
        ("scale", c_void_p),
        ("reserved", c_uint64 * 2),
    ]


class MlaCache(_Struct):
    __slots__ = ()
    _init_name = "prologue_mla_cache_init"
    _fields_ = [
        ("latent", MlaCachePart),
        ("rope", MlaCachePart),
        ("num_pages", c_int64),
        ("page_size", c_int64),
        ("reserved", c_uint64 * 2),
    ]


class MlaPrologueParams(_Struct):
    __slots__ = ()
    _init_name = "prologue_mla_prologue_params_init"
    _fields_ = [
        ("num_tokens", c_int64),
        ("num_q_heads", c_int64),
        ("kv_lora_rank", c_int64),
        ("qk_rope_head_dim", c_int64),
        ("dtype", c_int32),
        ("kv_c", c_void_p),
        ("kv_c_stride", c_int64),
        ("k_pe", c_void_p),
        ("k_pe_stride", c_int64),
        ("q_pe", HeadsView),
        ("kv_c_norm", HeadNorm),
        ("k_pe_norm", HeadNorm),
        ("rope", Rope),
        ("positions", IndexView),
        ("slot_mapping", IndexView),
        ("slot_mapping_len", c_int64),
        ("kv_c_out", c_void_p),
        ("kv_c_out_stride", c_int64),
        ("k_pe_out", c_void_p),
        ("k_pe_out_stride", c_int64),
        ("q_pe_out", MutableHeadsView),
        ("cache", MlaCache),
        ("overlaps", c_bool),
        ("faults", c_void_p),
        ("token_faults", c_void_p),
        ("reserved", c_uint64 * 8),
    ]


class PagedAttentionParams(_Struct):
    __slots__ = ()
    _init_name = "prologue_paged_attention_params_init"
    _fields_ = [
        ("num_tokens", c_int64),
        ("num_seqs", c_int64),
        ("num_q_heads", c_int64),
        ("head_dim", c_int64),
        ("dtype", c_int32),
        ("scale", c_float),
        ("soft_cap", c_float),
        ("window", c_int64),
        ("chunk", c_int64),
        ("ring_size", c_int64),
        ("q", HeadsView),
        ("kv", PagedKvView),
        ("sinks", c_void_p),
        ("sinks_type", c_int32),
        ("page_table", PageTable),
        ("cu_seqlens_q", c_void_p),
        ("seq_lens", c_void_p),
        ("max_seqlen_q", c_int64),
        ("max_seq_len", c_int64),
        ("num_decode_seqs", c_int64),
        ("batch_invariant", c_bool),
        ("past_is_ready", c_bool),
        ("late_signal", c_bool),
        ("early_signal", c_bool),
        ("out", MutableHeadsView),
        ("workspace", c_void_p),
        ("workspace_bytes", c_int64),
        ("counters", c_void_p),
        ("faults", c_void_p),
        ("token_faults", c_void_p),
        ("reserved", c_uint64 * 8),
    ]


class GemmParams(_Struct):
    __slots__ = ()
    _init_name = "prologue_gemm_params_init"
    _fields_ = [
        ("m", c_int64),
        ("n", c_int64),
        ("k", c_int64),
        ("dtype", c_int32),
        ("y_dtype", c_int32),
        ("x", c_void_p),
        ("x_stride", c_int64),
        ("weight", c_void_p),
        ("bias", c_void_p),
        ("y", c_void_p),
        ("y_stride", c_int64),
        ("batch_invariant", c_bool),
        ("packed", PackedWeight),
        ("quantize_x", c_int32),
        ("reserved", c_uint64 * 4),
    ]


class NormParams(_Struct):
    __slots__ = ()
    _init_name = "prologue_norm_params_init"
    _fields_ = [
        ("num_tokens", c_int64),
        ("width", c_int64),
        ("dtype", c_int32),
        ("kind", c_int32),
        ("x", c_void_p),
        ("residual", c_void_p),
        ("weight", c_void_p),
        ("bias", c_void_p),
        ("weight_type", c_int32),
        ("eps", c_float),
        ("out", c_void_p),
        ("reserved", c_uint64 * 4),
    ]


class ActivationParams(_Struct):
    __slots__ = ()
    _init_name = "prologue_activation_params_init"
    _fields_ = [
        ("num_tokens", c_int64),
        ("groups", c_int64),
        ("width", c_int64),
        ("dtype", c_int32),
        ("kind", c_int32),
        ("gated", c_bool),
        ("x", c_void_p),
        ("x_stride", c_int64),
        ("out", c_void_p),
        ("limit", c_float),
        ("alpha", c_float),
        ("reserved", c_uint64 * 4),
    ]


class AddParams(_Struct):
    __slots__ = ()
    _init_name = "prologue_add_params_init"
    _fields_ = [
        ("num_tokens", c_int64),
        ("width", c_int64),
        ("dtype", c_int32),
        ("a", c_void_p),
        ("a_stride", c_int64),
        ("b", c_void_p),
        ("b_stride", c_int64),
        ("out", c_void_p),
        ("out_stride", c_int64),
        ("reserved", c_uint64 * 4),
    ]


class InputNorm(_Struct):
    __slots__ = ()
    _init_name = "prologue_input_norm_init"
    _fields_ = [
        ("given", c_int32),
        ("kind", c_int32),
        ("weight", c_void_p),
        ("bias", c_void_p),
        ("weight_type", c_int32),
        ("eps", c_float),
        ("reserved", c_uint64 * 2),
    ]


class OutputActivation(_Struct):
    __slots__ = ()
    _init_name = "prologue_output_activation_init"
    _fields_ = [
        ("given", c_int32),
        ("kind", c_int32),
        ("gated", c_bool),
        ("limit", c_float),
        ("alpha", c_float),
        ("reserved", c_uint64 * 2),
    ]


class ProjectionParams(_Struct):
    __slots__ = ()
    _init_name = "prologue_projection_params_init"
    _fields_ = [
        ("num_tokens", c_int64),
        ("n", c_int64),
        ("k", c_int64),
        ("dtype", c_int32),
        ("y_dtype", c_int32),
        ("x", c_void_p),
        ("x_stride", c_int64),
        ("norm", InputNorm),
        ("weight", c_void_p),
        ("packed", PackedWeight),
        ("bias", c_void_p),
        ("activation", OutputActivation),
        ("y", c_void_p),
        ("y_stride", c_int64),
        ("adds", c_int32),
        ("batch_invariant", c_bool),
        ("overlaps", c_bool),
        ("workspace", c_void_p),
        ("workspace_bytes", c_int64),
        ("reserved", c_uint64 * 8),
    ]


class QkvPrologueParams(_Struct):
    __slots__ = ()
    _init_name = "prologue_qkv_prologue_params_init"
    _fields_ = [
        ("hidden_size", c_int64),
        ("hidden_states", c_void_p),
        ("hidden_stride", c_int64),
        ("norm", InputNorm),
        ("weight", c_void_p),
        ("packed", PackedWeight),
        ("prologue", AttentionPrologueParams),
        ("batch_invariant", c_bool),
        ("overlaps", c_bool),
        ("workspace", c_void_p),
        ("workspace_bytes", c_int64),
        ("reserved", c_uint64 * 8),
    ]


class AttentionLayerParams(_Struct):
    __slots__ = ()
    _init_name = "prologue_attention_layer_params_init"
    _fields_ = [
        ("hidden_size", c_int64),
        ("hidden_states", c_void_p),
        ("hidden_stride", c_int64),
        ("qkv_weight", c_void_p),
        ("output_weight", c_void_p),
        ("output_bias", c_void_p),
        ("out", c_void_p),
        ("out_stride", c_int64),
        ("prologue", AttentionPrologueParams),
        ("attention", PagedAttentionParams),
        ("workspace", c_void_p),
        ("workspace_bytes", c_int64),
        ("overlaps", c_bool),
        ("reserved", c_uint64 * 7),
    ]


class MoeRouteParams(_Struct):
    __slots__ = ()
    _init_name = "prologue_moe_route_params_init"
    _fields_ = [
        ("num_tokens", c_int64),
        ("num_experts", c_int64),
        ("top_k", c_int64),
        ("dtype", c_int32),
        ("weighting", c_int32),
        ("normalize", c_bool),
        ("logits", c_void_p),
        ("logits_stride", c_int64),
        ("expert_ids", c_void_p),
        ("expert_weights", c_void_p),
        ("reserved", c_uint64 * 4),
    ]


class MoeGemmParams(_Struct):
    __slots__ = ()
    _init_name = "prologue_moe_gemm_params_init"
    _fields_ = [
        ("num_tokens", c_int64),
        ("top_k", c_int64),
        ("num_experts", c_int64),
        ("n", c_int64),
        ("k", c_int64),
        ("dtype", c_int32),
        ("x_per_choice", c_bool),
        ("x", c_void_p),
        ("weight", c_void_p),
        ("packed", PackedWeight),
        ("bias", c_void_p),
        ("expert_ids", c_void_p),
        ("row_scale", c_void_p),
        ("y", c_void_p),
        ("workspace", c_void_p),
        ("workspace_bytes", c_int64),
        ("reserved", c_uint64 * 4),
    ]


class MoeCombineParams(_Struct):
    __slots__ = ()
    _init_name = "prologue_moe_combine_params_init"
    _fields_ = [
        ("num_tokens", c_int64),
        ("top_k", c_int64),
        ("width", c_int64),
        ("dtype", c_int32),
        ("y", c_void_p),
        ("expert_weights", c_void_p),
        ("shared", c_void_p),
        ("out", c_void_p),
        ("reserved", c_uint64 * 4),
    ]


class EmbeddingParams(_Struct):
    __slots__ = ()
    _init_name = "prologue_embedding_params_init"
    _fields_ = [
        ("num_tokens", c_int64),
        ("num_rows", c_int64),
        ("width", c_int64),
        ("dtype", c_int32),
        ("table", c_void_p),
        ("indices", IndexView),
        ("scale", c_float),
        ("out", c_void_p),
        ("faults", c_void_p),
        ("token_faults", c_void_p),
        ("table_format", c_int32),
        ("overlaps", c_bool),
        ("reserved", c_uint64 * 4),
    ]


class GateParams(_Struct):
    __slots__ = ()
    _init_name = "prologue_gate_params_init"
    _fields_ = [
        ("num_tokens", c_int64),
        ("width", c_int64),
        ("dtype", c_int32),
        ("x", c_void_p),
        ("x_stride", c_int64),
        ("gate", c_void_p),
        ("gate_stride", c_int64),
        ("out", c_void_p),
        ("out_stride", c_int64),
        ("reserved", c_uint64 * 4),
    ]


class GatherCosSinParams(_Struct):
    __slots__ = ()
    _init_name = "prologue_gather_cos_sin_params_init"
    _fields_ = [
        ("num_tokens", c_int64),
        ("rotary_dim", c_int64),
        ("max_position", c_int64),
        ("cos_sin", c_void_p),
        ("positions", IndexView),
        ("num_axes", c_int64),
        ("position_axis_stride", c_int64),
        ("pair_axis", c_void_p),
        ("out", c_void_p),
        ("past_table", c_int32),
        ("type", c_int32),
        ("reserved", c_uint64 * 4),
    ]


class ScaleLogitsParams(_Struct):
    __slots__ = ()
    _init_name = "prologue_scale_logits_params_init"
    _fields_ = [
        ("num_rows", c_int64),
        ("width", c_int64),
        ("x", c_void_p),
        ("out", c_void_p),
        ("scale", c_float),
        ("soft_cap", c_float),
        ("reserved", c_uint64 * 4),
    ]


class SamplingRow(_Struct):
    __slots__ = ()
    _init_name = "prologue_sampling_row_init"
    _fields_ = [
        ("temperature", c_float),
        ("top_k", c_int32),
        ("top_p", c_float),
        ("min_p", c_float),
        ("seed", c_uint64),
        ("position", c_int64),
        ("repetition_penalty", c_float),
        ("presence_penalty", c_float),
        ("frequency_penalty", c_float),
        ("chain", c_int32),
        ("counts", c_void_p),
        ("bias", c_void_p),
    ]


class SamplingParams(_Struct):
    __slots__ = ()
    _init_name = "prologue_sampling_params_init"
    _fields_ = [
        ("num_rows", c_int64),
        ("vocab_size", c_int64),
        ("logits", c_void_p),
        ("logits_stride", c_int64),
        ("rows", c_void_p),
        ("tokens", c_void_p),
        ("row_faults", c_void_p),
        ("overlaps", c_bool),
        ("num_tokens", c_int64),
        ("token_ids", c_void_p),
        ("logit_rows", c_void_p),
        ("reserved", c_uint64 * 4),
    ]


class LogprobsParams(_Struct):
    __slots__ = ()
    _init_name = "prologue_logprobs_params_init"
    _fields_ = [
        ("num_rows", c_int64),
        ("vocab_size", c_int64),
        ("logits", c_void_p),
        ("logits_stride", c_int64),
        ("tokens", c_void_p),
        ("top", c_int64),
        ("logprobs", c_void_p),
        ("ids", c_void_p),
        ("reserved", c_uint64 * 4),
    ]


class EndStepGroup(_Struct):
    __slots__ = ()
    _init_name = "prologue_end_step_group_init"
    _fields_ = [
        ("slot_mapping", c_void_p),
        ("block_table", c_void_p),
        ("block_table_stride", c_int64),
        ("max_pages", c_int64),
        ("page_size", c_int64),
        ("num_pages", c_int64),
        ("reserved", c_uint64 * 1),
    ]


class EndStepParams(_Struct):
    __slots__ = ()
    _init_name = "prologue_end_step_params_init"
    _fields_ = [
        ("num_tokens", c_int64),
        ("num_seqs", c_int64),
        ("cu_seqlens_q", c_void_p),
        ("token_faults", c_void_p),
        ("seq_faults", c_void_p),
        ("overlaps", c_bool),
        ("advance", c_int32),
        ("tokens", c_void_p),
        ("token_ids", c_void_p),
        ("positions", c_void_p),
        ("num_position_axes", c_int64),
        ("position_axis_stride", c_int64),
        ("seq_lens", c_void_p),
        ("rows", c_void_p),
        ("num_groups", c_int64),
        ("groups", EndStepGroup * 8),
        ("num_rows", c_int64),
        ("vocab_size", c_int64),
        ("logit_rows", c_void_p),
        ("reserved", c_uint64 * 4),
    ]


class TakeTokensParams(_Struct):
    __slots__ = ()
    _init_name = "prologue_take_tokens_params_init"
    _fields_ = [
        ("num_tokens", c_int64),
        ("num_sampled", c_int64),
        ("from", c_void_p),
        ("tokens", c_void_p),
        ("token_ids", c_void_p),
        ("reserved", c_uint64 * 4),
    ]


class CommunicatorsParams(_Struct):
    __slots__ = ()
    _init_name = "prologue_communicators_params_init"
    _fields_ = [
        ("device", c_int32),
        ("num_ranks", c_int64),
        ("gpus", c_void_p),
        ("wait_seconds", c_double),
        ("use_nccl", c_int32),
        ("use_peer_memory", c_int32),
        ("reserved", c_uint64 * 8),
    ]


class AllReduceParams(_Struct):
    __slots__ = ()
    _init_name = "prologue_all_reduce_params_init"
    _fields_ = [
        ("num_tokens", c_int64),
        ("width", c_int64),
        ("dtype", c_int32),
        ("adds", c_int32),
        ("x", c_void_p),
        ("y", c_void_p),
        ("overlaps", c_bool),
        ("reserved", c_uint64 * 4),
    ]


class AllGatherParams(_Struct):
    __slots__ = ()
    _init_name = "prologue_all_gather_params_init"
    _fields_ = [
        ("num_tokens", c_int64),
        ("width", c_int64),
        ("part_width", c_int64),
        ("dtype", c_int32),
        ("x", c_void_p),
        ("y", c_void_p),
        ("workspace", c_void_p),
        ("workspace_bytes", c_int64),
        ("reserved", c_uint64 * 4),
    ]


STRUCTS = [
    Execution,
    FaultRecord,
    Fault,
    HeadsView,
    MutableHeadsView,
    IndexView,
    PageStrides,
    KvFormat,
    PagedHeads,
    PagedKvView,
    PageTable,
    RopeColumns,
    Rope,
    PackedRows,
    PackedWeight,
    PackWeightParams,
    RopeTableParams,
    RotaryStrides,
    RotaryTensor,
    RotaryPositions,
    RotaryParams,
    ReropeParams,
    QkvBias,
    HeadNorm,
    TokenPlaces,
    QueryScale,
    QuantizedQuery,
    HeadGroup,
    AttentionPrologueParams,
    AddBiasParams,
    QkNormParams,
    HadamardParams,
    QueryScaleParams,
    KvWriteParams,
    MlaCachePart,
    MlaCache,
    MlaPrologueParams,
    PagedAttentionParams,
    GemmParams,
    NormParams,
    ActivationParams,
    AddParams,
    InputNorm,
    OutputActivation,
    ProjectionParams,
    QkvPrologueParams,
    AttentionLayerParams,
    MoeRouteParams,
    MoeGemmParams,
    MoeCombineParams,
    EmbeddingParams,
    GateParams,
    GatherCosSinParams,
    ScaleLogitsParams,
    SamplingRow,
    SamplingParams,
    LogprobsParams,
    EndStepGroup,
    EndStepParams,
    TakeTokensParams,
    CommunicatorsParams,
    AllReduceParams,
    AllGatherParams,
]
# name: (result, arguments, whether the last one is the result in Python)
FUNCTIONS = {
    "status_name": (c_char_p, [c_int32], False),
    "dtype_bits": (c_int64, [c_int32], False),
    "dtype_name": (c_char_p, [c_int32], False),
    "device_name": (c_char_p, [c_int32], False),
    "built_with_cuda": (c_bool, [], False),
    "check_gpu": (c_int32, [], False),
    "fault_code_name": (c_char_p, [c_int32], False),
    "decode_fault": (c_int32, [POINTER(FaultRecord), POINTER(Fault)], True),
    "nhd_strides": (PageStrides, [c_int64, c_int64, c_int64], False),
    "set_cos_sin_table": (c_int32, [POINTER(Rope), c_void_p, c_int32, c_int64], False),
    "set_cos_sin_rows": (c_int32, [POINTER(Rope), c_void_p, c_int32], False),
    "set_cos_and_sin": (c_int32, [POINTER(Rope), c_void_p, c_void_p, c_int32, c_int64, c_int64, c_int32], False),
    "weight_block_elements": (c_int64, [c_int32], False),
    "weight_block_bytes": (c_int64, [c_int32], False),
    "weight_format_name": (c_char_p, [c_int32], False),
    "packed_weight_bytes": (c_int64, [c_int32, c_int64, c_int64], False),
    "pack_weight": (c_int32, [POINTER(PackWeightParams), POINTER(Execution)], False),
    "rope_frequencies": (c_int32, [POINTER(RopeTableParams), c_void_p, c_void_p], False),
    "rope_cos_sin": (c_int32, [POINTER(RopeTableParams), c_int64, c_void_p], False),
    "batch_major_strides": (RotaryStrides, [c_int64, c_int64, c_int64], False),
    "sequence_major_strides": (RotaryStrides, [c_int64, c_int64, c_int64], False),
    "head_major_strides": (RotaryStrides, [c_int64, c_int64, c_int64], False),
    "rotary_validate": (c_int32, [POINTER(RotaryParams)], False),
    "rotary": (c_int32, [POINTER(RotaryParams), POINTER(Execution)], False),
    "rotary_plan_create": (c_int32, [POINTER(RotaryParams), POINTER(Execution), POINTER(c_void_p)], True),
    "rotary_plan_params": (POINTER(RotaryParams), [c_void_p], False),
    "rotary_plan_run": (c_int32, [c_void_p, POINTER(RotaryParams), POINTER(Execution)], False),
    "rotary_plan_workspace_bytes": (c_int64, [], False),
    "rerope": (c_int32, [POINTER(ReropeParams), POINTER(Execution)], False),
    "set_packed_qkv": (c_int32, [POINTER(AttentionPrologueParams), c_void_p, c_int64], False),
    "attention_prologue_validate": (c_int32, [POINTER(AttentionPrologueParams)], False),
    "attention_prologue": (c_int32, [POINTER(AttentionPrologueParams), POINTER(Execution)], False),
    "attention_prologue_plan_create": (c_int32, [POINTER(AttentionPrologueParams), c_int64, POINTER(Execution), POINTER(c_void_p)], True),
    "attention_prologue_plan_run": (c_int32, [c_void_p, POINTER(AttentionPrologueParams), POINTER(Execution)], False),
    "attention_prologue_plan_kernel": (c_char_p, [c_void_p], False),
    "add_bias": (c_int32, [POINTER(AddBiasParams), POINTER(Execution)], False),
    "qk_norm": (c_int32, [POINTER(QkNormParams), POINTER(Execution)], False),
    "hadamard": (c_int32, [POINTER(HadamardParams), POINTER(Execution)], False),
    "query_scale": (c_int32, [POINTER(QueryScaleParams), POINTER(Execution)], False),
    "kv_write": (c_int32, [POINTER(KvWriteParams), POINTER(Execution)], False),
    "set_mla_entries": (c_int32, [POINTER(MlaPrologueParams), c_void_p, c_int32, c_void_p, c_int64, c_int64], False),
    "set_mla_records": (c_int32, [POINTER(MlaPrologueParams), c_void_p, c_int64, c_int64], False),
    "mla_prologue_validate": (c_int32, [POINTER(MlaPrologueParams)], False),
    "mla_prologue": (c_int32, [POINTER(MlaPrologueParams), POINTER(Execution)], False),
    "paged_attention_workspace_bytes": (c_int32, [POINTER(PagedAttentionParams), c_int32, POINTER(c_int64)], True),
    "paged_attention_validate": (c_int32, [POINTER(PagedAttentionParams), c_int32], False),
    "paged_attention": (c_int32, [POINTER(PagedAttentionParams), POINTER(Execution)], False),
    "gemm_context_create": (c_int32, [c_int32, POINTER(c_void_p)], True),
    "gemm_context_device": (c_int32, [c_void_p], False),
    "gemm_validate": (c_int32, [POINTER(GemmParams), c_void_p, POINTER(Execution)], False),
    "gemm": (c_int32, [POINTER(GemmParams), c_void_p, POINTER(Execution)], False),
    "norm": (c_int32, [POINTER(NormParams), POINTER(Execution)], False),
    "activation": (c_int32, [POINTER(ActivationParams), POINTER(Execution)], False),
    "add": (c_int32, [POINTER(AddParams), POINTER(Execution)], False),
    "projection_workspace_bytes": (c_int32, [POINTER(ProjectionParams), POINTER(c_int64)], True),
    "projection_validate": (c_int32, [POINTER(ProjectionParams), c_void_p, POINTER(Execution)], False),
    "projection": (c_int32, [POINTER(ProjectionParams), c_void_p, POINTER(Execution)], False),
    "qkv_prologue_workspace_bytes": (c_int32, [POINTER(QkvPrologueParams), POINTER(c_int64)], True),
    "qkv_prologue_validate": (c_int32, [POINTER(QkvPrologueParams), c_void_p, POINTER(Execution)], False),
    "qkv_prologue": (c_int32, [POINTER(QkvPrologueParams), c_void_p, POINTER(Execution)], False),
    "communicator_device": (c_int32, [c_void_p], False),
    "communicator_rank": (c_int64, [c_void_p], False),
    "communicator_num_ranks": (c_int64, [c_void_p], False),
    "communicator_transport": (c_char_p, [c_void_p], False),
    "communicator_uses_peer_memory": (c_bool, [c_void_p], False),
    "attention_layer_workspace_bytes": (c_int32, [POINTER(AttentionLayerParams), c_int32, POINTER(c_int64)], True),
    "attention_layer": (c_int32, [POINTER(AttentionLayerParams), c_void_p, POINTER(Execution)], False),
    "attention_layer_of_rank": (c_int32, [POINTER(AttentionLayerParams), c_void_p, c_void_p, POINTER(Execution)], False),
    "moe_route": (c_int32, [POINTER(MoeRouteParams), POINTER(Execution)], False),
    "moe_gemm_workspace_bytes": (c_int32, [POINTER(MoeGemmParams), c_int32, POINTER(c_int64)], True),
    "moe_gemm_validate": (c_int32, [POINTER(MoeGemmParams), c_void_p, POINTER(Execution)], False),
    "moe_gemm": (c_int32, [POINTER(MoeGemmParams), c_void_p, POINTER(Execution)], False),
    "moe_combine": (c_int32, [POINTER(MoeCombineParams), POINTER(Execution)], False),
    "embedding": (c_int32, [POINTER(EmbeddingParams), POINTER(Execution)], False),
    "gate": (c_int32, [POINTER(GateParams), POINTER(Execution)], False),
    "gather_cos_sin": (c_int32, [POINTER(GatherCosSinParams), POINTER(Execution)], False),
    "scale_logits": (c_int32, [POINTER(ScaleLogitsParams), POINTER(Execution)], False),
    "sample": (c_int32, [POINTER(SamplingParams), POINTER(Execution)], False),
    "logprobs": (c_int32, [POINTER(LogprobsParams), POINTER(Execution)], False),
    "end_step": (c_int32, [POINTER(EndStepParams), POINTER(Execution)], False),
    "take_tokens": (c_int32, [POINTER(TakeTokensParams), POINTER(Execution)], False),
    "create_communicators": (c_int32, [POINTER(CommunicatorsParams), c_void_p], False),
    "communicator_meet": (c_int32, [c_void_p], False),
    "communicator_abort": (c_int32, [c_void_p, c_char_p], False),
    "communicator_status": (c_int32, [c_void_p], False),
    "all_reduce": (c_int32, [POINTER(AllReduceParams), c_void_p, POINTER(Execution)], False),
    "all_gather_workspace_bytes": (c_int32, [POINTER(AllGatherParams), c_void_p, POINTER(c_int64)], True),
    "all_gather": (c_int32, [POINTER(AllGatherParams), c_void_p, POINTER(Execution)], False),
    "rotary_plan_destroy": (None, [c_void_p], False),
    "attention_prologue_plan_destroy": (None, [c_void_p], False),
    "gemm_context_destroy": (None, [c_void_p], False),
    "communicator_destroy": (None, [c_void_p], False),
}


def status_name(code):
    return _call("status_name", (code,))


def dtype_bits(type):
    return _call("dtype_bits", (type,))


def dtype_name(type):
    return _call("dtype_name", (type,))


def device_name(device):
    return _call("device_name", (device,))


def built_with_cuda():
    return _call("built_with_cuda", ())


def check_gpu():
    _check(_call("check_gpu", ()))


def fault_code_name(code):
    return _call("fault_code_name", (code,))


def decode_fault(record):
    return _call("decode_fault", (record,))


def nhd_strides(page_size, num_kv_heads, head_dim):
    return _call("nhd_strides", (page_size, num_kv_heads, head_dim))


def set_cos_sin_table(rope, table, type, rows):
    _check(_call("set_cos_sin_table", (rope, table, type, rows)))


def set_cos_sin_rows(rope, rows, type):
    _check(_call("set_cos_sin_rows", (rope, rows, type)))


def set_cos_and_sin(rope, cos, sin, type, rows, columns, width):
    _check(_call("set_cos_and_sin", (rope, cos, sin, type, rows, columns, width)))


def weight_block_elements(format):
    return _call("weight_block_elements", (format,))


def weight_block_bytes(format):
    return _call("weight_block_bytes", (format,))


def weight_format_name(format):
    return _call("weight_format_name", (format,))


def packed_weight_bytes(format, rows, cols):
    return _call("packed_weight_bytes", (format, rows, cols))


def pack_weight(params, execution):
    _check(_call("pack_weight", (params, execution)))


def rope_frequencies(params, inv_freq, attention_factor):
    _check(_call("rope_frequencies", (params, inv_freq, attention_factor)))


def rope_cos_sin(params, max_position, cos_sin):
    _check(_call("rope_cos_sin", (params, max_position, cos_sin)))


def batch_major_strides(seq_len, num_heads, head_dim):
    return _call("batch_major_strides", (seq_len, num_heads, head_dim))


def sequence_major_strides(batch, num_heads, head_dim):
    return _call("sequence_major_strides", (batch, num_heads, head_dim))


def head_major_strides(seq_len, num_heads, head_dim):
    return _call("head_major_strides", (seq_len, num_heads, head_dim))


def rotary_validate(params):
    _check(_call("rotary_validate", (params,)))


def rotary(params, execution):
    _check(_call("rotary", (params, execution)))


def rotary_plan_create(params, execution):
    return _call("rotary_plan_create", (params, execution))


def rotary_plan_params(plan):
    return _call("rotary_plan_params", (plan,))


def rotary_plan_run(plan, params, execution):
    _check(_call("rotary_plan_run", (plan, params, execution)))


def rotary_plan_workspace_bytes():
    return _call("rotary_plan_workspace_bytes", ())


def rerope(params, execution):
    _check(_call("rerope", (params, execution)))


def set_packed_qkv(params, qkv, token_stride):
    _check(_call("set_packed_qkv", (params, qkv, token_stride)))


def attention_prologue_validate(params):
    _check(_call("attention_prologue_validate", (params,)))


def attention_prologue(params, execution):
    _check(_call("attention_prologue", (params, execution)))


def attention_prologue_plan_create(params, max_tokens, execution):
    return _call("attention_prologue_plan_create", (params, max_tokens, execution))


def attention_prologue_plan_run(plan, params, execution):
    _check(_call("attention_prologue_plan_run", (plan, params, execution)))


def attention_prologue_plan_kernel(plan):
    return _call("attention_prologue_plan_kernel", (plan,))


def add_bias(params, execution):
    _check(_call("add_bias", (params, execution)))


def qk_norm(params, execution):
    _check(_call("qk_norm", (params, execution)))


def hadamard(params, execution):
    _check(_call("hadamard", (params, execution)))


def query_scale(params, execution):
    _check(_call("query_scale", (params, execution)))


def kv_write(params, execution):
    _check(_call("kv_write", (params, execution)))


def set_mla_entries(params, data, type, scale, page_stride, token_stride):
    _check(_call("set_mla_entries", (params, data, type, scale, page_stride, token_stride)))


def set_mla_records(params, data, page_stride, token_stride):
    _check(_call("set_mla_records", (params, data, page_stride, token_stride)))


def mla_prologue_validate(params):
    _check(_call("mla_prologue_validate", (params,)))


def mla_prologue(params, execution):
    _check(_call("mla_prologue", (params, execution)))


def paged_attention_workspace_bytes(params, device):
    return _call("paged_attention_workspace_bytes", (params, device))


def paged_attention_validate(params, device):
    _check(_call("paged_attention_validate", (params, device)))


def paged_attention(params, execution):
    _check(_call("paged_attention", (params, execution)))


def gemm_context_create(device):
    return _call("gemm_context_create", (device,))


def gemm_context_device(context):
    return _call("gemm_context_device", (context,))


def gemm_validate(params, context, execution):
    _check(_call("gemm_validate", (params, context, execution)))


def gemm(params, context, execution):
    _check(_call("gemm", (params, context, execution)))


def norm(params, execution):
    _check(_call("norm", (params, execution)))


def activation(params, execution):
    _check(_call("activation", (params, execution)))


def add(params, execution):
    _check(_call("add", (params, execution)))


def projection_workspace_bytes(params):
    return _call("projection_workspace_bytes", (params,))


def projection_validate(params, context, execution):
    _check(_call("projection_validate", (params, context, execution)))


def projection(params, context, execution):
    _check(_call("projection", (params, context, execution)))


def qkv_prologue_workspace_bytes(params):
    return _call("qkv_prologue_workspace_bytes", (params,))


def qkv_prologue_validate(params, context, execution):
    _check(_call("qkv_prologue_validate", (params, context, execution)))


def qkv_prologue(params, context, execution):
    _check(_call("qkv_prologue", (params, context, execution)))


def communicator_device(communicator):
    return _call("communicator_device", (communicator,))


def communicator_rank(communicator):
    return _call("communicator_rank", (communicator,))


def communicator_num_ranks(communicator):
    return _call("communicator_num_ranks", (communicator,))


def communicator_transport(communicator):
    return _call("communicator_transport", (communicator,))


def communicator_uses_peer_memory(communicator):
    return _call("communicator_uses_peer_memory", (communicator,))


def attention_layer_workspace_bytes(params, device):
    return _call("attention_layer_workspace_bytes", (params, device))


def attention_layer(params, gemm_context, execution):
    _check(_call("attention_layer", (params, gemm_context, execution)))


def attention_layer_of_rank(params, gemm_context, communicator, execution):
    _check(_call("attention_layer_of_rank", (params, gemm_context, communicator, execution)))


def moe_route(params, execution):
    _check(_call("moe_route", (params, execution)))


def moe_gemm_workspace_bytes(params, device):
    return _call("moe_gemm_workspace_bytes", (params, device))


def moe_gemm_validate(params, context, execution):
    _check(_call("moe_gemm_validate", (params, context, execution)))


def moe_gemm(params, context, execution):
    _check(_call("moe_gemm", (params, context, execution)))


def moe_combine(params, execution):
    _check(_call("moe_combine", (params, execution)))


def embedding(params, execution):
    _check(_call("embedding", (params, execution)))


def gate(params, execution):
    _check(_call("gate", (params, execution)))


def gather_cos_sin(params, execution):
    _check(_call("gather_cos_sin", (params, execution)))


def scale_logits(params, execution):
    _check(_call("scale_logits", (params, execution)))


def sample(params, execution):
    _check(_call("sample", (params, execution)))


def logprobs(params, execution):
    _check(_call("logprobs", (params, execution)))


def end_step(params, execution):
    _check(_call("end_step", (params, execution)))


def take_tokens(params, execution):
    _check(_call("take_tokens", (params, execution)))


def create_communicators(params, communicators):
    _check(_call("create_communicators", (params, communicators)))


def communicator_meet(communicator):
    _check(_call("communicator_meet", (communicator,)))


def communicator_abort(communicator, message):
    _check(_call("communicator_abort", (communicator, message)))


def communicator_status(communicator):
    _check(_call("communicator_status", (communicator,)))


def all_reduce(params, communicator, execution):
    _check(_call("all_reduce", (params, communicator, execution)))


def all_gather_workspace_bytes(params, communicator):
    return _call("all_gather_workspace_bytes", (params, communicator))


def all_gather(params, communicator, execution):
    _check(_call("all_gather", (params, communicator, execution)))


def rotary_plan_destroy(plan):
    return _call("rotary_plan_destroy", (plan,))


def attention_prologue_plan_destroy(plan):
    return _call("attention_prologue_plan_destroy", (plan,))


def gemm_context_destroy(context):
    return _call("gemm_context_destroy", (context,))


def communicator_destroy(communicator):
    return _call("communicator_destroy", (communicator,))
