#include <algorithm>
#include <bit>
#include <compare>
#include <map>
#include <optional>
#include <vector>

#include <prologue/kernels/base/divide_up.h>
#include <prologue/kernels/base/gpu.h>
#include <prologue/kernels/base/memory.h>
#include <prologue/kernels/gemm/backends.h>
#include <prologue/kernels/gemm/float8.h>
#include <prologue/kernels/gemm/unpack.h>
#include <prologue/kernels/base/device/cuda_launch.cuh>
#include <prologue/kernels/base/device/cuda_types.cuh>
#include <prologue/kernels/gemm/cublaslt.cuh>

namespace prologue::cuda {

namespace {

// ---------------------------------------------------------------------------------------------------------------------
// Our own kernels, for the few cases that cuBLASLt does not cover

constexpr int kAddBiasThreads = 256;

// cuBLASLt adds a bias of y's type only, so the bias of 16-bit inputs is added to a float32 y here. A thread has one column.
__global__ void add_bias_kernel(float* y, int64_t y_stride, const void* bias, DType bias_dtype, int64_t m, int64_t n) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kAddBiasThreads + threadIdx.x;
  if (column >= n) return;
  const float value = load_element(bias_dtype, bias, column);
  for (int64_t row = blockIdx.y; row < m; row += gridDim.y) y[row * y_stride + column] += value;
}

constexpr int kPlainTile = 64;
constexpr int kPlainDepth = 16;
constexpr int kPlainThreads = 256;

// Takes any shape, stride and alignment, for calls that cuBLASLt cannot do or must not do. A block has 64 x 64 of y; thread (i, j) of 16 x
// 16 has the rows i + 16 a and the columns j + 16 b of it. An element's products are added one after another, whatever M is.
__global__ void __launch_bounds__(kPlainThreads) plain_gemm_kernel(const __grid_constant__ GemmParams p) {
  __shared__ float x[kPlainDepth][kPlainTile + 1];
  __shared__ float weight[kPlainDepth][kPlainTile + 1];
  const int64_t first_row = static_cast<int64_t>(blockIdx.y) * kPlainTile;
  const int64_t first_column = static_cast<int64_t>(blockIdx.x) * kPlainTile;
  const int i = threadIdx.x / 16;
  const int j = threadIdx.x % 16;
  float sum[4][4] = {};
  for (int64_t first_k = 0; first_k < p.k; first_k += kPlainDepth) {
    for (int e = threadIdx.x; e < kPlainTile * kPlainDepth; e += kPlainThreads) {
      const int line = e / kPlainDepth;
      const int64_t k = first_k + e % kPlainDepth;
      const int64_t row = first_row + line;
      const int64_t column = first_column + line;
      x[e % kPlainDepth][line] = row < p.m && k < p.k ? load_element(p.dtype, p.x, row * p.x_stride + k) : 0.0f;
      weight[e % kPlainDepth][line] = column < p.n && k < p.k ? load_element(p.dtype, p.weight, column * p.k + k) : 0.0f;
    }
    __syncthreads();
    const int depth = static_cast<int>(min(static_cast<int64_t>(kPlainDepth), p.k - first_k));
    for (int k = 0; k < depth; ++k) {
#pragma unroll
      for (int a = 0; a < 4; ++a) {
#pragma unroll
        for (int b = 0; b < 4; ++b) sum[a][b] = fmaf(x[k][i + 16 * a], weight[k][j + 16 * b], sum[a][b]);
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int a = 0; a < 4; ++a) {
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      const int64_t row = first_row + i + 16 * a;
      const int64_t column = first_column + j + 16 * b;
      if (row >= p.m || column >= p.n) continue;
      const float bias = p.bias == nullptr ? 0.0f : load_element(p.dtype, p.bias, column);
      store_element(p.y_dtype, p.y, row * p.y_stride + column, p.bias == nullptr ? sum[a][b] : sum[a][b] + bias);
    }
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// cuBLASLt

cudaDataType_t cuda_type(DType type) {
  switch (type) {
    case DType::f16: return CUDA_R_16F;
    case DType::bf16: return CUDA_R_16BF;
    default: return CUDA_R_32F;
  }
}

// Returns the largest power of two up to 16 that divides the address of every row: the alignment that a kernel may assume.
uint32_t row_alignment(const void* data, int64_t row_bytes) {
  const uint64_t bits = reinterpret_cast<uintptr_t>(data) | static_cast<uint64_t>(row_bytes) | 16u;
  return 1u << std::countr_zero(bits);
}

bool rows_are_aligned(const GemmParams& p) {
  return row_alignment(p.x, p.x_stride * dtype_size(p.dtype)) == 16 && row_alignment(p.weight, p.k * dtype_size(p.dtype)) == 16 &&
         row_alignment(p.y, p.y_stride * dtype_size(p.y_dtype)) == 16 && row_alignment(p.bias, 0) == 16;
}

bool multiplies_float8(const GemmParams& p) { return p.quantize_x == DType::fp8_e4m3; }

// cuBLASLt adds a bias of y's type only; to a float32 product of float8 one in bfloat16 only.
bool bias_in_epilogue(const GemmParams& p) {
  return p.bias != nullptr && p.dtype == p.y_dtype && !(multiplies_float8(p) && p.y_dtype == DType::f32);
}

// Whether a call must not go to cuBLASLt: an empty sum (y = bias or 0), and a 16-bit y with a bias and rows that are not aligned: for those
// it rounds the product, then adds the bias and rounds again (seen with 13.0, bfloat16).
bool needs_plain_kernel(const GemmParams& p) {
  return p.k == 0 || (bias_in_epilogue(p) && p.y_dtype != DType::f32 && !rows_are_aligned(p));
}

// cuBLASLt has scales of rows and blocks since 12.9.
#define PROLOGUE_HAS_FLOAT8_SCALES (CUBLAS_VERSION >= 120900)
constexpr size_t kFirstCublasLtWithScales = 120900;

// Whether products of float8 with one scale for each row are added up in the tensor cores' accumulators all along k, as vLLM and PyTorch do it, or
// moved to float32 now and then. Scales for each 128 channels leave no choice: their sums are.
constexpr bool kFastAccumulation = true;

// A batch-invariant product runs with one algorithm for every m: the one chosen for this m. Measured for m = 1 and 64 (H200, bfloat16, n, k =
// 6144, 4096): 18.7 and 15.7 us; chosen for m = 16: 16.2 and 32.2; for 512: 40.5 and 33.7.
constexpr int64_t kRepresentativeRows = 64;

// Holds what the choice of an algorithm depends on.
struct PlanKey {
  int64_t m_bucket;  // m rounded up to a power of two, or kRepresentativeRows
  int64_t n;
  int64_t k;
  DType dtype;
  DType y_dtype;
  bool bias;
  uint32_t x_alignment;
  uint32_t weight_alignment;
  uint32_t y_alignment;
  uint32_t bias_alignment;
  bool batch_invariant;
  bool packed;
  bool float8;
  WeightScaling scaling;  // of float8
  int64_t x_stride;       // of a batch-invariant product, and
  int64_t y_stride;       // otherwise 0: for those the first call with this key decides

  auto operator<=>(const PlanKey&) const = default;
};

bool is_packed(const GemmParams& p) { return p.packed.num_segments > 0; }

PlanKey plan_key(const GemmParams& p, const Float8Product* float8) {
  const int64_t size = dtype_size(p.dtype);
  const bool bias = bias_in_epilogue(p);
  return {p.batch_invariant ? kRepresentativeRows : static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(p.m))),
          p.n,
          p.k,
          p.dtype,
          p.y_dtype,
          bias,
          row_alignment(p.x, p.x_stride * size),
          row_alignment(p.weight, p.k * size),
          row_alignment(p.y, p.y_stride * dtype_size(p.y_dtype)),
          bias ? row_alignment(p.bias, 0) : 16,
          p.batch_invariant,
          is_packed(p),
          float8 != nullptr,
          float8 != nullptr ? float8->scaling : WeightScaling::blocks,
          p.batch_invariant ? p.x_stride : 0,
          p.batch_invariant ? p.y_stride : 0};
}

// A batch-invariant product has room for the counter of tiles that kernels for many rows need (4 bytes, cuBLASLt 13.0), and none for the sums
// of parts of k.
// cuBLASLt has 32 MiB of the workspace. With packed weights it has 16, and 48 are for those that are made dense, or put into rows: products of so
// many rows keep most SMs busy. The last 32 are for quantised x: 2269 rows of 14336 channels.
constexpr int64_t kUnpackedBytes = int64_t{48} << 20, kCublasLtBytes = int64_t{32} << 20,
                  kPackedCublasLtBytes = int64_t{16} << 20;
constexpr int64_t kQuantizedXBytes = kGemmWorkspaceBytes - kPackedCublasLtBytes - kUnpackedBytes;
int64_t workspace_bytes(bool batch_invariant, bool packed) {
  if (batch_invariant) return 16;
  return packed ? kPackedCublasLtBytes : kCublasLtBytes;
}

// Whether every element of y is one sum, made by one block: no split of k.
bool makes_whole_sums(const CublasLt& lt, const cublasLtMatmulAlgo_t& algorithm) {
  int32_t splits = 0;
  uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_MASK;
  size_t written = 0;
  return lt.algorithm_attribute(&algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &splits, sizeof splits, &written) ==
             CUBLAS_STATUS_SUCCESS &&
         splits <= 1 &&
         lt.algorithm_attribute(&algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme, sizeof scheme, &written) ==
             CUBLAS_STATUS_SUCCESS &&
         scheme == CUBLASLT_REDUCTION_SCHEME_NONE;
}

// If it is empty, cuBLASLt has no algorithm: plain_gemm_kernel runs.
using Algorithm = std::optional<cublasLtMatmulAlgo_t>;

struct Plan {
  Algorithm of_bucket;
  int64_t m = 0;  // the last m that ran, and what is valid for it
  Algorithm of_m;
};

class CudaGemmContext final : public GemmContext {
 public:
  explicit CudaGemmContext(const CublasLt& functions) : GemmContext(Device::cuda), lt(functions) {}
  ~CudaGemmContext() override {
    if (handle != nullptr) lt.destroy(handle);
  }

  const CublasLt lt;
  cublasLtHandle_t handle = nullptr;
  using GemmContext::workspace;  // shared by all calls: the context serves one stream at a time
  Buffer own_workspace;
  std::map<PlanKey, Plan> plans;
};

template <class... Parts>
Status cublas_error(const CublasLt& lt, cublasStatus_t status, const Parts&... parts) {
  cudaGetLastError();  // cuda_launch.cuh says why
  return device_error(parts..., ": cuBLASLt says ", lt.status_name(status), " (", lt.status_string(status), ")");
}

// Describes the product as cuBLASLt sees it: its matrices are column-major, so y^T [n, m] = weight^T-of-[k, n] times x^T [k, m].
class Problem {
 public:
  // `float8`: x and weight are codes, with its scales.
  static Result<Problem> make(const CublasLt& lt, const GemmParams& p, int64_t m, const Float8Product* float8 = nullptr) {
    Problem problem;
    const cublasStatus_t status = problem.describe(lt, p, m, float8);
    if (status != CUBLAS_STATUS_SUCCESS) return cublas_error(lt, status, "gemm: describing m, n, k = ", m, ", ", p.n, ", ", p.k);
    return problem;
  }

  // Chooses the best algorithm that suits by heuristic, never by timing, so that two runs choose the same one.
  template <class F>
  Algorithm choose(CudaGemmContext& context, const PlanKey& key, const F& suits) {
    cublasLtMatmulPreferenceOpaque_t preference;
    context.lt.init_preference(&preference, sizeof preference);
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      context.lt.set_preference(&preference, attribute, &value, sizeof value);
    };
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(workspace_bytes(key.batch_invariant, key.packed)));
    // Partial sums stay float32, so y is rounded once.
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        static_cast<uint32_t>(key.batch_invariant ? CUBLASLT_REDUCTION_SCHEME_NONE : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.weight_alignment);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.x_alignment);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.y_alignment);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.y_alignment);
    cublasLtMatmulHeuristicResult_t found[8];
    int count = 0;
    if (context.lt.heuristic(context.handle, &operation_, &weight_, &x_, &y_, &y_, &preference, std::size(found), found,
                             &count) != CUBLAS_STATUS_SUCCESS) {
      return {};
    }
    const auto first = std::find_if(
        found, found + count, [&](const auto& result) { return result.state == CUBLAS_STATUS_SUCCESS && suits(result.algo); });
    if (first == found + count) return {};
    return first->algo;
  }

  Algorithm choose(CudaGemmContext& context, const PlanKey& key) {
    return choose(context, key, [](const cublasLtMatmulAlgo_t&) { return true; });
  }

  bool accepts(CudaGemmContext& context, const cublasLtMatmulAlgo_t& algorithm, const PlanKey& key) {
    cublasLtMatmulHeuristicResult_t result;
    return context.lt.check_algorithm(context.handle, &operation_, &weight_, &x_, &y_, &y_, &algorithm, &result) ==
               CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= static_cast<size_t>(workspace_bytes(key.batch_invariant, key.packed));
  }

  Status run(CudaGemmContext& context, const GemmParams& p, const cublasLtMatmulAlgo_t& algorithm, cudaStream_t stream) {
    const float one = 1.0f;
    const float zero = 0.0f;
    const cublasStatus_t status =
        context.lt.matmul(context.handle, &operation_, &one, p.weight, &weight_, p.x, &x_, &zero, p.y, &y_, p.y, &y_, &algorithm,
                          context.workspace(), static_cast<size_t>(workspace_bytes(p.batch_invariant, is_packed(p))), stream);
    if (status == CUBLAS_STATUS_SUCCESS) return {};
    return cublas_error(context.lt, status, "gemm: m, n, k = ", p.m, ", ", p.n, ", ", p.k, ", ", dtype_name(p.dtype), " to ",
                        dtype_name(p.y_dtype));
  }

 private:
  cublasStatus_t describe(const CublasLt& lt, const GemmParams& p, int64_t m, const Float8Product* float8) {
    cublasStatus_t status = lt.init_operation(&operation_, sizeof operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
      if (status != CUBLAS_STATUS_SUCCESS) return;
      status = lt.set_operation(&operation_, attribute, &value, sizeof value);
    };
    set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
    if (bias_in_epilogue(p)) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
    }
    if (float8 != nullptr) {
#if PROLOGUE_HAS_FLOAT8_SCALES
      const bool rows = float8->scaling == WeightScaling::rows, squares = float8->scaling == WeightScaling::squares;
      const auto x_mode = rows ? CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F : CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
      set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, squares ? CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F : x_mode);
      set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, x_mode);
      set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, float8->weight_scales);
      set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, float8->x_scales);
      set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<int8_t>(rows && kFastAccumulation ? 1 : 0));
#else
      return CUBLAS_STATUS_NOT_SUPPORTED;
#endif
    }
    const cudaDataType_t input = float8 != nullptr ? CUDA_R_8F_E4M3 : cuda_type(p.dtype);
    const auto lay_out = [&](cublasLtMatrixLayoutOpaque_t& layout, cudaDataType_t type, int64_t rows, int64_t columns,
                             int64_t stride) {
      if (status != CUBLAS_STATUS_SUCCESS) return;
      status = lt.init_layout(&layout, sizeof layout, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), stride);
    };
    lay_out(weight_, input, p.k, p.n, p.k);
    lay_out(x_, input, p.k, m, p.x_stride);
    lay_out(y_, cuda_type(p.y_dtype), p.n, m, p.y_stride);
    return status;
  }

  cublasLtMatmulDescOpaque_t operation_;
  cublasLtMatrixLayoutOpaque_t weight_;
  cublasLtMatrixLayoutOpaque_t x_;
  cublasLtMatrixLayoutOpaque_t y_;
};

// Returns the best algorithm that makes whole sums and is valid for small, middle and large m, odd ones among them. Host work only.
Result<Algorithm> choose_for_every_m(CudaGemmContext& context, const GemmParams& p, const PlanKey& key) {
  std::vector<Problem> samples;
  for (const int64_t m : {1, 2, 3, 4, 5, 8, 15, 16, 17, 31, 32, 33, 64, 65, 127, 128, 256, 511, 1000, 4096, 32768}) {
    PROLOGUE_ASSIGN_OR_RETURN(const Problem sample, Problem::make(context.lt, p, m));
    samples.push_back(sample);
  }
  PROLOGUE_ASSIGN_OR_RETURN(Problem representative, Problem::make(context.lt, p, key.m_bucket));
  return representative.choose(context, key, [&](const cublasLtMatmulAlgo_t& algorithm) {
    return makes_whole_sums(context.lt, algorithm) &&
           std::all_of(samples.begin(), samples.end(), [&](Problem& sample) { return sample.accepts(context, algorithm, key); });
  });
}

// Returns the algorithm for m rows. A batch-invariant product always has the same one; if it is not valid for m, the result is an error:
// another one, or plain_gemm_kernel, would give other bits. For other products it is the bucket's algorithm if
// that is valid for m itself, or else the heuristic's choice for m. This is host work only.
Result<Algorithm> algorithm_for(CudaGemmContext& context, const GemmParams& p, Problem& problem,
                                const Float8Product* float8 = nullptr) {
  const PlanKey key = plan_key(p, float8);
  auto found = context.plans.find(key);
  if (found == context.plans.end()) {
    Algorithm chosen;
    if (p.batch_invariant) {
      PROLOGUE_ASSIGN_OR_RETURN(chosen, choose_for_every_m(context, p, key));
    } else {
      PROLOGUE_ASSIGN_OR_RETURN(Problem representative, Problem::make(context.lt, p, key.m_bucket, float8));
      chosen = representative.choose(context, key);
    }
    found = context.plans.emplace(key, Plan{chosen, 0, {}}).first;
  }
  Plan& plan = found->second;
  if (plan.m == p.m) return plan.of_m;
  Algorithm of_m = plan.of_bucket;
  const bool valid = of_m && problem.accepts(context, *of_m, key);
  if (p.batch_invariant && of_m && !valid) {
    return unsupported("gemm: m is ", p.m, ": with batch_invariant, cuBLASLt has no algorithm for n = ", p.n, ", k = ", p.k,
                       " that is valid for this m too");
  }
  if (!p.batch_invariant && !valid) of_m = problem.choose(context, key);
  plan.of_m = of_m;
  plan.m = p.m;
  return of_m;
}

Status run_plain(const GemmParams& p, cudaStream_t stream) {
  const dim3 grid(grid_extent(divide_up(p.n, kPlainTile)), grid_extent(divide_up(p.m, kPlainTile)));
  return launch("plain_gemm", plain_gemm_kernel, {grid, kPlainThreads}, stream, p);
}

}  // namespace

Result<std::unique_ptr<GemmContext>> create_gemm_context(bool own_workspace) {
  PROLOGUE_RETURN_IF_ERROR(check_gpu());
  PROLOGUE_ASSIGN_OR_RETURN(const CublasLt lt, cublaslt());
  auto context = std::make_unique<CudaGemmContext>(lt);
  const cublasStatus_t status = lt.create(&context->handle);
  if (status != CUBLAS_STATUS_SUCCESS) return cublas_error(lt, status, "gemm: creating the cuBLASLt handle");
  if (own_workspace) {
    PROLOGUE_ASSIGN_OR_RETURN(context->own_workspace, Buffer::allocate(Device::cuda, kGemmWorkspaceBytes));
    context->set_workspace(context->own_workspace.data());
  }
  return std::unique_ptr<GemmContext>(std::move(context));
}

namespace {

Status add_bias(const GemmParams& p, cudaStream_t stream) {
  const dim3 grid(grid_extent(divide_up(p.n, kAddBiasThreads)), static_cast<unsigned>(std::min<int64_t>(p.m, 1024)));
  return launch("gemm add_bias", add_bias_kernel, {grid, kAddBiasThreads}, stream, static_cast<float*>(p.y), p.y_stride, p.bias,
                p.dtype, p.m, p.n);
}

// Runs a call whose `weight` is dense.
Status run_dense(const GemmParams& params, GemmContext& context, const Execution& execution) {
  if (needs_plain_kernel(params)) return run_plain(params, execution.stream);
  auto& cuda_context = static_cast<CudaGemmContext&>(context);
  PROLOGUE_ASSIGN_OR_RETURN(Problem problem, Problem::make(cuda_context.lt, params, params.m));
  PROLOGUE_ASSIGN_OR_RETURN(const Algorithm algorithm, algorithm_for(cuda_context, params, problem));
  if (!algorithm) return run_plain(params, execution.stream);
  PROLOGUE_RETURN_IF_ERROR(problem.run(cuda_context, params, *algorithm, execution.stream));
  return params.bias == nullptr || bias_in_epilogue(params) ? Status() : add_bias(params, execution.stream);
}

// Says whether this cuBLASLt, and that of the build, knows scales of rows and blocks.
bool knows_scales(const CublasLt& lt) { return std::min<size_t>(lt.version(), CUBLAS_VERSION) >= kFirstCublasLtWithScales; }

// Runs a product of codes; false: cuBLASLt has none for it. `params` is the call that it is a part of.
Result<bool> multiply_float8(const GemmParams& params, const Float8Product& product, CudaGemmContext& context,
                             cudaStream_t stream) {
  if (!float8_product_is_aligned(product)) return false;
  GemmParams p = params;
  p.m = product.m;
  p.n = product.n;
  p.x = product.x;
  p.x_stride = product.k;
  p.weight = product.weight;
  p.bias = product.bias;
  p.y = product.y;
  if (!knows_scales(context.lt)) return false;
  PROLOGUE_ASSIGN_OR_RETURN(Problem problem, Problem::make(context.lt, p, p.m, &product));
  PROLOGUE_ASSIGN_OR_RETURN(const Algorithm algorithm, algorithm_for(context, p, problem, &product));
  if (!algorithm) return false;
  PROLOGUE_RETURN_IF_ERROR(problem.run(context, p, *algorithm, stream));
  if (p.bias != nullptr && !bias_in_epilogue(p)) PROLOGUE_RETURN_IF_ERROR(add_bias(p, stream));
  return true;
}

}  // namespace

Status gemm(const GemmParams& params, GemmContext& context, const Execution& execution) {
  if (!is_packed(params) || params.k == 0) return run_dense(params, context, execution);
  auto& cuda_context = static_cast<CudaGemmContext&>(context);
  auto* const unpacked = static_cast<unsigned char*>(cuda_context.workspace()) + kPackedCublasLtBytes;
  if (multiplies_float8(params)) {
    const Float8Room room = {unpacked, kUnpackedBytes, unpacked + kUnpackedBytes, kQuantizedXBytes};
    return run_float8(params, room, execution.stream, [&](const Float8Product& product) {
      return multiply_float8(params, product, cuda_context, execution.stream);
    });
  }
  return run_packed(params, unpacked, kUnpackedBytes, execution.stream,
                    [&](const GemmParams& part) { return run_dense(part, context, execution); });
}

// Asks cuBLASLt for a small product with each kind of scales, without and with a bias. Host work only.
Status check_float8_gemm() {
  PROLOGUE_ASSIGN_OR_RETURN(const DeviceLimits device, current_device());
  if (device.major != 9) {
    return unsupported("products of float8 need a GPU of compute capability 9.0: this one has ", device.major, ".", device.minor);
  }
  PROLOGUE_ASSIGN_OR_RETURN(const std::unique_ptr<GemmContext> created, create_gemm_context(false));
  auto& context = static_cast<CudaGemmContext&>(*created);
  if (!knows_scales(context.lt)) {
    return unsupported("products of float8 need cuBLASLt 12.9 or later: this one is ", context.lt.version(),
                       ", and that of the build was ", CUBLAS_VERSION);
  }
  alignas(256) static unsigned char never_read[256];
  for (const WeightScaling scaling : {WeightScaling::rows, WeightScaling::squares, WeightScaling::blocks}) {
    for (const bool bias : {false, true}) {
      Float8Product product;
      product.scaling = scaling;
      product.x_scales = product.weight_scales = reinterpret_cast<const float*>(never_read);
      GemmParams p;
      p.m = 128;
      p.n = p.y_stride = 256;
      p.k = p.x_stride = 512;
      p.dtype = p.y_dtype = DType::bf16;
      p.x = p.weight = p.y = never_read;
      p.bias = bias ? never_read : nullptr;
      p.packed.num_segments = 1;
      p.quantize_x = DType::fp8_e4m3;
      Result<Problem> problem = Problem::make(context.lt, p, p.m, &product);
      if (problem.ok() && problem->choose(context, plan_key(p, &product))) continue;
      return unsupported("products of float8 with scales of ", weight_scaling_name(scaling), bias ? " and a bias" : "",
                         ": cuBLASLt ", context.lt.version(), " has none for this GPU");
    }
  }
  return {};
}

}  // namespace prologue::cuda
