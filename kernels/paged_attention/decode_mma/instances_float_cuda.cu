#include <prologue/kernels/paged_attention/decode_mma/instances.cuh>

namespace prologue::cuda {

std::span<const DecodeMmaInstance> decode_mma_instances_of_floats() {
  static constexpr DecodeMmaInstance kInstances[] = {
      decode_mma_instance<__nv_bfloat16, __nv_bfloat16, __nv_bfloat16, 64, 1>(DType::bf16, DType::bf16),
      decode_mma_instance<__nv_bfloat16, __nv_bfloat16, __nv_bfloat16, 64, 2>(DType::bf16, DType::bf16),
      decode_mma_instance<__nv_bfloat16, __nv_bfloat16, __nv_bfloat16, 128, 1>(DType::bf16, DType::bf16),
      decode_mma_instance<__nv_bfloat16, __nv_bfloat16, __nv_bfloat16, 128, 2>(DType::bf16, DType::bf16),
      decode_mma_instance<__nv_bfloat16, __nv_bfloat16, __nv_bfloat16, 256, 1>(DType::bf16, DType::bf16),
      decode_mma_instance<__nv_bfloat16, __nv_bfloat16, __nv_bfloat16, 256, 2>(DType::bf16, DType::bf16),
      decode_mma_instance<__half, __half, __half, 64, 1>(DType::f16, DType::f16),
      decode_mma_instance<__half, __half, __half, 64, 2>(DType::f16, DType::f16),
      decode_mma_instance<__half, __half, __half, 128, 1>(DType::f16, DType::f16),
      decode_mma_instance<__half, __half, __half, 128, 2>(DType::f16, DType::f16),
      decode_mma_instance<__half, __half, __half, 256, 1>(DType::f16, DType::f16),
      decode_mma_instance<__half, __half, __half, 256, 2>(DType::f16, DType::f16),
  };
  return kInstances;
}

}  // namespace prologue::cuda
