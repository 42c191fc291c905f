#include <prologue/kernels/token_ops/embedding.h>

#include <cmath>

#include <prologue/kernels/base/host/dispatch.h>
#include <prologue/kernels/base/host/packed_weight.h>
#include <prologue/kernels/base/host/row_limits.h>
#include <prologue/kernels/base/host/view_checks.h>
#include <prologue/kernels/token_ops/backends.h>

namespace prologue {

namespace {

Status check_table_format(const EmbeddingParams& p, Device device) {
  if (p.table_format == WeightFormat::dense) return {};
  if (!weight_format_is_packed(p.table_format)) {
    return invalid_argument("embedding: table_format is ", weight_format_name(p.table_format),
                            ": it must be dense or a block format");
  }
  PROLOGUE_RETURN_IF_ERROR(check_packed_alignment("embedding", p.table, device));
  if (p.width % weight_block_elements(p.table_format) == 0) return {};
  return invalid_argument("embedding: width is ", p.width, ": ", weight_format_name(p.table_format), " needs a multiple of ",
                          weight_block_elements(p.table_format));
}

}  // namespace

Status validate(const EmbeddingParams& p, const Execution& execution) {
  constexpr const char* kName = "embedding";
  PROLOGUE_RETURN_IF_ERROR(check_device(kName, execution.device));
  PROLOGUE_RETURN_IF_ERROR(check_dtype(kName, "dtype", p.dtype));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "num_tokens", p.num_tokens, 0, kMaxTokens));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "num_rows", p.num_rows, 1, kMaxTokens));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "width", p.width, 1, kMaxWidth));
  PROLOGUE_RETURN_IF_ERROR(check_index_type(kName, "indices", p.indices));
  if (!std::isfinite(p.scale)) return invalid_argument("embedding: scale is ", p.scale, ": it must be finite");
  PROLOGUE_RETURN_IF_ERROR(check_table_format(p, execution.device));
  if (p.num_tokens == 0) return {};
  const int64_t size = dtype_size(p.dtype);
  const Region table = p.table_format == WeightFormat::dense
                           ? array_region("table", p.table, p.num_rows * p.width, size)
                           : array_region("table", p.table, packed_weight_bytes(p.table_format, p.num_rows, p.width), 1);
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
