// The instances of the one kernel, for tests. Internal; only in builds with CUDA. Listing them needs no GPU.
#pragma once

#include <string>
#include <vector>

#include <prologue/kernels/base/host/instances.h>
#include <prologue/kernels/qkv_prologue/qkv_prologue.h>

namespace prologue::cuda {

// All instances that can run the call, which must be valid. qkv_prologue() uses the first.
PROLOGUE_API std::vector<KernelInstance<QkvPrologueParams>> instances_of(const QkvPrologueParams& params);

// The names of all instances for a type.
PROLOGUE_API std::vector<std::string> qkv_prologue_instances(DType dtype);

// The same for the kernel of one token, with every number of rows of a warp.
PROLOGUE_API std::vector<KernelInstance<QkvPrologueParams>> vector_instances_of(const QkvPrologueParams& params);
PROLOGUE_API std::vector<std::string> qkv_vector_instances(DType dtype);

// The same for the kernel with a weight ring.
PROLOGUE_API std::vector<KernelInstance<QkvPrologueParams>> ring_instances_of(const QkvPrologueParams& params);
PROLOGUE_API std::vector<std::string> qkv_ring_instances(DType dtype);

// The same for the kernel of prompts. Calls with a norm have none: it is a kernel of its own before it.
PROLOGUE_API std::vector<KernelInstance<QkvPrologueParams>> gemm_instances_of(const QkvPrologueParams& params);
PROLOGUE_API std::vector<std::string> qkv_gemm_instances(DType dtype);
// Whether qkv_prologue() chooses one of them for the call.
PROLOGUE_API bool chooses_qkv_gemm(const QkvPrologueParams& params);

}  // namespace prologue::cuda
