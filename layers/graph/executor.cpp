#include <algorithm>
#include <optional>
#include <utility>

#include <prologue/kernels/attention_prologue/attention_prologue.h>
#include <prologue/kernels/attention_prologue/stages.h>
#include <prologue/kernels/base/out_of_memory.h>
#include <prologue/kernels/paged_attention/paged_attention.h>
#include <prologue/kernels/rotary/rotary.h>
#include <prologue/kernels/token_ops/embedding.h>
#include <prologue/kernels/token_ops/gated_activation.h>
#include <prologue/kernels/token_ops/gather_cos_sin.h>
#include <prologue/kernels/token_ops/rms_norm.h>
#include <prologue/layers/graph/executor.h>

namespace prologue {

namespace {

std::optional<int64_t> cache_layer_of(const Operation& operation) {
  return std::visit(
      [](const auto& op) -> std::optional<int64_t> {
        if constexpr (requires { op.layer; }) {
          return op.layer;
        } else {
          return {};
        }
      },
      operation);
}

}  // namespace

Result<std::unique_ptr<GraphExecutor>> GraphExecutor::create(Graph graph, const KvStorage& cache, const StepLimits& limits,
                                                             const Execution& execution) {
  return catch_out_of_memory([&] { return make(std::move(graph), cache, limits, execution); });
}

Result<std::unique_ptr<GraphExecutor>> GraphExecutor::make(Graph graph, const KvStorage& cache, const StepLimits& limits,
                                                           const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(check_weights(graph));
  std::unique_ptr<GraphExecutor> executor(new GraphExecutor());
  const int64_t cache_layers = cache.config().num_layers;
  for (const Node& node : graph.nodes) {
    const NodeFacts facts = facts_of(node.operation);
    executor->position_axes_ = std::max(executor->position_axes_, facts.position_axes);
    const std::optional<int64_t> layer = cache_layer_of(node.operation);
    if (layer && (*layer < 0 || *layer >= cache_layers)) {
      return invalid_argument(node.name, ": it uses the cache of layer ", *layer, ": there are caches for ", cache_layers,
                              " layers");
    }
  }
  executor->graph_ = std::move(graph);
  executor->limits_ = limits;
  executor->cache_ = &cache;
  PROLOGUE_ASSIGN_OR_RETURN(executor->plan_, plan_memory(executor->graph_, limits.max_tokens, limits.max_logit_rows));
  PROLOGUE_ASSIGN_OR_RETURN(executor->activations_, Buffer::allocate(execution.device, executor->plan_.total_bytes));
  PROLOGUE_ASSIGN_OR_RETURN(executor->faults_, Buffer::allocate(execution.device, sizeof(FaultRecord)));
  PROLOGUE_RETURN_IF_ERROR(fill_zero(executor->faults_.data(), sizeof(FaultRecord), execution));
  PROLOGUE_ASSIGN_OR_RETURN(executor->gemm_context_, GemmContext::create(execution.device));

  int64_t workspace_bytes = 0;
  for (const Node& node : executor->graph_.nodes) {
    const auto* attention = std::get_if<PagedAttentionOp>(&node.operation);
    if (attention == nullptr) continue;
    PagedAttentionParams largest;
    largest.num_tokens = limits.max_tokens;
    largest.num_seqs = limits.max_seqs;
    largest.num_q_heads = attention->num_q_heads;
    largest.head_dim = executor->graph_.info(attention->q).width / attention->num_q_heads;
    largest.dtype = executor->graph_.info(attention->q).dtype;
    largest.kv = cache.layer(attention->layer);
    largest.max_seqlen_q = limits.max_tokens;
    largest.max_seq_len = limits.max_seq_len;
    workspace_bytes = std::max(workspace_bytes, paged_attention_workspace_bytes(largest, execution.device));
  }
  PROLOGUE_ASSIGN_OR_RETURN(executor->attention_workspace_, Buffer::allocate(execution.device, workspace_bytes));
  executor->events_.resize(executor->graph_.nodes.size() + 1);
  return executor;
}

Status GraphExecutor::check_step(const StepInputs& step) const {
  const struct {
    const char* name;
    int64_t value;
    int64_t limit;
  } checks[] = {{"num_tokens", step.num_tokens, limits_.max_tokens},
                {"num_logit_rows", step.num_logit_rows, limits_.max_logit_rows},
                {"num_seqs", step.num_seqs, limits_.max_seqs},
                {"max_seq_len", step.max_seq_len, limits_.max_seq_len}};
  for (const auto& [name, value, limit] : checks) {
    if (value < 0 || value > limit) {
      return invalid_argument("step: ", name, " is ", value, ": this executor was made for 0 to ", limit);
    }
  }
  if (step.num_position_axes < position_axes_) {
    return invalid_argument("step: positions come in ", step.num_position_axes, " streams: the graph turns by ", position_axes_);
  }
  return {};
}

Status GraphExecutor::run_node(const Node& node, const StepInputs& step, const Execution& execution) {
  const Status status = std::visit([&](const auto& op) { return run(op, step, execution); }, node.operation);
  return status.ok() ? status : error_status(status.code(), node.name, ": ", status.message());
}

Status GraphExecutor::run(const StepInputs& step, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(check_step(step));
  for (const Node& node : graph_.nodes) PROLOGUE_RETURN_IF_ERROR(run_node(node, step, execution));
  return {};
}

Status GraphExecutor::run_profiled(const StepInputs& step, const Execution& execution) {
  return catch_out_of_memory([&] { return run_timed(step, execution); });
}

Status GraphExecutor::run_timed(const StepInputs& step, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(check_step(step));
  for (size_t n = 0; n < graph_.nodes.size(); ++n) {
    PROLOGUE_RETURN_IF_ERROR(events_[n].record(execution));
    PROLOGUE_RETURN_IF_ERROR(run_node(graph_.nodes[n], step, execution));
  }
  PROLOGUE_RETURN_IF_ERROR(events_.back().record(execution));
  node_seconds_.resize(graph_.nodes.size());
  for (size_t n = 0; n < graph_.nodes.size(); ++n) {
    PROLOGUE_ASSIGN_OR_RETURN(node_seconds_[n], Event::seconds_between(events_[n], events_[n + 1]));
  }
  return {};
}

void* GraphExecutor::data(Value value) const {
  if (!value) return nullptr;
  const ValueInfo& info = graph_.info(value);
  const int64_t offset = plan_.offsets[static_cast<size_t>(graph_.storage_of(value).id)];
  return activations_.as<unsigned char>() + offset + info.base_column * dtype_size(info.dtype);
}

Result<Fault> GraphExecutor::take_fault(const Execution& execution) {
  FaultRecord record;
  PROLOGUE_RETURN_IF_ERROR(copy_to_host(&record, faults_.data(), sizeof record, execution));
  if (record.count != 0) PROLOGUE_RETURN_IF_ERROR(fill_zero(faults_.data(), sizeof record, execution));
  return decode_fault(record);
}

HeadsView GraphExecutor::heads(Value value, int64_t num_heads) const {
  return {data(value), row_stride(value), graph_.info(value).width / num_heads};
}

Rotation GraphExecutor::rotation_of(const Rope& rope) const {
  Rotation rotation = rope.rotation;
  if (rope.table == nullptr) return rotation;
  rotation.style = rope.table->style();
  rotation.rotary_dim = rope.table->rotary_dim();
  rotation.max_position = rope.table->max_position();
  rotation.source = rope.cos_sin ? CosSinSource::per_token : CosSinSource::table;
  rotation.cos_sin = rope.cos_sin ? static_cast<const float*>(data(rope.cos_sin)) : rope.table->cos_sin();
  return rotation;
}

int64_t GraphExecutor::num_rows(Value value, const StepInputs& step) const {
  return graph_.info(value).rows == Rows::tokens ? step.num_tokens : step.num_logit_rows;
}

namespace {

MutableHeadsView writable(const HeadsView& view) { return {const_cast<void*>(view.data), view.token_stride, view.head_stride}; }

int64_t weight_head_stride(const HeadsNorm& norm) {
  const Weight& weight = norm.weight ? norm.weight : norm.bias;
  return weight.rows > 1 ? weight.cols : 0;
}

TokenPlaces places_of(const StepInputs& step) {
  TokenPlaces places;
  places.positions = index_view(step.positions);
  places.position_axis_stride = step.position_axis_stride;
  places.slot_mapping = index_view(step.slot_mapping);
  return places;
}

RotaryAngles rotary_angles(const Rotation& rotation) {
  RotaryAngles angles;
  if (rotation.source == CosSinSource::inv_freq) {
    angles.source = RotarySource::inv_freq;
    angles.inv_freq = rotation.inv_freq;
    angles.attention_factor = rotation.attention_factor;
    angles.max_position = rotation.max_position;
  } else {
    angles = cos_sin_cache(rotation.cos_sin, DType::f32, rotation.max_position, rotation.rotary_dim);
    angles.per_token = rotation.source == CosSinSource::per_token;
  }
  angles.past_table = rotation.past_table == PastTable::record ? PastTable::zero : rotation.past_table;
  return angles;
}

}  // namespace

Status GraphExecutor::run(const EmbeddingOp& op, const StepInputs& step, const Execution& execution) {
  EmbeddingParams params;
  params.num_tokens = step.num_tokens;
  params.num_rows = op.table.rows;
  params.width = op.table.cols;
  params.dtype = op.table.dtype;
  params.table = op.table.data;
  params.indices = index_view(step.token_ids);
  params.scale = op.scale;
  params.out = data(op.out);
  params.faults = faults_.as<FaultRecord>();
  return embedding(params, execution);
}

Status GraphExecutor::run(const SelectRowsOp& op, const StepInputs& step, const Execution& execution) {
  EmbeddingParams params;
  params.num_tokens = step.num_logit_rows;
  params.num_rows = step.num_tokens;
  params.width = graph_.info(op.x).width;
  params.dtype = graph_.info(op.x).dtype;
  params.table = data(op.x);
  params.indices = index_view(step.logit_rows);
  params.out = data(op.out);
  params.faults = faults_.as<FaultRecord>();
  return embedding(params, execution);
}

Status GraphExecutor::run(const RmsNormOp& op, const StepInputs& step, const Execution& execution) {
  RmsNormParams params;
  params.num_tokens = num_rows(op.x, step);
  params.width = graph_.info(op.x).width;
  params.dtype = graph_.info(op.x).dtype;
  params.x = data(op.x);
  params.residual = data(op.residual);
  params.weight = op.weight.data;
  params.eps = op.eps;
  params.out = data(op.out);
  return rms_norm(params, execution);
}

Status GraphExecutor::run(const LinearOp& op, const StepInputs& step, const Execution& execution) {
  GemmParams params;
  params.m = num_rows(op.x, step);
  params.n = op.weight.rows;
  params.k = op.weight.cols;
  params.dtype = op.weight.dtype;
  params.y_dtype = graph_.info(op.out).dtype;
  params.x = data(op.x);
  params.x_stride = row_stride(op.x);
  params.weight = op.weight.data;
  params.y = data(op.out);
  params.y_stride = row_stride(op.out);
  return gemm(params, *gemm_context_, execution);
}

Status GraphExecutor::run(const AddBiasOp& op, const StepInputs& step, const Execution& execution) {
  AddBiasParams params;
  params.num_tokens = num_rows(op.x, step);
  params.width = graph_.info(op.x).width;
  params.dtype = graph_.info(op.x).dtype;
  params.x = data(op.x);
  params.x_stride = row_stride(op.x);
  params.bias = op.bias.data;
  params.y = data(op.out);
  params.y_stride = row_stride(op.out);
  return add_bias(params, execution);
}

Status GraphExecutor::run(const HeadsNormOp& op, const StepInputs& step, const Execution& execution) {
  QkNormParams params;
  params.num_tokens = step.num_tokens;
  params.num_heads = op.num_heads;
  params.head_dim = graph_.info(op.x).width / op.num_heads;
  params.dtype = graph_.info(op.x).dtype;
  params.x = heads(op.x, op.num_heads);
  params.y = writable(heads(op.out, op.num_heads));
  params.kind = op.norm.kind;
  params.scope = op.norm.scope;
  params.eps = op.norm.eps;
  params.weight_offset = op.norm.weight_offset;
  params.weight = op.norm.weight.data;
  params.weight_head_stride = weight_head_stride(op.norm);
  params.bias = op.norm.bias.data;
  params.positions = index_view(step.positions);
  return qk_norm(params, execution);
}

Status GraphExecutor::run(const GatherCosSinOp& op, const StepInputs& step, const Execution& execution) {
  const Rotation rotation = rotation_of(op.rope);
  GatherCosSinParams params;
  params.num_tokens = step.num_tokens;
  params.rotary_dim = rotation.rotary_dim;
  params.max_position = rotation.max_position;
  params.cos_sin = rotation.cos_sin;
  params.positions = index_view(step.positions);
  params.num_axes = rotation.num_axes;
  params.position_axis_stride = step.position_axis_stride;
  params.pair_axis = rotation.pair_axis;
  params.past_table = rotation.past_table;
  params.out = static_cast<float*>(data(op.out));
  return gather_cos_sin(params, execution);
}

// kv_write records positions outside the table, once per token.
Status GraphExecutor::run(const RopeOp& op, const StepInputs& step, const Execution& execution) {
  const Rotation rotation = rotation_of(op.rope);
  RotaryParams params;
  params.seq_len = step.num_tokens;
  params.head_dim = graph_.info(op.x).width / op.num_heads;
  params.dtype = graph_.info(op.x).dtype;
  params.num_tensors = 1;
  params.tensors[0] = rotary_tensor(heads(op.x, op.num_heads), writable(heads(op.out, op.num_heads)), op.num_heads);
  params.style = rotation.style;
  params.rotary_dim = rotation.rotary_dim;
  params.rotary_offset = rotation.rotary_offset;
  params.inverse = rotation.inverse;
  params.angles = rotary_angles(rotation);
  params.positions.ids = index_view(step.positions);
  params.positions.axis_stride = step.position_axis_stride;
  params.positions.num_axes = rotation.num_axes;
  params.positions.pair_axis = rotation.pair_axis;
  return rotary(params, execution);
}

Status GraphExecutor::run(const QueryScaleOp& op, const StepInputs& step, const Execution& execution) {
  QueryScaleParams params;
  params.num_tokens = step.num_tokens;
  params.num_heads = op.num_heads;
  params.head_dim = graph_.info(op.x).width / op.num_heads;
  params.dtype = graph_.info(op.x).dtype;
  params.x = heads(op.x, op.num_heads);
  params.y = writable(heads(op.out, op.num_heads));
  params.q_scale = op.scale;
  params.positions = index_view(step.positions);
  return query_scale(params, execution);
}

Status GraphExecutor::run(const KvWriteOp& op, const StepInputs& step, const Execution& execution) {
  const Rotation rotation = rotation_of(op.rope);
  KvWriteParams params;
  params.num_tokens = step.num_tokens;
  params.num_kv_heads = op.num_kv_heads;
  params.head_dim = graph_.info(op.k).width / op.num_kv_heads;
  params.dtype = graph_.info(op.k).dtype;
  params.k = heads(op.k, op.num_kv_heads);
  params.v = heads(op.v, op.num_kv_heads);
  params.cache = cache_->layer(op.layer);
  params.slot_mapping = index_view(step.slot_mapping);
  params.positions = index_view(step.positions);
  params.max_position = rotation.max_position;
  params.past_table = rotation.past_table;
  params.num_axes = rotation.num_axes;
  params.position_axis_stride = step.position_axis_stride;
  params.faults = faults_.as<FaultRecord>();
  return kv_write(params, execution);
}

Status GraphExecutor::run(const AttentionPrologueOp& op, const StepInputs& step, const Execution& execution) {
  AttentionPrologueParams params;
  params.num_tokens = step.num_tokens;
  params.num_q_heads = op.num_q_heads;
  params.num_kv_heads = op.num_kv_heads;
  params.head_dim = op.head_dim;
  params.dtype = graph_.info(op.qkv).dtype;
  params.cache = cache_->layer(op.layer);
  set_packed_qkv(params, data(op.qkv), row_stride(op.qkv));
  if (op.q) {
    params.q_out = writable(heads(op.q, op.num_q_heads));
  } else {
    params.num_q_heads = 0;
  }
  if (op.v_from_k) params.v = params.k;
  params.bias = {op.q_bias.data, op.k_bias.data, op.v_bias.data};
  params.q_norm.placement = params.k_norm.placement = op.norm_placement;
  params.q_norm.kind = params.k_norm.kind = op.k_norm.kind;
  params.q_norm.scope = params.k_norm.scope = op.k_norm.scope;
  params.q_norm.eps = params.k_norm.eps = op.k_norm.eps;
  params.q_norm.weight_offset = params.k_norm.weight_offset = op.k_norm.weight_offset;
  params.q_norm.weight = op.q_norm.weight.data;
  params.k_norm.weight = op.k_norm.weight.data;
  params.q_norm.weight_head_stride = weight_head_stride(op.q_norm);
  params.k_norm.weight_head_stride = weight_head_stride(op.k_norm);
  params.q_norm.bias = op.q_norm.bias.data;
  params.k_norm.bias = op.k_norm.bias.data;
  params.v_norm = op.v_norm;
  params.rotation = rotation_of(op.rope);
  params.places = places_of(step);
  params.q_scale = op.q_scale;
  params.rounding = op.rounding;
  params.faults = faults_.as<FaultRecord>();
  return attention_prologue(params, execution);
}

Status GraphExecutor::run(const PagedAttentionOp& op, const StepInputs& step, const Execution& execution) {
  PagedAttentionParams params;
  params.num_tokens = step.num_tokens;
  params.num_seqs = step.num_seqs;
  params.num_q_heads = op.num_q_heads;
  params.head_dim = graph_.info(op.q).width / op.num_q_heads;
  params.dtype = graph_.info(op.q).dtype;
  params.scale = op.scale;
  params.q = heads(op.q, op.num_q_heads);
  params.kv = cache_->layer(op.layer);
  params.block_table = step.block_table;
  params.block_table_stride = step.block_table_stride;
  params.max_pages_per_seq = step.block_table_stride;
  params.cu_seqlens_q = step.cu_seqlens_q;
  params.seq_lens = step.seq_lens;
  params.max_seqlen_q = step.max_seqlen_q;
  params.max_seq_len = step.max_seq_len;
  params.out = writable(heads(op.out, op.num_q_heads));
  params.workspace = attention_workspace_.data();
  params.workspace_bytes = attention_workspace_.size_bytes();
  params.faults = faults_.as<FaultRecord>();
  return paged_attention(params, execution);
}

Status GraphExecutor::run(const GatedActivationOp& op, const StepInputs& step, const Execution& execution) {
  GatedActivationParams params;
  params.num_tokens = num_rows(op.gate_up, step);
  params.width = graph_.info(op.out).width;
  params.dtype = graph_.info(op.gate_up).dtype;
  params.activation = op.activation;
  params.gate_up = data(op.gate_up);
  params.out = data(op.out);
  return gated_activation(params, execution);
}

}  // namespace prologue
