// This is a minimal call of the prologue with two tokens of packed QKV. It writes the rotated Q, and stores K and V in the pages of a
// cache.
#include <cmath>
#include <cstdio>
#include <vector>

#include <prologue/kernels/attention_prologue/attention_prologue.h>

int main() {
  constexpr int64_t kTokens = 2, kQHeads = 4, kKvHeads = 2, kHeadDim = 64, kPages = 8, kPageSize = 16, kMaxPosition = 4096;
  constexpr int64_t kRow = (kQHeads + 2 * kKvHeads) * kHeadDim;
  const std::vector<float> qkv(kTokens * kRow, 1.0f);  // the output of the QKV GEMM
  std::vector<float> q(kTokens * kQHeads * kHeadDim);
  std::vector<float> k_cache(kPages * kPageSize * kKvHeads * kHeadDim), v_cache(k_cache.size());
  const std::vector<int32_t> positions = {0, 7};
  const std::vector<int64_t> slots = {3 * kPageSize, 5 * kPageSize + 7};  // page * page_size + offset
  prologue::FaultRecord faults;

  // Made once: [max_position, head_dim], the cos of a position's angles, then their sin. rope_cos_sin (layers/rope/rope_table.h)
  // makes it for every scaling scheme.
  std::vector<float> cos_sin(kMaxPosition * kHeadDim);
  for (int64_t position = 0; position < kMaxPosition; ++position) {
    for (int64_t i = 0; i < kHeadDim / 2; ++i) {
      const double angle = static_cast<double>(position) * std::pow(10000.0, -2.0 * static_cast<double>(i) / kHeadDim);
      float* entry = &cos_sin[static_cast<size_t>(position * kHeadDim + i)];
      entry[0] = static_cast<float>(std::cos(angle)), entry[kHeadDim / 2] = static_cast<float>(std::sin(angle));
    }
  }

  // snippet: call
  prologue::AttentionPrologueParams p;
  p.num_tokens = kTokens, p.num_q_heads = kQHeads, p.num_kv_heads = kKvHeads, p.head_dim = kHeadDim;
  p.dtype = prologue::DType::f32;                 // or f16, bf16; the cache, if cache.k.format says so, also fp8, int8 or int4
  prologue::set_packed_qkv(p, qkv.data(), kRow);  // or p.q, p.k, p.v, each with its strides
  p.rope.rotary_dim = kHeadDim;
  prologue::set_cos_sin_table(p.rope, cos_sin.data(), prologue::DType::f32, kMaxPosition);
  p.places.positions = prologue::index_view(positions.data());
  p.places.slot_mapping = prologue::index_view(slots.data());
  p.faults = &faults;
  p.q_out = {q.data(), kQHeads * kHeadDim, kHeadDim};
  p.cache.k.data = k_cache.data(), p.cache.v.data = v_cache.data(), p.cache.num_pages = kPages, p.cache.page_size = kPageSize;
  p.cache.num_kv_heads = kKvHeads, p.cache.k.head_dim = kHeadDim;
  p.cache.k.strides = p.cache.v.strides = prologue::nhd_strides(kPageSize, kKvHeads, kHeadDim);

  const prologue::Execution execution = {prologue::Device::cpu, 2};  // or {Device::cuda, 1, stream}, all pointers on the GPU
  const prologue::Status status = prologue::attention_prologue(p, execution);
  if (!status.ok()) return std::fprintf(stderr, "%s\n", status.message().c_str()), 1;
  // end snippet

  // A plan does the same: it is checked once, then launched. It also tells which kernel runs.
  // snippet: plan
  const auto plan = prologue::AttentionProloguePlan::create(p, kTokens, execution);  // for up to kTokens tokens
  if (!plan.ok()) return std::fprintf(stderr, "%s\n", plan.status().message().c_str()), 1;
  std::printf("kernel: %s\n", plan->kernel());  // "cpu"; on CUDA "lean", "compiled" or "general"
  const prologue::Status planned = plan->run(p, execution);
  // end snippet
  if (!planned.ok()) return std::fprintf(stderr, "%s\n", planned.message().c_str()), 1;

  const float* k = &k_cache[static_cast<size_t>(slots[1] * kKvHeads * kHeadDim)];
  const float want = std::cos(7.0f) - std::sin(7.0f);  // channel 0 of token 1: (1, 1) rotated by 7 radians
  std::printf("q[1, 0, 0] = %.6f, k in its slot = %.6f, cos 7 - sin 7 = %.6f\n", static_cast<double>(q[kQHeads * kHeadDim]),
              static_cast<double>(k[0]), static_cast<double>(want));
  return std::fabs(k[0] - want) < 1e-6f && q[kQHeads * kHeadDim] == k[0] && q[0] == 1.0f && faults.count == 0 ? 0 : 1;
}
