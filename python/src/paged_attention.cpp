#include <prologue/kernels/paged_attention/paged_attention.h>

#include "attention.h"
#include "plans.h"

namespace prologue::python {
namespace {

struct AttentionCall {
  using Params = PagedAttentionParams;
  static void read(Arguments& arguments, PagedAttentionParams& params);
  static Result<Unplanned<AttentionCall>> plan(const PagedAttentionParams&, const Execution&) {
    return Unplanned<AttentionCall>();
  }
  static bool is_empty(const PagedAttentionParams& params) { return params.num_tokens == 0; }
  static Status run(const PagedAttentionParams& params, const Execution& execution) { return paged_attention(params, execution); }
  static PastTable past_table(const PagedAttentionParams&) { return PastTable::record; }
  // Of the scratch memory that the caller did not give.
  static int64_t scratch_bytes(const PagedAttentionParams& params, Device device) {
    return params.workspace != nullptr ? 0 : paged_attention_workspace_bytes(params, device);
  }
};

void AttentionCall::read(Arguments& arguments, PagedAttentionParams& params) {
  const Array q = arguments.array("q");
  q.require_heads();
  params.num_tokens = q.size(0), params.num_q_heads = q.size(1), params.head_dim = q.size(2);
  params.dtype = q.dtype();
  params.q = heads_view(q);
  params.kv = read_paged_kv(arguments);
  const Array cu_seqlens_q = arguments.array("cu_seqlens_q"), seq_lens = arguments.optional_array("seq_lens");
  cu_seqlens_q.require_rank(1, 1).require_dense();
  if (cu_seqlens_q.size(0) < 1) fail_value("cu_seqlens_q is empty: it must have one element more than there are sequences");
  params.num_seqs = cu_seqlens_q.size(0) - 1;
  params.cu_seqlens_q = cu_seqlens_q.as<const int32_t>(DType::int32);
  if (seq_lens) {
    seq_lens.require_rank(1, 1).require_size(0, params.num_seqs, "one for each sequence").require_dense();
    params.seq_lens = seq_lens.as<const int32_t>(DType::int32);
  }
  params.page_table = read_page_table(arguments, params.num_seqs);
  read_attention_options(arguments, params, params.kv, params.page_table, params.num_q_heads);
  const Array out = arguments.array("out");
  out.require(params.dtype, "q").require_heads().require_size(0, params.num_tokens, "the tokens");
  out.require_size(1, params.num_q_heads, "the q heads").require_size(2, v_head_dim(params.kv), "channels of a head of V");
  params.out = mutable_heads_view(out);
  const Array workspace = arguments.optional_array("workspace"), counters = arguments.optional_array("counters");
  if (counters) {
    counters.require_rank(1, 1).require_size(0, kPagedAttentionCounters, "kPagedAttentionCounters").require_dense();
    if (dtype_size(counters.dtype()) != 4) fail_type("counters is ", dtype_name(counters.dtype()), ": it must be int32");
    params.counters = static_cast<uint32_t*>(counters.data());
  }
  const Array faults = arguments.optional_array("faults");
  params.token_faults = token_faults_of(arguments.optional_array("token_faults"), params.num_tokens);
  params.faults = fault_record_of(faults);
  if (workspace) {
    params.workspace = workspace.require_dense().data();
    params.workspace_bytes = workspace.num_elements() * dtype_size(workspace.dtype());
  }
  arguments.require_all_read();
}

}  // namespace
}  // namespace prologue::python

PROLOGUE_PLANNED_FUNCTION(paged_attention, prologue::python::AttentionCall)
