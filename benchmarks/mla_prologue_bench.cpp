// Measures the prologue of multi-head latent attention in one launch, against a plain copy of the same bytes and against the separate
// operations: the norm of the latent, the rotation of q_pe and k_pe, the write to the cache. Sizes of DeepSeek V3: a latent of 512 channels
// and 64 rotated ones, bfloat16; kv_c and k_pe are columns of the projection's rows of 2112, q_pe of heads of 192, and q_pe_out of heads of
// 576. "as vLLM": concat_and_cache_mla_rope_fused, that is without the norm, q_pe and k_pe in place.
#include <prologue/kernels/base/divide_up.h>
#include <prologue/kernels/mla_prologue/mla_prologue.h>

#include <prologue/kernels/attention_prologue/stages/stages.h>
#include <prologue/kernels/rotary/rotary.h>

#include "benchmarks/harness.h"

using namespace prologue;

namespace {

constexpr int64_t kRank = 512, kDim = 64, kRow = 1536 + kRank + kDim, kHead = 192, kPageSize = 64, kMaxPosition = 16384;

enum class Cache { bf16, fp8, record };
constexpr Cache kCaches[] = {Cache::bf16, Cache::fp8, Cache::record};
const char* name_of(Cache cache) { return cache == Cache::bf16 ? "bfloat16" : cache == Cache::fp8 ? "fp8" : "fp8_ds_mla"; }

struct Call {
  MlaPrologueParams params;
  std::vector<void*> projected, queries, outputs, entries;
  int64_t bytes = 0;

  MlaPrologueParams at(int64_t rotation, bool as_vllm) const {
    const auto i = static_cast<size_t>(rotation);
    MlaPrologueParams p = params;
    auto* const row = static_cast<char*>(projected[i]);
    p.kv_c = row + 1536 * 2, p.k_pe = row + (1536 + kRank) * 2;
    p.q_pe.data = static_cast<char*>(queries[i]) + (kHead - kDim) * 2;
    p.q_pe_out.data = static_cast<char*>(outputs[i]) + kRank * 2;
    if (as_vllm) {
      p.kv_c_norm = {};
      p.q_pe_out = {const_cast<void*>(p.q_pe.data), p.q_pe.token_stride, p.q_pe.head_stride};
      p.k_pe_out = const_cast<void*>(p.k_pe), p.k_pe_out_stride = p.k_pe_stride;
    }
    const auto move = [&](MlaCachePart& part, const void* first) {
      if (part.data != nullptr)
        part.data = static_cast<char*>(entries[i]) + (static_cast<char*>(part.data) - static_cast<const char*>(first));
    };
    move(p.cache.rope, entries[0]), move(p.cache.latent, entries[0]);
    return p;
  }
};

Call make_call(bench::Setup& setup, int64_t num_tokens, int64_t num_heads, Cache cache, bool as_vllm) {
  Call call;
  MlaPrologueParams& p = call.params;
  p.num_tokens = num_tokens, p.num_q_heads = num_heads, p.kv_lora_rank = kRank, p.qk_rope_head_dim = kDim, p.dtype = DType::bf16;
  p.kv_c_stride = p.k_pe_stride = kRow;
  p.q_pe.token_stride = num_heads * kHead, p.q_pe.head_stride = kHead;
  p.q_pe_out.token_stride = num_heads * (kRank + kDim), p.q_pe_out.head_stride = kRank + kDim;
  const int64_t entry = cache == Cache::bf16 ? 2 * (kRank + kDim) : cache == Cache::fp8 ? kRank + kDim : 656;
  const int64_t q_bytes = num_tokens * num_heads * kDim * 2;
  call.bytes =
      num_tokens * ((kRank + kDim) * 2 + entry + kDim * 4 + 16) + 2 * q_bytes + (as_vllm ? num_tokens * kDim * 2 : kRank * 2);
  setup.rotate(call.bytes);
  call.projected = setup.rotated(num_tokens * kRow * 2, DType::bf16);
  call.queries = setup.rotated(num_tokens * num_heads * kHead * 2, DType::bf16);
  call.outputs = as_vllm ? call.queries : setup.rotated(num_tokens * num_heads * (kRank + kDim) * 2, DType::bf16);
  p.cache.page_size = kPageSize, p.cache.num_pages = divide_up(num_tokens, kPageSize);
  call.entries = setup.rotated(p.cache.num_pages * kPageSize * entry, DType::bf16);
  const int64_t page = kPageSize * entry;
  if (cache == Cache::record) {
    set_mla_records(p, call.entries[0], page, entry);
  } else if (cache == Cache::fp8) {
    set_mla_entries(p, call.entries[0], DType::fp8_e4m3, setup.values(std::vector<float>{0.02f}), page, entry);
  } else {
    set_mla_entries(p, call.entries[0], DType::bf16, nullptr, page / 2, entry / 2);
  }
  p.kv_c_norm.placement = NormPlacement::before_rope;
  p.kv_c_norm.weight = setup.shared(kRank * 2, DType::bf16);
  p.rope.style = RopeStyle::interleaved, p.rope.rotary_dim = kDim;
  set_cos_sin_table(p.rope, setup.shared(kMaxPosition * kDim * 4, DType::f32), DType::f32, kMaxPosition);
  std::vector<int64_t> positions, slots;
  for (int64_t t = 0; t < num_tokens; ++t) positions.push_back((t * 37 + 5) % kMaxPosition), slots.push_back(num_tokens - 1 - t);
  p.positions = index_view(setup.values(positions));
  p.slot_mapping = index_view(setup.values(slots));
  p.faults = setup.values(std::vector<FaultRecord>(1));
  return call;
}

// Runs the norm and the rotations in place, then the write to the cache.
Status run_separately(const MlaPrologueParams& p, const Execution& execution) {
  auto* const latent = const_cast<void*>(p.kv_c);
  auto* const k_pe = const_cast<void*>(p.k_pe);
  if (p.kv_c_norm.placement != NormPlacement::none) {
    QkNormParams norm;
    norm.num_tokens = p.num_tokens, norm.num_heads = 1, norm.head_dim = kRank, norm.dtype = p.dtype;
    norm.x = {p.kv_c, p.kv_c_stride, 0}, norm.y = {latent, p.kv_c_stride, 0};
    norm.norm = p.kv_c_norm;
    PROLOGUE_RETURN_IF_ERROR(qk_norm(norm, execution));
  }
  RotaryParams rotation;
  rotation.seq_len = p.num_tokens, rotation.head_dim = kDim, rotation.dtype = p.dtype, rotation.num_tensors = 2;
  rotation.tensors[0] = rotary_tensor(p.q_pe, p.q_pe_out, p.num_q_heads);
  rotation.tensors[1] = rotary_tensor(HeadsView{p.k_pe, p.k_pe_stride, 0}, MutableHeadsView{k_pe, p.k_pe_stride, 0}, 1);
  rotation.rope = p.rope, rotation.positions.ids = p.positions, rotation.faults = p.faults;
  PROLOGUE_RETURN_IF_ERROR(rotary(rotation, execution));
  if (p.cache.latent.format.scaling == KvScaling::token_head) {  // only this operation writes records
    MlaPrologueParams write = p;
    write.num_q_heads = 0, write.rope = {}, write.kv_c_norm = {}, write.k_pe_out = nullptr;
    return mla_prologue(write, execution);
  }
  KvWriteParams write;
  write.num_tokens = p.num_tokens, write.num_kv_heads = 1, write.head_dim = kRank, write.dtype = p.dtype;
  write.k = {p.kv_c, p.kv_c_stride, 0}, write.v = {p.k_pe, p.k_pe_stride, 0};
  const auto part = [](const MlaCachePart& from, int64_t width, PagedHeads& to) {
    to.data = from.data, to.head_dim = width, to.format = from.format, to.strides = {from.page_stride, from.token_stride, width};
    to.scale = const_cast<float*>(from.scale);
  };
  part(p.cache.latent, kRank, write.cache.k), part(p.cache.rope, kDim, write.cache.v);
  write.cache.num_pages = p.cache.num_pages, write.cache.page_size = p.cache.page_size, write.cache.num_kv_heads = 1;
  write.slot_mapping = p.slot_mapping;
  return kv_write(write, execution);
}

}  // namespace

int main(int argc, char** argv) {
  bench::Bench bench(argc, argv);
  for (const bool as_vllm : {false, true}) {
    for (const Cache cache : kCaches) {
      for (const int64_t heads : {16, 128}) {
        for (const int64_t tokens : {1, 8, 32, 128, 1024, 8192}) {
          const std::string shape = str_cat(name_of(cache), as_vllm ? " as vLLM" : "", " heads=", heads, " T=", tokens);
          const std::string separate = "separate " + shape;
          bench.run(separate, [&](bench::Setup& setup) {
            const Call call = make_call(setup, tokens, heads, cache, as_vllm);
            return bench::Case{call.bytes, [=](const Execution& execution, int64_t rotation) {
                                 return run_separately(call.at(rotation, as_vllm), execution);
                               }};
          });
          bench.run("mla_prologue " + shape, [&](bench::Setup& setup) {
            const Call call = make_call(setup, tokens, heads, cache, as_vllm);
            return bench::Case{
                call.bytes,
                [=](const Execution& execution, int64_t rotation) { return mla_prologue(call.at(rotation, as_vllm), execution); },
                0.0, separate};
          });
          bench.run("overlaps " + shape, [&](bench::Setup& setup) {
            const Call call = make_call(setup, tokens, heads, cache, as_vllm);
            return bench::Case{call.bytes,
                               [=](const Execution& execution, int64_t rotation) {
                                 MlaPrologueParams p = call.at(rotation, as_vllm);
                                 p.overlaps = true;
                                 return mla_prologue(p, execution);
                               },
                               0.0, separate};
          });
        }
      }
    }
  }
  bench.run_host("host: mla_prologue bfloat16 heads=16 T=1", [&](bench::Setup& setup) {
    const Call call = make_call(setup, 1, 16, Cache::bf16, false);
    const MlaPrologueParams p = call.at(0, false);
    return bench::Case{call.bytes, [=](const Execution& execution, int64_t) { return mla_prologue(p, execution); }};
  });
  return bench.finish();
}
