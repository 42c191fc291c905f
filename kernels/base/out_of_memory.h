// Converts a failed allocation to an error at the library's boundary.
#pragma once

#include <new>
#include <stdexcept>

#include <prologue/kernels/base/status.h>

namespace prologue {

// Returns work(), a Status or a Result. If an allocation of the standard library fails in it, or a container would exceed its
// largest size, returns Status::out_of_memory().
template <class Work>
auto catch_out_of_memory(const Work& work) -> decltype(work()) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
  } catch (const std::length_error&) {
  }
  return Status::out_of_memory();
}

}  // namespace prologue
