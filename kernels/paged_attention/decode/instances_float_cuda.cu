#include <prologue/kernels/paged_attention/decode/instances.cuh>

namespace prologue::cuda {

// These read float32 q and a float32 cache.
std::span<const DecodeInstance> decode_instances_of_floats() {
  static constexpr DecodeInstance kInstances[] = {
      decode_instance<float, 64, 4>(DType::f32),  decode_instance<float, 64, 8>(DType::f32),
      decode_instance<float, 128, 4>(DType::f32), decode_instance<float, 128, 8>(DType::f32),
      decode_instance<float, 256, 4>(DType::f32), decode_instance<float, 256, 8>(DType::f32),
  };
  return kInstances;
}

}  // namespace prologue::cuda
