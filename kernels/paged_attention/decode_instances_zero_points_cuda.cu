#include <prologue/kernels/paged_attention/decode_instances.cuh>

namespace prologue::cuda {

// V in uint4; K in uint4 too, or with 8 bits, which K needs more than V.
std::span<const DecodeInstance> decode_instances_of_zero_points() {
  static constexpr DecodeInstance kInstances[] = {
      decode_instance<float, UInt4, 64, 4>(DType::uint4),
      decode_instance<float, UInt4, 64, 8>(DType::uint4),
      decode_instance<float, UInt4, 128, 4>(DType::uint4),
      decode_instance<float, UInt4, 128, 8>(DType::uint4),
      decode_instance<float, UInt4, 256, 4>(DType::uint4),
      decode_instance<float, UInt4, 256, 8>(DType::uint4),
      decode_instance<float, Int8, UInt4, 64, 4>(DType::int8, DType::uint4),
      decode_instance<float, Int8, UInt4, 64, 8>(DType::int8, DType::uint4),
      decode_instance<float, Int8, UInt4, 128, 4>(DType::int8, DType::uint4),
      decode_instance<float, Int8, UInt4, 128, 8>(DType::int8, DType::uint4),
      decode_instance<float, Int8, UInt4, 256, 4>(DType::int8, DType::uint4),
      decode_instance<float, Int8, UInt4, 256, 8>(DType::int8, DType::uint4),
  };
  return kInstances;
}

}  // namespace prologue::cuda
