#include <prologue/kernels/qkv_prologue/qkv_prologue.h>

#include <prologue/kernels/attention_prologue/backends.h>
#include <prologue/kernels/base/host/view_checks.h>
#include <prologue/kernels/gemm/backends.h>
#include <prologue/kernels/projection/backends.h>
#include <prologue/kernels/projection/wiring.h>
#include <prologue/kernels/qkv_prologue/backends.h>
#include <prologue/kernels/token_ops/backends.h>

namespace prologue {

namespace {

constexpr const char* kName = "qkv_prologue";

// Holds the operations that the call consists of, connected to each other through the workspace.
struct Wiring {
  NormParams norm;
  GemmParams projection;
  AttentionPrologueParams prologue;
  int64_t workspace_bytes = 0;
};

// The sizes must have passed check_sizes().
Wiring wire(const QkvPrologueParams& p) {
  const AttentionPrologueParams& given = p.prologue;
  const int64_t num_tokens = given.num_tokens, element = dtype_size(given.dtype);
  const int64_t width = (given.num_q_heads + given.num_kv_heads) * given.head_dim + given.num_kv_heads * v_head_dim(given);
  WorkspaceParts parts(p.workspace);
  void* const normed = p.norm.given != 0 ? parts.take(num_tokens * p.hidden_size * element) : nullptr;
  void* const qkv = parts.take(num_tokens * width * element);

  Wiring w;
  w.workspace_bytes = parts.size_bytes();
  w.norm = norm_of_rows(p.norm, p.hidden_states, normed, num_tokens, p.hidden_size, given.dtype);

  const bool norms = p.norm.given != 0;
  w.projection.m = num_tokens;
  w.projection.n = width;
  w.projection.k = p.hidden_size;
  w.projection.dtype = w.projection.y_dtype = given.dtype;
  w.projection.x = norms ? normed : p.hidden_states;
  w.projection.x_stride = norms ? p.hidden_size : p.hidden_stride;
  w.projection.weight = p.weight;
  w.projection.packed = p.packed;
  w.projection.y = qkv;
  w.projection.y_stride = width;
  w.projection.batch_invariant = p.batch_invariant;

  w.prologue = given;
  set_packed_qkv(w.prologue, qkv, width);
  return w;
}

// Returns the call that follows its norm.
QkvPrologueParams without_norm(const QkvPrologueParams& p) {
  QkvPrologueParams behind = p;
  const GemmParams projection = wire(p).projection;
  behind.hidden_states = projection.x;
  behind.hidden_stride = projection.x_stride;
  behind.norm = {};
  return behind;
}

// Checks all parameters that are not pointers, so that wire() can compute with them.
Status check_sizes(const QkvPrologueParams& p) {
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "hidden_size", p.hidden_size, 1, INT32_MAX));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "prologue.num_tokens", p.prologue.num_tokens, 0, INT32_MAX));
  if (p.hidden_stride < p.hidden_size) {
    return invalid_argument(kName, ": hidden_stride is ", p.hidden_stride, ": it must be at least hidden_size, which is ",
                            p.hidden_size);
  }
  if (p.norm.given != 0 && p.hidden_stride != p.hidden_size) {
    return unsupported(kName, ": hidden_stride is ", p.hidden_stride, ": where there is a norm it must be hidden_size, which is ",
                       p.hidden_size);
  }
  const AttentionPrologueParams& q = p.prologue;
  const struct {
    const char* name;
    const void* data;
  } made[] = {{"q", q.q.data}, {"k", q.k.data}, {"v", q.v.data}, {"q_rope", q.q_rope.data}, {"k_rope", q.k_rope.data}};
  for (const auto& view : made) {
    if (view.data == nullptr) continue;
    return invalid_argument(kName, ": prologue.", view.name, " is given: the projection makes q, k and v, and it must be null");
  }
  if (q.num_groups != 0) {
    return unsupported(kName, ": prologue.num_groups is ", q.num_groups,
                       ": the projection makes q, k and v only, and it must be 0");
  }
  AttentionPrologueParams empty = q;  // without tokens only sizes are checked
  empty.num_tokens = 0;
  return validate(empty);
}

}  // namespace

int64_t qkv_prologue_workspace_bytes(const QkvPrologueParams& params) {
  return check_sizes(params).ok() && params.prologue.num_tokens > 0 ? wire(params).workspace_bytes : 0;
}

Status validate(const QkvPrologueParams& p, const GemmContext& context, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(check_device(kName, execution.device));
  PROLOGUE_RETURN_IF_ERROR(check_sizes(p));
  if (p.prologue.num_tokens == 0) return {};
  const Wiring calls = wire(p);
  PROLOGUE_RETURN_IF_ERROR(check_workspace(kName, p.workspace, p.workspace_bytes, calls.workspace_bytes));
  const auto matrix = [&](const char* name, const void* data, int64_t rows, int64_t stride) {
    return heads_region(name, HeadsView{data, stride, 0}, rows, 1, p.hidden_size, p.prologue.dtype);
  };
  RegionChecks regions(kName);
  PROLOGUE_RETURN_IF_ERROR(regions.read(matrix("hidden_states", p.hidden_states, p.prologue.num_tokens, p.hidden_stride)));
  if (p.packed.num_segments == 0) {
    PROLOGUE_RETURN_IF_ERROR(regions.read(matrix("weight", p.weight, calls.projection.n, p.hidden_size)));
  }
  if (p.norm.given != 0) PROLOGUE_RETURN_IF_ERROR(validate(calls.norm, execution));
  PROLOGUE_RETURN_IF_ERROR(add_norm_regions(p.norm, p.hidden_size, p.prologue.dtype, regions));
  PROLOGUE_RETURN_IF_ERROR(validate(calls.projection, context, execution));
  PROLOGUE_RETURN_IF_ERROR(add_packed_regions(p.packed, p.hidden_size, regions));
  PROLOGUE_RETURN_IF_ERROR(validate(calls.prologue, execution));
  PROLOGUE_RETURN_IF_ERROR(regions.write(array_region("workspace", p.workspace, calls.workspace_bytes, 1)));
  regions.leave_out({"q", "k", "v"});  // parts of the workspace
  PROLOGUE_RETURN_IF_ERROR(add_regions(calls.prologue, regions));
  return regions.check_all_apart();
}

bool has_qkv_gemm(Device device) { return device == Device::cuda && cuda::has_qkv_gemm(); }

Status run_separately(const QkvPrologueParams& params, GemmContext& context, const Execution& execution) {
  const Wiring calls = wire(params);
  if (params.norm.given != 0) PROLOGUE_RETURN_IF_ERROR(run_validated(calls.norm, execution));
  PROLOGUE_RETURN_IF_ERROR(run_validated(calls.projection, context, execution));
  return run_validated(calls.prologue, execution);
}

namespace {

// Runs the norm and the product as a projection, which for packed weights may be several launches.
Status run_after_projection(const QkvPrologueParams& params, GemmContext& context, const Execution& execution) {
  const Wiring calls = wire(params);
  const GemmParams& product = calls.projection;
  ProjectionParams projection;
  projection.num_tokens = product.m;
  projection.n = product.n;
  projection.k = product.k;
  projection.dtype = product.dtype;
  projection.x = params.hidden_states;
  projection.x_stride = params.hidden_stride;
  projection.norm = params.norm;
  projection.packed = params.packed;
  projection.y = product.y;
  projection.y_stride = product.y_stride;
  projection.batch_invariant = params.batch_invariant;
  projection.overlaps = params.overlaps;
  projection.workspace = params.workspace;  // the normed hidden states are at its begin, there as here
  projection.workspace_bytes = params.workspace_bytes;
  PROLOGUE_RETURN_IF_ERROR(run_validated(projection, context, execution));
  return run_validated(calls.prologue, execution);
}

Status run_chosen(const QkvPrologueParams& params, const std::optional<cuda::Launch>& chosen, GemmContext& context,
                  const Execution& execution) {
  if (!chosen && params.packed.num_segments > 0) return run_after_projection(params, context, execution);
  if (!chosen) return run_separately(params, context, execution);
  if (chosen->follows_norm) PROLOGUE_RETURN_IF_ERROR(run_validated(wire(params).norm, execution));
  return cuda::launch(*chosen, execution);
}

}  // namespace

std::optional<cuda::Launch> choose(const QkvPrologueParams& params) { return cuda::choose(params, without_norm(params)); }

Status run_validated(const QkvPrologueParams& params, GemmContext& context, const Execution& execution) {
  if (params.prologue.num_tokens == 0) return {};
  if (execution.device == Device::cpu) return run_separately(params, context, execution);
  return run_chosen(params, choose(params), context, execution);
}

Status run_validated(const QkvPrologueParams& params, KeptLaunch<QkvPrologueParams>& kept, GemmContext& context,
                     const Execution& execution) {
  if (params.prologue.num_tokens == 0) return {};
  if (execution.device == Device::cpu) return run_separately(params, context, execution);
  return run_chosen(params, kept.of(params, choose), context, execution);
}

Status qkv_prologue(const QkvPrologueParams& params, GemmContext& context, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(validate(params, context, execution));
  return run_validated(params, context, execution);
}

}  // namespace prologue
