#include <prologue/kernels/projection_chain/projection_chain.h>

#include <algorithm>

#include <prologue/kernels/projection/backends.h>
#include <prologue/kernels/projection/wiring.h>
#include <prologue/kernels/projection_chain/backends.h>
#include <prologue/kernels/projection_chain/chain_workspace.h>
#include <prologue/kernels/qkv_prologue/backends.h>

namespace prologue {

namespace {

constexpr const char* kName = "projection_chain";

// The operations with the chain's workspace.
template <class Params>
Params with_workspace(Params params, const ProjectionChainParams& chain) {
  params.workspace = chain.workspace;
  params.workspace_bytes = chain.workspace_bytes;
  return params;
}

Status check_sizes(const ProjectionChainParams& p) {
  if (p.num_projections < 1 || p.num_projections > kMostChainedProjections) {
    return invalid_argument(kName, ": num_projections is ", p.num_projections, ": it must be between 1 and ",
                            kMostChainedProjections);
  }
  const ProjectionParams& first = p.projections[0];
  const auto check_same = [&](const char* what, int64_t index, int64_t num_tokens, DType dtype) -> Status {
    if (num_tokens != first.num_tokens) {
      return invalid_argument(kName, ": num_tokens of ", what, " ", index, " is ", num_tokens, ": that of projection 0 is ",
                              first.num_tokens);
    }
    if (dtype != first.dtype) {
      return invalid_argument(kName, ": dtype of ", what, " ", index, " is ", dtype_name(dtype), ": that of projection 0 is ",
                              dtype_name(first.dtype));
    }
    return {};
  };
  for (int64_t i = 1; i < p.num_projections; ++i) {
    PROLOGUE_RETURN_IF_ERROR(check_same("projection", i, p.projections[i].num_tokens, p.projections[i].dtype));
  }
  return p.has_qkv != 0 ? check_same("qkv, operation", p.num_projections, p.qkv.prologue.num_tokens, p.qkv.prologue.dtype) : Status();
}

}  // namespace

int64_t projection_chain_workspace_bytes(const ProjectionChainParams& params) {
  if (!check_sizes(params).ok()) return 0;
  int64_t bytes = params.has_qkv != 0 ? qkv_prologue_workspace_bytes(params.qkv) : 0;
  WorkspaceParts parts(nullptr);
  for (int64_t i = 0; i < params.num_projections; ++i) {
    const ProjectionParams& each = params.projections[i];
    bytes = std::max(bytes, projection_workspace_bytes(each));
    if (each.norm.given != 0) take_norm_buffers(parts, each.num_tokens, each.k, dtype_size(each.dtype));
  }
  return std::max(bytes, parts.size_bytes());
}

Status validate(const ProjectionChainParams& p, const GemmContext& context, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(check_sizes(p));
  PROLOGUE_RETURN_IF_ERROR(check_workspace(kName, p.workspace, p.workspace_bytes, projection_chain_workspace_bytes(p)));
  for (int64_t i = 0; i < p.num_projections; ++i) {
    PROLOGUE_RETURN_IF_ERROR(validate(with_workspace(p.projections[i], p), context, execution));
  }
  return p.has_qkv != 0 ? validate(with_workspace(p.qkv, p), context, execution) : Status();
}

Status run_separately(const ProjectionChainParams& params, GemmContext& context, const Execution& execution) {
  for (int64_t i = 0; i < params.num_projections; ++i) {
    PROLOGUE_RETURN_IF_ERROR(run_validated(with_workspace(params.projections[i], params), context, execution));
  }
  return params.has_qkv != 0 ? run_validated(with_workspace(params.qkv, params), context, execution) : Status();
}

Status run_validated(const ProjectionChainParams& params, GemmContext& context, const Execution& execution) {
  if (execution.device == Device::cuda && cuda::projection_chain_is_one_kernel(params)) {
    return cuda::projection_chain(params, execution);
  }
  return run_separately(params, context, execution);
}

Status projection_chain(const ProjectionChainParams& params, GemmContext& context, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(validate(params, context, execution));
  return run_validated(params, context, execution);
}

}  // namespace prologue
