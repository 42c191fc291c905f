#include <prologue/kernels/paged_attention/decode/instances.cuh>

namespace prologue::cuda {

// These read K and V in formats of their own, known at run time: for what no other instance serves.
std::span<const DecodeInstance> decode_instances_of_any_formats() {
  static constexpr DecodeInstance kInstances[] = {
      decode_instance<AnyElement, 128, 4>(DType::unset),
      decode_instance<AnyElement, 128, 8>(DType::unset),
      decode_instance<AnyElement, 256, 8>(DType::unset),
      decode_instance<AnyElement, 768, 2>(DType::unset),
  };
  return kInstances;
}

}  // namespace prologue::cuda
