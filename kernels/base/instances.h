// Which kernel a call runs in depends on its size. Tests pin each one that ships by this interface, so that none needs a size of
// its own to be reached: an operation lists its instances for a call in its folder's instances.h. Internal.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include <prologue/kernels/base/execution.h>

namespace prologue::cuda {

template <class Params>
struct KernelInstance {
  std::string name;        // unique among the operation's
  int64_t max_tokens = 0;  // of a call that takes it by itself
  std::function<Status(const Params&, CUstream_st*)> launch;
};

}  // namespace prologue::cuda
