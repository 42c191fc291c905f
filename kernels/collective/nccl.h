// NCCL, opened while the program runs: it is never linked, and there are no headers of it. Internal.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <prologue/kernels/base/export.h>
#include <prologue/kernels/base/status.h>

struct ncclComm;
struct CUstream_st;

namespace prologue::cuda {

// What nccl.h of NCCL 2 declares: its results are numbers, 0 is success.
struct Nccl {
  using Comm = ncclComm*;
  static constexpr int kSuccess = 0, kInProgress = 7;
  static constexpr int kFloat16 = 6, kFloat32 = 7, kBfloat16 = 9;
  static constexpr int kSum = 0;

  int (*get_version)(int* version);
  const char* (*error_string)(int result);
  int (*init_all)(Comm* comms, int num_devices, const int* devices);
  int (*all_reduce)(const void* from, void* to, size_t count, int type, int operation, Comm comm, CUstream_st* stream);
  int (*all_gather)(const void* from, void* to, size_t count_of_each, int type, Comm comm, CUstream_st* stream);
  int (*group_start)();
  int (*group_end)();
  int (*abort)(Comm comm);
  int (*destroy)(Comm comm);
  int (*async_error)(Comm comm, int* result);

  std::string name;  // of the library
  int version = 0;   // 10000 * major + 100 * minor + patch
};

// Returns the library that the environment variable PROLOGUE_NCCL names, else libnccl.so.2. It is searched for once.
Result<const Nccl*> nccl();
PROLOGUE_API Result<Nccl> open_nccl(const std::vector<std::string>& names);

}  // namespace prologue::cuda
