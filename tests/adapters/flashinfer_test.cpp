#include <prologue/adapters/flashinfer.h>

#include <cmath>
#include <vector>

#include "tests/adapters/serving.h"

namespace prologue::test {
namespace {

namespace ours = adapters::flashinfer;

using S = Serving;

PROLOGUE_ADAPTER(Flashinfer);

// Runs the block of the page over the tensors of a call.
Status page(const ours::ApplyRope& c, FaultRecord* faults, const Execution& execution) {
  const void *const q = c.q, *const k = c.k;
  void *const q_rope = c.q_rope, *const k_rope = c.k_rope;
  const DType dtype = c.dtype;
  const int64_t nnz = c.nnz, num_q_heads = c.num_q_heads, num_k_heads = c.num_k_heads, head_dim = c.head_dim,
                rotary_dim = c.rotary_dim, batch_size = c.batch_size;
  const IndexView indptr = c.indptr, offsets = c.offsets;
#include "flashinfer.inc"
  return status;
}

TEST(FlashinferCall, IsChecked) {
  const int32_t numbers[2] = {0, 1};
  ours::ApplyRope call;
  EXPECT_EQ(ours::apply_rope(call, nullptr, {}).message(), "flashinfer: pos_ids and indptr are both null: give one of them");
  call.pos_ids = call.indptr = index_view(numbers);
  EXPECT_EQ(ours::apply_rope(call, nullptr, {}).message(), "flashinfer: pos_ids and indptr are both given: give one of them");
  call.pos_ids = {};
  call.rope_scale = 4;
  EXPECT_EQ(ours::apply_rope(call, nullptr, {}).message(),
            "flashinfer: rope_scale is 4: inv_freq must then hold what inv_freq_of() makes of it");
  EXPECT_EQ(ours::rope_quantize_fp8_append({}, nullptr, {}).message(), "flashinfer: pos_ids is null: they must be given");
  ours::RopeQuantizeFp8Append append;
  append.pos_ids = index_view(numbers);
  EXPECT_EQ(ours::rope_quantize_fp8_append(append, nullptr, {}).message(),
            "flashinfer: slot_mapping and kv_indptr are both null: give one of them");
  append.kv_indptr = numbers;
  EXPECT_EQ(ours::rope_quantize_fp8_append(append, nullptr, {}).message(),
            "flashinfer: append_indptr is null: with kv_indptr it must be given");
  append.append_indptr = numbers;
  EXPECT_EQ(ours::rope_quantize_fp8_append(append, nullptr, {}).message(),
            "flashinfer: kv_last_page_len is null: with kv_indptr it must be given");
  EXPECT_EQ(ours::inv_freq_of(7, 1, 1e4, nullptr).message(), "flashinfer: rotary_dim is 7: it must be even and lie in 2..576");
  EXPECT_EQ(ours::inv_freq_of(8, 0, 1e4, nullptr).message(),
            "flashinfer: rope_scale is 0 and rope_theta is 10000: both must be positive");

  int64_t slot = 77;
  const int32_t zero = 0, one = 1, three = 3;
  EXPECT_EQ(ours::slots_of(numbers, numbers, 1, &one, &zero, 1, 2, &slot).message(),
            "flashinfer: batch_indices[0] is 1: it must be below batch_size, 1");
  EXPECT_EQ(ours::slots_of(numbers, numbers, 1, &zero, &three, 1, 2, &slot).message(),
            "flashinfer: positions[0] is 3: sequence 0 has 1 pages of 2");
  EXPECT_EQ(ours::slots_of(numbers, numbers, 1, &zero, &zero, 1, 0, &slot).message(),
            "flashinfer: page_size is 0: it must be positive");
  EXPECT_EQ(slot, 77);
}

enum class Form { theta, scaled, pos_ids, cache };

TEST_P(Flashinfer, ApplyRope) {
  for (const Form form : {Form::theta, Form::scaled, Form::pos_ids, Form::cache}) {
    for (const bool interleave : {false, true}) {
      SCOPED_TRACE(static_cast<int>(form));
      const Serving s;
      const std::vector<int32_t> indptr = {0, 3, 3, 4}, offsets = {5, 77, 100};  // sequence 1 is empty
      const std::vector<double> ragged_positions = {5, 6, 7, 100};
      Arena arena(GetParam());
      ours::ApplyRope call;
      call.dtype = DType::f32;
      call.q = arena.input(floats(s.q));
      call.k = arena.input(floats(s.k));
      float* q = arena.output<float>(static_cast<int64_t>(s.q.size()));
      float* k = arena.output<float>(static_cast<int64_t>(s.k.size()));
      call.q_rope = q;
      call.k_rope = k;
      call.nnz = S::kTokens;
      call.num_q_heads = S::kQHeads;
      call.num_k_heads = S::kKvHeads;
      call.head_dim = S::kHeadDim;
      call.rotary_dim = S::kRotaryDim;
      call.interleave = interleave;
      call.rope_scale = form == Form::scaled ? 4.0 : 1.0;
      if (form == Form::scaled) {
        std::vector<double> inv_freq(S::kRotaryDim / 2);
        const Status made = ours::inv_freq_of(call.rotary_dim, call.rope_scale, call.rope_theta, inv_freq.data());
        ASSERT_TRUE(made.ok()) << made.message();
        call.inv_freq = arena.input(inv_freq);
      }
      if (form == Form::theta || form == Form::scaled) {
        call.indptr = index_view(arena.input(indptr));
        call.offsets = index_view(arena.input(offsets));
        call.batch_size = 3;
      } else {
        call.pos_ids = index_view(arena.input(s.positions));
      }
      if (form == Form::cache) {
        call.cos_sin_cache = arena.input(floats(s.cos_sin));
        call.max_position = S::kMaxPosition;
      }
      FaultRecord* faults = arena.inout(std::vector<FaultRecord>(1));
      const Status status = arena.run([&](const Execution& execution) {
        return form == Form::theta && !interleave ? page(call, faults, execution) : ours::apply_rope(call, faults, execution);
      });
      ASSERT_TRUE(status.ok()) << status.message();
      const auto want = [&](const Values& x, int64_t heads) {
        if (form == Form::cache) return s.rotated(x, heads, interleave);
        return rotate_heads(x, S::kHeadDim, 0, S::kRotaryDim, interleave, [&](int64_t head, int64_t pair) {
          const auto token = static_cast<size_t>(head / heads);
          const double position = form == Form::pos_ids ? static_cast<double>(s.positions[token]) : ragged_positions[token];
          const double angle = position / call.rope_scale * std::pow(1e4, -2.0 * static_cast<double>(pair) / S::kRotaryDim);
          return std::pair(std::cos(angle), std::sin(angle));
        });
      };
      const auto bytes = [&](const float* values) {
        const auto read = arena.read(values);
        return encode(DType::f32, Values(read.begin(), read.end()));
      };
      const double tolerance = form == Form::cache ? 0.0 : std::ldexp(3.0, -24);
      expect_values(bytes(q), DType::f32, want(s.q, S::kQHeads), tolerance);
      expect_values(bytes(k), DType::f32, want(s.k, S::kKvHeads), tolerance);
    }
  }
}

// The channels [begin, end) of every head.
std::vector<float> slice(const Values& x, int64_t begin, int64_t end) {
  std::vector<float> part;
  for (auto head = x.begin(); head != x.end(); head += S::kHeadDim) part.insert(part.end(), head + begin, head + end);
  return part;
}

TEST_P(Flashinfer, RopeQuantizeFp8Append) {
  for (const int kind : {0, 1, 2, 3}) {
    const bool apart = kind % 2 != 0;      // rope and nope slices
    const bool on_device = kind / 2 != 0;  // the page table; with these tokens the sequences are 3 and 1 long
    const bool hnd = on_device;            // one K/V head: the same slots in either layout
    SCOPED_TRACE(kind);
    const Serving s;
    const int32_t kv_indices[] = {2, 0, 1}, kv_indptr[] = {0, 2, 3}, batch_indices[] = {0, 0, 1, -1}, in_cache[] = {1, 2, 0, 0};
    std::vector<int64_t> slots(S::kTokens);
    const Status made = ours::slots_of(kv_indices, kv_indptr, 2, batch_indices, in_cache, S::kTokens, 2, slots.data());
    ASSERT_TRUE(made.ok()) << made.message();
    EXPECT_EQ(slots, (std::vector<int64_t>{5, 0, 2, -1}));
    Arena arena(GetParam());
    ours::RopeQuantizeFp8Append call;
    call.dtype = DType::f32;
    call.q = arena.input(slice(s.q, apart ? S::kRotaryDim : 0, S::kHeadDim));
    call.k = arena.input(slice(s.k, apart ? S::kRotaryDim : 0, S::kHeadDim));
    if (apart) {
      call.q_rope = arena.input(slice(s.q, 0, S::kRotaryDim));
      call.k_rope = arena.input(slice(s.k, 0, S::kRotaryDim));
    }
    call.v = arena.input(floats(s.v));
    call.nnz = S::kTokens;
    call.num_qo_heads = S::kQHeads;
    call.num_kv_heads = S::kKvHeads;
    call.head_dim = S::kHeadDim;
    call.rope_dim = S::kRotaryDim;
    call.cos_sin_cache = arena.input(floats(s.cos_sin));
    call.max_position = S::kMaxPosition;
    call.pos_ids = index_view(arena.input(s.positions));
    auto* k_cache = arena.output<unsigned char>(6 * S::kKvHeads * S::kHeadDim);
    auto* v_cache = arena.output<unsigned char>(6 * S::kKvHeads * S::kHeadDim);
    auto* q_out = arena.output<unsigned char>(static_cast<int64_t>(s.q.size()));
    call.k_cache = k_cache;
    call.v_cache = v_cache;
    call.q_out = q_out;
    call.max_pages = 3;
    call.page_size = 2;
    call.hnd = hnd;
    if (on_device) {
      call.append_indptr = arena.input(std::vector<int32_t>{0, 2, 3});
      call.kv_indptr = arena.input(std::vector<int32_t>(std::begin(kv_indptr), std::end(kv_indptr)));
      call.kv_indices = arena.input(std::vector<int32_t>(std::begin(kv_indices), std::end(kv_indices)));
      call.kv_last_page_len = arena.input(std::vector<int32_t>{1, 1});
      call.num_kv_indices = 3, call.batch_size = 2;
    } else {
      call.slot_mapping = arena.input(slots);
    }
    call.q_scale = arena.inout(std::vector<float>{1.0f / 4.0f});   // quant_scale_q 4
    call.kv_scale = arena.inout(std::vector<float>{1.0f / 8.0f});  // quant_scale_kv 8
    FaultRecord* faults = arena.inout(std::vector<FaultRecord>(1));
    const Status status =
        arena.run([&](const Execution& execution) { return ours::rope_quantize_fp8_append(call, faults, execution); });
    ASSERT_TRUE(status.ok()) << status.message();
    Bytes want_q = e4m3(s.rotated(s.q, S::kQHeads, false), 1.0 / 4.0);
    // A token of no sequence is padding, its Q too.
    if (on_device) std::fill(want_q.end() - S::kQHeads * S::kHeadDim, want_q.end(), kPoison);
    EXPECT_EQ(arena.read(q_out), want_q);
    const Bytes got_k = arena.read(k_cache), got_v = arena.read(v_cache);
    EXPECT_EQ(got_k, cached(e4m3(s.rotated(s.k, S::kKvHeads, false), 1.0 / 8.0), slots, got_k.size(), 1));
    EXPECT_EQ(got_v, cached(e4m3(s.v, 1.0 / 8.0), slots, got_v.size(), 1));
  }
}

}  // namespace
}  // namespace prologue::test
