#include <prologue/kernels/token_ops/embedding.h>

#include <cmath>

#include <prologue/kernels/base/host/dispatch.h>
#include <prologue/kernels/base/host/row_limits.h>
#include <prologue/kernels/base/host/view_checks.h>
#include <prologue/kernels/token_ops/backends.h>

namespace prologue {

Status validate(const EmbeddingParams& p, const Execution& execution) {
  constexpr const char* kName = "embedding";
  PROLOGUE_RETURN_IF_ERROR(check_device(kName, execution.device));
  PROLOGUE_RETURN_IF_ERROR(check_dtype(kName, "dtype", p.dtype));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "num_tokens", p.num_tokens, 0, kMaxTokens));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "num_rows", p.num_rows, 1, kMaxTokens));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "width", p.width, 1, kMaxWidth));
  PROLOGUE_RETURN_IF_ERROR(check_index_type(kName, "indices", p.indices));
  if (!std::isfinite(p.scale)) return invalid_argument("embedding: scale is ", p.scale, ": it must be finite");
  if (p.num_tokens == 0) return {};
  const int64_t size = dtype_size(p.dtype);
  const Region table = array_region("table", p.table, p.num_rows * p.width, size);
  const Region indices = index_region("indices", p.indices, p.num_tokens);
  const Region out = array_region("out", p.out, p.num_tokens * p.width, size);
  RegionChecks regions(kName);
  PROLOGUE_RETURN_IF_ERROR(regions.read(table));
  PROLOGUE_RETURN_IF_ERROR(regions.read(indices));
  PROLOGUE_RETURN_IF_ERROR(regions.write(out));
  PROLOGUE_RETURN_IF_ERROR(regions.write(array_region("faults", p.faults, p.faults == nullptr ? 0 : 1, alignof(FaultRecord))));
  PROLOGUE_RETURN_IF_ERROR(
      regions.write(array_region("token_faults", p.token_faults, p.token_faults == nullptr ? 0 : p.num_tokens, 1)));
  return regions.check_all_apart();
}

Status run_validated(const EmbeddingParams& params, const Execution& execution) {
  if (params.num_tokens == 0) return {};
  return dispatch(execution, cpu::embedding, cuda::embedding, params);
}

Status embedding(const EmbeddingParams& params, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(validate(params, execution));
  return run_validated(params, execution);
}

}  // namespace prologue
