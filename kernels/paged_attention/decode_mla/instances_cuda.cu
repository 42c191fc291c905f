#include <prologue/kernels/paged_attention/decode_mla/kernel.cuh>

namespace prologue::cuda {

std::span<const DecodeMlaInstance> decode_mla_instances() {
  static constexpr DecodeMlaInstance kInstances[] = {
      {DType::bf16, sizeof(MlaShared<__nv_bfloat16>), decode_mla_kernel<__nv_bfloat16>},
      {DType::f16, sizeof(MlaShared<__half>), decode_mla_kernel<__half>},
  };
  return kInstances;
}

void (*mla_combine())(AttentionArgs) { return mla_combine_kernel<kDecodeMlaRows>; }

}  // namespace prologue::cuda
