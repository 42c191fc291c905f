// Compares the parameters of a run with those of its plan. A pointer must be null exactly if the plan's was; every other member must
// be that of the plan, except those that are named here. The error names the first member that differs.
#pragma once

#include <cstdint>
#include <type_traits>

#include <prologue/kernels/base/dtype.h>
#include <prologue/kernels/base/host/members.h>
#include <prologue/kernels/base/status.h>

namespace prologue {

template <class Params>
class PlanChecks {
 public:
  static constexpr int64_t kAnything = int64_t{1} << 40;

  PlanChecks(const char* operation, const Params& plan, const Params& run) : operation_(operation), plan_(plan), run_(run) {}

  // A run may change this member of its parameters.
  template <class Member>
  void may_change(const Member& of_run) {
    at_same_place(plan_, of_run) = of_run;
  }
  // Does the same; if `bounded`, the member may only be from `low` to `high`.
  void may_change(const int64_t& of_run, bool bounded, int64_t low, int64_t high) {
    may_change(of_run);
    if (!bounded || outside_ != nullptr || (of_run >= low && of_run <= high)) return;
    outside_ = &of_run, low_ = low, high_ = high;
  }
  // Pointers may be null or not, whatever those of the plan are.
  void pointers_may_change() {
    const auto take = [](const MemberPath&, auto& of_plan, const auto& of_run) {
      if constexpr (std::is_pointer_v<std::remove_reference_t<decltype(of_plan)>>) of_plan = of_run;
      return true;
    };
    visit_values(take, MemberPath(), plan_, run_);
  }

  Status status() const {
    const auto compare = [](const MemberPath&, const auto& of_plan, const auto& of_run) { return same(of_plan, of_run); };
    if (outside_ == nullptr && visit_values(compare, MemberPath(), plan_, run_)) [[likely]]
      return {};
    return error();
  }

 private:
  template <class Member>
  Member& at_same_place(Params& params, const Member& of_run) const {
    const auto offset = reinterpret_cast<const char*>(&of_run) - reinterpret_cast<const char*>(&run_);
    return *reinterpret_cast<Member*>(reinterpret_cast<char*>(&params) + offset);
  }

  template <class Value>
  static bool same(const Value& of_plan, const Value& of_run) {
    if constexpr (std::is_pointer_v<Value>) {
      return (of_plan == nullptr) == (of_run == nullptr);
    } else {
      return of_plan == of_run;
    }
  }

  template <class Value>
  static auto printable(const Value& value) {
    if constexpr (std::is_same_v<Value, DType>) {
      return dtype_name(value);
    } else if constexpr (std::is_enum_v<Value>) {
      return static_cast<int64_t>(value);
    } else {
      return value;
    }
  }

  template <class Value>
  [[gnu::noinline, gnu::cold]] Status difference(const MemberPath& path, const Value& of_plan, const Value& of_run) const {
    if constexpr (std::is_pointer_v<Value>) {
      const bool is_null = of_run == nullptr;
      return invalid_argument(operation_, ": ", text_of(path), is_null ? " is null, but" : " is given, but",
                              " the plan was made with", is_null ? " it" : "out it");
    } else {
      return invalid_argument(operation_, ": ", text_of(path), " is ", printable(of_run), ": it must be that of the plan, ",
                              printable(of_plan));
    }
  }

  // Apart from the comparisons, to keep them short: every run makes all of them.
  [[gnu::noinline, gnu::cold]] Status error() const {
    Status status;
    const auto compare = [&](const MemberPath& path, const auto& of_plan, const auto& of_run) {
      if (same(of_plan, of_run)) return true;
      status = difference(path, of_plan, of_run);
      return false;
    };
    if (!visit_values(compare, MemberPath(), plan_, run_)) return status;
    const auto find = [&](const MemberPath& path, const auto& of_run) {
      if (static_cast<const void*>(&of_run) != outside_) return true;
      status = invalid_argument(operation_, ": ", text_of(path), " is ", *outside_, ": it must lie in ", low_, "..", high_,
                                high_ == kAnything ? "" : ", that of the plan");
      return false;
    };
    visit_values(find, MemberPath(), run_);
    return status;
  }

  const char* operation_;
  Params plan_;  // with the members that the run may change
  const Params& run_;
  const int64_t* outside_ = nullptr;  // the first member of the run that is not within its bounds
  int64_t low_ = 0, high_ = 0;
};

}  // namespace prologue
