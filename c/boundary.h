// Where C becomes C++: pointers to structs of the same layout, no exceptions, the last error of a thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>

#include <prologue.h>

#include <prologue/kernels/base/status.h>
#include <prologue/kernels/internal/run.h>

namespace prologue::c {

// Keeps the error for prologue_last_error_message() and returns its code.
prologue_status fail(Status error);
// Called in a catch block: does the same for the exception.
prologue_status fail_with_exception();
prologue_status null_argument(const char* function, const char* argument);
prologue_status used_reserve(const char* function, const char* argument, const MemberPath& words, const char* init);

// work() returns a Status.
template <class Work>
prologue_status call(const Work& work) {
  try {
    Status status = work();
    if (status.ok()) [[likely]]
      return PROLOGUE_STATUS_OK;
    return fail(std::move(status));
  } catch (...) {
    return fail_with_exception();
  }
}

// Returns the C++ object that a C one stands for. C and C++ name the type differently, so the compiler could assume that a store through
// one is not seen by a load through the other, if it optimises both languages together (LTO): the empty asm forbids it.
template <class Cpp, class C>
Cpp& same_object(C& object) {
  C* pointer = &object;
  asm volatile("" : "+r"(pointer) : : "memory");
  return reinterpret_cast<Cpp&>(*pointer);
}

#define PROLOGUE_SAME(c_type, cpp_type)                                                    \
  [[maybe_unused]] cpp_type& cpp(c_type& object) { return same_object<cpp_type>(object); } \
  [[maybe_unused]] const cpp_type& cpp(const c_type& object) { return same_object<const cpp_type>(object); }

template <class Cpp, class C>
void initialize(C* value) {
  if (value == nullptr) return;
  const Cpp defaults = {};
  std::memcpy(value, &defaults, sizeof defaults);
}

// All reserved words of a struct in one. They are its arrays of uint64_t.
template <class Struct>
uint64_t reserved_bits(const Struct& object) {
  uint64_t bits = 0;
  const auto add = [&](const MemberPath& path, const auto& value) {
    if constexpr (std::is_same_v<decltype(value), const uint64_t&>) bits |= path.name == nullptr ? value : 0;
    return true;
  };
  visit_values(add, MemberPath(), object);
  return bits;
}
// The error that names the first of them that is not 0.
template <class Struct>
[[gnu::noinline, gnu::cold]] prologue_status reserved_argument(const char* function, const char* argument, const Struct& object,
                                                               const char* init) {
  prologue_status status = PROLOGUE_STATUS_OK;
  const auto find = [&](const MemberPath& path, const auto& value) {
    if constexpr (std::is_same_v<decltype(value), const uint64_t&>) {
      if (path.name == nullptr && value != 0) status = used_reserve(function, argument, *path.within, init);
    }
    return status == PROLOGUE_STATUS_OK;
  };
  visit_values(find, MemberPath(), object);
  return status;
}

inline constexpr const char* kGroupArguments[kMaxHeadGroups] = {"params->groups[0]", "params->groups[1]", "params->groups[2]",
                                                                "params->groups[3]"};
// The groups of heads that a call of the prologue points to have reserved words, too. A wrong number of groups is refused by the call itself.
inline int64_t readable_groups(const AttentionPrologueParams& params) {
  return params.groups != nullptr && params.num_groups <= kMaxHeadGroups ? params.num_groups : 0;
}
inline uint64_t reserved_bits(const AttentionPrologueParams& params) {
  uint64_t bits = reserved_bits<AttentionPrologueParams>(params);
  for (int64_t i = 0; i < readable_groups(params); ++i) bits |= reserved_bits(params.groups[i]);
  return bits;
}
[[gnu::noinline, gnu::cold]] inline prologue_status reserved_argument(const char* function, const char* argument,
                                                                      const AttentionPrologueParams& params, const char* init) {
  prologue_status status = reserved_argument<AttentionPrologueParams>(function, argument, params, init);
  for (int64_t i = 0; status == PROLOGUE_STATUS_OK && i < readable_groups(params); ++i) {
    status = reserved_argument(function, kGroupArguments[i], params.groups[i], "prologue_head_group_init");
  }
  return status;
}

template <class T, class C>
Status hand_over(Result<T> made, C** handle) {
  if (!made.ok()) return made.status();
  *handle = reinterpret_cast<C*>(new T(std::move(made).value()));
  return {};
}
template <class T, class C>
Status hand_over(Result<std::unique_ptr<T>> made, C** handle) {
  if (!made.ok()) return made.status();
  *handle = reinterpret_cast<C*>(made.value().release());
  return {};
}

template <class T>
Status store(const Result<T>& found, T* target) {
  if (found.ok()) *target = found.value();
  return found.status();
}

}  // namespace prologue::c
