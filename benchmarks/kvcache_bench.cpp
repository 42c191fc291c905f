// Measures what the bookkeeping of the KV cache costs the host: no model, no memory of K and V. One line for each verb: the thread's CPU
// time, the median of some runs.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <utility>
#include <vector>

#include <prologue/kvcache/kv_cache.h>

using namespace prologue;

namespace {

constexpr int64_t kPageSize = 16, kPages = 65536, kSequences = 256;

template <class T>
T must(Result<T> result) {
  if (result.ok()) return std::move(result).value();
  std::fprintf(stderr, "%s\n", result.status().message().c_str());
  std::exit(1);
}

void must(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::exit(1);
}

double cpu_nanoseconds() {
  timespec time = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e9 + static_cast<double>(time.tv_nsec);
}

double nanoseconds(const std::function<void()>& work) {
  const double start = cpu_nanoseconds();
  work();
  return cpu_nanoseconds() - start;
}

// `run` returns the nanoseconds of one run.
double median(int num_runs, const std::function<double()>& run) {
  std::vector<double> times;
  for (int i = 0; i < num_runs; ++i) times.push_back(run());
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

void print_per_page(const char* name, int64_t num_pages, const std::function<double()>& run) {
  std::printf("%-60s %8.1f ns a page\n", name, median(9, run) / static_cast<double>(num_pages));
}

// Makes sequences with the same first half, as with one system prompt.
std::vector<int32_t> prompt(int64_t sequence, int64_t num_tokens) {
  std::vector<int32_t> tokens(static_cast<size_t>(num_tokens));
  for (int64_t i = 0; i < num_tokens; ++i) {
    tokens[static_cast<size_t>(i)] = static_cast<int32_t>(i < num_tokens / 2 ? i : sequence * 100'003 + i);
  }
  return tokens;
}

void bench_pages() {
  constexpr int64_t kPagesEach = 128, kTokens = kPagesEach * kPageSize, kAll = kSequences * kPagesEach;
  KvCache cache = must(KvCache::create(kPages, kPageSize));
  std::vector<SequenceId> ids(kSequences);
  std::vector<std::vector<int32_t>> prompts;
  for (int64_t i = 0; i < kSequences; ++i) prompts.push_back(prompt(i, kTokens));
  const auto add = [&] {
    for (SequenceId& id : ids) id = must(cache.add_sequence());
  };
  const auto reserve = [&] {
    for (const SequenceId id : ids) must(cache.append(id, kTokens));
  };
  const auto insert = [&] {
    for (size_t i = 0; i < ids.size(); ++i) must(cache.insert(ids[i], prompts[i]));
  };
  const auto free = [&] {
    for (const SequenceId id : ids) must(cache.free(id));
  };
  print_per_page("append and free, 256 sequences of 128 pages", kAll, [&] {
    add();
    return nanoseconds([&] {
      reserve();
      free();
    });
  });
  print_per_page("insert, half of the pages known", kAll, [&] {
    cache.evict(0, kPages);
    add();
    reserve();
    const double time = nanoseconds(insert);
    free();
    return time;
  });
  print_per_page("match, all pages cached", kAll, [&] {
    return nanoseconds([&] {
      for (const std::vector<int32_t>& tokens : prompts)
        if (cache.match(tokens).num_tokens != kTokens) std::abort();
    });
  });
  print_per_page("match, hold and free, all pages cached", kAll, [&] {
    return nanoseconds([&] {
      for (size_t i = 0; i < ids.size(); ++i) ids[i] = must(cache.add_sequence(prompts[i], kTokens));
      free();
    });
  });
  // Fills the cache, so that every page taken is evicted first.
  for (int64_t i = 0; i < kPages / kPagesEach; ++i) {
    const std::vector<int32_t> tokens = prompt(kSequences + i, 2 * kTokens);
    const SequenceId id = must(cache.add_sequence());
    must(cache.append(id, kTokens));
    must(cache.insert(id, {tokens.data() + kTokens, kTokens}));
    must(cache.free(id));
  }
  std::vector<std::vector<int32_t>> others;
  for (int64_t i = 0; i < 4 * kSequences; ++i) others.push_back(prompt(10 * kSequences + i, 2 * kTokens));
  size_t next = 0;
  const auto insert_others = [&] {
    for (const SequenceId id : ids) must(cache.insert(id, {others[next++ % others.size()].data() + kTokens, kTokens}));
  };
  print_per_page("append, each page evicts one", kAll, [&] {
    add();
    const double time = nanoseconds(reserve);
    insert_others();
    free();
    return time;
  });
  print_per_page("append, insert and free, each page evicts one", kAll, [&] {
    return nanoseconds([&] {
      add();
      reserve();
      insert_others();
      free();
    });
  });
}

void bench_step(const char* name, const std::vector<KvGroup>& groups, bool with_insert) {
  constexpr int64_t kSteps = 512, kPrompt = 512;
  KvCache cache = must(KvCache::create({kPageSize, groups}));
  const auto run = [&] {
    std::vector<SequenceId> ids;
    std::vector<std::vector<int32_t>> tokens;
    for (int64_t i = 0; i < kSequences; ++i) {
      ids.push_back(must(cache.add_sequence()));
      tokens.push_back(prompt(i, kPrompt + kSteps));
      must(cache.append(ids.back(), kPrompt + i % kPageSize));  // not all start a page in the same step
    }
    std::vector<int64_t> slots(kSequences);
    const double time = nanoseconds([&] {
      for (int64_t step = 0; step < kSteps - kPageSize; ++step) {
        for (size_t i = 0; i < ids.size(); ++i) {
          const int64_t length = must(cache.length(ids[i]));
          must(cache.append(ids[i], 1));
          for (int64_t g = 0; g < cache.num_groups(); ++g) slots[i] = must(cache.slot(ids[i], length, g));
          if (with_insert) must(cache.insert(ids[i], {tokens[i].data(), length + 1}));
        }
      }
    });
    for (const SequenceId id : ids) must(cache.free(id));
    return time / static_cast<double>(kSteps - kPageSize);
  };
  std::printf("%-60s %8.1f us a step\n", name, median(5, run) / 1000.0);
}

}  // namespace

int main() {
  bench_pages();
  bench_step("decode step of 256 sequences: append, slot", {{kPages, 0}}, false);
  bench_step("decode step of 256 sequences: append, slot, insert", {{kPages, 0}}, true);
  bench_step("decode step of 256 sequences: the same, a second group of window 128", {{kPages, 0}, {kPages, 128}}, true);
}
