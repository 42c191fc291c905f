#include <prologue/kernels/collective/backends.h>

namespace prologue::cuda {

Result<Communicators> create_communicators(int64_t, const CommunicatorOptions&) {
  return unsupported("communicator: ranks on GPUs are not implemented yet");
}
Status all_reduce(const AllReduceParams&, Communicator&, const Execution&) { return unsupported("all_reduce: not on CUDA yet"); }
Status all_gather(const AllGatherParams&, Communicator&, const Execution&) { return unsupported("all_gather: not on CUDA yet"); }
int64_t all_gather_workspace_bytes(const AllGatherParams&, const Communicator&) { return 0; }

}  // namespace prologue::cuda
