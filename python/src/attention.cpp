#include "attention.h"

#include <cmath>

namespace prologue::python {

Array read_prologue_steps(Arguments& arguments, AttentionPrologueParams& params) {
  const int64_t v_dim = params.cache.v.head_dim;
  params.cache = read_paged_kv(arguments, params.dtype);
  if (params.cache.k.data == nullptr && params.cache.v.data == nullptr) params.cache.num_kv_heads = params.num_kv_heads;
  if (params.cache.k.data == nullptr) params.cache.k.head_dim = params.head_dim;
  if (params.cache.v.data == nullptr) params.cache.v.head_dim = v_dim;
  const auto bias = [&](const char* name, int64_t heads, int64_t head_dim) -> const void* {
    const Array array = arguments.optional_array(name);
    if (!array) return nullptr;
    array.require(params.dtype).require_dense();
    if (array.num_elements() != heads * head_dim) {
      fail_value(name, " has the shape ", array.shape_text(), ": it must have ", heads * head_dim, " elements");
    }
    return array.data();
  };
  params.bias.q = bias("q_bias", params.num_q_heads, params.head_dim);
  params.bias.k = bias("k_bias", params.num_kv_heads, params.head_dim);
  params.bias.v = bias("v_bias", params.num_kv_heads, v_head_dim(params));
  params.q_norm = read_head_norm(arguments, params.num_q_heads, params.head_dim);
  params.k_norm = read_head_norm(arguments, params.num_kv_heads, params.head_dim);
  params.v_norm = read_head_norm(arguments, params.num_kv_heads, v_head_dim(params));
  params.rope = read_rope(arguments, 1, params.num_tokens);
  params.places = read_token_places(arguments, params.num_tokens, params.rope.num_axes);
  params.hadamard_block = arguments.integer("hadamard_block");
  params.q_scale = read_query_scale(arguments);
  params.rounding = arguments.choice<Rounding>("rounding", {{"once", Rounding::once}, {"per_step", Rounding::per_step}});
  const auto out = [&](const char* name, int64_t head_dim) -> MutableHeadsView {
    const Array array = arguments.optional_array(name);
    if (!array) return {};
    array.require(params.dtype).require_rank(3, 3).require_size(0, params.num_tokens, "the tokens");
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
  const bool given = !arguments.none();
  params.scale = given ? static_cast<float>(arguments.number("scale"))
                       : static_cast<float>(1.0 / std::sqrt(static_cast<double>(kv.k.head_dim)));
  params.soft_cap = static_cast<float>(arguments.number("soft_cap"));
  params.window = arguments.integer("window");
  params.chunk = arguments.integer("chunk");
  params.ring_size = arguments.integer("ring_size");
  if (const Array sinks = arguments.optional_array("sinks"); sinks) {
    sinks.require_rank(1, 1).require_size(0, num_q_heads, "one for each q head").require_dense();
    params.sinks = sinks.data();
    params.sinks_type = sinks.dtype();
  }
  params.max_seqlen_q = arguments.integer("max_seqlen_q", params.num_tokens);
  if (table.block_table == nullptr && arguments.none()) {
    fail_value("max_seq_len is None: with kv_indptr and kv_indices it must be given");
  }
  params.max_seq_len = arguments.integer("max_seq_len", table.max_pages_per_seq * kv.page_size);
  params.num_decode_seqs = arguments.integer("num_decode_seqs");
  params.batch_invariant = arguments.flag("batch_invariant");
}

}  // namespace prologue::python
