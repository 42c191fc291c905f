// Calls kernels/gemm/gemm.h with any struct.
#include <prologue/kernels/gemm/backends.h>
#include <prologue/kernels/gemm/gemm.h>
#include <prologue/kernels/gemm/quantized_cpu.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "tests/fuzz/operation.h"

using namespace prologue;
using namespace prologue::fuzz;

namespace {

// Makes a context for each instruction set that this processor has.
std::vector<std::unique_ptr<GemmContext>> make_contexts() {
  std::vector<std::unique_ptr<GemmContext>> contexts;
  for (const cpu::QuantizedKernels* kernels : {&cpu::kScalarKernels, cpu::avx2_kernels(), cpu::avx512_kernels()}) {
    if (kernels != nullptr) contexts.push_back(std::move(cpu::create_gemm_context(*kernels)).value());
  }
  return contexts;
}

// Weights in block formats: whole blocks, rows that add up to n.
void choose_packed_weights(Choices& choices, MemoryMap& map, GemmParams& p) {
  const bool quantizes = p.quantize_x == DType::fp8_e4m3;
  const int64_t elements = quantizes ? 128 : choices.chance(2) ? 32 : choices.chance(2) ? 128 : 256;
  p.k = choices.hostile() ? choices.size(0, 70) : elements * choices.integer(0, 3);
  p.packed.num_segments =
      static_cast<int32_t>(choices.hostile() ? choices.integer(-1, 5) : choices.integer(1, kMaxWeightSegments));
  int64_t rows = 0;
  for (int32_t s = 0; s < std::clamp(p.packed.num_segments, 0, kMaxWeightSegments); ++s) {
    PackedRows& segment = p.packed.segments[s];
    std::vector<WeightFormat> formats;  // with whole blocks
    if (quantizes) formats.push_back(WeightFormat::f8_e4m3);
    for (auto number = 1; !quantizes && number <= static_cast<int>(kLastWeightFormat); ++number) {
      const auto format = static_cast<WeightFormat>(number);
      if (elements % weight_block_elements(format) == 0) formats.push_back(format);
    }
    segment.format = choices.hostile()
                         ? static_cast<WeightFormat>(choices.integer(-1, static_cast<int>(kLastWeightFormat) + 2))
                         : formats[static_cast<size_t>(choices.integer(0, static_cast<int64_t>(formats.size()) - 1))];
    segment.rows = choices.size(0, 40);
    if (segment.format == WeightFormat::f8_e4m3 || choices.hostile()) {
      segment.scaling = static_cast<WeightScaling>(choices.hostile() ? choices.integer(-1, 3) : choices.integer(0, 2));
    }
    rows = plus(rows, segment.rows);
    const int64_t groups = segment.rows <= 0 ? 0 : (segment.rows - 1) / kPackedGroupRows + 1;
    const int64_t blocks = p.k / weight_block_elements(segment.format);
    map.array("segment", segment.data,
              dense(times(times(groups, kPackedGroupRows), times(blocks, weight_block_bytes(segment.format))), 1), Use::read,
              DType::f16);
  }
  p.n = choices.hostile() ? choices.size(0, 70) : rows;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Tally tally("gemm");
  static const std::vector<std::unique_ptr<GemmContext>> contexts = make_contexts();
  Choices choices(data, size);
  MemoryMap map(choices);
  GemmParams p;
  p.m = choices.chance(16) ? choices.integer(60, 80) : choices.size(0, 8);  // from 64 rows on another loop nest runs
  p.n = choices.size(0, 70);
  p.k = choices.size(0, 70);
  p.dtype = activation_type(choices);
  p.y_dtype = choices.hostile() ? activation_type(choices) : choices.chance(2) ? DType::f32 : p.dtype;
  p.batch_invariant = choices.chance(3);
  const bool packed = choices.chance(3);
  if (packed && choices.chance(4)) p.quantize_x = DType::fp8_e4m3;
  if (choices.hostile()) p.quantize_x = static_cast<DType>(choices.integer(-1, 7));
  if (packed) choose_packed_weights(choices, map, p);
  p.x_stride = choices.stride(p.k);
  p.y_stride = choices.stride(p.n);
  const DType type = float_type_of(p.dtype);
  const int64_t bits = 8 * dtype_size(p.dtype), y_bits = 8 * dtype_size(p.y_dtype);
  map.array("x", p.x, rows(p.m, p.x_stride, p.k, bits), Use::read, type);
  if (!packed) {
    map.array("weight", p.weight, rows(p.n, p.k, p.k, bits), Use::read, type);
  } else if (choices.hostile()) {
    map.optional("weight", p.weight, rows(p.n, p.k, p.k, bits), Use::read, type);
  }
  if (choices.chance(2)) map.optional("bias", p.bias, dense(p.n, bits / 8), Use::read, type);
  map.array("y", p.y, rows(p.m, p.y_stride, p.n, y_bits), Use::write, float_type_of(p.y_dtype));
  if (!map.allocate()) return 0;

  map.freeze();
  if (p.m == 0 || p.n == 0) map.forgive();
  for (int64_t i = 0; present(p.y) && i < p.m; ++i) {
    map.permit(p.y, times(i, p.y_stride) * (y_bits / 8), times(p.n, y_bits / 8));
  }
  GemmContext& context = *contexts[static_cast<size_t>(choices.integer(0, static_cast<int64_t>(contexts.size()) - 1))];
  const Status status = gemm(p, context, execution(choices));
  map.check(status);
  tally.count(status.ok());
  return 0;
}
