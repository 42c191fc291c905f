#include <prologue/adapters/vllm.h>

#include <string_view>

#include "tests/adapters/serving.h"

namespace prologue::test {
namespace {

namespace ours = adapters::vllm;

using S = Serving;

PROLOGUE_ADAPTER(Vllm);

// Runs the block of the page over the tensors of a call.
Status page(const ours::RotaryEmbedding& c, FaultRecord* faults, const Execution& execution) {
  const int64_t* const positions = c.positions;
  void *const query = c.query, *const key = c.key;
  const void* const cos_sin_cache = c.cos_sin_cache;
  const DType dtype = c.dtype, cache_dtype = c.cache_dtype;
  const int64_t num_tokens = c.num_tokens, num_heads = c.num_heads, num_kv_heads = c.num_kv_heads, head_size = c.head_size,
                max_position = c.max_position, rot_dim = c.rot_dim;
  const bool is_neox = c.is_neox;
#include "vllm.inc"
  return status;
}

TEST(VllmCall, IsChecked) {
  const int64_t position = 0;
  ours::RotaryEmbedding rope;
  EXPECT_EQ(ours::rotary_embedding(rope, nullptr, {}).message(), "vllm: positions is null: they must be given");
  ours::RopeAndCache call;
  EXPECT_EQ(ours::rope_and_cache(call, nullptr, {}).message(), "vllm: positions is null: they must be given");
  call.rope.positions = &position;
  call.rope.cache_dtype = DType::f64;
  EXPECT_EQ(ours::rope_and_cache(call, nullptr, {}).message(),
            "vllm: cache_dtype is float64: with the cache cos_sin_cache must be float32 or of 16 bits");
  call.rope.cache_dtype = DType::bf16;
  call.kv_cache_dtype = "int8";
  EXPECT_EQ(ours::rope_and_cache(call, nullptr, {}).message(),
            "vllm: kv_cache_dtype is 'int8': supported are auto, fp8, fp8_e4m3 and fp8_e5m2");
  call.rope.dtype = DType::f64;
  EXPECT_EQ(ours::rope_and_cache(call, nullptr, {}).message(),
            "vllm: dtype is float64: with the cache it must be float32 or of 16 bits");
}

TEST_P(Vllm, RotaryEmbedding) {
  for (const bool is_neox : {true, false}) {
    for (const bool inverse : {false, true}) {
      for (const int64_t offset : {0, 8}) {
        const Serving s;
        Arena arena(GetParam());
        ours::RotaryEmbedding call;
        call.dtype = DType::f16;
        call.positions = arena.input(s.positions);
        auto* query = arena.inout(encode(DType::f16, s.q));
        auto* key = arena.inout(encode(DType::f16, s.k));
        call.query = query;
        call.key = key;
        call.num_tokens = S::kTokens;
        call.num_heads = S::kQHeads;
        call.num_kv_heads = S::kKvHeads;
        call.head_size = S::kHeadDim;
        call.query_stride = S::kQHeads * S::kHeadDim;
        call.key_stride = S::kKvHeads * S::kHeadDim;
        call.cos_sin_cache = arena.input(encode(DType::bf16, s.cos_sin));
        call.max_position = S::kMaxPosition;
        call.rot_dim = S::kRotaryDim;
        call.is_neox = is_neox;
        call.rope_dim_offset = offset;
        call.inverse = inverse;
        FaultRecord* faults = arena.inout(std::vector<FaultRecord>(1));
        const Status status = arena.run([&](const Execution& execution) {
          const bool as_on_page = offset == 0 && !inverse;
          return as_on_page ? page(call, faults, execution) : ours::rotary_embedding(call, faults, execution);
        });
        ASSERT_TRUE(status.ok()) << status.message();
        const auto rounded = [](const Values& values) { return decode(DType::f16, encode(DType::f16, values)); };
        expect_values(arena.read(query), DType::f16, rounded(s.rotated(s.q, S::kQHeads, !is_neox, offset, inverse)));
        expect_values(arena.read(key), DType::f16, rounded(s.rotated(s.k, S::kKvHeads, !is_neox, offset, inverse)));
      }
    }
  }
}

struct Outcome {
  std::vector<float> query;
  Bytes key_cache, value_cache;
  Fault fault;
};

Outcome run(Backend backend, const Serving& s, const std::vector<int64_t>& slot_mapping, std::string_view kv_cache_dtype,
            DType cache_dtype = DType::f32, int64_t num_actual_tokens = 0) {
  constexpr int64_t kBlocks = 3, kBlockSize = 2;
  const bool fp8 = kv_cache_dtype != "auto";
  Arena arena(backend);
  ours::RopeAndCache call;
  call.rope.dtype = DType::f32;
  call.rope.positions = arena.input(s.positions);
  float* query = arena.inout(floats(s.q));
  call.rope.query = query;
  call.rope.key = arena.inout(floats(s.k));
  call.value = arena.input(floats(s.v));
  call.rope.num_tokens = S::kTokens;
  call.rope.num_heads = S::kQHeads;
  call.rope.num_kv_heads = S::kKvHeads;
  call.rope.head_size = S::kHeadDim;
  call.rope.query_stride = S::kQHeads * S::kHeadDim;
  call.rope.key_stride = call.value_stride = S::kKvHeads * S::kHeadDim;
  call.rope.cos_sin_cache = arena.input(encode(cache_dtype, s.cos_sin));
  call.rope.cache_dtype = cache_dtype;
  call.rope.max_position = S::kMaxPosition;
  call.rope.rot_dim = S::kRotaryDim;
  const int64_t bytes = kBlocks * kBlockSize * S::kKvHeads * S::kHeadDim * (fp8 ? 1 : 4);
  auto* key_cache = arena.output<unsigned char>(bytes);
  auto* value_cache = arena.output<unsigned char>(bytes);
  call.key_cache = key_cache;
  call.value_cache = value_cache;
  call.num_blocks = kBlocks;
  call.block_size = kBlockSize;
  call.head_stride = S::kHeadDim;
  call.page_stride = S::kKvHeads * S::kHeadDim;
  call.block_stride = kBlockSize * call.page_stride;
  call.slot_mapping = arena.input(slot_mapping);
  call.num_actual_tokens = num_actual_tokens;
  call.kv_cache_dtype = kv_cache_dtype;
  call.k_scale = arena.inout(std::vector<float>{0.5f});
  call.v_scale = arena.inout(std::vector<float>{0.25f});
  FaultRecord* faults = arena.inout(std::vector<FaultRecord>(1));
  const Status status = arena.run([&](const Execution& execution) { return ours::rope_and_cache(call, faults, execution); });
  EXPECT_TRUE(status.ok()) << status.message();
  return {arena.read(query), arena.read(key_cache), arena.read(value_cache), read_fault(arena, faults)};
}

void expect_cache(const Bytes& got, const Bytes& rows, const std::vector<int64_t>& slot_mapping, int64_t element_bytes) {
  EXPECT_EQ(got, cached(rows, slot_mapping, got.size(), element_bytes));
}

TEST_P(Vllm, RopeAndCache) {
  const Serving s;
  const std::vector<int64_t> slots = {5, -1, 0, 2};
  for (const DType cache_dtype : {DType::f32, DType::f16, DType::bf16}) {
    const Outcome result = run(GetParam(), s, slots, "auto", cache_dtype);
    expect_cache(result.key_cache, encode(DType::f32, s.rotated(s.k, S::kKvHeads, false)), slots, 4);
    expect_cache(result.value_cache, encode(DType::f32, s.v), slots, 4);
    EXPECT_EQ(result.query, floats(s.rotated(s.q, S::kQHeads, false)));
    EXPECT_EQ(result.fault.code, FaultCode::none);
  }
}

// q, k and v are padded to the size of a captured graph, the slots are not.
TEST_P(Vllm, SlotsOfTheActualTokens) {
  const Serving s;
  const Outcome result = run(GetParam(), s, {5, 0}, "auto", DType::f32, 2);
  expect_cache(result.value_cache, encode(DType::f32, s.v), {5, 0}, 4);
  EXPECT_EQ(result.query, floats(s.rotated(s.q, S::kQHeads, false)));
  EXPECT_EQ(result.fault.code, FaultCode::none);
}

TEST_P(Vllm, RopeAndFp8Cache) {
  const Serving s;
  const std::vector<int64_t> slots = {5, -1, 0, 2};
  const Outcome result = run(GetParam(), s, slots, "fp8");
  expect_cache(result.key_cache, e4m3(s.rotated(s.k, S::kKvHeads, false), 0.5), slots, 1);
  expect_cache(result.value_cache, e4m3(s.v, 0.25), slots, 1);
}

// Theirs reads and writes out of bounds.
TEST_P(Vllm, BadPositionsAndSlotsAreReported) {
  const Serving s;
  const Outcome result = run(GetParam(), s, {5, 6, 0, 2}, "auto");  // six slots
  expect_cache(result.value_cache, encode(DType::f32, s.v), {5, -1, 0, 2}, 4);
  EXPECT_EQ(result.fault.code, FaultCode::slot_out_of_range);
  EXPECT_EQ(result.fault.token, 1);
  Serving bad;
  bad.positions[2] = S::kMaxPosition;
  const Outcome late = run(GetParam(), bad, {5, 1, 0, 2}, "auto");
  expect_cache(late.value_cache, encode(DType::f32, s.v), {5, 1, -1, 2}, 4);
  EXPECT_EQ(late.fault.code, FaultCode::position_out_of_range);
  EXPECT_EQ(late.fault.token, 2);
}

}  // namespace
}  // namespace prologue::test
