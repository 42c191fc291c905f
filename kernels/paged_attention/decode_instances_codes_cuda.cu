#include <prologue/kernels/paged_attention/decode_instances.cuh>

namespace prologue::cuda {

std::span<const DecodeInstance> decode_instances_of_codes() {
  static constexpr DecodeInstance kInstances[] = {
      decode_instance<float, Fp8E4M3, 64, 4>(DType::fp8_e4m3),  decode_instance<float, Fp8E4M3, 64, 8>(DType::fp8_e4m3),
      decode_instance<float, Fp8E4M3, 128, 4>(DType::fp8_e4m3), decode_instance<float, Fp8E4M3, 128, 8>(DType::fp8_e4m3),
      decode_instance<float, Fp8E4M3, 256, 4>(DType::fp8_e4m3), decode_instance<float, Fp8E4M3, 256, 8>(DType::fp8_e4m3),
      decode_instance<float, Fp8E5M2, 64, 4>(DType::fp8_e5m2),  decode_instance<float, Fp8E5M2, 64, 8>(DType::fp8_e5m2),
      decode_instance<float, Fp8E5M2, 128, 4>(DType::fp8_e5m2), decode_instance<float, Fp8E5M2, 128, 8>(DType::fp8_e5m2),
      decode_instance<float, Fp8E5M2, 256, 4>(DType::fp8_e5m2), decode_instance<float, Fp8E5M2, 256, 8>(DType::fp8_e5m2),
      decode_instance<float, Int8, 64, 4>(DType::int8),         decode_instance<float, Int8, 64, 8>(DType::int8),
      decode_instance<float, Int8, 128, 4>(DType::int8),        decode_instance<float, Int8, 128, 8>(DType::int8),
      decode_instance<float, Int8, 256, 4>(DType::int8),        decode_instance<float, Int8, 256, 8>(DType::int8),
      decode_instance<float, Int4, 64, 4>(DType::int4),         decode_instance<float, Int4, 64, 8>(DType::int4),
      decode_instance<float, Int4, 128, 4>(DType::int4),        decode_instance<float, Int4, 128, 8>(DType::int4),
      decode_instance<float, Int4, 256, 4>(DType::int4),        decode_instance<float, Int4, 256, 8>(DType::int4),
  };
  return kInstances;
}

}  // namespace prologue::cuda
