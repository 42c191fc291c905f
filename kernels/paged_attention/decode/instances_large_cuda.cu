#include <prologue/kernels/paged_attention/decode/instances.cuh>

namespace prologue::cuda {

// These serve heads of up to 576 channels, as MLA has, with 24 channels per lane.
std::span<const DecodeInstance> decode_instances_of_large_heads() {
  static constexpr DecodeInstance kInstances[] = {
      decode_instance<float, 768, 2>(DType::f32),        decode_instance<__nv_bfloat16, 768, 2>(DType::bf16),
      decode_instance<__half, 768, 2>(DType::f16),       decode_instance<Fp8E4M3, 768, 2>(DType::fp8_e4m3),
      decode_instance<Fp8E5M2, 768, 2>(DType::fp8_e5m2), decode_instance<Int8, 768, 2>(DType::int8),
      decode_instance<Int4, 768, 2>(DType::int4),
  };
  return kInstances;
}

}  // namespace prologue::cuda
