// Makes the parameters of an operation with one member changed, for each of its members: for tests that must not miss one.
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>

#include <prologue/kernels/base/host/members.h>

namespace prologue::test {

// Returns another value of the same type. A pointer becomes null, or an address that must not be read.
template <class Value>
Value other_value(Value value) {
  if constexpr (std::is_pointer_v<Value>) {
    return value == nullptr ? reinterpret_cast<Value>(uintptr_t{4096}) : nullptr;
  } else if constexpr (std::is_enum_v<Value>) {
    return static_cast<Value>(static_cast<std::underlying_type_t<Value>>(value) + 1);
  } else if constexpr (std::is_same_v<Value, bool>) {
    return !value;
  } else {
    return static_cast<Value>(value + 1);
  }
}

// Calls use(name, changed) for each member, also those of members.
template <class Params, class Use>
void with_each_member_changed(const Params& params, const Use& use) {
  for (int n = 0;; ++n) {
    Params changed = params;
    std::string name;
    int at = 0;
    const auto change = [&](const MemberPath& path, auto& value) {
      if (at++ < n) return true;
      name = text_of(path);
      value = other_value(value);
      return false;
    };
    if (visit_values(change, MemberPath(), changed)) return;
    use(name, changed);
  }
}

}  // namespace prologue::test
