// Where the library's boundary turns a failed allocation into an error.
#pragma once

#include <new>
#include <stdexcept>

#include <prologue/kernels/base/status.h>

namespace prologue {

// The result of work(), a Status or a Result; Status::out_of_memory() where an allocation of the standard library's failed in it
// (or was asked for more than a container can hold).
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
