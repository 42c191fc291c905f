#include <prologue/kernels/token_ops/logprobs.h>

#include <prologue/kernels/base/host/dispatch.h>
#include <prologue/kernels/base/host/view_checks.h>
#include <prologue/kernels/token_ops/backends.h>

namespace prologue {

namespace {

constexpr int64_t kMaxVocabSize = int64_t{1} << 23;  // as sample's: the sum of the probability masses fits 64 bits
constexpr int64_t kMaxRows = int64_t{1} << 31;

}  // namespace

Status validate(const LogprobsParams& p, const Execution& execution) {
  constexpr const char* kName = "logprobs";
  PROLOGUE_RETURN_IF_ERROR(check_device(kName, execution.device));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "num_rows", p.num_rows, 0, kMaxRows));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "vocab_size", p.vocab_size, 1, kMaxVocabSize));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "top", p.top, 0, kMaxTopLogprobs));
  if (p.num_rows == 0) return {};
  if (p.logits_stride < p.vocab_size) {
    return invalid_argument("logprobs: logits_stride is ", p.logits_stride, ": it must be at least vocab_size, ", p.vocab_size);
  }
  Region logits = array_region("logits", p.logits, p.num_rows, 4);
  logits.width = p.vocab_size * 4;
  if (__builtin_mul_overflow(p.logits_stride, 4, &logits.strides[0])) logits.strides[0] = INT64_MAX;
  const int64_t entries = p.num_rows * (p.top + 1);
  RegionChecks regions(kName);
  PROLOGUE_RETURN_IF_ERROR(regions.read(logits));
  PROLOGUE_RETURN_IF_ERROR(regions.read(array_region("tokens", p.tokens, p.num_rows, 4)));
  PROLOGUE_RETURN_IF_ERROR(regions.write(array_region("logprobs", p.logprobs, entries, 4)));
  PROLOGUE_RETURN_IF_ERROR(regions.write(array_region("ids", p.ids, entries, 4)));
  return regions.check_all_apart();
}

Status run_validated(const LogprobsParams& params, const Execution& execution) {
  if (params.num_rows == 0) return {};
  return dispatch(execution, cpu::logprobs, cuda::logprobs, params);
}

Status logprobs(const LogprobsParams& params, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(validate(params, execution));
  return run_validated(params, execution);
}

}  // namespace prologue
