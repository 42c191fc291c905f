// Every kernel of paged attention that ships, pinned by name, whatever the sizes are: against the oracle on a GPU; and which of them
// a GPU gets. The CPU, which has one, runs some of the same calls.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "tests/support/attention_batch.h"
#include "tests/support/attention_instances.h"
#include "tests/support/attention_pages.h"

namespace prologue::test {
namespace {

struct KvTypes {
  DType k, v;
};

// Every type for both, then mixtures; their scaling differs, too, where it can.
const std::vector<KvTypes>& kv_types() {
  static const std::vector<KvTypes> types = {
      {DType::f32, DType::f32},           {DType::f16, DType::f16},           {DType::bf16, DType::bf16},
      {DType::fp8_e4m3, DType::fp8_e4m3}, {DType::fp8_e5m2, DType::fp8_e5m2}, {DType::int8, DType::int8},
      {DType::int4, DType::int4},         {DType::uint4, DType::uint4},       {DType::int8, DType::uint4},
      {DType::fp8_e4m3, DType::int4},     {DType::uint4, DType::fp8_e5m2},    {DType::bf16, DType::uint4},
      {DType::f16, DType::int8},          {DType::uint4, DType::bf16},        {DType::f32, DType::uint4}};
  return types;
}

const std::vector<int64_t>& head_dims() {
  static const std::vector<int64_t> dims = {64, 96, 128, 192, 256, 576};
  return dims;
}

// One batch has all that a call may meet: prefill and decode rows, a sequence that attends to nothing, one with a bad page, one with too
// many rows, and padding.
template <class T>
void check_all_instances(Backend backend, AttentionCase c, uint64_t seed) {
  if (std::is_same_v<T, BFloat16>) c.sinks = seed % 2 == 0 ? Sinks::of_dtype : Sinks::of_float, c.chunk = 48;
  AttentionBatch<T> batch(c, seed);
  AttentionInputs<T>& in = batch.in;
  in.max_seqlen_q = 70;
  const auto& [bad_rows, bad_length] = c.sequences[1];  // the page of the last position that all its rows see
  in.block_table[static_cast<size_t>(in.block_table_stride + (bad_length - bad_rows) / c.page_size)] = -1;
  if (seed % 3 != 0) use_csr(in, seed % 3 == 1);
  std::vector<Reference> want = oracle::paged_attention(in, attention_allowance(backend, in, batch.cache.view));
  want.resize(static_cast<size_t>(in.cu_seqlens_q.back() * in.num_q_heads * in.v_width()));
  const oracle::QueryRowFaults rows = oracle::query_row_faults(in);
  const uint64_t faults = rows.rows.size() + static_cast<uint64_t>(c.sequences[1].rows);

  Arena arena(backend);
  PagedAttentionParams p = place_attention(arena, in, batch.cache.place(arena), backend_device(backend));
  p.max_seqlen_q = in.max_seqlen_q;
  p.sinks_type = resolve_dtype(p.sinks_type, p.dtype);  // a pinned kernel is given what paged_attention() has resolved
  FaultRecord* record = p.faults = arena.inout(std::vector<FaultRecord>(1));
  const Status valid = validate(p, backend_device(backend));
  ASSERT_TRUE(valid.ok()) << valid.message();
  const std::vector<NamedCall> calls = calls_of(p, backend_device(backend));
  ASSERT_FALSE(calls.empty());
  for (const NamedCall& call : calls) {
    SCOPED_TRACE(testing::Message() << call.name << ", " << dtype_name(FloatFormat<T>::dtype) << ", head dims " << c.head_dim
                                    << " and " << c.v_width());
    const Status status = arena.run(call.run);
    ASSERT_TRUE(status.ok()) << status.message();
    expect_close(rows_of(arena, in, p), want, in.v_width(), "out", kDefaultSteps, false);
    EXPECT_EQ(arena.read(record)[0].count, faults);
  }
}

class PagedAttentionInstances : public testing::TestWithParam<std::tuple<Backend, KvTypes>> {
 protected:
  void SetUp() override { PROLOGUE_REQUIRE_BACKEND(std::get<0>(GetParam())); }
};

TEST_P(PagedAttentionInstances, MatchTheOracleWhateverTheSizes) {
  const auto [backend, types] = GetParam();
  uint64_t seed = 0;
  for (const int64_t head_dim : head_dims()) {
    for (const bool whole : {true, false}) {
      AttentionCase c;
      const auto format_of = [&](DType type, bool per_token) -> KvFormat {
        if (dtype_is_activation(type)) return {type, KvScaling::none};
        return {type, per_token || type == DType::uint4 ? KvScaling::token_head : KvScaling::tensor};
      };
      const KvFormat k = format_of(types.k, seed % 2 == 0);
      c.type = k.type, c.scaling = k.scaling;
      c.v_format = format_of(types.v, (seed % 2 == 0) == (types.k == types.v));
      c.head_dim = whole ? head_dim : head_dim - 2;  // not in whole groups of 16 bytes
      c.v_head_dim = seed % 4 == 1 ? 64 : 0;
      c.num_q_heads = whole ? 6 : 5, c.num_kv_heads = whole ? 2 : 1;
      c.layout = whole ? KvLayout::nhd : KvLayout::odd;
      c.window = seed % 5 == 3 ? 50 : 0, c.soft_cap = seed % 5 == 4 ? 5.0f : 0.0f;
      c.sequences = {{70, 190}, {3, 270}, {1, 300}, {71, 80}, {0, 9}, {6, 3}, {1, 1}}, c.padding_rows = 3;
      if (backend == Backend::cuda || seed % 4 == 0) {
        check_all_instances<float>(backend, c, seed);
        check_all_instances<BFloat16>(backend, c, seed);
      }
      if (backend == Backend::cuda) check_all_instances<Float16>(backend, c, seed);
      ++seed;
    }
  }
}

// V is the first channels of K.
TEST_P(PagedAttentionInstances, MatchTheOracleOfLatentAttention) {
  const auto [backend, types] = GetParam();
  if (!dtype_is_activation(types.k) || types.k != types.v) GTEST_SKIP() << "no such cache has instances of its own";
  AttentionCase c;
  c.type = types.k;
  c.head_dim = 576, c.v_head_dim = 512, c.num_q_heads = 5, c.num_kv_heads = 1, c.v_within_k = true;
  c.sequences = {{70, 190}, {3, 40}, {1, 150}, {71, 80}, {0, 9}, {6, 3}, {1, 1}}, c.padding_rows = 3;
  for (const uint64_t seed : {101, 102}) {
    if (types.k == DType::f32) check_all_instances<float>(backend, c, seed);
    if (types.k == DType::bf16) check_all_instances<BFloat16>(backend, c, seed);
    if (types.k == DType::f16) check_all_instances<Float16>(backend, c, seed);
  }
}

// Keys with scores of -infinity weigh nothing, in parts of a sequence and tiles that have no other, and where a row has no other.
template <class T>
void check_scores_of_minus_infinity(Backend backend, const AttentionCase& c, bool overflow, uint64_t seed) {
  AttentionBatch<T> batch(c, seed);
  batch.hide_first_keys(c, overflow, [](int64_t length) { return length > 100 ? 140 : length; });
  std::vector<Reference> want = oracle::paged_attention(batch.in, attention_allowance(backend, batch.in, batch.cache.view));
  want.resize(static_cast<size_t>(batch.in.cu_seqlens_q.back() * batch.in.num_q_heads * batch.in.v_width()));
  Arena arena(backend);
  PagedAttentionParams p = place_attention(arena, batch.in, batch.cache.place(arena), backend_device(backend));
  p.sinks_type = resolve_dtype(p.sinks_type, p.dtype);
  const std::vector<NamedCall> calls = calls_of(p, backend_device(backend));
  ASSERT_FALSE(calls.empty());
  for (const NamedCall& call : calls) {
    SCOPED_TRACE(testing::Message() << call.name << ", " << dtype_name(FloatFormat<T>::dtype) << ", overflow " << overflow);
    const Status status = arena.run(call.run);
    ASSERT_TRUE(status.ok()) << status.message();
    expect_close(rows_of(arena, batch.in, p), want, batch.in.v_width(), "out", kDefaultSteps, false);
  }
}

TEST_P(PagedAttentionInstances, ScoresOfMinusInfinity) {
  const auto [backend, types] = GetParam();
  if (types.k == DType::uint4) GTEST_SKIP() << "K of uint4 can hold no infinity, and its zero points are not exact";
  const auto format_of = [](DType type) -> KvFormat {
    if (dtype_is_activation(type)) return {type, KvScaling::none};
    return {type, type == DType::uint4 ? KvScaling::token_head : KvScaling::tensor};
  };
  uint64_t seed = 200;
  for (const int64_t head_dim : {64, 128, 256, 576}) {
    AttentionCase c;
    c.type = types.k, c.scaling = format_of(types.k).scaling, c.v_format = format_of(types.v);
    c.head_dim = head_dim, c.num_q_heads = 2, c.num_kv_heads = 1;
    if (head_dim == 576) c.v_head_dim = 512, c.v_within_k = types.k == types.v;
    if (head_dim == 256) c.sinks = Sinks::of_float;
    c.sequences = {{1, 300}, {20, 170}, {2, 60}};
    const bool overflow = dtype_is_quantized(types.k) || ++seed % 2 == 0;
    check_scores_of_minus_infinity<BFloat16>(backend, c, overflow, seed);
    if (types.k == DType::f16) check_scores_of_minus_infinity<Float16>(backend, c, overflow, seed);
    if (head_dim == 128) check_scores_of_minus_infinity<float>(backend, c, overflow, seed);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, PagedAttentionInstances,
                         testing::Combine(testing::Values(Backend::cpu, Backend::cuda), testing::ValuesIn(kv_types())),
                         [](const auto& test) {
                           const KvTypes types = std::get<1>(test.param);
                           const std::string v = types.k == types.v ? "" : std::string("_and_") + dtype_name(types.v);
                           return dtype_name(types.k) + v + "_" + backend_name(std::get<0>(test.param));
                         });

#ifdef PROLOGUE_HAS_CUDA

constexpr int64_t kSharedBytesOfSmallGpus = 99 * 1024;  // sm_86, sm_89 and sm_120

PagedAttentionParams shape(DType dtype, KvTypes types, int64_t head_dim, int64_t v_head_dim, bool aligned) {
  PagedAttentionParams p;
  p.num_tokens = p.max_seqlen_q = p.max_seq_len = 100;
  p.num_seqs = 1;
  p.num_q_heads = 8;
  p.head_dim = p.kv.k.head_dim = head_dim;
  p.kv.v.head_dim = v_head_dim;
  p.dtype = dtype;
  p.scale = 1.0f;
  p.kv.k.format.type = types.k, p.kv.v.format.type = types.v;
  p.kv.num_kv_heads = 2;
  p.kv.page_size = 16;
  const int64_t width = std::max(head_dim, v_head_dim) + (aligned ? 0 : 2);
  p.q.token_stride = p.out.token_stride = 8 * width;
  p.q.head_stride = p.out.head_stride = width;
  p.kv.k.strides = p.kv.v.strides = nhd_strides(16, 2, width);
  return p;
}

// None ships that the test above does not reach.
TEST(PagedAttentionInstancesOfAll, EveryOneServesATestedCase) {
  std::set<std::string> reached;
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const KvTypes& types : kv_types()) {
      for (const int64_t head_dim : head_dims()) {
        for (const cuda::AttentionInstance& instance : cuda::instances_of(shape(dtype, types, head_dim, 0, true))) {
          reached.insert(instance.name);
        }
      }
      PagedAttentionParams latent = shape(dtype, types, 576, 512, true);
      latent.kv.num_kv_heads = 1;
      for (const cuda::AttentionInstance& instance : cuda::instances_of(latent)) reached.insert(instance.name);
    }
  }
  for (const int64_t head_dim : {64, 128, 256, 512}) {  // of block-scaled formats, which kernels_block_scale_test reads
    for (const DType type : {DType::fp8_e4m3, DType::fp4_e2m1}) {
      PagedAttentionParams blocks = shape(DType::bf16, {type, type}, head_dim, 0, true);
      blocks.kv.k.format.scaling = blocks.kv.v.format.scaling = KvScaling::mx;
      for (const cuda::AttentionInstance& instance : cuda::instances_of(blocks)) reached.insert(instance.name);
    }
  }
  const std::vector<std::string> names = cuda::paged_attention_instances();
  EXPECT_EQ(reached, std::set<std::string>(names.begin(), names.end()));
  EXPECT_EQ(reached.size(), names.size()) << "two have the same name";
}

// Returns the instance of a call that has one kind of rows.
std::string chosen(const PagedAttentionParams& p, int64_t shared_bytes) {
  const std::string decode = cuda::chosen_decode_instance(p, shared_bytes),
                    prefill = cuda::chosen_prefill_instance(p, shared_bytes);
  EXPECT_NE(decode.empty(), prefill.empty());
  return decode + prefill;
}

// Beside prompts decode sequences run in the kernel that they run in alone; batch-invariant ones always in that of prompts.
TEST(PagedAttentionInstancesOfAll, MixedBatchesRunInTwo) {
  PagedAttentionParams p = shape(DType::bf16, {DType::bf16, DType::bf16}, 128, 0, true);
  p.num_seqs = 5, p.max_seqlen_q = 1;
  const std::string decode = chosen(p, kSharedBytesOfSmallGpus);
  p.max_seqlen_q = 90;
  const std::string prefill = chosen(p, kSharedBytesOfSmallGpus);
  EXPECT_EQ(decode.substr(0, 6), "decode");
  EXPECT_EQ(prefill.substr(0, 7), "prefill");
  p.num_decode_seqs = 3;
  EXPECT_EQ(cuda::chosen_decode_instance(p, kSharedBytesOfSmallGpus), decode);
  EXPECT_EQ(cuda::chosen_prefill_instance(p, kSharedBytesOfSmallGpus), prefill);
  p.num_decode_seqs = 5;
  EXPECT_EQ(chosen(p, kSharedBytesOfSmallGpus), decode);
  p.num_decode_seqs = 3, p.max_seqlen_q = 4;  // few rows: one launch
  EXPECT_EQ(chosen(p, kSharedBytesOfSmallGpus).substr(0, 6), "decode");
  p.batch_invariant = true;
  for (const int64_t rows : {1, 4, 90}) {
    p.max_seqlen_q = rows;
    EXPECT_EQ(chosen(p, kSharedBytesOfSmallGpus), prefill);
  }
}

// What no other instance serves runs in those of any formats, and nothing else does.
TEST(PagedAttentionInstancesOfAll, AnyFormatsAreTheLastChoice) {
  const auto name = [](KvTypes types, int64_t rows, int64_t head_dim = 128, DType dtype = DType::bf16) {
    PagedAttentionParams p = shape(dtype, types, head_dim, 0, true);
    p.max_seqlen_q = p.num_tokens = rows;
    return chosen(p, kSharedBytesOfSmallGpus);
  };
  EXPECT_EQ(name({DType::int8, DType::int8}, 1), "decode mma cache=int8 head_dim=128 rows=8");
  EXPECT_EQ(name({DType::uint4, DType::uint4}, 1), "decode mma cache=uint4 head_dim=128 rows=8");
  EXPECT_EQ(name({DType::int8, DType::uint4}, 2, 64), "decode mma cache=int8,uint4 head_dim=64 rows=8");
  EXPECT_EQ(name({DType::int8, DType::uint4}, 1, 320), "decode cache=any head_dim=768 rows=2");
  EXPECT_EQ(name({DType::fp8_e4m3, DType::uint4}, 1, 64), "decode cache=any head_dim=128 rows=4");
  EXPECT_EQ(name({DType::bf16, DType::bf16}, 50), "prefill mma q=bfloat16 cache=same head_dim=128 rows=64 keys=64");
  EXPECT_EQ(name({DType::bf16, DType::bf16}, 50000), "prefill mma q=bfloat16 cache=same head_dim=128 rows=128 keys=64");
  EXPECT_EQ(name({DType::int8, DType::int8}, 50), "prefill mma q=bfloat16 cache=codes head_dim=128 rows=64 keys=64");
  EXPECT_EQ(name({DType::uint4, DType::uint4}, 50), "prefill mma q=bfloat16 cache=any head_dim=128 rows=64 keys=64");
  EXPECT_EQ(name({DType::bf16, DType::int4}, 50), "prefill mma q=bfloat16 cache=any head_dim=128 rows=64 keys=64");
  EXPECT_EQ(name({DType::f16, DType::int4}, 50), "prefill simple cache=any head_dim=128 rows=64 keys=32");
  EXPECT_EQ(name({DType::int8, DType::uint4}, 50, 128, DType::f32), "prefill simple cache=any head_dim=128 rows=64 keys=32");
  EXPECT_EQ(name({DType::int8, DType::int8}, 50, 128, DType::f32), "prefill simple head_dim=128 rows=64 keys=32");
  PagedAttentionParams p = shape(DType::bf16, {DType::bf16, DType::bf16}, 128, 0, true);
  p.max_seqlen_q = p.num_tokens = 50000, p.batch_invariant = true;
  EXPECT_EQ(chosen(p, kSharedBytesOfSmallGpus), "prefill mma q=bfloat16 cache=same head_dim=128 rows=64 keys=64");
  p = shape(DType::bf16, {DType::int8, DType::int8}, 128, 0, true);
  p.kv.k.format.scaling = KvScaling::tensor, p.kv.v.format.scaling = KvScaling::token_head;
  EXPECT_EQ(chosen(p, kSharedBytesOfSmallGpus), "prefill mma q=bfloat16 cache=any head_dim=128 rows=64 keys=64");
  p.max_seqlen_q = p.num_tokens = 1;
  EXPECT_EQ(chosen(p, kSharedBytesOfSmallGpus), "decode mma cache=int8 head_dim=128 rows=8");
  p.num_q_heads = 3 * p.kv.num_kv_heads, p.max_seqlen_q = p.num_tokens = 4;
  EXPECT_EQ(chosen(p, kSharedBytesOfSmallGpus), "decode mma cache=int8 head_dim=128 rows=16");
}

// K and V are both MXFP8, or both of e2m1 in any of its formats, and q has 16 bits: tensor cores.
TEST(PagedAttentionInstancesOfAll, BlockScaledCachesAreDecodedOnTensorCores) {
  const auto name = [](KvFormat k, KvFormat v, int64_t head_dim = 128, DType dtype = DType::bf16, int64_t rows = 1) {
    PagedAttentionParams p = shape(dtype, {k.type, v.type}, head_dim, 0, true);
    p.kv.k.format = k, p.kv.v.format = v;
    p.max_seqlen_q = p.num_tokens = rows;
    return chosen(p, kSharedBytesOfSmallGpus);
  };
  const KvFormat mxfp8 = {DType::fp8_e4m3, KvScaling::mx}, mxfp4 = {DType::fp4_e2m1, KvScaling::mx},
                 nvfp4 = {DType::fp4_e2m1, KvScaling::nv}, fp8 = {DType::fp8_e4m3, KvScaling::token_head};
  EXPECT_EQ(name(mxfp8, mxfp8), "decode mma cache=fp8_e4m3 blocks head_dim=128 rows=8");
  EXPECT_EQ(name(mxfp8, mxfp8, 96, DType::f16, 4), "decode mma cache=fp8_e4m3 blocks head_dim=128 rows=16");
  EXPECT_EQ(name(nvfp4, nvfp4, 64), "decode mma cache=fp4_e2m1 blocks head_dim=64 rows=8");
  EXPECT_EQ(name(mxfp4, nvfp4, 256), "decode mma cache=fp4_e2m1 blocks head_dim=256 rows=8");
  EXPECT_EQ(name(fp8, fp8), "decode mma cache=fp8_e4m3 head_dim=128 rows=8");
  EXPECT_EQ(name(fp8, mxfp8), "decode cache=blocks head_dim=128 rows=8");
  EXPECT_EQ(name(mxfp8, fp8), "decode cache=blocks head_dim=128 rows=8");
  EXPECT_EQ(name(mxfp8, nvfp4), "decode cache=blocks head_dim=128 rows=8");
  EXPECT_EQ(name(nvfp4, nvfp4, 48), "decode cache=blocks head_dim=128 rows=8");  // rows are no multiple of 16 bytes
  EXPECT_EQ(name(mxfp4, mxfp4, 128, DType::f32), "decode cache=blocks head_dim=128 rows=8");
}

// Every call has a kernel on a GPU with 99 KiB of shared memory for a block; more memory gives a larger tile where there is one.
TEST(PagedAttentionInstancesOfAll, SomeFitEveryGpu) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const KvTypes& types : kv_types()) {
      for (int64_t head_dim = 2; head_dim <= 576; head_dim += 2) {
        for (const bool aligned : {true, false}) {
          const PagedAttentionParams p = shape(dtype, types, head_dim, head_dim % 3 == 0 ? 64 : 0, aligned);
          std::map<std::string, int64_t> bytes;
          for (const cuda::AttentionInstance& instance : cuda::instances_of(p)) bytes[instance.name] = instance.shared_bytes;
          const std::string small = chosen(p, kSharedBytesOfSmallGpus);
          const std::string large = chosen(p, 227 * 1024);
          ASSERT_EQ(bytes.count(small), 1u) << head_dim;
          ASSERT_EQ(bytes.count(large), 1u) << head_dim;
          EXPECT_LE(bytes[small], kSharedBytesOfSmallGpus) << small;
          EXPECT_GE(bytes[large], bytes[small]) << large;
          EXPECT_EQ(small.substr(0, 11), large.substr(0, 11)) << "tensor cores on one, not on the other";
          if (head_dim > 256 && types.k == types.v && types.k != DType::uint4) {
            EXPECT_NE(small, large);
          }
        }
      }
    }
  }
}

#endif

}  // namespace
}  // namespace prologue::test
