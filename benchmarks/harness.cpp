#include "benchmarks/harness.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <limits>
#include <random>
#include <stdexcept>
#include <string_view>
#include <thread>
#include <utility>

#include <prologue/kernels/base/host/parallel.h>

namespace prologue::bench {

#ifdef PROLOGUE_HAS_CUDA
// harness_cuda.cu
namespace cuda {
struct Gpu {
  std::string description;
  int64_t l2_bytes;
  CUstream_st* stream;
};
Result<Gpu> open();
Result<double> time_us(const Operation& operation, int64_t rotations, const Execution& execution);
Status copy(void* target, const void* source, int64_t num_bytes, const Execution& execution);
Status copy_in_pairs(void* target, const void* source, int64_t num_bytes, const Execution& execution);
Status launch_nothing(const Execution& execution);
}  // namespace cuda
#endif

namespace {

constexpr int64_t kMaxCpuRotations = 512;
constexpr int64_t kMaxCudaRotations = 20;
constexpr int64_t kMaxColdRotations = 8192;
constexpr int64_t kCpuCacheBytes = int64_t{64} << 20;  // more than most last-level caches hold

constexpr const char* kCpuMethod =
    "CPU: median over single calls, steady clock, after a warm-up; buffers rotated through at least 128 MiB";
constexpr const char* kCudaMethod =
    "CUDA: median over replays of a CUDA graph of at least 20 calls, events, after a warm-up; at most 20 rotated buffers";

constexpr const char* kUsage =
    "Options:\n"
    "  --device cpu|cuda  where to run (default: cuda where there is a GPU)\n"
    "  --threads N        CPU threads (default: one for each core)\n"
    "  --filter TEXT      only the cases whose name contains TEXT\n"
    "  --prefix TEXT      only the cases whose name begins with TEXT; may be repeated\n"
    "  --once             every case once and untimed, for a profiler\n"
    "  --json FILE        keep the rows\n";

// Benches are programs: what is wrong goes to stderr and ends them.
[[noreturn]] void fail(int code, const std::string& message) {
  std::fprintf(stderr, "%s\n", message.c_str());
  std::exit(code);
}

void check(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.message());
}
template <class T>
T check(Result<T> result) {
  check(result.status());
  return std::move(result).value();
}

std::string cpu_description(int32_t num_threads) {
  std::string model = "CPU";
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.rfind("model name", 0) == 0 && line.find(": ") != std::string::npos) {
      model = line.substr(line.find(": ") + 2);
      break;
    }
  }
  return str_cat(model, ", ", num_threads, num_threads == 1 ? " thread" : " threads");
}

// Returns the first line that a command prints, or an empty string if it fails.
std::string output_of(const char* command) {
  std::string line;
  if (FILE* pipe = popen(command, "r")) {
    char buffer[256];
    if (std::fgets(buffer, sizeof buffer, pipe) != nullptr) line = buffer;
    if (pclose(pipe) != 0) line.clear();
  }
  while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.pop_back();
  return line;
}

std::string json_string(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    if (static_cast<unsigned char>(c) >= 0x20) quoted += c;
  }
  return quoted + "\"";
}

double median(std::vector<double> samples) {
  std::nth_element(samples.begin(), samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2), samples.end());
  return samples[samples.size() / 2];
}

// Launches queue up on a GPU as long as the queue has room.
double host_time_us(const Operation& operation, const Execution& execution) {
  using Clock = std::chrono::steady_clock;
  constexpr int kBatches = 51, kCalls = 200;
  std::vector<double> samples;
  for (int batch = 0; batch < kBatches; ++batch) {
    const auto start = Clock::now();
    for (int i = 0; i < kCalls; ++i) check(operation(execution, 0));
    samples.push_back(std::chrono::duration<double>(Clock::now() - start).count() * 1e6 / kCalls);
    check(synchronize(execution));
  }
  return median(std::move(samples));
}

double cpu_time_us(const Operation& operation, int64_t rotations, const Execution& execution) {
  using Clock = std::chrono::steady_clock;
  constexpr double kWarmUpSeconds = 0.05, kSeconds = 0.4;
  constexpr size_t kFewestSamples = 7;
  const auto seconds_since = [](Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); };
  int64_t call = 0;
  const auto warm_up = Clock::now();
  do {
    check(operation(execution, call++ % rotations));
  } while (seconds_since(warm_up) < kWarmUpSeconds);
  std::vector<double> samples;
  const auto begin = Clock::now();
  do {
    const auto start = Clock::now();
    check(operation(execution, call++ % rotations));
    samples.push_back(seconds_since(start) * 1e6);
  } while (samples.size() < kFewestSamples || seconds_since(begin) < kSeconds);
  return median(std::move(samples));
}

void cpu_copy(void* target, const void* source, int64_t num_bytes, int32_t num_threads) {
  parallel_for(num_threads, num_bytes > 32768 ? num_threads : 1, [&](int64_t i) {
    const int64_t begin = num_bytes * i / num_threads, end = num_bytes * (i + 1) / num_threads;
    std::memcpy(static_cast<char*>(target) + begin, static_cast<const char*>(source) + begin, static_cast<size_t>(end - begin));
  });
}

// Makes pseudo-random numbers in (-1, 1), as many as a megabyte holds; larger arrays repeat them.
std::vector<char> make_random_bytes(DType dtype) {
  std::vector<char> bytes(size_t{1} << 20);
  uint64_t state = 1;
  with_host_type(dtype, [&](auto type) {
    using T = decltype(type);
    for (size_t i = 0; i < bytes.size(); i += sizeof(T)) {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      const T value = from_float<T>(static_cast<float>(static_cast<int32_t>(state >> 32)) * 0x1p-31f);
      std::memcpy(bytes.data() + i, &value, sizeof value);
    }
  });
  return bytes;
}

// Codes of 8 or 4 bits: bit 6 is clear, so that an fp8 code is a number.
std::vector<char> make_random_codes() {
  std::vector<char> codes(size_t{1} << 20);
  std::mt19937 random(1);
  for (char& code : codes) code = static_cast<char>(random() & 0xbf);
  return codes;
}

const std::vector<char>& random_bytes(DType dtype) {
  static const std::vector<char> kCodes = make_random_codes();
  if (dtype_is_quantized(dtype)) return kCodes;
  static const std::vector<char> kOfTypes[] = {make_random_bytes(DType::f32), make_random_bytes(DType::f16),
                                               make_random_bytes(DType::bf16)};
  return kOfTypes[static_cast<size_t>(dtype) - static_cast<size_t>(DType::f32)];
}

int64_t rotations_for(int64_t bytes_per_call, int64_t cache_bytes, int64_t max_rotations) {
  return std::clamp<int64_t>(1 + 2 * cache_bytes / std::max<int64_t>(bytes_per_call, 1), 1, max_rotations);
}

}  // namespace

std::string utc_now() {
  char date[32];
  const std::time_t now = std::time(nullptr);
  std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
  return date;
}

std::string source_commit() {
  return output_of("git -C \"" PROLOGUE_SOURCE_DIR "\" describe --always --dirty --abbrev=40 2>/dev/null");
}

Result<std::string> describe_device(Device device, int32_t num_threads) {
#ifdef PROLOGUE_HAS_CUDA
  if (device == Device::cuda) {
    PROLOGUE_ASSIGN_OR_RETURN(const cuda::Gpu gpu, cuda::open());
    return gpu.description;
  }
#endif
  if (device == Device::cuda) return unsupported("the device is cuda, but this program was built without CUDA");
  return cpu_description(num_threads);
}

Status copy_in_pairs(void* target, const void* source, int64_t num_bytes, const Execution& execution) {
#ifdef PROLOGUE_HAS_CUDA
  if (execution.device == Device::cuda) return cuda::copy_in_pairs(target, source, num_bytes, execution);
#endif
  cpu_copy(target, source, num_bytes, execution.num_threads);
  return {};
}

Status launch_nothing(const Execution& execution) {
#ifdef PROLOGUE_HAS_CUDA
  if (execution.device == Device::cuda) return cuda::launch_nothing(execution);
#endif
  static_cast<void>(execution);
  return {};
}

void Setup::rotate_cold(int64_t bytes_per_call) { rotations_ = rotations_for(bytes_per_call, cache_bytes_, kMaxColdRotations); }

void Setup::rotate(int64_t bytes_per_call) { rotations_ = rotations_for(bytes_per_call, cache_bytes_, max_rotations_); }

void* Setup::allocate(int64_t num_bytes) {
  buffers_.push_back(check(Buffer::allocate(execution_.device, num_bytes)));
  return buffers_.back().data();
}

void* Setup::upload(const void* bytes, int64_t num_bytes) {
  void* data = allocate(num_bytes);
  check(copy_to_device(data, bytes, num_bytes, execution_));
  return data;
}

void* Setup::shared(int64_t num_bytes, DType dtype) {
  const std::vector<char>& pattern = random_bytes(dtype);
  char* data = static_cast<char*>(allocate(num_bytes));
  for (int64_t done = 0; done < num_bytes; done += static_cast<int64_t>(pattern.size())) {
    check(copy_to_device(data + done, pattern.data(), std::min(num_bytes - done, static_cast<int64_t>(pattern.size())),
                         execution_));
  }
  return data;
}

std::vector<void*> Setup::rotated(int64_t num_bytes, DType dtype) {
  std::vector<void*> copies;
  for (int64_t i = 0; i < rotations_; ++i) copies.push_back(shared(num_bytes, dtype));
  return copies;
}

Bench::Bench(int argc, char** argv) {
  std::string device;
  execution_.num_threads = static_cast<int32_t>(std::max(1u, std::thread::hardware_concurrency()));
  for (int i = 0; i < argc; ++i) command_ += str_cat(i == 0 ? "" : " ", argv[i]);
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    if (option == "--help") {
      std::printf("Usage: %s [options]\n%s", argv[0], kUsage);
      std::exit(0);
    }
    if (option == "--once") {
      once_ = true;
      continue;
    }
    constexpr const char* kWithValue[] = {"--device", "--threads", "--filter", "--prefix", "--json"};
    if (std::find(std::begin(kWithValue), std::end(kWithValue), option) == std::end(kWithValue)) {
      fail(2, str_cat("unknown option ", option, "\n", kUsage));
    }
    if (i + 1 == argc) fail(2, str_cat(option, " needs a value\n", kUsage));
    const std::string value = argv[++i];
    if (option == "--device") {
      device = value;
      if (device != "cpu" && device != "cuda") fail(2, str_cat("--device is ", device, ": it must be cpu or cuda"));
    } else if (option == "--threads") {
      const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), execution_.num_threads);
      if (error != std::errc() || end != value.data() + value.size() || execution_.num_threads < 1) {
        fail(2, str_cat("--threads is ", value, ": it must be a number from 1"));
      }
    } else if (option == "--filter") {
      filter_ = value;
    } else if (option == "--prefix") {
      prefixes_.push_back(value);
    } else {
      json_path_ = value;
    }
  }
#ifdef PROLOGUE_HAS_CUDA
  if (device != "cpu") {
    const auto gpu = cuda::open();
    if (gpu.ok()) {
      execution_.device = Device::cuda;
      execution_.stream = gpu->stream;
      device_description_ = gpu->description;
      cache_bytes_ = gpu->l2_bytes;
    } else if (device == "cuda") {
      fail(1, gpu.status().message());
    }
  }
#else
  if (device == "cuda") fail(1, "--device is cuda, but this program was built without CUDA");
#endif
  if (execution_.device == Device::cpu) {
    device_description_ = cpu_description(execution_.num_threads);
    cache_bytes_ = kCpuCacheBytes;
  }
  std::printf("%s\n", device_description_.c_str());
  if (!once_) {
    std::printf("%-44s %10s %10s %8s %8s %8s %8s\n", "case", "us", "MB", "GB/s", "% copy", "GFLOP/s", "x");
  }
}

Bench::~Bench() = default;

double Bench::time_us(const Operation& operation, int64_t rotations) const {
#ifdef PROLOGUE_HAS_CUDA
  if (execution_.device == Device::cuda) return check(cuda::time_us(operation, rotations, execution_));
#endif
  return cpu_time_us(operation, rotations, execution_);
}

double Bench::copy_us(int64_t bytes, int64_t rotations) {
  const auto [entry, is_new] = copies_.try_emplace({bytes, rotations}, 0.0);
  if (!is_new) return entry->second;
  const int64_t half = std::max<int64_t>(16, bytes / 2 / 16 * 16);
  Setup setup(execution_, cache_bytes_, rotations);
  setup.rotate(1);
  const std::vector<void*> sources = setup.rotated(half, DType::f32), targets = setup.rotated(half, DType::f32);
  const auto copy = [&](const Execution& execution, int64_t rotation) -> Status {
    void* target = targets[static_cast<size_t>(rotation)];
    const void* source = sources[static_cast<size_t>(rotation)];
#ifdef PROLOGUE_HAS_CUDA
    if (execution.device == Device::cuda) return cuda::copy(target, source, half, execution);
#endif
    cpu_copy(target, source, half, execution.num_threads);
    return {};
  };
  return entry->second = time_us(copy, rotations);
}

std::unique_ptr<GemmContext> Bench::gemm_context() const {
  auto created = GemmContext::create(execution_.device);
  if (!created.ok()) fail(1, created.status().message());
  return std::move(created).value();
}

bool Bench::may_run(const std::string& begin) const {
  return prefixes_.empty() || std::any_of(prefixes_.begin(), prefixes_.end(), [&](const std::string& prefix) {
           return begin.starts_with(prefix) || prefix.starts_with(begin);
         });
}

bool Bench::selected(const std::string& name) const {
  if (name.find(filter_) == std::string::npos) return false;
  const auto begins_with = [&](const std::string& prefix) { return name.starts_with(prefix); };
  return prefixes_.empty() || std::any_of(prefixes_.begin(), prefixes_.end(), begins_with);
}

Setup Bench::new_setup() const {
  return {execution_, cache_bytes_, execution_.device == Device::cpu ? kMaxCpuRotations : kMaxCudaRotations};
}

void Bench::run(const std::string& name, const std::function<Case(Setup&)>& make_case) {
  if (!selected(name)) return;
  Setup setup = new_setup();
  measure(
      name, false, [&] { return make_case(setup); }, setup);
}

void Bench::run_host(const std::string& name, const std::function<Case(Setup&)>& make_case) {
  if (!selected(name)) return;
  Setup setup = new_setup();
  measure(
      name, true, [&] { return make_case(setup); }, setup);
}

void Bench::run_each(const std::string& name, const std::function<std::vector<NamedCase>(Setup&)>& make_cases) {
  if (!selected(name)) return;
  Setup setup = new_setup();
  std::vector<NamedCase> cases;
  try {
    cases = make_cases(setup);
  } catch (const std::exception& error) {
    measure(
        name, false, [&]() -> Case { throw std::runtime_error(error.what()); }, setup);
  }
  for (const NamedCase& c : cases)
    measure(
        str_cat(name, ": ", c.name), false, [&] { return c.measured; }, setup);
}

void Bench::run_in_turn(const std::string& name, const std::function<std::vector<NamedCase>(Setup&)>& make_cases) {
  if (!selected(name)) return;
  using Clock = std::chrono::steady_clock;
  constexpr double kSeconds = 1.5;
  constexpr int64_t kFewestRounds = 10;
  try {
    Setup setup = new_setup();
    const std::vector<NamedCase> cases = make_cases(setup);
    std::vector<double> shortest(cases.size(), std::numeric_limits<double>::infinity());
    const auto begin = Clock::now();
    int64_t call = 0;
    for (int64_t round = 0; round < kFewestRounds || Clock::now() - begin < std::chrono::duration<double>(kSeconds); ++round) {
      for (size_t i = 0; i < cases.size(); ++i) {
        const auto start = Clock::now();
        check(cases[i].measured.operation(execution_, call++ % setup.rotations()));
        shortest[i] = std::min(shortest[i], std::chrono::duration<double>(Clock::now() - start).count() * 1e6);
      }
      if (once_) break;
    }
    for (size_t i = 0; i < cases.size(); ++i) {
      const Case& c = cases[i].measured;
      if (once_) {
        std::printf("%s: %s\n", name.c_str(), cases[i].name.c_str());
        continue;
      }
      Row row;
      row.name = str_cat(name, ": ", cases[i].name);
      row.rotations = setup.rotations();
      row.bytes = c.bytes;
      row.us = shortest[i];
      row.copy_us = copy_us(cases[0].measured.bytes, row.rotations);  // of as many bytes as the first case's
      row.copy_warm_us = copy_us(cases[0].measured.bytes, 1);
      row.gflops = c.flops / row.us * 1e-3;
      row.in_turn = true;
      if (i > 0) row.reference = str_cat(name, ": ", cases[0].name), row.speedup = shortest[0] / shortest[i];
      print(row);
      rows_.push_back(std::move(row));
    }
  } catch (const std::exception& error) {
    std::printf("%-44s failed: %s\n", name.c_str(), error.what());
    failed_ = true;
  }
  std::fflush(stdout);
}

void Bench::measure(const std::string& name, bool host, const std::function<Case()>& make_case, const Setup& setup) {
  try {
    const Case c = make_case();
    if (once_) {
      check(c.operation(execution_, 0));
      check(synchronize(execution_));
      std::printf("%s\n", name.c_str());
      return;
    }
    Row row;
    row.name = name;
    row.rotations = setup.rotations();
    row.bytes = c.bytes;
    row.us = host ? host_time_us(c.operation, execution_) : time_us(c.operation, row.rotations);
    if (c.bytes > 0) {
      row.copy_us = copy_us(c.bytes, row.rotations);
      row.copy_warm_us = copy_us(c.bytes, 1);
    }
    row.gflops = c.flops / row.us * 1e-3;
    row.reference = c.reference;
    const auto reference = std::find_if(rows_.begin(), rows_.end(), [&](const Row& other) { return other.name == c.reference; });
    if (reference != rows_.end()) row.speedup = reference->us / row.us;
    print(row);
    rows_.push_back(std::move(row));
  } catch (const std::exception& error) {
    std::printf("%-44s failed: %s\n", name.c_str(), error.what());
    failed_ = true;
  }
  std::fflush(stdout);
}

void Bench::print(const Row& row) {
  std::printf("%-44s %10.2f %10.3f %8.1f %8.0f", row.name.c_str(), row.us, static_cast<double>(row.bytes) * 1e-6,
              static_cast<double>(row.bytes) / row.us * 1e-3, 100.0 * row.copy_us / row.us);
  if (row.gflops > 0.0) {
    std::printf(" %8.0f", row.gflops);
  } else {
    std::printf(" %8s", "");
  }
  if (row.speedup > 0.0 && row.in_turn) {
    std::printf(" %7.2f of the time of %s", 1.0 / row.speedup, row.reference.substr(row.reference.rfind(": ") + 2).c_str());
  } else if (row.speedup > 0.0) {
    std::printf(" %7.2fx (%s)", row.speedup, row.reference.c_str());
  }
  std::printf("\n");
}

int Bench::finish() {
  if (!json_path_.empty()) {
    std::ofstream out(json_path_);
    out << "{\"date\": " << json_string(utc_now()) << ",\n \"commit\": " << json_string(source_commit())
        << ",\n \"device\": " << json_string(device_description_)
        << ",\n \"method\": " << json_string(execution_.device == Device::cpu ? kCpuMethod : kCudaMethod)
        << ",\n \"command\": " << json_string(command_) << ",\n \"rows\": [";
    for (size_t i = 0; i < rows_.size(); ++i) {
      const Row& row = rows_[i];
      out << (i == 0 ? "\n" : ",\n") << "  {\"name\": " << json_string(row.name) << ", \"us\": " << row.us
          << ", \"bytes\": " << row.bytes << ", \"gb_per_s\": " << static_cast<double>(row.bytes) / row.us * 1e-3
          << ", \"copy_us\": " << row.copy_us << ", \"copy_warm_us\": " << row.copy_warm_us
          << ", \"share_of_copy\": " << row.copy_us / row.us << ", \"rotations\": " << row.rotations;
      if (row.gflops > 0.0) out << ", \"gflop_per_s\": " << row.gflops;
      if (row.speedup > 0.0) out << ", \"reference\": " << json_string(row.reference) << ", \"speedup\": " << row.speedup;
      out << "}";
    }
    out << "\n ]}\n";
    if (!out.flush()) fail(1, str_cat("cannot write ", json_path_));
  }
  return failed_ ? 1 : 0;
}

}  // namespace prologue::bench
