// What docs/embedding.md names under "Staying on the fast path" leaves the lean instances, and nothing else of it does. The choice needs a
// build with CUDA, but no GPU.
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include <prologue/kernels/attention_prologue/attention_prologue.h>
#include <prologue/kernels/attention_prologue/prologue_args.h>
#include <prologue/kernels/base/gpu.h>
#ifdef PROLOGUE_HAS_CUDA
#include <prologue/kernels/attention_prologue/instances.h>
#endif

namespace prologue {
namespace {

using Change = std::function<void(AttentionPrologueParams&)>;

// Pointers are compared and aligned, never read.
template <class T = void>
T* address(int64_t number) {
  return reinterpret_cast<T*>(number << 32);
}

void set_head_dim(AttentionPrologueParams& p, int64_t head_dim) {
  p.head_dim = p.cache.k.head_dim = p.rope.rotary_dim = head_dim;
  set_packed_qkv(p, address(1), (p.num_q_heads + 2 * p.num_kv_heads) * head_dim);
  p.q_out = {address(2), p.num_q_heads * head_dim, head_dim};
  p.cache.k.strides = p.cache.v.strides = nhd_strides(16, p.num_kv_heads, head_dim);
}

AttentionPrologueParams call(DType dtype) {
  AttentionPrologueParams p;
  p.num_tokens = 64, p.num_q_heads = 32, p.num_kv_heads = 8, p.dtype = dtype;
  set_head_dim(p, 128);
  set_cos_sin_table(p.rope, address<float>(3), DType::f32, p.rope.max_position), p.rope.max_position = 4096;
  p.places.positions = index_view(address<int32_t>(4)), p.places.slot_mapping = index_view(address<int64_t>(5));
  p.cache.k.data = address(6), p.cache.v.data = address(7), p.cache.k.format.type = p.cache.v.format.type = dtype;
  p.cache.num_pages = 1024, p.cache.page_size = 16, p.cache.num_kv_heads = 8;
  p.faults = address<FaultRecord>(8);
  return p;
}

void bias(AttentionPrologueParams& p) { p.bias = {address(10), address(11), address(12)}; }
void norm(AttentionPrologueParams& p) {
  p.q_norm.placement = p.k_norm.placement = NormPlacement::before_rope, p.q_norm.weight = address(13),
  p.k_norm.weight = address(14);
}
void fp8_query(AttentionPrologueParams& p) {
  p.q8_out = {p.q_out.data, p.q_out.token_stride, p.q_out.head_stride, KvScaling::tensor, address<float>(9), DType::fp8_e5m2};
  p.q_out = {};
}
void fp8(AttentionPrologueParams& p) { p.cache.k.format.type = p.cache.v.format.type = DType::fp8_e4m3; }
void computed_scales(AttentionPrologueParams& p) {
  p.cache.k.format.type = p.cache.v.format.type = DType::int8,
  p.cache.k.format.scaling = p.cache.v.format.scaling = KvScaling::token_head;
  p.cache.k.scale = address<float>(15), p.cache.v.scale = address<float>(16);
  p.cache.k.scale_strides = p.cache.v.scale_strides = nhd_strides(16, 8, 1);
}
void derived(AttentionPrologueParams& p) {
  p.places.positions = p.places.slot_mapping = {};
  p.places.num_seqs = 4, p.places.cu_seqlens_q = address<int32_t>(17), p.places.cache_lens = address<int32_t>(18);
  p.places.page_table.block_table = address<int32_t>(19),
  p.places.page_table.block_table_stride = p.places.page_table.max_pages_per_seq = 256;
}
void lengths_after(AttentionPrologueParams& p) {
  derived(p), p.places.seq_lens = p.places.cache_lens, p.places.cache_lens = nullptr;
}
void axes(AttentionPrologueParams& p) {
  p.rope.num_axes = 3, p.rope.pair_axis = address<uint8_t>(20), p.places.position_axis_stride = 64;
}
void all_slots(AttentionPrologueParams& p) { p.places.slot_mapping_len = p.num_tokens; }
void rows_per_token(AttentionPrologueParams& p) { p.rope.source = RopeSource::per_token, p.rope.max_position = 0; }
void interleaved(AttentionPrologueParams& p) { p.rope.style = RopeStyle::interleaved; }
void partial(AttentionPrologueParams& p) { p.rope.rotary_dim = 96; }

std::string kernel_of(const AttentionPrologueParams& params) {
  Execution execution;
  execution.device = Device::cuda;
  const auto plan = AttentionProloguePlan::create(params, params.num_tokens, execution);
  if (!plan.ok()) return plan.status().message();
#ifdef PROLOGUE_HAS_CUDA
  return cuda::kernel_kind(params, false);  // without what a plan compiles
#else
  return plan->kernel();
#endif
}

std::string kernel_with(DType dtype, std::initializer_list<Change> changes) {
  AttentionPrologueParams p = call(dtype);
  for (const Change& change : changes) change(p);
  if (rope_rows_are_given(p.rope.source)) {  // the table of the rotary_dim that the changes have left
    const RopeSource source = p.rope.source;
    set_cos_sin_table(p.rope, p.rope.cos.data, DType::f32, p.rope.max_position);
    p.rope.source = source;
  }
  return kernel_of(p);
}

class FastPath : public ::testing::Test {
  void SetUp() override {
    if (!built_with_cuda()) GTEST_SKIP() << "built without CUDA";
  }
};

TEST_F(FastPath, WhatThePageListsIsLean) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const std::initializer_list<std::initializer_list<Change>> lists = {{},
                                                                        {bias},
                                                                        {norm},
                                                                        {fp8},
                                                                        {fp8_query},
                                                                        {norm, fp8, fp8_query},
                                                                        {computed_scales},
                                                                        {derived},
                                                                        {axes},
                                                                        {rows_per_token},
                                                                        {interleaved},
                                                                        {partial},
                                                                        {bias, norm, fp8},
                                                                        {norm, computed_scales, derived},
                                                                        {bias, fp8, axes},
                                                                        {interleaved, bias, fp8, derived},
                                                                        {partial, bias, computed_scales, axes},
                                                                        {norm, rows_per_token},
                                                                        {bias, partial, rows_per_token},
                                                                        {all_slots},
                                                                        {norm, lengths_after}};
    int number = 0;
    for (const auto& changes : lists) {
      EXPECT_EQ(kernel_with(dtype, changes), "lean") << number;
      ++number;
    }
  }
  for (const auto& changes : std::initializer_list<std::initializer_list<Change>>{{}, {bias}, {interleaved}, {partial, bias}})
    EXPECT_EQ(kernel_with(DType::f32, changes), "lean");
  // Calls that only rotate and write have instances for 8 bytes and multiples of 4 channels, too.
  EXPECT_EQ(kernel_with(DType::bf16, {[](AttentionPrologueParams& p) { p.k.token_stride += 4, p.rope.rotary_dim = 72; }}),
            "lean");
}

TEST_F(FastPath, WhatKnownModelsNeedBesideIsLean) {
  const std::initializer_list<Change> changes = {
      [](AttentionPrologueParams& p) { bias(p), p.bias.k = nullptr; },
      [](AttentionPrologueParams& p) { norm(p), p.q_norm.placement = p.k_norm.placement = NormPlacement::after_rope; },
      [](AttentionPrologueParams& p) { norm(p), p.q_norm.kind = p.k_norm.kind = NormKind::layer; },
      [](AttentionPrologueParams& p) { norm(p), p.q_norm.scope = p.k_norm.scope = NormScope::token; },
      [](AttentionPrologueParams& p) { norm(p), p.q_norm.weight = nullptr; },
      [](AttentionPrologueParams& p) { norm(p), p.q_norm = {}; },
      [](AttentionPrologueParams& p) { norm(p), p.k_norm = {}; },
      [](AttentionPrologueParams& p) { norm(p), p.k_norm.placement = NormPlacement::after_rope; },
      [](AttentionPrologueParams& p) { norm(p), p.q_norm.kind = NormKind::layer; },
      [](AttentionPrologueParams& p) { norm(p), p.k_norm.scope = NormScope::token; },
      [](AttentionPrologueParams& p) { norm(p), p.k_norm.eps = 0.5f; },
      [](AttentionPrologueParams& p) { norm(p), p.q_norm.weight_offset = 1.0f; },
      [](AttentionPrologueParams& p) { norm(p), p.q_norm.weight_type = p.k_norm.weight_type = DType::f32; },
      [](AttentionPrologueParams& p) { norm(p), p.k_norm.weight_type = DType::f32; },
      [](AttentionPrologueParams& p) { norm(p), p.q_norm.weight_head_stride = p.k_norm.weight_head_stride = 128; },
      [](AttentionPrologueParams& p) { norm(p), interleaved(p); },
      [](AttentionPrologueParams& p) { norm(p), partial(p); },
      [](AttentionPrologueParams& p) { norm(p), set_head_dim(p, 32); },
      [](AttentionPrologueParams& p) { derived(p), set_head_dim(p, 32); },
      [](AttentionPrologueParams& p) { p.v_norm.placement = NormPlacement::before_rope; },
      [](AttentionPrologueParams& p) { p.q_scale.constant = 0.5f; },
      [](AttentionPrologueParams& p) { p.rope.inverse = true; },
      [](AttentionPrologueParams& p) { computed_scales(p), p.cache.k.format.type = p.cache.v.format.type = DType::int4; },
      [](AttentionPrologueParams& p) { derived(p), p.places.ring_size = 64; },
      [](AttentionPrologueParams& p) {
        p.k_out = {address(30), 1024, 128};
      },
      [](AttentionPrologueParams& p) { p.rounding = Rounding::per_step; },
      [](AttentionPrologueParams& p) { p.rope.past_table = PastTable::identity; },
      [](AttentionPrologueParams& p) { p.hadamard_block = 64; },
      [](AttentionPrologueParams& p) { derived(p), computed_scales(p), p.hadamard_block = 128; },
      [](AttentionPrologueParams& p) { interleaved(p), p.hadamard_block = 64; },
      [](AttentionPrologueParams& p) { norm(p), partial(p), derived(p), p.v_norm.placement = NormPlacement::before_rope; },
      [](AttentionPrologueParams& p) { bias(p), norm(p), computed_scales(p), derived(p), p.cache.v.format.type = DType::int4; },
      [](AttentionPrologueParams& p) { norm(p), derived(p), p.q_norm.scope = p.k_norm.scope = NormScope::token; },
  };
  int number = 0;
  for (const Change& change : changes) {
    for (const DType dtype : {DType::f16, DType::bf16}) EXPECT_EQ(kernel_with(dtype, {change}), "lean") << number;
    ++number;
  }
}

TEST_F(FastPath, WhatThePageExcludesIsGeneral) {
  const std::initializer_list<Change> changes = {
      [](AttentionPrologueParams& p) { p.rope.source = RopeSource::inv_freq, p.rope.inv_freq = address<float>(3); },
      [](AttentionPrologueParams& p) { bias(p), p.q.data = address<char>(1) + 8; },
      [](AttentionPrologueParams& p) { bias(p), p.k.token_stride += 4; },
      [](AttentionPrologueParams& p) { bias(p), p.cache.v.strides.token += 4, p.cache.v.strides.page += 64; },
      [](AttentionPrologueParams& p) { set_cos_sin_table(p.rope, address<float>(3) + 1, DType::f32, p.rope.max_position); },
      [](AttentionPrologueParams& p) { set_head_dim(p, 84); },
      [](AttentionPrologueParams& p) { p.rope.rotary_dim = 124; },
      [](AttentionPrologueParams& p) { p.rope.rotary_dim = 72, bias(p); },
      [](AttentionPrologueParams& p) { norm(p), axes(p), p.q_norm.weight = nullptr; },
      [](AttentionPrologueParams& p) { norm(p), interleaved(p), p.q_norm.scope = p.k_norm.scope = NormScope::token; },
      [](AttentionPrologueParams& p) {  // 576 threads
        p.num_q_heads = 64, set_head_dim(p, 128), norm(p), p.q_norm.scope = p.k_norm.scope = NormScope::token;
      },
      [](AttentionPrologueParams& p) {
        computed_scales(p), p.cache.k.format.type = DType::int4, p.cache.k.data = address<char>(6) + 2;
      },
      [](AttentionPrologueParams& p) { set_head_dim(p, 96), p.hadamard_block = 32; },
      [](AttentionPrologueParams& p) { axes(p), p.rounding = Rounding::per_step; },
      [](AttentionPrologueParams& p) { derived(p), partial(p), p.hadamard_block = 64; },
      [](AttentionPrologueParams& p) {
        p.cache.k.data = nullptr, p.k_out = {address(30), 1024, 128};
      },
      [](AttentionPrologueParams& p) { p.cache.v.head_dim = 64; },
      [](AttentionPrologueParams& p) { p.k_constant = 1.2f; },
      [](AttentionPrologueParams& p) {
        static HeadGroup gate;
        gate.in = {address(33), 16, 1}, gate.out = {address(34), 16, 1}, gate.num_heads = 16, gate.head_dim = 1;
        p.groups = &gate, p.num_groups = 1;
      },
      [](AttentionPrologueParams& p) { norm(p), p.v_constant = 0.707f; },
      [](AttentionPrologueParams& p) { p.cache.k.format.type = p.cache.v.format.type = DType::f32; },
      [](AttentionPrologueParams& p) { derived(p), p.places.position_offsets = index_view(address<int32_t>(31)); },
      [](AttentionPrologueParams& p) { derived(p), p.places.slot_mapping = index_view(address<int64_t>(5)); },
      [](AttentionPrologueParams& p) { p.places.slot_mapping_len = 63; },
      [](AttentionPrologueParams& p) {
        derived(p), p.places.page_table = {}, p.places.page_table.kv_indptr = address<int32_t>(19);
        p.places.page_table.kv_indices = address<int32_t>(32), p.places.page_table.num_kv_indices = 99;
      },
  };
  int number = 0;
  for (const Change& change : changes) {
    EXPECT_EQ(kernel_with(DType::bf16, {change}), "general") << number;
    ++number;
  }
  const std::initializer_list<Change> rope_changes = {
      [](AttentionPrologueParams& p) { set_cos_sin_table(p.rope, address(3), DType::bf16, 4096); },
      [](AttentionPrologueParams& p) { set_cos_and_sin(p.rope, address(3), address(9), DType::f32, 4096, 64, RopeWidth::half); },
      [](AttentionPrologueParams& p) { p.rope.cos.row_stride = p.rope.sin.row_stride = 256; },
      [](AttentionPrologueParams& p) { p.rope.num_blocks = 2; },
      [](AttentionPrologueParams& p) {
        p.rope.rotary_dim = 64, set_cos_sin_table(p.rope, address(3), DType::f32, 4096);
        p.k_rope = {address(9), 64, 0};
      },
  };
  number = 0;
  for (const Change& change : rope_changes) {
    AttentionPrologueParams p = call(DType::bf16);
    EXPECT_EQ(kernel_of(p), "lean");
    change(p);
    EXPECT_EQ(kernel_of(p), "general") << "rope " << number;
    ++number;
  }
  number = 0;
  for (const Change& change : {Change(norm), Change(fp8), Change(derived), Change(axes), Change(rows_per_token)}) {
    EXPECT_EQ(kernel_with(DType::f32, {change}), "general") << "float32 " << number;
    ++number;
  }
}

// The structs of examples/one_kernel and examples/embed_attention.
TEST_F(FastPath, TheExamplesAreLean) {
  const auto small_heads = [](AttentionPrologueParams& p) { set_head_dim(p, 64); };
  EXPECT_EQ(kernel_with(DType::f32, {small_heads}), "lean");
  EXPECT_EQ(kernel_with(DType::bf16, {small_heads, norm, lengths_after}), "lean");
}

// A block has several tokens of few heads, whose rows are divided by the number of heads.
TEST(TokenGroups, RowsAreDividedExactly) {
  for (int64_t heads = 1; heads <= cuda::kMaxHeadsOfGroup; ++heads) {
    for (int64_t tokens = 1; tokens <= 16; tokens *= 2) {
      const bool exact = cuda::groups_exactly(tokens, heads, cuda::kMaxRowsOfGroup);
      ASSERT_TRUE(exact || tokens > 1) << heads;
      if (!exact) continue;
      for (int64_t row = 0; row < heads * tokens + cuda::kMaxRowsOfGroup; ++row) {
        const cuda::GroupRow got =
            cuda::row_of_group(static_cast<uint32_t>(row), static_cast<uint32_t>(heads), cuda::inverse_of_heads(heads));
        ASSERT_EQ(got.token, row / heads) << row << " of " << heads;
        ASSERT_EQ(got.head, row % heads) << row << " of " << heads;
      }
    }
  }
}

}  // namespace
}  // namespace prologue
