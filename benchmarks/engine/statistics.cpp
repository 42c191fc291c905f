#include "benchmarks/engine/statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace prologue::bench {

double percentile(const std::vector<double>& sorted, double share) {
  const auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(sorted.size())));
  return sorted[std::max<size_t>(rank, 1) - 1];
}

Summary summarise(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return {sum / static_cast<double>(values.size()), percentile(values, 0.5), percentile(values, 0.99)};
}

double median(std::vector<double> values) { return summarise(std::move(values)).p50; }

std::vector<double> first_token_ms(const std::vector<Served>& requests) {
  std::vector<double> result;
  for (const Served& each : requests) {
    if (!each.token_times.empty()) result.push_back(1e3 * (each.token_times.front() - each.arrival));
  }
  return result;
}

std::vector<double> per_token_ms(const std::vector<Served>& requests) {
  std::vector<double> result;
  for (const Served& each : requests) {
    if (each.token_times.size() < 2) continue;
    const auto num_gaps = static_cast<double>(each.token_times.size() - 1);
    result.push_back(1e3 * (each.token_times.back() - each.token_times.front()) / num_gaps);
  }
  return result;
}

int64_t num_output_tokens(const std::vector<Served>& requests) {
  int64_t count = 0;
  for (const Served& each : requests) count += static_cast<int64_t>(each.token_times.size());
  return count;
}

}  // namespace prologue::bench
