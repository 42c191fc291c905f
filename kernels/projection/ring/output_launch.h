// The kernel of projection whose weights pass through a ring (ring/output_kernel.cuh): its instances, which calls it can do, and its
// launch. Internal, for CUDA.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include <prologue/kernels/projection/projection.h>
#include <prologue/kernels/base/device/tensor_map.cuh>
#include <prologue/kernels/projection/finish/output.cuh>
#include <prologue/kernels/projection/ring/product.cuh>

namespace prologue::cuda {

struct RingInstance {
  int most_rows;  // of the weights, of a block
  int most_tokens;
  int blocks_of_sm;  // for which there are registers
  int64_t (*place)(RingArgs&, int64_t room);
  void (*kernel)(RingArgs, OutputArgs);
};

// In the order in which they are chosen (projection_ring_instances_*_cuda.cu).
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

// Multiprocessors of the current device if it can run the kernels, else 0: there is code for sm_90a only.
int64_t ring_multiprocessors();
bool has_ring();

// What any operation with a weight ring needs: whether it can be, what does not depend on a block's rows, and, when the ring is placed, the
// tensor maps. `dims`: a stage's box of the weights, of which boxes_of_k() is the last. False: the driver does not take them.
bool can_ring(DType dtype, int64_t num_tokens, int64_t k, const void* x, int64_t x_stride, const InputNorm& norm,
              const void* weight);
void fill_ring_input(RingArgs& args, DType dtype, int64_t num_tokens, int64_t k, const InputNorm& norm);
bool encode_ring_maps(RingArgs& args, const void* x, int64_t x_stride, const void* weight, std::initializer_list<OuterDim> dims);
OuterDim boxes_of_k(const RingArgs& args);

bool can_ring(const ProjectionParams& params);
// The call can be done in a ring. `rows`: of y, of a block or of those that share k.
RingLaunch ring_launch_of(const ProjectionParams& params, const RingInstance& instance, int64_t rows, int log_sharers);
// Of the first instance that can do it, if the ring is the fastest way.
RingLaunch choose_ring(const ProjectionParams& params);
Status run(const RingLaunch& launch, const ProjectionParams& params, cudaStream_t stream);

}  // namespace prologue::cuda
