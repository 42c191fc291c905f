#include <prologue/layers/attention_layer.h>

#include <prologue/kernels/base/divide_up.h>
#include <prologue/kernels/internal/run.h>

namespace prologue {

namespace {

constexpr int64_t kWorkspaceAlignment = 64;  // that of host allocations; the parts of a workspace keep its alignment, up to
constexpr int64_t kPartAlignment = 256;      // this, so that no operation is slower than with separate buffers

// Holds the operations of the layer, wired to each other through the workspace. qkv_prologue is qkv_projection and prologue, which describe
// it for the checks.
struct Wiring {
  GemmParams qkv_projection;
  AttentionPrologueParams prologue;
  QkvPrologueParams qkv_prologue;
  PagedAttentionParams attention;
  HadamardParams of_output;  // in place; block 0: V was not transformed
  ProjectionParams output;
  int64_t workspace_bytes = 0;
};

// Sets the pointers into the workspace. The sizes must have passed check_sizes().
Wiring wire(const AttentionLayerParams& p, Device device) {
  const AttentionPrologueParams& given = p.prologue;
  const int64_t num_tokens = given.num_tokens, element = dtype_size(given.dtype);
  const int64_t q_width = given.num_q_heads * given.head_dim;
  const int64_t v_head_dim = given.cache.v.head_dim > 0 ? given.cache.v.head_dim : given.head_dim;
  const int64_t qkv_width = q_width + given.num_kv_heads * (given.head_dim + v_head_dim);
  const int64_t attention_width = given.num_q_heads * v_head_dim;
  const int64_t qkv_bytes = round_up(num_tokens * qkv_width * element, kPartAlignment);
  const int64_t attention_bytes = round_up(num_tokens * attention_width * element, kPartAlignment);
  auto* const workspace = static_cast<unsigned char*>(p.workspace);
  const auto at = [&](int64_t offset) -> void* { return workspace == nullptr ? nullptr : workspace + offset; };

  Wiring w;
  w.qkv_projection = {num_tokens,      qkv_width,    p.hidden_size, given.dtype, given.dtype, p.hidden_states,
                      p.hidden_stride, p.qkv_weight, nullptr,       at(0),       qkv_width};

  w.prologue = given;
  set_packed_qkv(w.prologue, at(0), qkv_width);
  w.prologue.q_out = {at(0), qkv_width, given.head_dim};  // in place

  const TokenPlaces& places = given.places;
  w.attention = p.attention;
  w.attention.num_tokens = num_tokens;
  w.attention.num_seqs = places.num_seqs;
  w.attention.num_q_heads = given.num_q_heads;
  w.attention.head_dim = given.head_dim;
  w.attention.dtype = given.dtype;
  w.attention.q = as_input(w.prologue.q_out);
  w.attention.kv = given.cache;
  w.attention.page_table = places.page_table;
  w.attention.cu_seqlens_q = places.cu_seqlens_q;
  if (w.attention.seq_lens == nullptr) w.attention.seq_lens = places.seq_lens;
  if (places.cache_lens == nullptr) w.prologue.places.seq_lens = w.attention.seq_lens;
  w.attention.out = {at(qkv_bytes), attention_width, v_head_dim};
  w.attention.faults = given.faults;
  w.attention.workspace = at(qkv_bytes + attention_bytes);
  w.attention.workspace_bytes = paged_attention_workspace_bytes(w.attention, device);

  w.qkv_prologue.hidden_size = p.hidden_size;
  w.qkv_prologue.hidden_states = p.hidden_states;
  w.qkv_prologue.hidden_stride = p.hidden_stride;
  w.qkv_prologue.weight = p.qkv_weight;
  w.qkv_prologue.prologue = w.prologue;
  for (HeadsView* made : {&w.qkv_prologue.prologue.q, &w.qkv_prologue.prologue.k, &w.qkv_prologue.prologue.v}) *made = {};
  w.qkv_prologue.overlaps = p.overlaps;
  w.qkv_prologue.workspace = at(0);  // separate operations have qkv there, so that q_out is in place
  w.qkv_prologue.workspace_bytes = qkv_bytes;

  w.output.num_tokens = num_tokens;
  w.output.n = p.hidden_size;
  w.output.k = w.output.x_stride = attention_width;
  w.output.dtype = given.dtype;
  w.output.x = at(qkv_bytes);
  w.output.weight = p.output_weight;
  w.output.bias = p.output_bias;
  w.output.y = p.out;
  w.output.y_stride = p.out_stride;
  const bool small = may_begin_beside_attention(p.hidden_size, attention_width);
  w.output.overlaps = small || num_tokens == 1 || num_tokens >= tokens_of_rings(w.output.n, w.output.k);
  if (num_tokens == 1 && !small) {
    w.attention.early_signal = waits_with_its_weights(p.hidden_size, attention_width);
    w.attention.late_signal = !w.attention.early_signal;
  }
  w.of_output.block = given.v_hadamard_block;
  if (w.of_output.block != 0) {
    w.of_output.num_tokens = num_tokens;
    w.of_output.num_heads = given.num_q_heads;
    w.of_output.head_dim = v_head_dim;
    w.of_output.dtype = given.dtype;
    w.of_output.x = as_input(w.attention.out);
    w.of_output.y = w.attention.out;
    w.output.overlaps = w.attention.early_signal = w.attention.late_signal =
        false;  // attention is not what comes before the output
  }
  w.workspace_bytes = qkv_bytes + attention_bytes + w.attention.workspace_bytes;
  return w;
}

// Whether a kernel of ours is faster than a GEMM after attention. Measured (bench_attention_layer): with early begins, 8B gains 4 % at 16
// tokens and 5 % at 32, 1B and SmolLM2 lose as much from 16 on; without, nothing gains from two tokens on.
bool output_is_one_kernel(const AttentionLayerParams& p, const ProjectionParams& output) {
  const bool small = output.n * output.k <= int64_t{8} << 20;
  return output.num_tokens == 1 || (p.overlaps && (output.num_tokens < tokens_of_rings(output.n, output.k) || !small));
}

// Adds to an error which of the two GEMMs it is from.
Status named(const char* projection, const Status& status) {
  return status.ok() ? status : error_status(status.code(), "attention_layer: ", projection, ": ", status.message());
}

// Checks all parameters that are not pointers, so that wire() can compute with them.
Status check_sizes(const AttentionLayerParams& p, Device device) {
  if (p.hidden_size < 1 || p.hidden_size > INT32_MAX) {
    return invalid_argument("attention_layer: hidden_size is ", p.hidden_size, ": it must lie in 1..", INT32_MAX);
  }
  if (p.prologue.num_tokens < 0 || p.prologue.num_tokens > INT32_MAX) {
    return invalid_argument("attention_layer: prologue.num_tokens is ", p.prologue.num_tokens, ": it must lie in 0..", INT32_MAX);
  }
  if (p.prologue.q8_out.data != nullptr) {
    return unsupported("attention_layer: prologue.q8_out is given: attention takes Q in dtype");
  }
  if (p.prologue.num_groups != 0) {
    return unsupported("attention_layer: prologue.num_groups is ", p.prologue.num_groups,
                       ": the projection makes Q, K and V only, and it must be 0");
  }
  if (p.prologue.q_rope.data != nullptr || p.prologue.k_rope.data != nullptr) {
    return unsupported("attention_layer: prologue.", p.prologue.q_rope.data != nullptr ? "q_rope" : "k_rope",
                       " is given: the projection makes whole heads");
  }
  if (p.prologue.places.seq_lens != nullptr && p.attention.seq_lens != nullptr &&
      p.prologue.places.seq_lens != p.attention.seq_lens) {
    return invalid_argument(
        "attention_layer: prologue.places.seq_lens and attention.seq_lens are different arrays: give one of them");
  }
  AttentionLayerParams empty = p;  // without tokens the operations check only sizes
  empty.prologue.num_tokens = 0;
  empty.workspace = nullptr;
  PROLOGUE_RETURN_IF_ERROR(validate(empty.prologue));
  return validate(wire(empty, device).attention, device);
}

// Checks that no array that one operation writes overlaps an array that another reads or writes. The views that wire() makes are
// parts of the workspace.
Status check_apart(const AttentionLayerParams& p, const Wiring& layer, Device device) {
  const GemmParams& qkv = layer.qkv_projection;
  const ProjectionParams& output = layer.output;
  const auto matrix = [&](const char* name, const void* data, int64_t rows, int64_t columns, int64_t stride) {
    return heads_region(name, {data, stride, 0}, data == nullptr ? 0 : rows, 1, columns, qkv.dtype);
  };
  RegionChecks regions("attention_layer");
  PROLOGUE_RETURN_IF_ERROR(regions.read(matrix("hidden_states", qkv.x, qkv.m, qkv.k, qkv.x_stride)));
  PROLOGUE_RETURN_IF_ERROR(regions.read(matrix("qkv_weight", qkv.weight, qkv.n, qkv.k, qkv.k)));
  PROLOGUE_RETURN_IF_ERROR(regions.read(matrix("output_weight", output.weight, output.n, output.k, output.k)));
  PROLOGUE_RETURN_IF_ERROR(regions.read(matrix("output_bias", output.bias, 1, output.n, output.n)));
  PROLOGUE_RETURN_IF_ERROR(regions.write(matrix("out", output.y, output.num_tokens, output.n, output.y_stride), "hidden_states"));
  PROLOGUE_RETURN_IF_ERROR(regions.write(array_region("workspace", p.workspace, layer.workspace_bytes, 1)));
  regions.leave_out({"q", "k", "v", "q_out"});
  PROLOGUE_RETURN_IF_ERROR(add_regions(layer.prologue, regions));
  regions.leave_out({"q", "out", "workspace"});
  PROLOGUE_RETURN_IF_ERROR(add_regions(layer.attention, device, regions));
  return regions.check_all_apart();
}

// communicator: null if the layer has all heads.
Status run_layer(const AttentionLayerParams& params, GemmContext& gemm_context, Communicator* communicator,
                 const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(check_sizes(params, execution.device));
  if (communicator != nullptr && params.out_stride != params.hidden_size) {
    return invalid_argument("attention_layer: out_stride is ", params.out_stride,
                            ": the sum over ranks needs contiguous rows, and ", params.hidden_size, " (hidden_size)");
  }
  if (params.prologue.num_tokens == 0) return {};
  const Wiring layer = wire(params, execution.device);
  const int64_t given_bytes = params.workspace == nullptr ? 0 : params.workspace_bytes;
  if (given_bytes < layer.workspace_bytes) {
    return invalid_argument("attention_layer: workspace has ", given_bytes, " bytes: this call needs ", layer.workspace_bytes);
  }
  if (reinterpret_cast<uintptr_t>(params.workspace) % kWorkspaceAlignment != 0) {
    return invalid_argument("attention_layer: workspace is at ", params.workspace, ": it must be aligned to ",
                            kWorkspaceAlignment, " bytes");
  }
  PROLOGUE_RETURN_IF_ERROR(named("qkv projection", validate(layer.qkv_projection, gemm_context, execution)));
  PROLOGUE_RETURN_IF_ERROR(validate(layer.prologue, execution));
  PROLOGUE_RETURN_IF_ERROR(validate(layer.attention, execution.device));
  PROLOGUE_RETURN_IF_ERROR(named("output projection", validate(layer.output, gemm_context, execution)));
  PROLOGUE_RETURN_IF_ERROR(check_apart(params, layer, execution.device));
  AllReduceParams sum;
  sum.num_tokens = params.prologue.num_tokens;
  sum.width = params.hidden_size;
  sum.dtype = params.prologue.dtype;
  sum.x = sum.y = params.out;
  sum.overlaps = params.overlaps;
  if (communicator != nullptr) PROLOGUE_RETURN_IF_ERROR(validate(sum, *communicator, execution));

  PROLOGUE_RETURN_IF_ERROR(run_validated(layer.qkv_prologue, gemm_context, execution));
  PROLOGUE_RETURN_IF_ERROR(run_validated(layer.attention, execution));
  if (layer.of_output.block != 0) PROLOGUE_RETURN_IF_ERROR(run_validated(layer.of_output, execution));
  PROLOGUE_RETURN_IF_ERROR(output_is_one_kernel(params, layer.output) ? run_validated(layer.output, gemm_context, execution)
                                                                      : run_separately(layer.output, gemm_context, execution));
  return communicator == nullptr ? Status() : run_validated(sum, *communicator, execution);
}

}  // namespace

Result<int64_t> attention_layer_workspace_bytes(const AttentionLayerParams& params, Device device) {
  PROLOGUE_RETURN_IF_ERROR(check_sizes(params, device));
  return wire(params, device).workspace_bytes;
}

Status attention_layer(const AttentionLayerParams& params, GemmContext& gemm_context, const Execution& execution) {
  return run_layer(params, gemm_context, nullptr, execution);
}

Status attention_layer_of_rank(const AttentionLayerParams& params, GemmContext& gemm_context, Communicator& communicator,
                               const Execution& execution) {
  return run_layer(params, gemm_context, &communicator, execution);
}

}  // namespace prologue
