// Which kernel runs a call depends on the call's size. With this interface a test can choose any instance, whatever the size is.
// Each operation lists its instances for a call in the instances.h of its folder. Internal.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include <prologue/kernels/base/execution.h>

namespace prologue::cuda {

template <class Params>
struct KernelInstance {
  std::string name;        // unique within the operation
  int64_t max_tokens = 0;  // the most tokens of a call for which the operation chooses it
  std::function<Status(const Params&, CUstream_st*)> launch;
};

}  // namespace prologue::cuda
