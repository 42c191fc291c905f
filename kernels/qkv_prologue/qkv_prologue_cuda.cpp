#include <prologue/kernels/attention_prologue/backends.h>
#include <prologue/kernels/qkv_prologue/backends.h>
#include <prologue/kernels/qkv_prologue/instances.h>

namespace prologue::cuda {

namespace {

// The prologue must be given q, k and v, which the kernel makes. So they point to memory of the right kind, the weights; what is read of
// them is not used.
HeadCall call_of(const QkvPrologueParams& p) {
  HeadCall call;
  call.prologue = resolved(p.prologue);
  AttentionPrologueParams& prologue = call.prologue;
  const int64_t width =
      (prologue.num_q_heads + prologue.num_kv_heads) * prologue.head_dim + prologue.num_kv_heads * v_head_dim(prologue);
  set_packed_qkv(prologue, p.packed.num_segments > 0 ? p.packed.segments[0].data : p.weight, width);
  call.product = {prologue.dtype, prologue.num_tokens, width, p.hidden_size, p.hidden_states, p.hidden_stride, p.norm, p.weight,
                  p.packed};
  call.batch_invariant = p.batch_invariant;
  call.overlaps = p.overlaps;
  return call;
}

}  // namespace

bool has_qkv_gemm() {
  for (const auto* way : kHeadWays) {
    if (way->most_tokens == 0 && way->runs_here()) return true;
  }
  return false;
}

std::optional<Launch> choose(const QkvPrologueParams& params, const QkvPrologueParams& without_norm) {
  const HeadCall call = call_of(params);
  for (const auto* way : kHeadWays) {
    if (params.packed.num_segments > 0 && !way->reads_packed) continue;
    std::optional<Launch> chosen = way->choose(way->applies_norm ? call : call_of(without_norm));
    if (!chosen) continue;
    chosen->way = way->name;
    chosen->follows_norm = !way->applies_norm && params.norm.given != 0;
    return chosen;
  }
  return {};
}

std::vector<std::string> qkv_prologue_ways() {
  std::vector<std::string> names;
  for (const auto* way : kHeadWays) names.emplace_back(way->name);
  return names;
}

std::vector<std::string> qkv_prologue_instances(std::string_view way, DType dtype) {
  for (const auto* each : kHeadWays) {
    if (way == each->name) return each->instances(dtype);
  }
  return {};
}

std::vector<KernelInstance<QkvPrologueParams>> instances_of(std::string_view way, const QkvPrologueParams& params) {
  std::vector<PossibleLaunch<HeadCall>> possible;
  for (const auto* each : kHeadWays) {
    if (way == each->name && (params.packed.num_segments == 0 || each->reads_packed)) each->possible(call_of(params), possible);
  }
  std::vector<KernelInstance<QkvPrologueParams>> list;
  for (auto& each : possible) {
    list.push_back({each.name, each.max_tokens, [of = std::move(each.of)](const QkvPrologueParams& p, CUstream_st* stream) {
                      const std::optional<Launch> l = of(call_of(p));
                      return l ? l->start(*l, stream) : unsupported("qkv_prologue: this kernel cannot do the call");
                    }});
  }
  return list;
}

}  // namespace prologue::cuda
