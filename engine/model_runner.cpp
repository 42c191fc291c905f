#include <algorithm>
#include <utility>

#include <prologue/engine/model_runner.h>
#include <prologue/kernels/base/host/out_of_memory.h>
#include <prologue/layers/graph/fusion.h>

namespace prologue {

namespace {

constexpr int64_t divide_up(int64_t a, int64_t b) { return a / b + (a % b > 0 ? 1 : 0); }

template <class T>
Status resize(std::vector<T>& values, size_t size) {
  return catch_out_of_memory([&] {
    values.resize(size);
    return Status();
  });
}

}  // namespace

Result<std::unique_ptr<ModelRunner>> ModelRunner::create(const Model& model, const RunnerConfig& config,
                                                         const Execution& execution) {
  return catch_out_of_memory([&] { return make(model, config, execution); });
}

Result<std::unique_ptr<ModelRunner>> ModelRunner::make(const Model& model, const RunnerConfig& config,
                                                       const Execution& execution) {
  if (config.page_size < 1) return invalid_argument("the page size is ", config.page_size, ": it must be at least 1");
  if (config.cache_tokens < 0)
    return invalid_argument("the KV cache size is ", config.cache_tokens, " tokens: it must be positive");
  if (config.max_seq_len < 0) return invalid_argument("the sequence length is ", config.max_seq_len, ": it must be positive");
  std::unique_ptr<ModelRunner> runner(new ModelRunner(model));
  runner->execution_ = execution;
  runner->profile_enabled_ = config.profile;

  KvStorageConfig storage;
  storage.num_layers = model.config.num_layers;
  storage.page_size = config.page_size;
  storage.num_pages = std::max<int64_t>(1, divide_up(config.cache_tokens, config.page_size));
  storage.num_kv_heads = model.config.num_kv_heads;
  storage.head_dim = model.config.head_dim;
  storage.k_type = resolve_dtype(config.k_type, model.dtype);
  storage.v_type = config.v_type;
  PROLOGUE_ASSIGN_OR_RETURN(runner->storage_, KvStorage::create(storage, execution.device));
  PROLOGUE_ASSIGN_OR_RETURN(runner->cache_, KvCache::create(storage.num_pages, storage.page_size));

  StepLimits limits;
  limits.max_tokens = config.max_tokens;
  limits.max_logit_rows = config.max_logit_rows;
  limits.max_seqs = config.max_seqs;
  limits.max_seq_len = storage.num_pages * storage.page_size;
  if (config.max_seq_len > 0) limits.max_seq_len = std::min(limits.max_seq_len, config.max_seq_len);
  for (const auto& table : model.rope_tables) {
    PROLOGUE_RETURN_IF_ERROR(table->reserve(std::min(limits.max_seq_len, model.config.context_length), execution));
  }
  Graph graph = model.graph;
  if (config.fused) {
    PROLOGUE_ASSIGN_OR_RETURN(graph, fuse_attention_prologue(model.graph, config.rounding));
  }
  PROLOGUE_ASSIGN_OR_RETURN(runner->executor_, GraphExecutor::create(std::move(graph), runner->storage_, limits, execution));
  PROLOGUE_ASSIGN_OR_RETURN(runner->step_buffers_,
                            StepBuffers::create(limits.max_tokens, limits.max_seqs,
                                                divide_up(limits.max_seq_len, storage.page_size), execution.device));
  PROLOGUE_ASSIGN_OR_RETURN(
      runner->sampling_rows_,
      Buffer::allocate(execution.device, limits.max_logit_rows * static_cast<int64_t>(sizeof(SamplingRow))));
  PROLOGUE_ASSIGN_OR_RETURN(runner->sampled_,
                            Buffer::allocate(execution.device, limits.max_logit_rows * static_cast<int64_t>(sizeof(int32_t))));
  return runner;
}

Status ModelRunner::run(const StepBatch& batch) {
  return catch_out_of_memory([&] { return run_step(batch); });
}

Status ModelRunner::run_step(const StepBatch& batch) {
  PROLOGUE_ASSIGN_OR_RETURN(const StepInputs step, step_buffers_.upload(batch, execution_));
  num_logit_rows_ = step.num_logit_rows;
  if (profile_enabled_) {
    PROLOGUE_RETURN_IF_ERROR(executor_->run_profiled(step, execution_));
    add_to_profile();
  } else {
    PROLOGUE_RETURN_IF_ERROR(executor_->run(step, execution_));
  }
  return {};
}

Status ModelRunner::sample(const std::vector<SamplingRow>& rows, std::vector<int32_t>& tokens) {
  if (static_cast<int64_t>(rows.size()) != num_logit_rows_) {
    return invalid_argument("sample: there are ", rows.size(), " rows of parameters for ", num_logit_rows_, " rows of logits");
  }
  PROLOGUE_RETURN_IF_ERROR(
      copy_to_device(sampling_rows_.data(), rows.data(), static_cast<int64_t>(rows.size() * sizeof(SamplingRow)), execution_));
  SamplingParams params;
  params.num_rows = num_logit_rows_;
  params.vocab_size = model_.config.vocab_size;
  params.logits = static_cast<const float*>(executor_->data(graph().output));
  params.logits_stride = model_.config.vocab_size;
  params.rows = sampling_rows_.as<SamplingRow>();
  params.tokens = sampled_.as<int32_t>();
  PROLOGUE_RETURN_IF_ERROR(prologue::sample(params, execution_));
  PROLOGUE_RETURN_IF_ERROR(resize(tokens, rows.size()));
  PROLOGUE_RETURN_IF_ERROR(
      copy_to_host(tokens.data(), sampled_.data(), static_cast<int64_t>(tokens.size() * sizeof(int32_t)), execution_));
  PROLOGUE_ASSIGN_OR_RETURN(const Fault fault, executor_->take_fault(execution_));
  if (fault.code == FaultCode::none) return {};
  return device_error("the step failed at token ", fault.token, " of the batch: ", fault_code_name(fault.code), " (", fault.count,
                      " faults in all)");
}

Status ModelRunner::read_logits(std::vector<float>& logits) {
  PROLOGUE_RETURN_IF_ERROR(resize(logits, static_cast<size_t>(num_logit_rows_ * model_.config.vocab_size)));
  return copy_to_host(logits.data(), executor_->data(graph().output), static_cast<int64_t>(logits.size() * sizeof(float)),
                      execution_);
}

void ModelRunner::add_to_profile() {
  // "layers.3.mlp.down" and the same node of the other layers are one row.
  const auto role = [](const std::string& name) {
    if (name.rfind("layers.", 0) != 0) return name;
    return name.substr(name.find('.', 7) + 1);
  };
  const std::vector<Node>& nodes = graph().nodes;
  for (size_t n = 0; n < nodes.size(); ++n) {
    const std::string name = role(nodes[n].name);
    auto row = std::find_if(profile_.begin(), profile_.end(), [&](const NodeProfile& entry) { return entry.name == name; });
    if (row == profile_.end()) row = profile_.insert(profile_.end(), NodeProfile{name, nodes[n].kind, 0, 0.0});
    row->calls += 1;
    row->seconds += executor_->node_seconds()[n];
  }
}

std::vector<NodeProfile> ModelRunner::take_profile() { return std::exchange(profile_, {}); }

}  // namespace prologue
