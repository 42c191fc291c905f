#include <algorithm>
#include <limits>

#include <prologue/kernels/base/divide_up.h>
#include <prologue/kernels/base/str_cat.h>
#include <prologue/kernels/rotary/backends.h>
#include <prologue/kernels/rotary/instances.h>
#include <prologue/kernels/base/device/cuda_launch.cuh>
#include <prologue/kernels/rotary/general_rotary_schedule.cuh>
#include <prologue/kernels/rotary/lean_rotary_schedule.cuh>

namespace prologue::cuda {

namespace {

constexpr const char* kName = "rotary";
constexpr int64_t kMaxGrid = 65535;  // of y and z

template <class T>
constexpr int kWidest = static_cast<int>(16 / sizeof(T));  // vector

// ---- what the data allow ----------------------------------------------------------------------------------------------------

// Every vector of `vector` channels of every tensor is whole and aligned to its size (to at most 16 bytes).
bool vectors_fit(const RotaryParams& p, int64_t vector) {
  const int64_t size = dtype_size(p.dtype);
  const auto aligned = [&](const void* data, const RotaryStrides& s) {
    return reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(vector * size) == 0 && s.channel == 1 &&
           s.batch % vector == 0 && s.token % vector == 0 && s.head % vector == 0;
  };
  const int64_t block_pairs = p.rope.rotary_dim / (2 * p.rope.num_blocks);
  if (block_pairs % vector != 0 || (p.head_dim - p.rope.rotary_dim) % vector != 0) return false;
  if (p.rope.rotary_dim > 0 && p.rope.rotary_offset % vector != 0) return false;
  return std::all_of(p.tensors, p.tensors + p.num_tensors,
                     [&](const RotaryTensor& t) { return aligned(t.x, t.x_strides) && aligned(t.y, t.y_strides); });
}

// 32 bits hold a stride in bytes, for each of `count`.
bool narrow(int64_t stride, int64_t count, int64_t size) {
  return stride <= std::numeric_limits<uint32_t>::max() / size / std::max<int64_t>(count, 1);
}

// Returns the array that positions come from. There may be none.
const IndexView& index_of(const RotaryPositions& q) { return q.ids.data != nullptr ? q.ids : q.offsets; }
int64_t size_of(const IndexView& index) { return index.data != nullptr ? dtype_size(index.type) : 4; }

bool lean(const RotaryParams& p, int64_t vector) {
  const Rope& a = p.rope;
  const RotaryPositions& q = p.positions;
  if (p.rope.rotary_dim == 0 || (a.source != RopeSource::table && a.source != RopeSource::per_token) ||
      a.width != RopeWidth::half || a.attention_factor != 1.0)
    return false;
  if (p.rope.num_blocks != 1 || p.rope.num_axes != 1 || p.batch > kMaxGrid || a.max_position > INT32_MAX) return false;
  if (p.tail != RotaryTail::copy && p.rope.rotary_dim < p.head_dim) return false;
  if (q.cu_seqlens.data != nullptr || q.max_seqlen > 0) return false;
  if (a.past_table == PastTable::identity && a.max_position > 0) return false;
  // Only without a bound would a sum that wraps pass for a position: one of its terms, q.offset, is small.
  if (q.offsets.data != nullptr && a.max_position == 0) return false;
  for (const IndexView* view : {&q.ids, &q.offsets}) {
    if (view->data != nullptr && dtype_size(view->type) < 4) return false;
  }
  const int64_t index_size = size_of(index_of(q));
  const int64_t index_batch = q.ids.data != nullptr ? q.batch_stride : q.offsets_stride;
  if (!narrow(index_batch, 1, index_size) || !narrow(q.token_stride, 1, index_size)) return false;
  const int64_t size = dtype_size(a.type);
  for (const RopeColumns* c : {&a.cos, &a.sin}) {
    const int64_t bytes = std::min<int64_t>(vector * size, 16);
    if (c->column_stride != 1 || !narrow(c->row_stride, 1, size)) return false;
    if (reinterpret_cast<uintptr_t>(c->data) % static_cast<uintptr_t>(bytes) != 0) return false;
    if (c->row_stride * size % bytes != 0 || (p.batch > 1 && c->batch_stride * size % bytes != 0)) return false;
  }
  return std::all_of(p.tensors, p.tensors + p.num_tensors, [&](const RotaryTensor& t) {
    const int64_t element = dtype_size(p.dtype);
    return narrow(t.x_strides.token, 1, element) && narrow(t.y_strides.token, 1, element) &&
           narrow(t.x_strides.head, t.num_heads, element) && narrow(t.y_strides.head, t.num_heads, element);
  });
}

// ---- lean -------------------------------------------------------------------------------------------------------------------

uint32_t bytes_of(int64_t elements, int64_t size) { return static_cast<uint32_t>(elements * size); }

LeanRotaryArgs lean_args(const RotaryParams& p) {
  LeanRotaryArgs args;
  const RotaryPositions& q = p.positions;
  const bool given = q.ids.data != nullptr;
  const IndexView& index = index_of(q);
  const int64_t index_size = size_of(index);
  args.index = static_cast<const char*>(index.data);
  args.index_batch = bytes_of(given ? q.batch_stride : q.offsets_stride, index_size);
  args.index_token = given ? bytes_of(q.token_stride, index_size) : 0;
  args.index_step = static_cast<uint32_t>(index_size);
  args.index_unsigned = index.type >= DType::uint8 ? 1 : 0;
  args.implicit = given ? 0 : 1;
  args.offset = q.offset;
  args.seq_len = static_cast<uint32_t>(p.seq_len);
  const Rope& a = p.rope;
  args.per_token = a.source == RopeSource::per_token ? 1 : 0;
  if (a.max_position > 0) args.last_position = a.max_position - 1;
  args.type = a.type;
  const int64_t table_size = dtype_size(a.type);
  args.cos = static_cast<const char*>(a.cos.data);
  args.sin = static_cast<const char*>(a.sin.data);
  args.cos_row = bytes_of(a.cos.row_stride, table_size);
  args.sin_row = bytes_of(a.sin.row_stride, table_size);
  args.cos_batch = a.cos.batch_stride * table_size;
  args.sin_batch = a.sin.batch_stride * table_size;
  args.inverse = p.rope.inverse ? 1 : 0;
  args.layout = {static_cast<int32_t>(p.head_dim), static_cast<int32_t>(p.rope.rotary_dim),
                 static_cast<int32_t>(p.rope.rotary_offset), p.rope.style};
  const int64_t size = dtype_size(p.dtype);
  for (int64_t i = 0; i < p.num_tensors; ++i) {
    const RotaryTensor& t = p.tensors[i];
    args.tensors[i] = {static_cast<const char*>(t.x),     static_cast<char*>(t.y),
                       bytes_of(t.x_strides.token, size), bytes_of(t.x_strides.head, size),
                       bytes_of(t.y_strides.token, size), bytes_of(t.y_strides.head, size),
                       static_cast<int32_t>(t.num_heads), t.rotate ? 1 : 0};
    args.batches[i] = {t.x_strides.batch * size, t.y_strides.batch * size};
  }
  args.faults = p.faults;
  args.token_faults = p.token_faults;
  return args;
}

int64_t heads_of(const RotaryParams& p) {
  int64_t heads = 0;
  for (int64_t i = 0; i < p.num_tensors; ++i) heads += p.tensors[i].num_heads;
  return heads;
}

int64_t units_of_head(const RotaryParams& p, int64_t vector) {
  return units_of({static_cast<int32_t>(p.head_dim), static_cast<int32_t>(p.rope.rotary_dim)}, vector);
}

// docs/tuning/rotary.md has the measurements behind these.
constexpr int64_t kThreadsOfWholeHeads = 128;        // of a block, where a head has no more
constexpr int64_t kThreadsOfPartialHeads = 64;       // with a tail
constexpr int64_t kEvictedBytes = int64_t{2} << 20;  // that a call reads; fewer stay in the L2 for the next reader
constexpr int64_t kFewTokens = 511;                  // for the general kernel: at most
constexpr int64_t kThreadsOfFewTokens = 192, kThreadsOfManyTokens = 64;

template <class T, RopeStyle kStyle>
auto lean_kernel(bool whole, bool evict_first) {
  constexpr int V = kWidest<T>;
  if (whole) return evict_first ? lean_rotary_kernel<T, V, kStyle, true, true> : lean_rotary_kernel<T, V, kStyle, true, false>;
  return evict_first ? lean_rotary_kernel<T, V, kStyle, false, true> : lean_rotary_kernel<T, V, kStyle, false, false>;
}

// Returns the most tokens of a call whose loads and stores are not marked as evict first.
template <class T>
int64_t tokens_kept(const RotaryParams& p) {
  return kEvictedBytes / (heads_of(p) * p.head_dim * static_cast<int64_t>(sizeof(T)));
}

template <class T>
Status launch_lean(const RotaryParams& p, bool evict_first, cudaStream_t stream) {
  LeanRotaryArgs args = lean_args(p);
  int64_t most = 0;
  for (int64_t i = 0; i < p.num_tensors; ++i) most = std::max(most, p.tensors[i].num_heads);
  const bool whole = p.rope.rotary_dim == p.head_dim;
  const int64_t units = units_of_head(p, kWidest<T>);
  const int64_t rows = std::clamp<int64_t>((whole ? kThreadsOfWholeHeads : kThreadsOfPartialHeads) / units, 1, most);
  int64_t blocks = 0;
  for (int64_t i = 0; i < kMaxRotaryTensors; ++i) {
    args.first_block[i] = i < p.num_tensors ? static_cast<uint32_t>(blocks) : std::numeric_limits<uint32_t>::max();
    if (i < p.num_tensors) blocks += divide_up(p.tensors[i].num_heads, rows);
  }
  const auto kernel = p.rope.style == RopeStyle::neox ? lean_kernel<T, RopeStyle::neox>(whole, evict_first)
                                                      : lean_kernel<T, RopeStyle::interleaved>(whole, evict_first);
  for (int64_t first = 0; first < p.seq_len; first += kMaxGrid) {
    args.first_token = static_cast<uint32_t>(first);
    const int64_t tokens = std::min(p.seq_len - first, kMaxGrid);
    const LaunchShape shape = {dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(tokens), static_cast<unsigned>(p.batch)),
                               dim3(static_cast<unsigned>(units), static_cast<unsigned>(rows))};
    PROLOGUE_RETURN_IF_ERROR(launch(kName, kernel, shape, stream, args));
  }
  return {};
}

// ---- general ----------------------------------------------------------------------------------------------------------------

template <class T, int V>
Status launch_general(const RotaryParams& p, const RotaryFrequencies& frequencies, bool few, cudaStream_t stream) {
  const int64_t units = units_of_head(p, V), heads = heads_of(p);
  const int64_t rows = std::clamp<int64_t>((few ? kThreadsOfFewTokens : kThreadsOfManyTokens) / units, 1, heads);
  const int64_t blocks = few ? std::min(divide_up(heads, 2 * rows), kMaxGrid) : 1;  // two heads a thread, or all
  const LaunchShape shape = {
      dim3(static_cast<unsigned>(p.seq_len), static_cast<unsigned>(blocks), static_cast<unsigned>(std::min(p.batch, kMaxGrid))),
      dim3(static_cast<unsigned>(units), static_cast<unsigned>(rows)),
      static_cast<size_t>(2 * p.rope.rotary_dim) * sizeof(RotaryArithmetic<T>)};
  return launch(kName, general_rotary_kernel<T, V>, shape, stream, p, frequencies);
}

// Finds the widest vectors that fit, from V down. One block has a thread for each unit of a head.
template <class T, int V>
Status launch_widest(const RotaryParams& p, const RotaryFrequencies& frequencies, cudaStream_t stream) {
  if constexpr (V > 1) {
    if (!vectors_fit(p, V)) return launch_widest<T, V / 2>(p, frequencies, stream);
  }
  return launch_general<T, V>(p, frequencies, p.batch * p.seq_len <= kFewTokens, stream);
}

template <class T>
bool runs_lean(const RotaryParams& p) {
  return vectors_fit(p, kWidest<T>) && lean(p, kWidest<T>);
}

template <class F>
auto with_type(DType type, const F& f) {
  switch (type) {
    case DType::f32: return f(float());
    case DType::f16: return f(__half());
    case DType::bf16: return f(__nv_bfloat16());
    default: return f(double());
  }
}

// ---- the list of instances --------------------------------------------------------------------------------------------------

constexpr int64_t kAnyTokens = std::numeric_limits<int64_t>::max();

std::string lean_name(DType dtype, RopeStyle style, bool whole, bool evict_first) {
  return str_cat(dtype_name(dtype), " lean ", rope_style_name(style), whole ? ", whole heads" : ", partial heads",
                 evict_first ? ", evict first" : "");
}

std::string general_name(DType dtype, int64_t vector, bool few) {
  return str_cat(dtype_name(dtype), " general, ", vector, " channels", few ? ", few tokens" : "");
}

template <class T, int V>
void add_general(const RotaryParams& p, const RotaryFrequencies& frequencies, std::vector<KernelInstance<RotaryParams>>& list) {
  if (V == 1 || vectors_fit(p, V)) {
    for (const bool few : {true, false}) {
      list.push_back(
          {general_name(p.dtype, V, few), few ? kFewTokens : kAnyTokens,
           [=](const RotaryParams& call, cudaStream_t stream) { return launch_general<T, V>(call, frequencies, few, stream); }});
    }
  }
  if constexpr (V > 1) add_general<T, V / 2>(p, frequencies, list);
}

}  // namespace

Status rotary(const RotaryParams& p, const RotaryFrequencies& frequencies, const Execution& execution) {
  return with_type(p.dtype, [&](auto type) {
    using T = decltype(type);
    if (runs_lean<T>(p)) return launch_lean<T>(p, p.batch * p.seq_len > tokens_kept<T>(p), execution.stream);
    return launch_widest<T, kWidest<T>>(p, frequencies, execution.stream);
  });
}

std::vector<KernelInstance<RotaryParams>> instances_of(const RotaryParams& params) {
  RotaryFrequencies frequencies;
  compute_frequencies(params.rope, frequencies);
  std::vector<KernelInstance<RotaryParams>> list;
  with_type(params.dtype, [&](auto type) {
    using T = decltype(type);
    for (const bool evict_first : {false, true}) {
      if (!runs_lean<T>(params)) break;
      list.push_back({lean_name(params.dtype, params.rope.style, params.rope.rotary_dim == params.head_dim, evict_first),
                      evict_first ? kAnyTokens : tokens_kept<T>(params),
                      [=](const RotaryParams& call, cudaStream_t stream) { return launch_lean<T>(call, evict_first, stream); }});
    }
    add_general<T, kWidest<T>>(params, frequencies, list);
  });
  return list;
}

std::vector<std::string> rotary_instances() {
  std::vector<std::string> names;
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::f64}) {
    for (const RopeStyle style : {RopeStyle::neox, RopeStyle::interleaved}) {
      for (const bool whole : {true, false}) {
        for (const bool evict_first : {false, true}) names.push_back(lean_name(dtype, style, whole, evict_first));
      }
    }
    for (int64_t vector = 16 / dtype_size(dtype); vector > 0; vector /= 2) {
      for (const bool few : {true, false}) names.push_back(general_name(dtype, vector, few));
    }
  }
  return names;
}

}  // namespace prologue::cuda
