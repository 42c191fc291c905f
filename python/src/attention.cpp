#include "attention.h"

#include <algorithm>
#include <cmath>

namespace prologue::python {

Array read_prologue_steps(Arguments& arguments, AttentionPrologueParams& params) {
  const int64_t v_dim = params.cache.v.head_dim;
  params.cache = read_paged_kv(arguments);
  if (params.cache.v.data != nullptr && v_dim > 0 && params.cache.v.head_dim != v_dim) {
    fail_value("v_cache has heads of ", params.cache.v.head_dim, " channels, and v of ", v_dim, ": they must be equal");
  }
  if (params.cache.k.data == nullptr && params.cache.v.data == nullptr) params.cache.num_kv_heads = params.num_kv_heads;
  if (params.cache.k.data == nullptr) params.cache.k.head_dim = params.head_dim;
  if (params.cache.v.data == nullptr) params.cache.v.head_dim = v_dim;
  const auto bias = [&](Name name, int64_t heads, int64_t head_dim) -> const void* {
    const Array array = arguments.optional_array(name);
    if (!array) return nullptr;
    if (!array.has_shape({heads * head_dim}) && !array.has_shape({heads, head_dim})) {
      fail_value(name.text(), " has the shape ", array.shape_text(), ": it must be [", heads * head_dim, "] or [", heads, ", ",
                 head_dim, "]");
    }
    array.require(params.dtype).require_dense();
    return array.data();
  };
  params.bias.q = bias("q_bias", params.num_q_heads, params.head_dim);
  params.bias.k = bias("k_bias", params.num_kv_heads, params.head_dim);
  params.bias.v = bias("v_bias", params.num_kv_heads, v_head_dim(params));
  params.q_norm = read_head_norm(arguments, "q_norm", params.num_q_heads, params.head_dim);
  params.k_norm = read_head_norm(arguments, "k_norm", params.num_kv_heads, params.head_dim);
  params.v_norm = read_head_norm(arguments, "v_norm", params.num_kv_heads, v_head_dim(params));
  params.rope = read_rope(arguments, 1, params.num_tokens, params.head_dim, RopeSources::of_prologues);
  params.places = read_token_places(arguments, params.num_tokens, params.rope.num_axes);
  params.hadamard_block = arguments.integer("hadamard_block");
  params.v_hadamard_block = arguments.integer("v_hadamard_block");
  params.q_scale = read_query_scale(arguments);
  params.k_constant = static_cast<float>(arguments.number("k_constant"));
  params.v_constant = static_cast<float>(arguments.number("v_constant"));
  params.rounding = arguments.choice<Rounding>("rounding", {{"once", Rounding::once}, {"per_step", Rounding::per_step}});
  const auto out = [&](Name name, int64_t head_dim) -> MutableHeadsView {
    const Array array = arguments.optional_array(name);
    if (!array) return {};
    array.require(params.dtype).require_heads().require_size(0, params.num_tokens, "the tokens");
    array.require_size(1, params.num_kv_heads, "the kv heads").require_size(2, head_dim, "head_dim");
    return mutable_heads_view(array);
  };
  params.k_out = out("k_out", params.head_dim);
  params.v_out = out("v_out", v_head_dim(params));
  const Array faults = arguments.optional_array("faults");
  params.token_faults = token_faults_of(arguments.optional_array("token_faults"), params.num_tokens);
  return faults;
}

void read_attention_options(Arguments& arguments, PagedAttentionParams& params, const PagedKvView& kv, const PageTable& table,
                            int64_t num_q_heads) {
  const double default_scale = 1.0 / std::sqrt(static_cast<double>(kv.k.head_dim));
  params.scale = static_cast<float>(arguments.given("scale") ? arguments.number("scale") : default_scale);
  params.soft_cap = static_cast<float>(arguments.number("soft_cap"));
  params.window = arguments.integer("window");
  params.chunk = arguments.integer("chunk");
  if (const int64_t ring_size = arguments.integer("ring_size"); ring_size != 0) params.ring_size = ring_size;
  if (const Array sinks = arguments.optional_array("sinks"); sinks) {
    sinks.require_rank(1, 1).require_size(0, num_q_heads, "one for each q head").require_dense();
    params.sinks = sinks.data();
    params.sinks_type = sinks.dtype();
  }
  constexpr int64_t kMostTokens = int64_t{1} << 30;  // of a sequence
  // A ring keeps the last tokens of sequences of any length, of which a row must not see more.
  const int64_t num_pages = table.block_table != nullptr ? table.max_pages_per_seq : table.num_kv_indices;
  const int64_t most = params.ring_size == 0                   ? num_pages * kv.page_size
                       : params.window > 0 || params.chunk > 0 ? kMostTokens
                                                               : params.ring_size;
  params.max_seqlen_q = arguments.integer("max_seqlen_q", params.num_tokens);
  params.max_seq_len = arguments.integer("max_seq_len", std::clamp<int64_t>(most, 1, kMostTokens));
  if (params.num_tokens == 0) {  // no row: any bound holds
    params.max_seqlen_q = std::max<int64_t>(params.max_seqlen_q, 1);
    params.max_seq_len = std::max<int64_t>(params.max_seq_len, 1);
  }
  params.num_decode_seqs = arguments.integer("num_decode_seqs");
  params.batch_invariant = arguments.flag("batch_invariant");
}

}  // namespace prologue::python
