#include "benchmarks/engine/workload.h"

#include <algorithm>
#include <array>

#include "benchmarks/engine/python_random.h"

namespace prologue::bench {

namespace {

constexpr int64_t kLargestToken = 10000;
constexpr std::array<std::string_view, 5> kNames = {"mini-sglang", "poisson", "burst", "shared-prefix", "mixed"};

std::vector<int32_t> tokens(PythonRandom& random, int64_t count, int64_t vocab_size) {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (int32_t& id : ids) id = static_cast<int32_t>(random.integer(0, kLargestToken) % vocab_size);
  return ids;
}

Workload mini_sglang(const WorkloadOptions& options) {
  PythonRandom random(0);
  Workload workload(static_cast<size_t>(options.num_requests));
  for (Arrival& each : workload) each.prompt = tokens(random, random.integer(100, 1024), options.vocab_size);
  for (Arrival& each : workload) each.max_tokens = random.integer(100, 1024);
  return workload;
}

Workload shared_prefix(const WorkloadOptions& options) {
  PythonRandom random(2);
  std::vector<std::vector<int32_t>> systems;
  for (int i = 0; i < 4; ++i) systems.push_back(tokens(random, 512, options.vocab_size));
  Workload workload(static_cast<size_t>(options.num_requests));
  for (Arrival& each : workload) {
    each.prompt = systems[static_cast<size_t>(random.integer(0, 3))];
    const std::vector<int32_t> own = tokens(random, random.integer(16, 256), options.vocab_size);
    each.prompt.insert(each.prompt.end(), own.begin(), own.end());
    each.max_tokens = random.integer(16, 256);
  }
  return workload;
}

Workload mixed(const WorkloadOptions& options) {
  PythonRandom random(3);
  Workload workload(static_cast<size_t>(options.num_requests));
  for (Arrival& each : workload) {
    const bool is_long = random.integer(0, 9) == 0;
    const int64_t length = is_long ? random.integer(1024, 4096) : random.integer(16, 128);
    each.prompt = tokens(random, length, options.vocab_size);
    each.max_tokens = is_long ? random.integer(64, 256) : random.integer(16, 256);
  }
  return workload;
}

void arrive_at_random(Workload& workload, double rate) {
  PythonRandom random(4);
  double seconds = 0.0;
  for (Arrival& each : workload) each.seconds = seconds += random.exponential(rate);
}

void arrive_in_bursts(Workload& workload, double rate) {
  constexpr size_t kBurst = 16;
  for (size_t i = 0; i < workload.size(); ++i) workload[i].seconds = static_cast<double>(i / kBurst * kBurst) / rate;
}

}  // namespace

std::span<const std::string_view> workload_names() { return kNames; }

Result<Workload> make_workload(std::string_view name, const WorkloadOptions& options) {
  if (options.num_requests < 1) {
    return invalid_argument("the number of requests is ", options.num_requests, ": it must be at least 1");
  }
  if (options.vocab_size < 1)
    return invalid_argument("the vocabulary has ", options.vocab_size, " tokens: it must have at least 1");
  if (!(options.rate > 0.0)) return invalid_argument("the rate is ", options.rate, " requests per second: it must be positive");
  Workload workload;
  if (name == "shared-prefix") {
    workload = shared_prefix(options);
  } else if (name == "mixed") {
    workload = mixed(options);
  } else if (std::find(kNames.begin(), kNames.end(), name) != kNames.end()) {
    workload = mini_sglang(options);
  } else {
    return invalid_argument("the workload is ", name, ": it must be mini-sglang, poisson, burst, shared-prefix or mixed");
  }
  if (name == "burst") {
    arrive_in_bursts(workload, options.rate);
  } else if (name != "mini-sglang") {
    arrive_at_random(workload, options.rate);
  }
  for (const Arrival& each : workload) {
    const int64_t length = static_cast<int64_t>(each.prompt.size()) + each.max_tokens;
    if (length > options.context_length) {
      return invalid_argument("a request of ", name, " has ", length, " tokens, prompt and generated together: the context is ",
                              options.context_length);
    }
  }
  return workload;
}

std::vector<std::vector<int32_t>> random_prompts(int64_t count, int64_t length, int64_t vocab_size, uint32_t seed) {
  PythonRandom random(seed);
  std::vector<std::vector<int32_t>> prompts;
  for (int64_t i = 0; i < count; ++i) prompts.push_back(tokens(random, length, vocab_size));
  return prompts;
}

}  // namespace prologue::bench
