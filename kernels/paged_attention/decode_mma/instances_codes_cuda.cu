#include <prologue/kernels/paged_attention/decode_mma/instances.cuh>

namespace prologue::cuda {

std::span<const DecodeMmaInstance> decode_mma_instances_of_codes() {
  static constexpr DecodeMmaInstance kInstances[] = {
      decode_mma_instance<__half, Fp8E4M3, Fp8E4M3, 64, 1>(DType::fp8_e4m3, DType::fp8_e4m3),
      decode_mma_instance<__half, Fp8E4M3, Fp8E4M3, 64, 2>(DType::fp8_e4m3, DType::fp8_e4m3),
      decode_mma_instance<__half, Fp8E4M3, Fp8E4M3, 128, 1>(DType::fp8_e4m3, DType::fp8_e4m3),
      decode_mma_instance<__half, Fp8E4M3, Fp8E4M3, 128, 2>(DType::fp8_e4m3, DType::fp8_e4m3),
      decode_mma_instance<__half, Fp8E4M3, Fp8E4M3, 256, 1>(DType::fp8_e4m3, DType::fp8_e4m3),
      decode_mma_instance<__half, Fp8E4M3, Fp8E4M3, 256, 2>(DType::fp8_e4m3, DType::fp8_e4m3),
      decode_mma_instance<__half, Fp8E5M2, Fp8E5M2, 64, 1>(DType::fp8_e5m2, DType::fp8_e5m2),
      decode_mma_instance<__half, Fp8E5M2, Fp8E5M2, 64, 2>(DType::fp8_e5m2, DType::fp8_e5m2),
      decode_mma_instance<__half, Fp8E5M2, Fp8E5M2, 128, 1>(DType::fp8_e5m2, DType::fp8_e5m2),
      decode_mma_instance<__half, Fp8E5M2, Fp8E5M2, 128, 2>(DType::fp8_e5m2, DType::fp8_e5m2),
      decode_mma_instance<__half, Fp8E5M2, Fp8E5M2, 256, 1>(DType::fp8_e5m2, DType::fp8_e5m2),
      decode_mma_instance<__half, Fp8E5M2, Fp8E5M2, 256, 2>(DType::fp8_e5m2, DType::fp8_e5m2),
      decode_mma_instance<__half, Int8, Int8, 64, 1>(DType::int8, DType::int8),
      decode_mma_instance<__half, Int8, Int8, 64, 2>(DType::int8, DType::int8),
      decode_mma_instance<__half, Int8, Int8, 128, 1>(DType::int8, DType::int8),
      decode_mma_instance<__half, Int8, Int8, 128, 2>(DType::int8, DType::int8),
      decode_mma_instance<__half, Int8, Int8, 256, 1>(DType::int8, DType::int8),
      decode_mma_instance<__half, Int8, Int8, 256, 2>(DType::int8, DType::int8),
      decode_mma_instance<__half, Int4, Int4, 64, 1>(DType::int4, DType::int4),
      decode_mma_instance<__half, Int4, Int4, 64, 2>(DType::int4, DType::int4),
      decode_mma_instance<__half, Int4, Int4, 128, 1>(DType::int4, DType::int4),
      decode_mma_instance<__half, Int4, Int4, 128, 2>(DType::int4, DType::int4),
      decode_mma_instance<__half, Int4, Int4, 256, 1>(DType::int4, DType::int4),
      decode_mma_instance<__half, Int4, Int4, 256, 2>(DType::int4, DType::int4),
  };
  return kInstances;
}

}  // namespace prologue::cuda
