#include <prologue/kernels/token_ops/sampling.h>

#include <cstdint>
#include <limits>

#include <prologue/kernels/base/host/dispatch.h>
#include <prologue/kernels/base/host/view_checks.h>
#include <prologue/kernels/token_ops/backends.h>

namespace prologue {

namespace {

// The probability masses (2^-40) of this many tokens still fit 64 bits, and their sum a float64's 53 within 2^-30.
constexpr int64_t kMaxVocabSize = int64_t{1} << 23;
constexpr int64_t kMaxRows = int64_t{1} << 31;

}  // namespace

Status validate(const SamplingParams& p, const Execution& execution) {
  constexpr const char* kName = "sample";
  PROLOGUE_RETURN_IF_ERROR(check_device(kName, execution.device));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "num_rows", p.num_rows, 0, kMaxRows));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "vocab_size", p.vocab_size, 1, kMaxVocabSize));
  if (p.num_rows == 0) return {};
  if (p.logits_stride < p.vocab_size) {
    return invalid_argument("sample: logits_stride is ", p.logits_stride, ": it must be at least vocab_size, ", p.vocab_size);
  }
  Region logits = array_region("logits", p.logits, p.num_rows, 4);
  logits.width = p.vocab_size * 4;
  if (__builtin_mul_overflow(p.logits_stride, 4, &logits.strides[0])) logits.strides[0] = INT64_MAX;
  Region rows = array_region("rows", p.rows, p.num_rows, sizeof(SamplingRow));
  rows.alignment = alignof(SamplingRow);
  if ((p.token_ids == nullptr) != (p.logit_rows == nullptr)) {
    return invalid_argument(
        "sample: ",
        p.token_ids == nullptr ? "logit_rows is given and token_ids is null" : "token_ids is given and logit_rows is null",
        ": chains need both");
  }
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "num_tokens", p.num_tokens, 0, INT32_MAX));
  const Region tokens = array_region("tokens", p.tokens, p.num_rows, 4);
  const Region row_faults = array_region("row_faults", p.row_faults, p.row_faults == nullptr ? 0 : p.num_rows, 1);
  RegionChecks regions(kName);
  PROLOGUE_RETURN_IF_ERROR(regions.read(logits));
  PROLOGUE_RETURN_IF_ERROR(regions.read(rows));
  PROLOGUE_RETURN_IF_ERROR(regions.read(array_region("token_ids", p.token_ids, p.token_ids == nullptr ? 0 : p.num_tokens, 4)));
  PROLOGUE_RETURN_IF_ERROR(regions.read(array_region("logit_rows", p.logit_rows, p.logit_rows == nullptr ? 0 : p.num_rows, 4)));
  PROLOGUE_RETURN_IF_ERROR(regions.write(tokens));
  PROLOGUE_RETURN_IF_ERROR(regions.write(row_faults));
  return regions.check_all_apart();
}

Status run_validated(const SamplingParams& params, const Execution& execution) {
  if (params.num_rows == 0) return {};
  return dispatch(execution, cpu::sample, cuda::sample, params);
}

Status sample(const SamplingParams& params, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(validate(params, execution));
  return run_validated(params, execution);
}

}  // namespace prologue
