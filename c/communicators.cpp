#include <prologue/c/communicators.h>

namespace prologue::c {

Status create_communicators(const CommunicatorsParams& params, Communicator** communicators) {
  if (communicators == nullptr) return invalid_argument("prologue_create_communicators: communicators is null");
  CommunicatorOptions options;
  if (params.gpus != nullptr && params.num_ranks > 0 && params.num_ranks <= kMaxRanks) {
    options.gpus.assign(params.gpus, params.gpus + params.num_ranks);
  }
  options.wait_seconds = params.wait_seconds;
  options.use_nccl = params.use_nccl != 0;
  options.use_peer_memory = params.use_peer_memory != 0;
  PROLOGUE_ASSIGN_OR_RETURN(auto ranks, prologue::create_communicators(params.device, params.num_ranks, options));
  for (size_t i = 0; i < ranks.size(); ++i) communicators[i] = ranks[i].release();
  return {};
}

Status communicator_meet(Communicator& communicator) { return communicator.meet(); }

Status communicator_abort(Communicator& communicator, const char* message) {
  communicator.abort(device_error(message == nullptr ? "communicator: the group was ended by communicator_abort()" : message));
  return {};
}

Status communicator_status(const Communicator& communicator) { return communicator.status(); }

}  // namespace prologue::c
