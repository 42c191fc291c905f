#include <prologue/kernels/paged_attention/decode_mma/instances.cuh>

namespace prologue::cuda {

// V is uint4. K is uint4 too, or has 8 bits, which K needs more than V.
std::span<const DecodeMmaInstance> decode_mma_instances_of_zero_points() {
  static constexpr DecodeMmaInstance kInstances[] = {
      decode_mma_instance<__half, UInt4, UInt4, 64, 1>(DType::uint4, DType::uint4),
      decode_mma_instance<__half, UInt4, UInt4, 64, 2>(DType::uint4, DType::uint4),
      decode_mma_instance<__half, UInt4, UInt4, 128, 1>(DType::uint4, DType::uint4),
      decode_mma_instance<__half, UInt4, UInt4, 128, 2>(DType::uint4, DType::uint4),
      decode_mma_instance<__half, UInt4, UInt4, 256, 1>(DType::uint4, DType::uint4),
      decode_mma_instance<__half, UInt4, UInt4, 256, 2>(DType::uint4, DType::uint4),
      decode_mma_instance<__half, Int8, UInt4, 64, 1>(DType::int8, DType::uint4),
      decode_mma_instance<__half, Int8, UInt4, 64, 2>(DType::int8, DType::uint4),
      decode_mma_instance<__half, Int8, UInt4, 128, 1>(DType::int8, DType::uint4),
      decode_mma_instance<__half, Int8, UInt4, 128, 2>(DType::int8, DType::uint4),
      decode_mma_instance<__half, Int8, UInt4, 256, 1>(DType::int8, DType::uint4),
      decode_mma_instance<__half, Int8, UInt4, 256, 2>(DType::int8, DType::uint4),
  };
  return kInstances;
}

}  // namespace prologue::cuda
