// This is a benchmark harness for the CPU and CUDA. A bench program is a list of cases:
//
//   int main(int argc, char** argv) {
//     Bench bench(argc, argv);
//     bench.run("norm T=1", [&](Setup& setup) {
//       const int64_t bytes = ...;                                  // what one call must read and write
//       const std::vector<void*> x = setup.rotated(x_bytes, DType::f32);   // one copy of x per rotation
//       return Case{bytes, [=](const Execution& execution, int64_t rotation) { return norm({... x[rotation] ...}, execution);
//       }};
//     });
//     return bench.finish();
//   }
//
// Each case becomes one row: microseconds (median), bytes, GB/s, and the time as a share of a plain copy of as many bytes (half
// of them read, half written) that is measured in the same run over as many rotated buffers; on request also x against an earlier
// case. Successive calls use the rotated buffers in turn, so that the data is in memory and not in a cache: on the CPU for every
// size. On CUDA there are at most 20 buffers, so that small cases stay in the L2 cache, as in an engine after the previous kernel.
//
// On the CPU every call is timed separately. On CUDA some 20 calls are captured into one graph; its replays are timed with events.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <prologue/kernels/base/dtype.h>
#include <prologue/kernels/base/execution.h>
#include <prologue/kernels/base/memory.h>
#include <prologue/kernels/gemm/gemm.h>

namespace prologue::bench {

using Operation = std::function<Status(const Execution&, int64_t rotation)>;

struct Case {
  int64_t bytes = 0;  // read and written by one call, counted from the arguments
  Operation operation;
  double flops = 0.0;          // of one call; 0 = no GFLOP/s in the row
  std::string reference = {};  // an earlier case: the row shows how many times faster this one is
};

struct NamedCase {
  std::string name;
  Case measured;
};

// Owns the memory of one case, freed after it.
class Setup {
 public:
  Setup(const Execution& execution, int64_t cache_bytes, int64_t max_rotations)
      : execution_(execution), cache_bytes_(cache_bytes), max_rotations_(max_rotations) {}

  // Says how many bytes of one call should come from memory; call it before rotated().
  void rotate(int64_t bytes_per_call);
  // Does what rotate() does, but with as many buffers as it takes to find none of them in the L2 again.
  void rotate_cold(int64_t bytes_per_call);
  // Rotates over so many buffers.
  void rotate_times(int64_t rotations) { rotations_ = rotations; }
  int64_t rotations() const { return rotations_; }

  // Returns an array of small random numbers of the type, once for each rotation.
  std::vector<void*> rotated(int64_t num_bytes, DType dtype);
  // Returns an array of small random numbers of the type, which all rotations use.
  void* shared(int64_t num_bytes, DType dtype);
  // Does what shared() does, with these contents.
  template <class T>
  T* values(const std::vector<T>& contents) {
    return static_cast<T*>(upload(contents.data(), static_cast<int64_t>(contents.size() * sizeof(T))));
  }
  const Execution& execution() const { return execution_; }

 private:
  void* allocate(int64_t num_bytes);
  void* upload(const void* bytes, int64_t num_bytes);

  Execution execution_;
  int64_t cache_bytes_;
  int64_t max_rotations_;
  int64_t rotations_ = 1;
  std::vector<Buffer> buffers_;
};

// Runs a second yardstick: a copy whose threads move two vectors of 16 bytes each, both read before either is written.
Status copy_in_pairs(void* target, const void* source, int64_t num_bytes, const Execution& execution);
// Launches an empty kernel on CUDA, with as many bytes of parameters as the operations here have: what a call costs at least.
Status launch_nothing(const Execution& execution);

// The head of a file of results has these: the time now (UTC), the commit of the sources, and the machine.
std::string utc_now();
std::string source_commit();
Result<std::string> describe_device(Device device, int32_t num_threads);

class Bench {
 public:
  // Reads the command line. Exits with a message if it is wrong, or if it has --help.
  Bench(int argc, char** argv);
  ~Bench();
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  const Execution& execution() const { return execution_; }
  // Returns a context of the device. Ends the program if there is none.
  std::unique_ptr<GemmContext> gemm_context() const;

  // Whether --prefix lets some case run whose name begins so: for what is expensive to prepare.
  bool may_run(const std::string& begin) const;
  // Whether a --prefix selects cases that most runs of the program leave out.
  bool asked_for(const std::string& begin) const { return !prefixes_.empty() && may_run(begin); }

  // Runs the case now, unless --filter or --prefix excludes it. An error is printed in the case's row.
  void run(const std::string& name, const std::function<Case(Setup&)>& make_case);
  // Runs all cases over the same memory, in rows "name: name of the case".
  void run_each(const std::string& name, const std::function<std::vector<NamedCase>(Setup&)>& make_cases);

  // Measures all cases over the same memory in turn, on the CPU, and takes the shortest time of each: for comparisons on a machine whose speed
  // changes meanwhile. Rows show the time as a multiple of the first case's.
  void run_in_turn(const std::string& name, const std::function<std::vector<NamedCase>(Setup&)>& make_cases);

  // Measures the calling thread's time for one call, which must not wait for the device.
  void run_host(const std::string& name, const std::function<Case(Setup&)>& make_case);

  // Writes --json; the program's exit code: 1 when a case failed.
  int finish();

 private:
  struct Row {
    std::string name;
    int64_t rotations = 1;
    int64_t bytes = 0;
    double us = 0.0;
    double copy_us = 0.0;       // rotated like the case
    double copy_warm_us = 0.0;  // over one pair of buffers
    double gflops = 0.0;        // 0 = not wanted
    std::string reference;
    double speedup = 0.0;  // 0 = no reference
    bool in_turn = false;
  };
  bool selected(const std::string& name) const;
  Setup new_setup() const;
  // Prints an error in the case's row.
  void measure(const std::string& name, bool host, const std::function<Case()>& make_case, const Setup& setup);
  double time_us(const Operation& operation, int64_t rotations) const;
  double copy_us(int64_t bytes, int64_t rotations);
  void print(const Row& row);

  Execution execution_;
  std::string device_description_;
  std::string command_;
  std::string filter_;
  std::vector<std::string> prefixes_;
  std::string json_path_;
  bool once_ = false;
  bool failed_ = false;
  int64_t cache_bytes_ = 0;
  std::vector<Row> rows_;
  std::map<std::pair<int64_t, int64_t>, double> copies_;  // (bytes, rotations) -> us
};

}  // namespace prologue::bench
