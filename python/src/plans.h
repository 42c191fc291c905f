// Calls that are made again: the second call with a signature makes a plan, which later ones run with other addresses.
//
// The signature of a call is all of its values but the addresses of its arrays: shapes, strides, dtypes, devices, options, and the
// addresses modulo 16. Calls with one signature have the same parameters but for pointers, and pass the same checks if their arrays
// overlap in the same way. Signatures are compared in full; the hash only finds them. Each thread has its own calls, and of them the last.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "arguments.h"
#include "uncaptured.h"

namespace prologue::python {

// The arrays among the values of a call, in order.
struct CallArrays {
  static constexpr int kMost = 40;
  int count = 0;
  const DLTensor* tensors[kMost];

  uintptr_t address(int i) const { return reinterpret_cast<uintptr_t>(tensors[i]->data) + tensors[i]->byte_offset; }
};

// The tensor of a value; null if it is none.
const DLTensor* tensor_of(const TVMFFIAny& value);
// Appends a call's signature and its arrays. False if it has none: a value is of a type that no operation takes, or there are too many arrays.
bool read_signature(const TVMFFIAny* values, int32_t count, std::vector<uint64_t>& signature, CallArrays& arrays);
uint64_t hash_of(const std::vector<uint64_t>& signature);
// Whether work on the stream is captured into a graph, or might be.
bool is_capturing(const Execution& execution);

// How the arrays of a call overlap: the distance of those that do.
class Overlaps {
 public:
  Overlaps() = default;
  explicit Overlaps(const CallArrays& arrays);
  bool same(const CallArrays& arrays) const;

 private:
  template <class Visit>
  bool all_pairs(const CallArrays& arrays, const Visit& visit) const;

  std::vector<int64_t> bytes_;      // of each array, from its first element to the end of its last
  std::vector<int64_t> distances_;  // of each pair
};

// The copies of a call's values with placeholder addresses, two sets of them: what differs between the parameters read from both is a
// pointer into an array, and the difference tells which.
class Placeholders {
 public:
  Placeholders(const TVMFFIAny* values, int32_t count, int set);
  const TVMFFIAny* values() const { return values_.data(); }
  int32_t count() const { return static_cast<int32_t>(values_.size()); }

  static uint64_t address(int array, int set) {
    const uint64_t number = static_cast<uint64_t>(array) + 1;
    return (number << 50) + (set == 0 ? 0 : number * kStep);
  }
  // The array whose addresses differ by that much between the sets; -1: none, so the word is padding.
  static int array_of(uint64_t difference) {
    const uint64_t number = difference / kStep;
    return number * kStep == difference && number >= 1 && number <= CallArrays::kMost ? static_cast<int>(number) - 1 : -1;
  }

 private:
  static constexpr uint64_t kStep =
      0x0000'0101'0101'0111;  // differs in every byte but the highest two, so padding is not mistaken for it
  std::vector<DLTensor> tensors_;
  std::vector<TVMFFIAny> values_;
};

// In place of a plan for operations that have none: its calls are validated every time.
template <class Operation>
struct Unplanned {
  Status run(const typename Operation::Params& params, const Execution& execution) const {
    return Operation::run(params, execution);
  }
};

template <class Operation>
concept HasScratch = requires(const typename Operation::Params& params) {
  Operation::scratch_bytes(params, Device::cpu);
};

template <class Operation>
int64_t scratch_bytes_of(const typename Operation::Params& params, DLDevice device) {
  if constexpr (HasScratch<Operation>) {
    return Operation::scratch_bytes(params, device.device_type == kDLCUDA ? Device::cuda : Device::cpu);
  } else {
    return 0;
  }
}

// Runs a call that has been read: run(params, execution).
template <class Operation, class Run>
void run_call(typename Operation::Params& params, DLDevice device, int64_t scratch_bytes, const Run& run) {
  Call call(device, params.faults);
  params.faults = call.faults();
  std::optional<Scratch> scratch;
  if constexpr (HasScratch<Operation>) {
    if (scratch_bytes > 0) {
      scratch.emplace(device, Array(), scratch_bytes);
      params.workspace = scratch->data();
      params.workspace_bytes = scratch->size_bytes();
    }
  }
  call.finish(run(params, call.execution()), Operation::past_table(params));
}

// A call's parameters without their addresses, and its plan.
template <class Operation>
class PreparedCall {
 public:
  using Params = typename Operation::Params;
  static_assert(std::is_trivially_copyable_v<Params>);

  // Null where the stream is captured, or if nothing would run. Throws what the plan's creation returns.
  static std::unique_ptr<PreparedCall> make(const Layout& layout, const TVMFFIAny* values, int32_t count,
                                            const CallArrays& arrays) {
    auto prepared = std::make_unique<PreparedCall>();
    std::array<std::array<uint64_t, kWords>, 2> words = {};
    for (int set = 0; set < 2; ++set) {
      const Placeholders placeholders(values, count, set);
      Arguments reader(layout, placeholders.values(), placeholders.count());
      alignas(Params) unsigned char storage[sizeof(Params)] = {};  // zeros, so that padding is alike
      Operation::read(reader, *new (storage) Params());
      std::memcpy(words[static_cast<size_t>(set)].data(), storage, sizeof(Params));
      prepared->device_ = reader.device();
    }
    for (size_t word = 0; word < kWords; ++word) {
      const int array = Placeholders::array_of(words[1][word] - words[0][word]);
      if (array >= 0) prepared->pointers_.push_back({word, array, words[0][word] - Placeholders::address(array, 0)});
    }
    prepared->words_ = words[0];
    prepared->overlaps_ = Overlaps(arrays);
    Params params = prepared->params(arrays);
    if (Operation::is_empty(params)) return nullptr;
    prepared->scratch_bytes_ = scratch_bytes_of<Operation>(params, prepared->device_);
    const Call call(prepared->device_, params.faults);
    if (is_capturing(call.execution())) return nullptr;
    const Uncaptured uncaptured;
    FaultRecord own;
    if (params.faults == nullptr && call.execution().device == Device::cpu) params.faults = &own;
    auto plan = Operation::plan(params, call.execution());
    check(plan.status());
    prepared->plan_.emplace(std::move(plan).value());
    return prepared;
  }

  bool overlaps_as_before(const CallArrays& arrays) const { return overlaps_.same(arrays); }

  void run(const CallArrays& arrays) const {
    Params of_run = params(arrays);
    run_call<Operation>(of_run, device_, scratch_bytes_,
                        [&](const Params& p, const Execution& execution) { return plan_->run(p, execution); });
  }

 private:
  struct Pointer {
    size_t word;  // of the parameters
    int array;
    uint64_t offset;
  };
  static_assert(sizeof(Params) % sizeof(uint64_t) == 0 && alignof(Params) <= alignof(uint64_t));
  static constexpr size_t kWords = sizeof(Params) / sizeof(uint64_t);

  Params params(const CallArrays& arrays) const {
    std::array<uint64_t, kWords> words = words_;
    for (const Pointer& pointer : pointers_) words[pointer.word] = arrays.address(pointer.array) + pointer.offset;
    Params result;
    std::memcpy(static_cast<void*>(&result), words.data(), sizeof(Params));
    return result;
  }

  std::array<uint64_t, kWords> words_;
  std::vector<Pointer> pointers_;
  Overlaps overlaps_;
  DLDevice device_ = {kDLCPU, 0};
  int64_t scratch_bytes_ = 0;
  std::optional<std::decay_t<decltype(Operation::plan(std::declval<const Params&>(), std::declval<const Execution&>()).value())>>
      plan_;
};

// The last calls of a thread.
template <class Operation>
class KnownCalls {
 public:
  static constexpr size_t kMost = 256;

  void call(const Layout& layout, const TVMFFIAny* values, int32_t count) {
    signature_.clear();
    CallArrays arrays;
    const bool has_signature = read_signature(values, count, signature_, arrays);
    const uint64_t hash = has_signature ? hash_of(signature_) : 0;
    const auto found = has_signature ? calls_.find(hash) : calls_.end();
    const bool known = found != calls_.end() && found->second.signature == signature_;
    if (known) {
      Known& entry = found->second;
      entry.last_use = ++clock_;
      if (entry.prepared == nullptr && !entry.failed) {
        try {
          entry.prepared = PreparedCall<Operation>::make(layout, values, count, arrays);
        } catch (const tvm::ffi::Error&) {
          entry.failed = true;  // the call itself is valid: it runs without a plan
        }
      }
      if (entry.prepared != nullptr && entry.prepared->overlaps_as_before(arrays)) {
        try {
          return entry.prepared->run(arrays);
        } catch (const tvm::ffi::Error& error) {
          if (error.kind() != "ValueError") throw;  // else nothing has run: the plan takes fewer calls than the operation
        }
      }
    }
    Arguments reader(layout, values, count);
    typename Operation::Params params;
    Operation::read(reader, params);
    const DLDevice device = reader.device();
    run_call<Operation>(params, device, scratch_bytes_of<Operation>(params, device), Operation::run);
    if (has_signature && !known) remember(hash);
  }

 private:
  struct Known {
    std::vector<uint64_t> signature;
    uint64_t last_use = 0;
    bool failed = false;  // no plan can be made
    std::unique_ptr<PreparedCall<Operation>> prepared;
  };

  void remember(uint64_t hash) {
    if (calls_.size() >= kMost && calls_.find(hash) == calls_.end()) {
      auto oldest = calls_.begin();
      for (auto at = calls_.begin(); at != calls_.end(); ++at) {
        if (at->second.last_use < oldest->second.last_use) oldest = at;
      }
      calls_.erase(oldest);
    }
    Known& entry = calls_[hash];
    entry = Known();
    entry.signature = signature_;
    entry.last_use = ++clock_;
  }

  std::unordered_map<uint64_t, Known> calls_;
  std::vector<uint64_t> signature_;  // of the current call
  uint64_t clock_ = 0;
};

// A plan that Python holds: a function of the arrays that change.
using MakeHeldPlan = tvm::ffi::Function (*)(const Layout&, std::vector<tvm::ffi::Any> values, std::vector<int64_t> changing);
bool register_held_plan(const char* operation, MakeHeldPlan make);

// What the function of a held plan does with its arguments: the arrays of the plan with those that change in their places.
class HeldArrays {
 public:
  HeldArrays(const char* operation, std::vector<tvm::ffi::Any> values, std::vector<int64_t> changing);
  const TVMFFIAny* values() const { return reinterpret_cast<const TVMFFIAny*>(values_.data()); }
  int32_t count() const { return static_cast<int32_t>(values_.size()); }
  const CallArrays& arrays() const { return arrays_; }
  // Throws if an array that changes has another signature than the plan's.
  CallArrays with(const TVMFFIAny* arguments, int32_t count) const;

 private:
  const char* operation_;
  std::vector<tvm::ffi::Any> values_;
  CallArrays arrays_;
  std::vector<int> changing_;                      // of the arrays
  std::vector<std::vector<uint64_t>> signatures_;  // of those
};

template <class Operation>
tvm::ffi::Function make_held_plan(const Layout& layout, std::vector<tvm::ffi::Any> values, std::vector<int64_t> changing) {
  auto held = std::make_shared<HeldArrays>(layout.name.c_str(), std::move(values), std::move(changing));
  std::shared_ptr<PreparedCall<Operation>> prepared =
      PreparedCall<Operation>::make(layout, held->values(), held->count(), held->arrays());
  if (prepared == nullptr) fail_value("a plan of ", layout.name, " needs tokens, and cannot be made while a stream is captured");
  return tvm::ffi::Function::FromPacked([held, prepared](tvm::ffi::PackedArgs arguments, tvm::ffi::Any*) {
    const CallArrays arrays = held->with(reinterpret_cast<const TVMFFIAny*>(arguments.data()), arguments.size());
    if (!prepared->overlaps_as_before(arrays))
      fail_value("the arrays overlap in another way than those that the plan was made with");
    prepared->run(arrays);
  });
}

}  // namespace prologue::python

// Exports an operation whose calls are planned as the TVM-FFI function `name`.
#define PROLOGUE_PLANNED_FUNCTION(name, operation)                                                                   \
  extern "C" TVM_FFI_DLL_EXPORT int __tvm_ffi_##name(void*, const TVMFFIAny* arguments, int32_t count, TVMFFIAny*) { \
    TVM_FFI_SAFE_CALL_BEGIN();                                                                                       \
    thread_local prologue::python::KnownCalls<operation> calls;                                                      \
    static const prologue::python::Layout& layout = prologue::python::layout_of(#name);                              \
    calls.call(layout, arguments, count);                                                                            \
    TVM_FFI_SAFE_CALL_END();                                                                                         \
  }                                                                                                                  \
  [[maybe_unused]] static const bool g_##name##_is_planned =                                                         \
      prologue::python::register_held_plan(#name, prologue::python::make_held_plan<operation>);
