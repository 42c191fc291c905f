// Compares the parameters of a run with those of its plan, member by member. The error names the first member that differs.
#pragma once

#include <cstdint>
#include <type_traits>

#include <prologue/kernels/base/dtype.h>
#include <prologue/kernels/base/status.h>

namespace prologue {

class PlanChecks {
 public:
  static constexpr int64_t kAnything = int64_t{1} << 40;

  explicit PlanChecks(const char* operation) : operation_(operation) {}

  template <class T>
  void same(const char* name, const T& of_plan, const T& given) {
    same(name, "", of_plan, given);
  }
  template <class T>
  void same(const char* name, const char* member, const T& of_plan, const T& given) {
    if (!(of_plan == given)) differ(name, member, of_plan, given);
  }
  void present(const char* name, const void* of_plan, const void* given) { present(name, "", of_plan, given); }
  void present(const char* name, const char* member, const void* of_plan, const void* given) {
    if ((of_plan == nullptr) != (given == nullptr)) differ_in_presence(name, member, given == nullptr);
  }
  // Checks a member that a run may change: low <= given <= of_plan.
  void up_to(const char* name, int64_t of_plan, int64_t given, int64_t low) { up_to(name, "", of_plan, given, low); }
  void up_to(const char* name, const char* member, int64_t of_plan, int64_t given, int64_t low) {
    if (given < low || given > of_plan) differ_in_range(name, member, of_plan, given, low);
  }
  const Status& status() const { return status_; }

 private:
  template <class T>
  static auto printable(const T& value) {
    if constexpr (std::is_same_v<T, DType>) {
      return dtype_name(value);
    } else if constexpr (std::is_enum_v<T>) {
      return static_cast<int64_t>(value);
    } else {
      return value;
    }
  }

  // It is not inlined, to keep the comparisons short: every run makes all of them.
  template <class T>
  [[gnu::noinline, gnu::cold]] void differ(const char* name, const char* member, const T& of_plan, const T& given) {
    if (!status_.ok()) return;
    status_ = invalid_argument(operation_, ": ", name, member[0] == '\0' ? "" : ".", member, " is ", printable(given),
                               ": it must be that of the plan, ", printable(of_plan));
  }
  [[gnu::noinline, gnu::cold]] void differ_in_presence(const char* name, const char* member, bool is_null) {
    if (!status_.ok()) return;
    status_ = invalid_argument(operation_, ": ", name, member[0] == '\0' ? "" : ".", member, is_null ? " is null, but" : " is given, but", " the plan was made with",
                               is_null ? " it" : "out it");
  }
  [[gnu::noinline, gnu::cold]] void differ_in_range(const char* name, const char* member, int64_t of_plan, int64_t given,
                                                    int64_t low) {
    if (!status_.ok()) return;
    status_ = invalid_argument(operation_, ": ", name, member[0] == '\0' ? "" : ".", member, " is ", given, ": it must lie in ",
                               low, "..", of_plan, of_plan == kAnything ? "" : ", that of the plan");
  }

  const char* operation_;
  Status status_;
};

}  // namespace prologue
