#include <prologue/kernels/paged_attention/decode_instances.cuh>

namespace prologue::cuda {

// The types of q and cache are mostly one; the instances for others hold q as floats and come last.
std::span<const DecodeInstance> decode_instances_of_floats() {
  static constexpr DecodeInstance kInstances[] = {
      decode_instance<__nv_bfloat16, __nv_bfloat16, 64, 4>(DType::bf16),
      decode_instance<__nv_bfloat16, __nv_bfloat16, 64, 8>(DType::bf16),
      decode_instance<__nv_bfloat16, __nv_bfloat16, 128, 4>(DType::bf16),
      decode_instance<__nv_bfloat16, __nv_bfloat16, 128, 8>(DType::bf16),
      decode_instance<__nv_bfloat16, __nv_bfloat16, 256, 4>(DType::bf16),
      decode_instance<__nv_bfloat16, __nv_bfloat16, 256, 8>(DType::bf16),
      decode_instance<__half, __half, 64, 4>(DType::f16),
      decode_instance<__half, __half, 64, 8>(DType::f16),
      decode_instance<__half, __half, 128, 4>(DType::f16),
      decode_instance<__half, __half, 128, 8>(DType::f16),
      decode_instance<__half, __half, 256, 4>(DType::f16),
      decode_instance<__half, __half, 256, 8>(DType::f16),
      decode_instance<float, float, 64, 4>(DType::f32),
      decode_instance<float, float, 64, 8>(DType::f32),
      decode_instance<float, float, 128, 4>(DType::f32),
      decode_instance<float, float, 128, 8>(DType::f32),
      decode_instance<float, float, 256, 4>(DType::f32),
      decode_instance<float, float, 256, 8>(DType::f32),
      decode_instance<float, __nv_bfloat16, 128, 4>(DType::bf16),
      decode_instance<float, __nv_bfloat16, 128, 8>(DType::bf16),
      decode_instance<float, __nv_bfloat16, 256, 8>(DType::bf16),
      decode_instance<float, __half, 128, 4>(DType::f16),
      decode_instance<float, __half, 128, 8>(DType::f16),
      decode_instance<float, __half, 256, 8>(DType::f16),
  };
  return kInstances;
}

}  // namespace prologue::cuda
