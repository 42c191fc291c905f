#include <algorithm>
#include <array>
#include <initializer_list>
#include <limits>

#include <prologue/kernels/attention_prologue/attention_prologue.h>
#include <prologue/kernels/attention_prologue/attention_prologue_kernel.cuh>
#include <prologue/kernels/base/cuda_launch.cuh>

namespace prologue::cuda {

Status attention_prologue(const AttentionPrologueParams& params, cudaStream_t stream);

namespace {

using Kernel = void (*)(PrologueArgs);

struct Instance {
  DType dtype;
  int vector;  // channels in one access
  bool bias;
  int64_t max_tokens;  // the first instance that fits is taken
  int units;           // heads per thread
  Kernel kernel;
};

constexpr int64_t kAnyTokens = std::numeric_limits<int64_t>::max();

template <class T, int V, bool kBias, int kUnits, int kHints>
constexpr Instance instance(DType dtype, int64_t max_tokens) {
  return {dtype, V, kBias, max_tokens, kUnits, attention_prologue_kernel<T, V, kUnits, kHints, kBias>};
}

template <size_t... kSizes>
constexpr auto join(const std::array<Instance, kSizes>&... parts) {
  std::array<Instance, (kSizes + ...)> all{};
  auto* next = all.data();
  ((next = std::copy(parts.begin(), parts.end(), next)), ...);
  return all;
}

// Few tokens are a matter of latency: a head per thread, everything in flight at once. Many are a matter of bandwidth: a thread
// keeps its cos and sin for three heads, and streaming hints pay as long as the L2 holds what is written.
template <class T, int V, bool kBias>
constexpr std::array<Instance, 4> wide(DType dtype) {
  return {{instance<T, V, kBias, 1, kStreamLoads>(dtype, 128), instance<T, V, kBias, 3, kStreamLoads>(dtype, 1536),
           instance<T, V, kBias, 3, kStreamLoads | kStreamStores>(dtype, 4096),
           instance<T, V, kBias, 3, kStreamNothing>(dtype, kAnyTokens)}};
}

// Narrow accesses, for data that lies at odd places: one mapping.
template <class T, int V, bool kBias>
constexpr std::array<Instance, 1> narrow_access(DType dtype) {
  return {{instance<T, V, kBias, 1, kStreamNothing>(dtype, kAnyTokens)}};
}

template <bool kBias>
constexpr auto float32_instances() {
  constexpr DType type = DType::f32;
  return join(wide<float, 4, kBias>(type), wide<float, 2, kBias>(type), narrow_access<float, 1, kBias>(type));
}

template <class T, bool kBias>
constexpr auto float16_instances(DType type) {
  return join(wide<T, 8, kBias>(type), wide<T, 4, kBias>(type), narrow_access<T, 2, kBias>(type),
              narrow_access<T, 1, kBias>(type));
}

const auto kInstances =
    join(float32_instances<false>(), float32_instances<true>(),                                      //
         float16_instances<__half, false>(DType::f16), float16_instances<__half, true>(DType::f16),  //
         float16_instances<__nv_bfloat16, false>(DType::bf16), float16_instances<__nv_bfloat16, true>(DType::bf16));

const Instance* find_instance(DType dtype, int64_t vector, bool bias, int64_t num_tokens) {
  for (const Instance& candidate : kInstances) {
    if (candidate.dtype == dtype && candidate.vector == vector && candidate.bias == bias && num_tokens <= candidate.max_tokens) {
      return &candidate;
    }
  }
  return nullptr;
}

// The widest vector (in channels) that fits every pointer, stride and channel count.
int64_t vector_for(const AttentionPrologueParams& p) {
  const int64_t size = dtype_size(p.dtype);
  const auto fits = [&](int64_t vector) {
    bool ok = (p.rotation.rotary_dim / 2) % vector == 0 && (p.head_dim - p.rotation.rotary_dim) % vector == 0;
    const auto pointers = [&](std::initializer_list<const void*> list, int64_t bytes) {
      for (const void* data : list) ok = ok && reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(bytes) == 0;
    };
    const auto strides = [&](std::initializer_list<int64_t> list) {
      for (const int64_t stride : list) ok = ok && stride % vector == 0;
    };
    if (p.num_q_heads > 0) {
      pointers({p.q.data, p.bias.q, p.q_out.data}, vector * size);
      strides({p.q.token_stride, p.q.head_stride, p.q_out.token_stride, p.q_out.head_stride});
    }
    if (p.num_kv_heads > 0) {
      pointers({p.k.data, p.v.data, p.bias.k, p.bias.v, p.cache.k, p.cache.v}, vector * size);
      strides({p.k.token_stride, p.k.head_stride, p.v.token_stride, p.v.head_stride});
      for (const PageStrides& s : {p.cache.k_strides, p.cache.v_strides}) strides({s.page, s.token, s.head});
    }
    if (p.rotation.rotary_dim > 0) pointers({p.rotation.cos_sin_cache}, std::min<int64_t>(4 * vector, 16));
    return ok;
  };
  int64_t vector = 16 / size;
  while (vector > 1 && !fits(vector)) vector /= 2;
  return vector;
}

PrologueArgs make_args(const AttentionPrologueParams& p) {
  PrologueArgs args;
  args.positions = p.rotation.positions;
  args.slots = p.slot_mapping;
  args.cos_sin_cache = p.rotation.cos_sin_cache;
  args.max_position = p.rotation.max_position;
  args.num_slots = p.cache.num_slots();
  args.page_size = static_cast<uint32_t>(p.cache.page_size);
  args.num_q_heads = static_cast<int32_t>(p.num_q_heads);
  const PageStrides& k = p.cache.k_strides;
  const PageStrides& v = p.cache.v_strides;
  args.tensors[0] = {p.q.data, p.q.token_stride,     p.q.head_stride,    p.bias.q, p.q_out.data,
                     0,        p.q_out.token_stride, p.q_out.head_stride};
  args.tensors[1] = {p.k.data, p.k.token_stride, p.k.head_stride, p.bias.k, p.cache.k, k.page, k.token, k.head};
  args.tensors[2] = {p.v.data, p.v.token_stride, p.v.head_stride, p.bias.v, p.cache.v, v.page, v.token, v.head};
  args.faults = p.faults;
  args.num_kv_heads = static_cast<int32_t>(p.num_kv_heads);
  args.head_dim = static_cast<int32_t>(p.head_dim);
  args.rotary_dim = static_cast<int32_t>(p.rotation.rotary_dim);
  args.style = p.rotation.style;
  return args;
}

int64_t ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

Status attention_prologue(const AttentionPrologueParams& p, cudaStream_t stream) {
  const int64_t vector = vector_for(p);
  const bool bias = p.bias.q != nullptr || p.bias.k != nullptr || p.bias.v != nullptr;
  const Instance* instance = find_instance(p.dtype, vector, bias, p.num_tokens);
  if (instance == nullptr) {
    return unsupported("attention_prologue: no CUDA kernel for ", dtype_name(p.dtype), " in vectors of ", vector,
                       ": shipped are float32 in 4, 2, 1 and float16 and bfloat16 in 8, 4, 2, 1");
  }
  // The rows of a token (its q, k and v heads) go evenly over as few blocks as kMaxThreads allow.
  const int64_t units = units_of_head(p.head_dim, p.rotation.rotary_dim, vector);
  const int64_t rows = p.num_q_heads + 2 * p.num_kv_heads;
  const int64_t max_rows = std::max<int64_t>(kMaxThreads / units, 1);
  const int64_t blocks = ceil_divide(rows, max_rows * instance->units);
  const int64_t rows_per_block = ceil_divide(rows, blocks * instance->units);
  const dim3 grid(static_cast<unsigned>(p.num_tokens), static_cast<unsigned>(blocks));
  const dim3 block(static_cast<unsigned>(units), static_cast<unsigned>(rows_per_block));
  return launch("attention_prologue", instance->kernel, {grid, block}, stream, make_args(p));
}

}  // namespace prologue::cuda
