// The smallest call of the prologue: two tokens of packed QKV; Q comes out rotated, K and V land in the pages of a cache.
#include <cmath>
#include <cstdio>
#include <vector>

#include <prologue/kernels/attention_prologue/attention_prologue.h>

int main() {
  constexpr int64_t kTokens = 2, kQHeads = 4, kKvHeads = 2, kHeadDim = 64, kPages = 8, kPageSize = 16, kMaxPosition = 4096;
  constexpr int64_t kRow = (kQHeads + 2 * kKvHeads) * kHeadDim;
  const std::vector<float> qkv(kTokens * kRow, 1.0f);  // what the QKV GEMM left
  std::vector<float> q(kTokens * kQHeads * kHeadDim);
  std::vector<float> k_cache(kPages * kPageSize * kKvHeads * kHeadDim), v_cache(k_cache.size());
  std::vector<float> inv_freq(kHeadDim / 2);
  for (size_t i = 0; i < inv_freq.size(); ++i) inv_freq[i] = std::pow(10000.0f, -2.0f * static_cast<float>(i) / kHeadDim);
  const std::vector<int32_t> positions = {0, 7};
  const std::vector<int64_t> slots = {3 * kPageSize, 5 * kPageSize + 7};  // page * page_size + offset

  // snippet: call
  prologue::AttentionPrologueParams p;
  p.num_tokens = kTokens;
  p.num_q_heads = kQHeads;
  p.num_kv_heads = kKvHeads;
  p.head_dim = kHeadDim;
  prologue::set_packed_qkv(p, qkv.data(), kRow);  // or p.q, p.k, p.v, each with its strides
  p.rotation.rotary_dim = kHeadDim;
  p.rotation.source = prologue::CosSinSource::inv_freq;  // or a cos/sin table
  p.rotation.inv_freq = inv_freq.data();
  p.rotation.max_position = kMaxPosition;
  p.places.positions = positions.data();  // or derived from cu_seqlens_q, cache_lens and block_table
  p.places.slot_mapping = slots.data();
  p.q_out = {q.data(), kQHeads * kHeadDim, kHeadDim};
  prologue::FaultRecord faults;  // bad positions and slots are recorded here
  p.faults = &faults;
  p.cache.k = k_cache.data();
  p.cache.v = v_cache.data();
  p.cache.num_pages = kPages;
  p.cache.page_size = kPageSize;
  p.cache.num_kv_heads = kKvHeads;
  p.cache.head_dim = kHeadDim;
  p.cache.k_strides = p.cache.v_strides = prologue::nhd_strides(kPageSize, kKvHeads, kHeadDim);

  const prologue::Execution execution = {prologue::Device::cpu, 2};  // or {Device::cuda, 1, stream}, all pointers on the GPU
  const prologue::Status status = prologue::attention_prologue(p, execution);
  if (!status.ok()) return std::fprintf(stderr, "%s\n", status.message().c_str()), 1;
  // end snippet

  const float* k = &k_cache[static_cast<size_t>(slots[1] * kKvHeads * kHeadDim)];
  const float want = std::cos(7.0f) - std::sin(7.0f);  // channel 0 of token 1: (1, 1) turned by 7 radians
  std::printf("q[1, 0, 0] = %.6f, k in its slot = %.6f, cos 7 - sin 7 = %.6f\n", static_cast<double>(q[kQHeads * kHeadDim]),
              static_cast<double>(k[0]), static_cast<double>(want));
  return std::fabs(k[0] - want) < 1e-6f && q[kQHeads * kHeadDim] == k[0] && q[0] == 1.0f ? 0 : 1;
}
