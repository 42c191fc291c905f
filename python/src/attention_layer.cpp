#include <prologue/layers/attention_layer.h>

#include <map>
#include <memory>
#include <utility>

#include "attention.h"
#include "uncaptured.h"

namespace prologue::python {
namespace {

// One for each thread and device, made when first needed. It has no memory on the device: a captured graph may be replayed after this
// thread has ended, and beside other graphs.
GemmContext& gemm_context(const Arguments& arguments, const Execution& execution) {
  thread_local std::map<std::pair<int32_t, int32_t>, std::unique_ptr<GemmContext>> contexts;
  const DLDevice device = arguments.device();
  auto& context = contexts[{device.device_type, device.device_id}];
  if (context == nullptr) {
    const Uncaptured uncaptured;
    auto made = GemmContext::create_without_workspace(execution.device);
    check(made.status());
    context = std::move(made).value();
  }
  return *context;
}

tvm::ffi::Any run_attention_layer(Arguments& arguments) {
  AttentionLayerParams params;
  AttentionPrologueParams& prologue = params.prologue;
  const Array hidden_states = arguments.array("hidden_states"), qkv_weight = arguments.array("qkv_weight");
  const Array output_weight = arguments.array("output_weight"), output_bias = arguments.optional_array("output_bias");
  const Array out = arguments.array("out");
  prologue.num_q_heads = arguments.integer("num_q_heads"), prologue.num_kv_heads = arguments.integer("num_kv_heads");
  prologue.head_dim = arguments.integer("head_dim");
  prologue.cache.v.head_dim = arguments.integer("v_head_dim", 0);
  if (hidden_states.rank() == 3) {
    fail_value("hidden_states has the shape ", hidden_states.shape_text(),
               ": it must have 2 axes, [num_tokens, hidden_size]. reshape(", hidden_states.size(0) * hidden_states.size(1), ", ",
               hidden_states.size(2), ") makes it so");
  }
  hidden_states.require_rank(2, 2).require_contiguous(1);
  prologue.num_tokens = hidden_states.size(0);
  prologue.dtype = hidden_states.dtype();
  params.hidden_size = hidden_states.size(1);
  params.hidden_states = hidden_states.data();
  params.hidden_stride = hidden_states.stride(0);
  out.require(prologue.dtype).require_rank(2, 2).require_contiguous(1);
  out.require_size(0, prologue.num_tokens, "the tokens").require_size(1, params.hidden_size, "hidden_size");
  params.out = out.data();
  params.out_stride = out.stride(0);
  for (const int64_t size : {prologue.num_q_heads, prologue.num_kv_heads, prologue.head_dim, prologue.cache.v.head_dim}) {
    if (size < 0 || size > 65536)
      fail_value("num_q_heads, num_kv_heads, head_dim or v_head_dim is ", size, ": it must lie in 0..65536");
  }
  const Array faults = read_prologue_steps(arguments, prologue);

  const int64_t v_dim = v_head_dim(prologue);
  const int64_t rows = prologue.num_q_heads * prologue.head_dim + prologue.num_kv_heads * (prologue.head_dim + v_dim);
  qkv_weight.require(prologue.dtype, "hidden_states").require_rank(2, 2).require_size(0, rows, "the rows of q, k and v");
  qkv_weight.require_size(1, params.hidden_size, "hidden_size").require_dense();
  params.qkv_weight = qkv_weight.data();
  output_weight.require(prologue.dtype, "hidden_states").require_rank(2, 2).require_size(0, params.hidden_size, "hidden_size");
  output_weight.require_size(1, prologue.num_q_heads * v_dim, "num_q_heads * v_head_dim").require_dense();
  params.output_weight = output_weight.data();
  if (output_bias) {
    output_bias.require(prologue.dtype).require_rank(1, 1).require_size(0, params.hidden_size, "hidden_size").require_dense();
    params.output_bias = output_bias.data();
  }

  PagedAttentionParams& attention = params.attention;
  attention.num_tokens = prologue.num_tokens;  // for the default bounds; the layer sets it itself
  attention.ring_size = prologue.places.ring_size;
  read_attention_options(arguments, attention, prologue.cache, prologue.places.page_table, prologue.num_q_heads);
  if (attention.ring_size != prologue.places.ring_size && prologue.places.slot_mapping.data == nullptr) {
    fail_value("ring_size is ", attention.ring_size, ", and that of places ", prologue.places.ring_size, ": they must be equal");
  }
  const Array seq_lens = arguments.optional_array("seq_lens"), workspace = arguments.optional_array("workspace");
  const bool clears = arguments.flag("clears");
  if (seq_lens) {
    seq_lens.require_rank(1, 1).require_size(0, prologue.places.num_seqs, "one for each sequence").require_dense();
    attention.seq_lens = seq_lens.as<const int32_t>(DType::int32);
  }
  arguments.require_all_read();
  Call call(arguments.device(), fault_record_of(faults));
  prologue.faults = call.faults();
  auto bytes = attention_layer_workspace_bytes(params, call.execution().device);
  check(bytes.status());
  // On CUDA the GEMMs' workspace is in front.
  const int64_t gemm_bytes = arguments.on_cuda() ? kGemmWorkspaceBytes : 0;
  const Scratch scratch(arguments.device(), workspace, gemm_bytes + *bytes);
  if (scratch.size_bytes() < gemm_bytes + *bytes) {
    fail_value("workspace has ", scratch.size_bytes(), " bytes: it must have ", gemm_bytes + *bytes);
  }
  if (arguments.on_cuda() && reinterpret_cast<uintptr_t>(scratch.data()) % 256 != 0)
    fail_value("workspace must be aligned to 256 bytes");
  if (clears) scratch.clear(call.execution(), gemm_bytes, *bytes);  // the output projection reads rows that no sequence owns, too
  GemmContext& context = gemm_context(arguments, call.execution());
  context.set_workspace(scratch.data());
  params.workspace = static_cast<char*>(scratch.data()) + gemm_bytes;
  params.workspace_bytes = scratch.size_bytes() - gemm_bytes;
  call.finish(attention_layer(params, context, call.execution()), prologue.rope.past_table);
  return {};
}

}  // namespace
}  // namespace prologue::python

PROLOGUE_PYTHON_FUNCTION(attention_layer, prologue::python::run_attention_layer)
