// The kernel of projection whose weights pass through a ring (projection_ring_kernel.cuh): its instances, which calls it can do, and its
// launch. Internal, for CUDA.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include <prologue/kernels/projection/projection.h>
#include <prologue/kernels/projection/projection_output.cuh>
#include <prologue/kernels/projection/weight_ring.cuh>

namespace prologue::cuda {

struct RingInstance {
  int rows;   // of the weights, of a block, at most
  int boxes;  // of 64 channels, of a stage
  int64_t (*place)(RingArgs&, int64_t room);
  void (*kernel)(RingArgs, OutputArgs);
};

// In the order of their rows (projection_ring_instances_*_cuda.cu).
std::span<const RingInstance> float16_ring_instances();
std::span<const RingInstance> bfloat16_ring_instances();
std::span<const RingInstance> ring_instances_of(DType type);
std::string ring_instance_name(DType dtype, const RingInstance& instance);

struct RingLaunch {
  const RingInstance* instance = nullptr;  // null: it is not possible
  RingArgs args;
  int64_t blocks = 0;
  int64_t shared_bytes = 0;
};

// Whether the current device can run the kernels: there is code for sm_90a only.
bool has_ring();
bool can_ring(const ProjectionParams& params);
// Rows of y for a block: a block for each SM, or several, one after another.
int64_t rows_of_block(const ProjectionParams& params);
// The call can be done in a ring.
RingLaunch ring_launch_of(const ProjectionParams& params, const RingInstance& instance, int64_t rows);
// Of the smallest instance, if the ring is the fastest way.
RingLaunch choose_ring(const ProjectionParams& params);
Status run(const RingLaunch& launch, const ProjectionParams& params, cudaStream_t stream);

}  // namespace prologue::cuda
