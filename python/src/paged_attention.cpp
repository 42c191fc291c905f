#include <prologue/kernels/paged_attention/paged_attention.h>

#include "attention.h"

namespace prologue::python {
namespace {

tvm::ffi::Any run_paged_attention(Arguments& arguments) {
  PagedAttentionParams params;
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
  Call call(arguments, faults);
  params.faults = call.faults();
  const Scratch scratch(arguments, workspace, paged_attention_workspace_bytes(params, call.execution().device));
  params.workspace = scratch.data();
  params.workspace_bytes = scratch.size_bytes();
  call.finish(paged_attention(params, call.execution()));
  return {};
}

}  // namespace
}  // namespace prologue::python

PROLOGUE_PYTHON_FUNCTION(paged_attention, prologue::python::run_paged_attention)
