#include <prologue/kernels/paged_attention/decode/instances.cuh>

namespace prologue::cuda {

// These read K and V in formats of their own, known at run time, of which at least one is block-scaled.
std::span<const DecodeInstance> decode_instances_of_blocks() {
  static constexpr DecodeInstance kInstances[] = {
      decode_instance<AnyBlocks, 128, 8>(DType::unset),
      decode_instance<AnyBlocks, 256, 8>(DType::unset),
      decode_instance<AnyBlocks, 768, 2>(DType::unset),
  };
  return kInstances;
}

}  // namespace prologue::cuda
