// Calls kernels/token_ops/sampling.h with any struct and any row.
#include <prologue/kernels/token_ops/sampling.h>

#include <vector>

#include "tests/fuzz/operation.h"

using namespace prologue;
using namespace prologue::fuzz;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Tally tally("sampling");
  Choices choices(data, size);
  MemoryMap map(choices);
  SamplingParams p;
  p.num_rows = choices.size(0, 4);
  p.vocab_size = choices.size(1, 100);
  p.logits_stride = choices.stride(p.vocab_size);
  map.array("logits", p.logits, rows(p.num_rows, p.logits_stride, p.vocab_size, 32), Use::read);
  Extent sampling_rows = dense(p.num_rows, sizeof(SamplingRow));
  sampling_rows.alignment = alignof(SamplingRow);
  map.array("rows", p.rows, sampling_rows, Use::read);
  map.array("tokens", p.tokens, dense(p.num_rows, 4), Use::write);
  if (choices.chance(2)) map.optional("row_faults", p.row_faults, dense(p.num_rows, 1), Use::write);
  if (!map.allocate()) return 0;
  // The arrays behind the rows are the caller's responsibility, so they are always valid.
  std::vector<std::vector<int32_t>> counts, counts_before;
  std::vector<std::vector<float>> biases;
  for (int64_t i = 0; present(p.rows) && i < p.num_rows; ++i) {
    char* const at = const_cast<char*>(reinterpret_cast<const char*>(p.rows)) + i * static_cast<int64_t>(sizeof(SamplingRow));
    SamplingRow row;
    if (choices.chance(8)) {  // any bits
      std::memcpy(&row, at, sizeof row);
    } else {
      row.temperature = choices.real(static_cast<float>(choices.byte()) / 64.0f);
      row.top_k = choices.hostile() ? static_cast<int32_t>(choices.bits(4)) : static_cast<int32_t>(choices.integer(0, 9));
      row.top_p = choices.real(static_cast<float>(choices.integer(1, 8)) / 8.0f);
      row.min_p = choices.real(static_cast<float>(choices.integer(0, 8)) / 8.0f);
      row.seed = choices.bits(8);
      row.position = choices.hostile() ? choices.absurd() : choices.integer(0, 100);
      row.repetition_penalty = choices.real(static_cast<float>(choices.integer(1, 8)) / 4.0f);
      row.presence_penalty = choices.real(static_cast<float>(choices.integer(-4, 4)) / 4.0f);
      row.frequency_penalty = choices.real(static_cast<float>(choices.integer(-4, 4)) / 4.0f);
    }
    const bool real_size = p.vocab_size > 0 && p.vocab_size <= 1 << 20;
    const size_t vocab_size = real_size ? static_cast<size_t>(p.vocab_size) : 0;
    counts.emplace_back(choices.chance(2) ? vocab_size : 0);
    for (int32_t& count : counts.back()) {
      count = choices.hostile() ? static_cast<int32_t>(choices.random()) : static_cast<int32_t>(choices.random() % 9);
    }
    biases.emplace_back(choices.chance(2) ? vocab_size : 0);
    for (float& bias : biases.back()) bias = choices.real(static_cast<float>(choices.random() % 9) / 4.0f);
    row.counts = counts.back().empty() ? nullptr : counts.back().data();
    row.bias = biases.back().empty() ? nullptr : biases.back().data();
    std::memcpy(at, &row, sizeof row);
  }
  counts_before = counts;

  map.freeze();
  if (p.num_rows == 0) map.forgive();
  map.permit(p.tokens, 0, times(p.num_rows, 4));
  map.permit(p.row_faults, 0, p.num_rows);
  const Status status = sample(p, execution(choices));
  map.check(status);
  for (int64_t i = 0; status.ok() && i < p.num_rows; ++i) {
    if (p.tokens[i] < 0 || p.tokens[i] >= p.vocab_size) fail(str_cat("token ", p.tokens[i], " of ", p.vocab_size, " was chosen"));
    std::vector<int32_t>& before = counts_before[static_cast<size_t>(i)];
    if (!before.empty())
      before[static_cast<size_t>(p.tokens[i])] = counts[static_cast<size_t>(i)][static_cast<size_t>(p.tokens[i])];
  }
  if (counts != counts_before) fail("counts of tokens that were not chosen have changed");
  tally.count(status.ok());
  return 0;
}
