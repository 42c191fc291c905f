// Where C becomes C++: pointers to structs of the same layout, no exceptions, the last error of a thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include <prologue.h>

#include <prologue/kernels/base/status.h>

namespace prologue::c {

// Keeps the error for prologue_last_error_message() and returns its code.
prologue_status fail(Status error);
// Called in a catch block: does the same for the exception.
prologue_status fail_with_exception();
prologue_status null_argument(const char* function, const char* argument);
prologue_status used_reserve(const char* function, const char* argument, const char* member, const char* init);

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

template <size_t n>
bool any(const uint64_t (&words)[n]) {
  for (const uint64_t word : words) {
    if (word != 0) return true;
  }
  return false;
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
