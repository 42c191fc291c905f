#include <prologue/kernels/paged_attention/decode_mma/instances.cuh>

namespace prologue::cuda {

// K and V are MXFP8, or each of them is MXFP4 or NVFP4.
std::span<const DecodeMmaInstance> decode_mma_instances_of_blocks() {
  static constexpr DecodeMmaInstance kInstances[] = {
      decode_mma_instance<__half, BlockFp8, BlockFp8, 64, 1>(DType::fp8_e4m3, DType::fp8_e4m3),
      decode_mma_instance<__half, BlockFp8, BlockFp8, 64, 2>(DType::fp8_e4m3, DType::fp8_e4m3),
      decode_mma_instance<__half, BlockFp8, BlockFp8, 128, 1>(DType::fp8_e4m3, DType::fp8_e4m3),
      decode_mma_instance<__half, BlockFp8, BlockFp8, 128, 2>(DType::fp8_e4m3, DType::fp8_e4m3),
      decode_mma_instance<__half, BlockFp8, BlockFp8, 256, 1>(DType::fp8_e4m3, DType::fp8_e4m3),
      decode_mma_instance<__half, BlockFp8, BlockFp8, 256, 2>(DType::fp8_e4m3, DType::fp8_e4m3),
      decode_mma_instance<__half, BlockFp4, BlockFp4, 64, 1>(DType::fp4_e2m1, DType::fp4_e2m1),
      decode_mma_instance<__half, BlockFp4, BlockFp4, 64, 2>(DType::fp4_e2m1, DType::fp4_e2m1),
      decode_mma_instance<__half, BlockFp4, BlockFp4, 128, 1>(DType::fp4_e2m1, DType::fp4_e2m1),
      decode_mma_instance<__half, BlockFp4, BlockFp4, 128, 2>(DType::fp4_e2m1, DType::fp4_e2m1),
      decode_mma_instance<__half, BlockFp4, BlockFp4, 256, 1>(DType::fp4_e2m1, DType::fp4_e2m1),
      decode_mma_instance<__half, BlockFp4, BlockFp4, 256, 2>(DType::fp4_e2m1, DType::fp4_e2m1),
  };
  return kInstances;
}

}  // namespace prologue::cuda
