// This file makes requests and the times at which they arrive. The same options give the same workload on every machine.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <prologue/kernels/base/status.h>

namespace prologue::bench {

struct Arrival {
  double seconds = 0.0;  // after the start; in order
  std::vector<int32_t> prompt;
  int64_t max_tokens = 0;  // so many are generated: end tokens are ignored
};
using Workload = std::vector<Arrival>;

struct WorkloadOptions {
  int64_t num_requests = 256;
  double rate = 1.0;           // requests per second, on average; not of mini-sglang
  int64_t vocab_size = 0;      // prompts have token ids below it
  int64_t context_length = 0;  // prompt and generated tokens together stay within it
};

// Returns the names that make_workload knows:
//   mini-sglang    all at once, 100 to 1024 tokens in and out, seed 0. This is the offline benchmark of mini-sglang and nano-vllm, with
//                  nano-vllm's token ids of 0 to 10000, so that the lengths do not depend on the model: 256 requests have
//                  142827 tokens in and 133966 out
//   poisson        the same requests, in Poisson arrivals
//   burst          the same requests, 16 at a time, a burst every 16 / rate seconds
//   shared-prefix  Poisson arrivals; one of four system prompts of 512 tokens, then 16 to 256 tokens; 16 to 256 out
//   mixed          Poisson arrivals; nine in ten are short (16 to 128 in, 16 to 256 out), the others long (1024 to 4096 in, 64 to 256 out)
std::span<const std::string_view> workload_names();

// invalid_argument: the name is unknown, or an option does not allow a single request (no vocabulary, no rate, a context that is shorter
// than the workload's requests).
Result<Workload> make_workload(std::string_view name, const WorkloadOptions& options);

// Returns `count` prompts of `length` random tokens. No two of them, of one call or of different seeds, have a page in common.
std::vector<std::vector<int32_t>> random_prompts(int64_t count, int64_t length, int64_t vocab_size, uint32_t seed);

}  // namespace prologue::bench
