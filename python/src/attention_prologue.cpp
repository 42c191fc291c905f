#include <prologue/kernels/attention_prologue/attention_prologue.h>

#include "attention.h"
#include "plans.h"

namespace prologue::python {
namespace {

// The parameters and their groups in one piece, so that calls that are made again can set their pointers (plans.h).
struct ParamsAndGroups : AttentionPrologueParams {
  HeadGroup stored[kMaxHeadGroups];

  AttentionPrologueParams call() const {
    AttentionPrologueParams params = *this;
    params.groups = num_groups > 0 ? stored : nullptr;
    return params;
  }
};

struct PrologueCall {
  using Params = ParamsAndGroups;
  struct Plan {
    AttentionProloguePlan plan;
    Status run(const Params& params, const Execution& execution) const { return plan.run(params.call(), execution); }
  };
  static void read(Arguments& arguments, Params& params);
  // May compile a kernel.
  static Result<Plan> plan(const Params& params, const Execution& execution) {
    PROLOGUE_ASSIGN_OR_RETURN(AttentionProloguePlan made,
                              AttentionProloguePlan::create(params.call(), params.num_tokens, execution));
    return Plan{std::move(made)};
  }
  static bool is_empty(const Params& params) { return params.num_tokens == 0; }
  static Status run(const Params& params, const Execution& execution) { return attention_prologue(params.call(), execution); }
  static PastTable past_table(const Params& params) {
    for (const HeadGroup& group : params.stored) {
      if (group.rope.max_position > 0 && group.rope.past_table == PastTable::record) return PastTable::record;
    }
    return params.rope.past_table;
  }
};

// What fp8 heads go to, in place of heads of the type of the operation.
QuantizedQuery read_q8_out(Arguments& arguments, int64_t num_tokens, int64_t num_heads, int64_t head_dim) {
  QuantizedQuery out;
  if (const Array q8 = arguments.optional_array("q8_out"); q8) {
    q8.require_heads().require_size(0, num_tokens, "the tokens").require_size(1, num_heads, "the heads of the input");
    q8.require_size(2, head_dim, "head_dim").require_contiguous(2);
    if (dtype_size(q8.dtype()) != 1) fail_type("q8_out is ", dtype_name(q8.dtype()), ": its elements must be of one byte");
    out = {q8.data(), q8.stride(0), q8.stride(1)};
    if (dtype_is_fp8(q8.dtype())) out.type = q8.dtype();
  }
  if (const Array scale = arguments.optional_array("q8_scale"); scale) {
    out.scale = scale.require_dense().as<float>(DType::f32);
    if (scale.has_shape({num_tokens, num_heads})) {
      out.scaling = KvScaling::token_head;
    } else if (!scale.has_shape({}) && !scale.has_shape({1})) {
      fail_value("q8_scale has the shape ", scale.shape_text(), ": it must be [1] or [", num_tokens, ", ", num_heads, "]");
    }
  }
  return out;
}

HeadGroup read_head_group(Arguments& arguments, const AttentionPrologueParams& params, const char* first) {
  HeadGroup group;
  const Array x = arguments.array("x");
  x.require_heads().require(params.dtype, first).require_size(0, params.num_tokens, "the tokens");
  group.in = heads_view(x);
  group.num_heads = x.size(1), group.head_dim = x.size(2);
  if (const Array bias = arguments.optional_array("bias"); bias) {
    if (!bias.has_shape({group.num_heads * group.head_dim}) && !bias.has_shape({group.num_heads, group.head_dim})) {
      fail_value("the bias of a group has the shape ", bias.shape_text(), ": it must be [", group.num_heads * group.head_dim,
                 "] or [", group.num_heads, ", ", group.head_dim, "]");
    }
    group.bias = bias.require(params.dtype, first).require_dense().data();
  }
  group.norm = read_head_norm(arguments, "norm", group.num_heads, group.head_dim);
  group.rope = read_rope(arguments, 1, params.num_tokens, group.head_dim, RopeSources::of_prologues);
  group.hadamard_block = arguments.integer("hadamard_block");
  group.constant = static_cast<float>(arguments.number("constant"));
  group.activation =
      arguments.choice<HeadActivation>("activation", {{"none", HeadActivation::none}, {"sigmoid", HeadActivation::sigmoid}});
  if (const Array out = arguments.optional_array("out"); out) {
    out.require(params.dtype, first).require_heads().require_size(0, params.num_tokens, "the tokens");
    out.require_size(1, group.num_heads, "the heads of x").require_size(2, group.head_dim, "head_dim");
    group.out = mutable_heads_view(out);
  }
  group.q8_out = read_q8_out(arguments, params.num_tokens, group.num_heads, group.head_dim);
  const PagedKvView cache = read_paged_kv(arguments);
  arguments.require_all_read();
  if (cache.v.data != nullptr) fail_value("the cache of a group has v: its heads are cached as k");
  if (cache.k.data == nullptr) return group;
  if (cache.num_kv_heads != group.num_heads) {
    fail_value("the cache of a group has ", cache.num_kv_heads, " heads, x ", group.num_heads, ": they must be equal");
  }
  group.cache = cache.k, group.num_pages = cache.num_pages, group.page_size = cache.page_size;
  return group;
}

void PrologueCall::read(Arguments& arguments, Params& params) {
  const Array q = arguments.optional_array("q"), k = arguments.optional_array("k"), v = arguments.optional_array("v");
  const Array q_rope = arguments.optional_array("q_rope"), k_rope = arguments.optional_array("k_rope");
  const Array qkv = arguments.optional_array("qkv");
  const int64_t num_groups = arguments.num_groups("groups");
  if (num_groups > kMaxHeadGroups) fail_value("there are ", num_groups, " groups: it must be at most ", kMaxHeadGroups);
  Array of_group;
  if (num_groups > 0) {
    Arguments group(arguments, "groups");
    of_group = group.array("x");
  }
  const Array& first = q ? q : k ? k : v ? v : qkv ? qkv : of_group;
  if (!first) fail_type("q, k, v and qkv are all None: one of them must be given");
  if (&first == &qkv) qkv.require_rank(2, 2);
  if (&first != &qkv) first.require_heads();
  params.num_tokens = first.size(0);
  params.dtype = first.dtype();
  const int64_t num_q_heads = arguments.integer("num_q_heads", 0), num_kv_heads = arguments.integer("num_kv_heads", 0);
  const int64_t head_dim = arguments.integer("head_dim", 0), value_dim = arguments.integer("v_head_dim", 0);
  const bool v_from_k = arguments.flag("v_from_k");
  if (v_from_k && !qkv) fail_value("v_from_k is given, but qkv is not: give k as v");
  if (qkv) {
    if (q || k || v || q_rope || k_rope) {
      fail_value("qkv is given, and so is q, k, v, q_rope or k_rope: it must be one or the other");
    }
    qkv.require_rank(2, 2).require_contiguous(1);
    const int64_t v_dim = value_dim > 0 ? value_dim : head_dim;
    if (v_from_k && v_dim != head_dim) fail_value("v_head_dim is ", v_dim, ": V that is taken from K has head_dim, ", head_dim);
    if (num_q_heads < 0 || num_kv_heads < 0 || head_dim < 1 || num_q_heads > 65536 || num_kv_heads > 65536 ||
        head_dim > kMaxHeadDim || v_dim > kMaxHeadDim || v_dim < 1) {
      fail_value("with qkv, num_q_heads (", num_q_heads, "), num_kv_heads (", num_kv_heads, ") and head_dim (", head_dim,
                 ") must be given");
    }
    params.num_q_heads = num_q_heads, params.num_kv_heads = num_kv_heads, params.head_dim = head_dim;
    params.cache.v.head_dim = v_dim;
    const int64_t v_width = v_from_k ? 0 : num_kv_heads * v_dim;
    qkv.require_size(1, (num_q_heads + num_kv_heads) * head_dim + v_width,
                     v_from_k ? "the rows of q and k" : "the rows of q, k and v");
    set_packed_qkv(params, qkv.data(), qkv.stride(0));
    if (v_from_k) params.v = params.k;
  } else {
    for (const Array& array : {q, k, v, q_rope, k_rope}) {
      array.require_heads().require(params.dtype, first.name()).require_size(0, params.num_tokens, "the tokens");
    }
    params.q = heads_view(q), params.k = heads_view(k), params.v = heads_view(v);
    params.q_rope = heads_view(q_rope), params.k_rope = heads_view(k_rope);
    const auto dim = [](const Array& x, const Array& rope) { return x.size(2) + (rope ? rope.size(2) : 0); };
    params.num_q_heads = q ? q.size(1) : 0;
    params.num_kv_heads = k ? k.size(1) : v ? v.size(1) : 0;
    params.head_dim = q ? dim(q, q_rope) : k ? dim(k, k_rope) : v ? v.size(2) : 0;
    if (q && k && dim(k, k_rope) != params.head_dim) {
      fail_value("k has heads of ", dim(k, k_rope), " channels, q of ", params.head_dim, ": they must be equal");
    }
    if (k && v) v.require_size(1, params.num_kv_heads, "as k");
    if (q_rope) q_rope.require_size(1, params.num_q_heads, "as q");
    if (k_rope && k_rope.size(1) != params.num_kv_heads) {
      k_rope.require_size(1, 1, "one head for all, or as many as k");
      params.k_rope.head_stride = 0;
    }
    if (v) params.cache.v.head_dim = v.size(2);
  }
  const Array q_out = arguments.optional_array("q_out");
  if (q_out) {
    q_out.require(params.dtype, first.name()).require_heads().require_size(0, params.num_tokens, "the tokens");
    q_out.require_size(1, params.num_q_heads, "the q heads").require_size(2, params.head_dim, "head_dim");
    params.q_out = mutable_heads_view(q_out);
  }
  params.q8_out = read_q8_out(arguments, params.num_tokens, params.num_q_heads, params.head_dim);
  const Array faults = read_prologue_steps(arguments, params);
  for (const Array& part : {q_rope, k_rope}) {
    if (part && params.rope.rotary_dim > 0) part.require_size(2, params.rope.rotary_dim, "rotary_dim of the rope");
  }
  if (qkv && params.num_tokens == 1) {  // in place: the stride between tokens, of which there is one, must be that of qkv
    for (MutableHeadsView* out : {&params.q_out, &params.k_out, &params.v_out}) out->token_stride = qkv.stride(0);
  }
  params.num_groups = num_groups;
  for (int64_t i = 0; i < num_groups; ++i) {
    Arguments group(arguments, "groups", i);
    params.stored[i] = read_head_group(group, params, first.name());
    // Where only groups are cached, the slots are those of the first.
    const HeadGroup& made = params.stored[i];
    if (made.cache.data != nullptr && params.cache.page_size == 0) {
      params.cache.num_pages = made.num_pages, params.cache.page_size = made.page_size;
    }
  }
  params.faults = fault_record_of(faults);
  arguments.require_all_read();
}

}  // namespace
}  // namespace prologue::python

PROLOGUE_PLANNED_FUNCTION(attention_prologue, prologue::python::PrologueCall)
