// The CPU against CUDA on random cases of every operation, at sizes of real models: what both write is compared byte for byte, or
// within a bound where the contract promises no more; guard bands and inputs are checked on both. See --help.
#include "tests/fuzz/differential.h"

#include <gtest/gtest-spi.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>

#include "tests/support/tolerance.h"

namespace prologue::test {

ModelHeads random_heads(Random& random) {
  static constexpr ModelHeads kModels[] = {
      {32, 8, 128}, {64, 8, 128}, {40, 40, 128}, {24, 8, 128}, {9, 3, 64},   {16, 1, 256},  {71, 1, 64},   {28, 4, 128},
      {12, 12, 64}, {32, 32, 80}, {32, 32, 96},  {8, 4, 256},  {16, 16, 72}, {40, 8, 128},  {128, 1, 576}, {16, 1, 576},
      {14, 2, 64},  {32, 4, 64},  {48, 8, 192},  {10, 1, 256}, {5, 5, 112},  {128, 8, 128}, {20, 20, 64},  {6, 2, 160},
  };
  ModelHeads heads = kModels[random.integer(0, std::size(kModels) - 1)];
  if (random.integer(0, 7) == 0) heads.head_dim = 2 * random.integer(1, 288);
  if (random.integer(0, 7) == 0) {
    heads.num_kv_heads = random.integer(1, 9);
    heads.num_q_heads = heads.num_kv_heads * random.integer(1, 9);
  }
  return heads;
}

int64_t random_width(Random& random) {
  static constexpr int64_t kWidths[] = {576, 768, 896, 1024, 1536, 2048, 3584, 4096, 5120, 8192, 11008, 14336};
  return random.integer(0, 3) == 0 ? random.integer(1, 3000) : kWidths[random.integer(0, std::size(kWidths) - 1)];
}

Result<GemmContext*> context_for(Backend backend) {
  static thread_local std::unique_ptr<GemmContext> contexts[2];
  std::unique_ptr<GemmContext>& context = contexts[static_cast<int>(backend_device(backend))];
  if (context == nullptr) {
    PROLOGUE_ASSIGN_OR_RETURN(context, GemmContext::create(backend_device(backend)));
  }
  return context.get();
}

int64_t random_tokens(Random& random, const Sizes& sizes, int64_t width) {
  const int64_t elements = sizes.max_elements >> random.integer(0, 9);
  const int64_t most = std::clamp<int64_t>(elements / std::max<int64_t>(width, 1), 1, sizes.max_tokens);
  static constexpr int64_t kBorders[] = {1, 2, 4, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 6000, 8192};
  switch (random.integer(0, 3)) {
    case 0: return std::min(most, kBorders[random.integer(0, std::size(kBorders) - 1)] + random.integer(-1, 1));
    case 1: return random.integer(1, std::min<int64_t>(most, 64));
    case 2: return random.integer(1, most);
    default: return std::max<int64_t>(1, static_cast<int64_t>(std::pow(static_cast<double>(most), random.uniform())));
  }
}

namespace {

int64_t size_of(Element element) {
  switch (element) {
    case Element::byte: return 1;
    case Element::f16:
    case Element::bf16: return 2;
    case Element::int32:
    case Element::f32: return 4;
    default: return 8;
  }
}

template <class T>
T load(const unsigned char* bytes) {
  T value;
  std::memcpy(static_cast<void*>(&value), bytes, sizeof value);
  return value;
}

double number_at(Element element, const unsigned char* bytes) {
  switch (element) {
    case Element::byte: return static_cast<double>(*bytes);
    case Element::int32: return static_cast<double>(load<int32_t>(bytes));
    case Element::int64: return static_cast<double>(load<int64_t>(bytes));
    case Element::f16: return static_cast<double>(to_float(load<Float16>(bytes)));
    case Element::bf16: return static_cast<double>(to_float(load<BFloat16>(bytes)));
    case Element::f32: return static_cast<double>(load<float>(bytes));
    default: return load<double>(bytes);
  }
}

double unit_in_the_last_place(Element element, double x) {
  switch (element) {
    case Element::f16: return ulp<Float16>(x);
    case Element::bf16: return ulp<BFloat16>(x);
    case Element::f64: return std::ldexp(1.0, (x == 0.0 ? -1022 : std::max(std::ilogb(x), -1022)) - 52);
    default: return ulp<float>(x);
  }
}

bool near_enough(const Output& output, double got, double want) {
  if (std::isnan(got) || std::isnan(want)) return std::isnan(got) && std::isnan(want);
  if (output.units == 0.0 && output.absolute == 0.0) return false;  // the bytes differ
  if (std::isinf(want)) return got == want;
  return std::fabs(got - want) <= output.units * unit_in_the_last_place(output.element, want) + output.absolute;
}

std::string coordinates(const Output& output, int64_t offset) {
  std::vector<Axis> axes = output.axes;
  std::stable_sort(axes.begin(), axes.end(), [](const Axis& a, const Axis& b) { return a.stride > b.stride; });
  std::string text = str_cat(output.name, axes.empty() ? " element " : "");
  if (axes.empty()) return str_cat(text, offset);
  for (const Axis& axis : axes) {
    const int64_t stride = std::max<int64_t>(axis.stride, 1);
    text += str_cat(" ", axis.name, " ", offset / stride);
    offset %= stride;
  }
  return offset == 0 ? text : str_cat(text, " + ", offset);
}

// The first difference of two outcomes in words; empty: none.
std::string first_difference(const Outcome& want, const Outcome& got) {
  if (want.status.code() != got.status.code() || want.status.message() != got.status.message()) {
    return str_cat("got the status \"", got.status.message(), "\", want \"", want.status.message(), "\"");
  }
  if (want.written.size() != got.written.size()) return "the numbers of arrays differ";
  for (size_t i = 0; i < want.written.size(); ++i) {
    const std::vector<unsigned char>&a = want.written[i].bytes, &b = got.written[i].bytes;
    if (a.size() != b.size()) return str_cat("the sizes of array ", i, " differ");
    if (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0) continue;
    // These are the parts of the array that are described, by where they start.
    const auto* start = static_cast<const unsigned char*>(want.written[i].pointer);
    std::vector<std::pair<int64_t, const Output*>> parts;
    const Output unknown = {start, str_cat("array ", i), Element::byte};
    parts.emplace_back(0, &unknown);
    for (const Output& output : want.outputs) {
      const int64_t at = static_cast<const unsigned char*>(output.data) - start;
      if (output.data != nullptr && at >= 0 && at < static_cast<int64_t>(a.size())) parts.emplace_back(at, &output);
    }
    std::stable_sort(parts.begin(), parts.end(), [](const auto& x, const auto& y) { return x.first < y.first; });
    for (size_t part = 0; part < parts.size(); ++part) {
      const auto& [begin, output] = parts[part];
      const int64_t end = part + 1 < parts.size() ? parts[part + 1].first : static_cast<int64_t>(a.size());
      const int64_t size = size_of(output->element);
      for (int64_t at = begin; at + size <= end; at += size) {
        if (std::memcmp(&a[static_cast<size_t>(at)], &b[static_cast<size_t>(at)], static_cast<size_t>(size)) == 0) continue;
        const auto untouched = [&](const std::vector<unsigned char>& bytes) {
          const auto from = bytes.begin() + at;
          return std::all_of(from, from + size, [](unsigned char byte) { return byte == kPoison; });
        };
        const bool one_wrote = untouched(a) != untouched(b);  // the poison is a NaN, but none that arithmetic makes
        const double w = number_at(output->element, &a[static_cast<size_t>(at)]);
        const double g = number_at(output->element, &b[static_cast<size_t>(at)]);
        if (output->element != Element::byte && !one_wrote && near_enough(*output, g, w)) continue;
        char numbers[200];
        std::snprintf(numbers, sizeof numbers, ": got %.17g, want %.17g, difference %.3g", g, w, g - w);
        return coordinates(*output, (at - begin) / size) + numbers + (one_wrote ? ", which only one backend has written" : "");
      }
      // The elements of a part may not fill it: this is the rest.
      const int64_t rest = begin + (end - begin) / size * size;
      for (int64_t at = rest; at < end; ++at) {
        if (a[static_cast<size_t>(at)] != b[static_cast<size_t>(at)]) return str_cat(output->name, ": byte ", at, " differs");
      }
    }
  }
  return {};
}

struct Options {
  uint64_t seed = 1;
  double seconds = 60.0;
  int64_t cases = std::numeric_limits<int64_t>::max();  // of each operation
  std::optional<uint64_t> one_case;
  std::string operation;
  bool cpu_only = false;
  int jobs = 0;
  Sizes sizes;
};

struct Tally {
  std::atomic<int64_t> cases = 0;
  std::atomic<int64_t> refused = 0;
  std::atomic<int64_t> failures = 0;
};

// Runs one case on both backends; what is wrong in words, or empty.
std::string run_case(const Operation& operation, uint64_t seed, const Options& options, Tally& tally) {
  testing::TestPartResultArray reports;
  std::string wrong;
  std::string description;
  {
    const testing::ScopedFakeTestPartResultReporter reporter(
        testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &reports);
    const Outcome want = operation.run(options.cpu_only ? Backend::cpu : Backend::cpu_threads, seed, options.sizes);
    const Outcome got = operation.run(options.cpu_only ? Backend::cpu_threads : Backend::cuda, seed, options.sizes);
    wrong = first_difference(want, got);
    description = want.description;
    ++tally.cases;
    if (!want.status.ok()) ++tally.refused;
  }
  for (int i = 0; i < std::min(reports.size(), 3); ++i) {
    wrong += str_cat(wrong.empty() ? "" : "\n  ", reports.GetTestPartResult(i).message());
  }
  if (wrong.empty()) return {};
  ++tally.failures;
  return str_cat("FAILED: ", operation.name, "\n  ", wrong, "\n  case: ", description, "\n  repeat: --operation ", operation.name,
                 " --case ", seed, options.cpu_only ? " --device cpu" : "", "\n");
}

uint64_t case_seed(uint64_t seed, size_t operation, int64_t number) {
  Random random(seed * 0x9e3779b97f4a7c15ull + operation);
  return Random(random.bits() + static_cast<uint64_t>(number)).bits() >> 16;  // short enough to type
}

int fuzz(const Options& options) {
  std::vector<Operation> operations;
  for (const auto& list : {prologue_operations(), rotary_operations(), attention_operations(), token_operations()}) {
    for (const Operation& operation : list) {
      if (options.operation.empty() || options.operation == operation.name) operations.push_back(operation);
    }
  }
  if (operations.empty()) {
    std::fprintf(stderr, "differential: no operation is called \"%s\"\n", options.operation.c_str());
    return 2;
  }
  if (options.one_case && operations.size() > 1) {
    std::fprintf(stderr, "differential: --case needs --operation\n");
    return 2;
  }
  std::vector<Tally> tallies(operations.size());
  if (options.one_case) {
    const std::string wrong = run_case(operations[0], *options.one_case, options, tallies[0]);
    std::printf("%s", wrong.empty() ? "No difference.\n" : wrong.c_str());
    return wrong.empty() ? 0 : 1;
  }
  const auto start = std::chrono::steady_clock::now();
  std::atomic<int64_t> next = 0;
  std::mutex printing;
  const auto work = [&] {
    constexpr int64_t kMaxFailures = 5;  // of an operation; more would tell nothing new
    const auto count = static_cast<int64_t>(operations.size());
    while (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() < options.seconds) {
      const int64_t i = next++;
      if (i / count >= options.cases) return;
      const auto operation = static_cast<size_t>(i % count);
      if (tallies[operation].failures >= kMaxFailures) continue;
      // The seed depends on the name, not on its place in the list, so that --operation runs the same cases.
      const uint64_t seed = case_seed(options.seed, std::hash<std::string_view>()(operations[operation].name), i / count);
      const std::string wrong = run_case(operations[operation], seed, options, tallies[operation]);
      const std::lock_guard lock(printing);
      if (!wrong.empty()) std::printf("%s", wrong.c_str()), std::fflush(stdout);
    }
  };
  std::vector<std::thread> threads;
  for (int i = 1; i < options.jobs; ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  int64_t failures = 0;
  for (size_t i = 0; i < operations.size(); ++i) {
    const Tally& tally = tallies[i];
    failures += tally.failures;
    std::printf("%-20s %8lld cases, %lld refused, %lld differ\n", operations[i].name, static_cast<long long>(tally.cases),
                static_cast<long long>(tally.refused), static_cast<long long>(tally.failures));
  }
  std::printf("seed %llu, %.0f s, %s\n", static_cast<unsigned long long>(options.seed),
              std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(),
              options.cpu_only ? "the CPU with one thread against several" : "the CPU against CUDA");
  return failures == 0 ? 0 : 1;
}

constexpr const char* kHelp =
    "differential [--seed N] [--seconds S] [--operation NAME] [--case SEED] [--device cuda|cpu]\n"
    "Runs random cases of every operation on the CPU and on CUDA and compares what they write. Exits with 1 if anything "
    "differs.\n"
    "  --seed N          another seed runs other cases (default 1)\n"
    "  --seconds S       when to stop (default 60)\n"
    "  --operation NAME  only this operation\n"
    "  --case SEED       only the case of this operation that a failure has named\n"
    "  --device cpu      compares the CPU with one thread and with several; needs no GPU\n"
    "  --cases N         no more than N cases of each operation\n"
    "  --jobs N          cases that run side by side (default: half the CPU cores)\n"
    "  --max-tokens N    of a case (default 9000)\n";

template <class T>
bool parse(const char* text, T& value) {
  const char* end = text + std::strlen(text);
  const auto result = std::from_chars(text, end, value);
  return result.ec == std::errc() && result.ptr == end && end != text && !(value < T{});
}

int run(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    if (name == "--help") return std::printf("%s", kHelp), 0;
    if (i + 1 == argc) return std::fprintf(stderr, "differential: %s: unknown, or without a value; see --help\n", argv[i]), 2;
    const char* value = argv[++i];
    bool good = true;
    uint64_t one_case = 0;
    if (name == "--seed") {
      good = parse(value, options.seed);
    } else if (name == "--seconds") {
      good = parse(value, options.seconds);
    } else if (name == "--cases") {
      good = parse(value, options.cases);
    } else if (name == "--jobs") {
      good = parse(value, options.jobs) && options.jobs <= 256;
    } else if (name == "--max-tokens") {
      good = parse(value, options.sizes.max_tokens) && options.sizes.max_tokens >= 1;
    } else if (name == "--operation") {
      options.operation = value;
    } else if (name == "--case") {
      good = parse(value, one_case);
      options.one_case = one_case;
    } else if (name == "--device") {
      options.cpu_only = std::strcmp(value, "cpu") == 0;
      good = options.cpu_only || std::strcmp(value, "cuda") == 0;
    } else {
      return std::fprintf(stderr, "differential: %s is unknown; see --help\n", argv[i - 1]), 2;
    }
    if (!good) return std::fprintf(stderr, "differential: %s %s is not a value for it; see --help\n", argv[i - 1], value), 2;
  }
  if (!options.cpu_only) {
    const std::string reason = backend_unavailable(Backend::cuda);
    if (!reason.empty()) return std::fprintf(stderr, "differential: %s; --device cpu needs none\n", reason.c_str()), 2;
  }
  if (options.jobs == 0) options.jobs = std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / 2);
  return fuzz(options);
}

}  // namespace
}  // namespace prologue::test

int main(int argc, char** argv) { return prologue::test::run(argc, argv); }
