// This file sums up a load: the metrics of serving, from the times of tokens.
#pragma once

#include <cstdint>
#include <vector>

namespace prologue::bench {

// Describes one request. Times are in seconds after the start of the load.
struct Served {
  double arrival = 0.0;
  std::vector<double> token_times;  // when each generated token came, in order
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;  // of the prompt, found in the cache
  int64_t num_preemptions = 0;
};

// Returns the nearest rank: the smallest value that at least that fraction (0..1) of all values does not exceed. `sorted` is not empty.
double percentile(const std::vector<double>& sorted, double share);

// p50 and p99 are such percentiles. Of no values: all 0.
struct Summary {
  double mean = 0.0, p50 = 0.0, p99 = 0.0;
};
Summary summarise(std::vector<double> values);
double median(std::vector<double> values);

// The times from the arrival to the first token are in milliseconds, one for each request.
std::vector<double> first_token_ms(const std::vector<Served>& requests);
// The times from the first token to the last are divided by the tokens after the first, in milliseconds; one for each request of more than
// one token.
std::vector<double> per_token_ms(const std::vector<Served>& requests);
int64_t num_output_tokens(const std::vector<Served>& requests);

}  // namespace prologue::bench
