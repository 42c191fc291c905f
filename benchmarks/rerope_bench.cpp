// Measures keys that are moved within their cache, against plain copies of the same bytes: 8 kv heads, head_dim 128, a float32 table by int64
// positions, one layer's pages of 16 tokens.
#include <prologue/kernels/rerope/rerope.h>

#include <numeric>
#include <vector>

#include "benchmarks/harness.h"

using namespace prologue;

namespace {

constexpr int64_t kHeads = 8, kDim = 128, kPage = 16, kMaxPosition = 20000;

struct Shape {
  const char* name;
  KvFormat format = {DType::bf16, KvScaling::none};
  RopeSource source = RopeSource::table;
  int64_t hadamard_block = 0;
};

const Shape kShapes[] = {
    {.name = "bfloat16"},
    {.name = "float32", .format = {DType::f32, KvScaling::none}},
    {.name = "fp8, given scale", .format = {DType::fp8_e4m3, KvScaling::tensor}},
    {.name = "int8, computed scales", .format = {DType::int8, KvScaling::token_head}},
    {.name = "uint4, Hadamard", .format = {DType::uint4, KvScaling::token_head}, .hadamard_block = 128},
    {.name = "bfloat16, theta", .source = RopeSource::theta},
};

bench::Case make_case(const Shape& shape, int64_t num_keys, bench::Setup& setup) {
  const int64_t elements = num_keys * kHeads * kDim, scales = num_keys * kHeads * scales_of_head(shape.format);
  const int64_t cache_bytes = elements * dtype_bits(shape.format.type) / 8;
  const int64_t table_bytes = shape.source == RopeSource::table ? 2 * num_keys * kDim * 4 : 0;
  const int64_t bytes = 2 * cache_bytes + 8 * scales + table_bytes + 3 * 8 * num_keys;
  setup.rotate(bytes);
  const bool floats = !dtype_is_quantized(shape.format.type);
  const std::vector<void*> caches = setup.rotated(cache_bytes, floats ? shape.format.type : DType::int8);
  const std::vector<float> one(static_cast<size_t>(std::max<int64_t>(scales, 1)), 0.01f);

  ReropeParams p;
  p.num_keys = num_keys;
  p.cache.num_pages = num_keys / kPage, p.cache.page_size = kPage, p.cache.num_kv_heads = kHeads;
  p.cache.k.head_dim = kDim, p.cache.k.format = shape.format, p.cache.k.strides = nhd_strides(kPage, kHeads, kDim);
  if (!floats) p.cache.k.scale = setup.values(one);
  if (scales > 0) p.cache.k.scale_strides = nhd_strides(kPage, kHeads, scales_of_head(shape.format));
  p.hadamard_block = shape.hadamard_block;
  p.rope.rotary_dim = kDim;
  if (shape.source == RopeSource::table) {
    set_cos_sin_table(p.rope, setup.shared(kMaxPosition * kDim * 4, DType::f32), DType::f32, kMaxPosition);
    p.rope.past_table = PastTable::zero;
  } else {
    p.rope.source = RopeSource::theta, p.rope.theta = 500000.0;
  }
  std::vector<int64_t> slots(static_cast<size_t>(num_keys)), to(slots.size());
  std::iota(slots.begin(), slots.end(), 0);
  std::iota(to.begin(), to.end(), 1000);
  p.slot_mapping = p.from_positions = index_view(static_cast<const int64_t*>(setup.values(slots)));
  p.to_positions = index_view(static_cast<const int64_t*>(setup.values(to)));
  return {bytes, [=](const Execution& execution, int64_t rotation) {
            ReropeParams call = p;
            call.cache.k.data = caches[static_cast<size_t>(rotation)];
            return rerope(call, execution);
          }};
}

}  // namespace

int main(int argc, char** argv) {
  bench::Bench bench(argc, argv);
  for (const Shape& shape : kShapes) {
    for (const int64_t num_keys : {64, 1024, 16384}) {
      bench.run(str_cat(shape.name, " T=", num_keys), [&](bench::Setup& setup) { return make_case(shape, num_keys, setup); });
    }
  }
  return bench.finish();
}
