#include <prologue/kernels/projection/projection.h>

#include <algorithm>

#include <prologue/kernels/base/host/row_limits.h>
#include <prologue/kernels/base/host/view_checks.h>
#include <prologue/kernels/gemm/backends.h>
#include <prologue/kernels/projection/backends.h>
#include <prologue/kernels/projection/wiring.h>
#include <prologue/kernels/token_ops/backends.h>

namespace prologue {

namespace {

constexpr const char* kName = "projection";

// Holds the operations that the call consists of, connected to each other through the workspace.
struct Wiring {
  NormParams norm;
  GemmParams gemm;
  ActivationParams activation;
  AddParams add;
  int64_t workspace_bytes = 0;
};

bool gated(const ProjectionParams& p) { return p.activation.given != 0 && p.activation.gated; }

// The sizes must have passed check_sizes().
Wiring wire(const ProjectionParams& p) {
  const int64_t element = dtype_size(p.dtype), columns = gated(p) ? 2 * p.n : p.n;
  const bool activates = p.activation.given != 0, adds = p.adds != 0;
  WorkspaceParts parts(p.workspace);
  void* const normed = p.norm.given != 0 ? parts.take(p.num_tokens * p.k * element) : nullptr;
  void* const product = activates || adds ? parts.take(p.num_tokens * columns * element) : p.y;
  void* const activated = activates && adds ? parts.take(p.num_tokens * p.n * element) : p.y;

  Wiring w;
  w.workspace_bytes = parts.size_bytes();
  w.norm = norm_of_rows(p.norm, p.x, normed, p.num_tokens, p.k, p.dtype);

  w.gemm.m = p.num_tokens;
  w.gemm.n = columns;
  w.gemm.k = p.k;
  w.gemm.dtype = p.dtype;
  w.gemm.y_dtype = resolve_dtype(p.y_dtype, p.dtype);
  w.gemm.x = p.norm.given != 0 ? normed : p.x;
  w.gemm.x_stride = p.norm.given != 0 ? p.k : p.x_stride;
  w.gemm.weight = p.weight;
  w.gemm.packed = p.packed;
  w.gemm.bias = p.bias;
  w.gemm.y = product;
  w.gemm.y_stride = activates || adds ? columns : p.y_stride;
  w.gemm.batch_invariant = p.batch_invariant;

  w.activation.num_tokens = p.num_tokens;
  w.activation.width = p.n;
  w.activation.dtype = p.dtype;
  w.activation.kind = p.activation.kind;
  w.activation.gated = p.activation.gated;
  w.activation.limit = p.activation.limit;
  w.activation.alpha = p.activation.alpha;
  w.activation.x = product;
  w.activation.x_stride = columns;
  w.activation.out = activated;

  w.add.num_tokens = p.num_tokens;
  w.add.width = p.n;
  w.add.dtype = p.dtype;
  w.add.a = p.y;
  w.add.a_stride = p.y_stride;
  w.add.b = activates ? activated : product;
  w.add.b_stride = p.n;
  w.add.out = p.y;
  w.add.out_stride = p.y_stride;
  return w;
}

// Checks all parameters that are not pointers, so that wire() can compute with them.
Status check_sizes(const ProjectionParams& p) {
  PROLOGUE_RETURN_IF_ERROR(check_dtype(kName, "dtype", p.dtype));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "num_tokens", p.num_tokens, 0, kMaxTokens));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "n", p.n, 1, kMaxWidth / 2));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "k", p.k, 1, kMaxWidth));
  const auto at_least = [&](const char* name, int64_t stride, const char* of, int64_t width) -> Status {
    if (stride >= width) return {};
    return invalid_argument(kName, ": ", name, " is ", stride, ": it must be at least ", of, ", which is ", width);
  };
  PROLOGUE_RETURN_IF_ERROR(at_least("x_stride", p.x_stride, "k", p.k));
  PROLOGUE_RETURN_IF_ERROR(at_least("y_stride", p.y_stride, "n", p.n));
  const DType y_dtype = resolve_dtype(p.y_dtype, p.dtype);
  if (y_dtype != p.dtype && (y_dtype != DType::f32 || p.activation.given != 0 || p.adds != 0)) {
    return invalid_argument(kName, ": y_dtype is ", dtype_text(y_dtype), ": it must be dtype, which is ", dtype_name(p.dtype),
                            y_dtype == DType::f32 ? ", where there is an activation or a residual" : ", or float32");
  }
  if (p.norm.given != 0 && p.x_stride != p.k) {
    return unsupported(kName, ": x_stride is ", p.x_stride, ": where there is a norm it must be k, which is ", p.k);
  }
  if (p.activation.given != 0 && p.adds == 0 && p.y_stride != p.n) {
    return unsupported(kName, ": y_stride is ", p.y_stride, ": where there is an activation it must be n, which is ", p.n);
  }
  if (p.activation.given == 0) return {};
  ActivationParams empty = wire(p).activation;  // without tokens only sizes are checked
  empty.num_tokens = 0;
  return validate(empty, {Device::cpu, 1});
}

}  // namespace

int64_t projection_workspace_bytes(const ProjectionParams& params) {
  return check_sizes(params).ok() && params.num_tokens > 0 ? wire(params).workspace_bytes : 0;
}

Status validate(const ProjectionParams& p, const GemmContext& context, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(check_device(kName, execution.device));
  PROLOGUE_RETURN_IF_ERROR(check_sizes(p));
  if (p.num_tokens == 0) return {};
  const Wiring calls = wire(p);
  PROLOGUE_RETURN_IF_ERROR(check_workspace(kName, p.workspace, p.workspace_bytes, calls.workspace_bytes));
  const auto matrix_of = [&](DType dtype, const char* name, const void* data, int64_t rows, int64_t columns, int64_t stride) {
    return heads_region(name, HeadsView{data, stride, 0}, rows, 1, columns, dtype);
  };
  const auto matrix = [&](auto... of) { return matrix_of(p.dtype, of...); };
  RegionChecks regions(kName);
  PROLOGUE_RETURN_IF_ERROR(regions.read(matrix("x", p.x, p.num_tokens, p.k, p.x_stride)));
  if (p.packed.num_segments == 0) PROLOGUE_RETURN_IF_ERROR(regions.read(matrix("weight", p.weight, calls.gemm.n, p.k, p.k)));
  PROLOGUE_RETURN_IF_ERROR(regions.read(matrix("bias", p.bias, p.bias == nullptr ? 0 : 1, calls.gemm.n, calls.gemm.n)));
  PROLOGUE_RETURN_IF_ERROR(regions.write(matrix_of(calls.gemm.y_dtype, "y", p.y, p.num_tokens, p.n, p.y_stride)));
  PROLOGUE_RETURN_IF_ERROR(regions.write(array_region("workspace", p.workspace, calls.workspace_bytes, 1)));
  if (p.norm.given != 0) PROLOGUE_RETURN_IF_ERROR(validate(calls.norm, execution));
  PROLOGUE_RETURN_IF_ERROR(add_norm_regions(p.norm, p.k, p.dtype, regions));
  PROLOGUE_RETURN_IF_ERROR(validate(calls.gemm, context, execution));
  PROLOGUE_RETURN_IF_ERROR(add_packed_regions(p.packed, p.k, regions));
  if (p.activation.given != 0) PROLOGUE_RETURN_IF_ERROR(validate(calls.activation, execution));
  if (p.adds != 0) PROLOGUE_RETURN_IF_ERROR(validate(calls.add, execution));
  return regions.check_all_apart();
}

int64_t most_tokens_of_one_projection(Device device) {
  return device == Device::cuda ? cuda::most_tokens_of_one_projection() : 0;
}

Status run_separately(const ProjectionParams& params, GemmContext& context, const Execution& execution) {
  const Wiring calls = wire(params);
  if (params.norm.given != 0) PROLOGUE_RETURN_IF_ERROR(run_validated(calls.norm, execution));
  PROLOGUE_RETURN_IF_ERROR(run_validated(calls.gemm, context, execution));
  if (params.activation.given != 0) PROLOGUE_RETURN_IF_ERROR(run_validated(calls.activation, execution));
  return params.adds != 0 ? run_validated(calls.add, execution) : Status();
}

namespace {

// Returns the call of some of the tokens.
ProjectionParams part_of(const ProjectionParams& params, int64_t first_token, int64_t num_tokens) {
  ProjectionParams part = params;
  part.num_tokens = num_tokens;
  part.x = static_cast<const unsigned char*>(params.x) + first_token * params.x_stride * dtype_size(params.dtype);
  part.y = static_cast<unsigned char*>(params.y) +
           first_token * params.y_stride * dtype_size(resolve_dtype(params.y_dtype, params.dtype));
  return part;
}

Status run_chosen(const ProjectionParams& params, const std::optional<cuda::Launch>& chosen, GemmContext& context,
                  const Execution& execution) {
  if (chosen) return cuda::launch(*chosen, execution);
  const int64_t at_once = cuda::tokens_of_packed_launch(params);
  if (at_once == 0) return run_separately(params, context, execution);
  for (int64_t first = 0; first < params.num_tokens; first += at_once) {
    const auto part = part_of(params, first, std::min(at_once, params.num_tokens - first));
    const std::optional<cuda::Launch> launch = cuda::choose(part);
    PROLOGUE_RETURN_IF_ERROR(launch ? cuda::launch(*launch, execution) : run_separately(part, context, execution));
  }
  return {};
}

}  // namespace

Status run_validated(const ProjectionParams& params, GemmContext& context, const Execution& execution) {
  if (params.num_tokens == 0) return {};
  if (execution.device == Device::cpu) return run_separately(params, context, execution);
  return run_chosen(params, cuda::choose(params), context, execution);
}

Status run_validated(const ProjectionParams& params, KeptLaunch<ProjectionParams>& kept, GemmContext& context,
                     const Execution& execution) {
  if (params.num_tokens == 0) return {};
  if (execution.device == Device::cpu) return run_separately(params, context, execution);
  return run_chosen(params, kept.of(params, [](const ProjectionParams& p) { return cuda::choose(p); }), context, execution);
}

Status projection(const ProjectionParams& params, GemmContext& context, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(validate(params, context, execution));
  return run_validated(params, context, execution);
}

}  // namespace prologue
