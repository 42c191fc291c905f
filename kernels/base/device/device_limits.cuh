// What launches ask about the current device. CUDA is asked once for each device. Host code.
#pragma once

#include <prologue/kernels/base/status.h>

namespace prologue::cuda {

struct DeviceLimits {
  int device = 0;
  int major = 0;  // of the compute capability
  int minor = 0;
  int multiprocessors = 0;
  int shared_bytes_of_block = 0;  // that a kernel may opt in to
  int shared_bytes_of_multiprocessor = 0;
};

Result<DeviceLimits> current_device();

// Whether the current device has clusters and programmatic edges: from compute capability 9.0 on.
bool device_is_hopper_or_later();

}  // namespace prologue::cuda
