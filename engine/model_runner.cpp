#include <algorithm>
#include <bit>
#include <utility>

#include <prologue/engine/model_runner.h>
#include <prologue/kernels/base/divide_up.h>
#include <prologue/kernels/base/kv_types.h>
#include <prologue/kernels/base/out_of_memory.h>
#include <prologue/kernels/internal/run.h>
#include <prologue/kernels/token_ops/end_step.h>
#include <prologue/kernels/token_ops/logprobs.h>
#include <prologue/kernels/token_ops/take_tokens.h>
#include <prologue/layers/graph/fusion.h>

namespace prologue {

namespace {

constexpr int64_t kFirstLengthBucket = 256;  // each of the next ones is twice as long
constexpr int64_t kFew = 8;                  // up to here the buckets of sequences and tokens are powers of two
constexpr int64_t kMaxCapturedSeqlen = 16;   // tokens of a sequence in a captured step
constexpr int64_t kMostCaptured = 1024;      // sizes; steps of further ones are launched

// Whether the step has one token and one row of logits for each sequence.
bool decodes(const StepInputs& step) {
  return step.num_decode_seqs == step.num_seqs && step.num_seqs == step.num_tokens && step.num_logit_rows == step.num_seqs &&
         step.num_seqs > 0;
}

// Steps with one token of each sequence are captured for 1, 2, 4, 8, 16, 24, 32, ... sequences.
int64_t bucket_of(int64_t count) {
  if (count <= kFew) return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(count)));
  return round_up(count, kFew);
}

// Steps with drafts are captured for 1, 2, 4, 8, 16, 32, 48, 64, 96, 128, ... sequences and tokens, of up to 4 or 16 tokens of a sequence.
int64_t coarse_bucket_of(int64_t count) {
  if (count <= 16) return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(count)));
  return round_up(count, count <= 64 ? 16 : 32);
}
int64_t seqlen_bucket(int64_t seqlen) { return seqlen <= 1 ? 1 : seqlen <= 4 ? 4 : kMaxCapturedSeqlen; }

bool is_float8(const PackedWeight& weight) {
  for (int32_t s = 0; s < weight.num_segments; ++s) {
    if (weight.segments[s].format != WeightFormat::f8_e4m3) return false;
  }
  return weight.num_segments > 0;
}

// Lets the products with float8 weights quantise x, but those of rows that need logits: they are few.
void quantize_activations(Graph& graph) {
  for (Node& node : graph.nodes) {
    auto* const product = std::get_if<GemmParams>(&node.parameters);
    if (product == nullptr || !is_float8(product->packed)) continue;
    if (graph.info(node.reads().front()).rows != Rows::logits) product->quantize_x = DType::fp8_e4m3;
  }
}

}  // namespace

Result<LayerGroups> layer_groups(const Model& model) {
  const auto num_layers = static_cast<size_t>(std::max<int64_t>(model.config.num_layers, 0));
  std::vector<int64_t> window_of_layer = model.window_of_layer;
  if (window_of_layer.empty()) window_of_layer.resize(num_layers);
  if (window_of_layer.size() != num_layers) {
    return invalid_argument("the model has windows for ", window_of_layer.size(), " layers: it has ", num_layers, " layers");
  }
  LayerGroups groups;
  for (const int64_t window : window_of_layer) {
    if (window < 0 || window > INT32_MAX) {
      return invalid_argument("the window of a layer is ", window, ": it must be between 0 (all) and ", INT32_MAX);
    }
    groups.windows.push_back(window);
  }
  std::sort(groups.windows.begin(), groups.windows.end());
  groups.windows.erase(std::unique(groups.windows.begin(), groups.windows.end()), groups.windows.end());
  if (groups.windows.size() > kMaxLayerGroups) {
    if (groups.windows.front() != 0) groups.windows.insert(groups.windows.begin(), 0);
    groups.windows.resize(kMaxLayerGroups);
  }
  for (const int64_t window : window_of_layer) {
    const auto found = std::find(groups.windows.begin(), groups.windows.end(), window);
    groups.of_layer.push_back(found == groups.windows.end() ? 0 : static_cast<int32_t>(found - groups.windows.begin()));
  }
  return groups;
}

KvStorageConfig storage_config(const Model& model, const LayerGroups& groups, const RunnerConfig& config) {
  KvStorageConfig storage;
  storage.num_layers = model.config.num_layers;
  storage.num_pages = config.num_pages;
  storage.page_size = config.page_size;
  storage.num_kv_heads = kv_heads_of_rank(model.config.num_kv_heads, model.shard.num_ranks);
  storage.head_dim = model.config.head_dim;
  storage.k_format = config.k_format.type == DType::unset ? computed_format(model.dtype) : config.k_format;
  storage.v_format = config.v_format;
  storage.group_of_layer = groups.of_layer;
  storage.pages_of_group = config.pages_of_group;
  if (storage.pages_of_group.empty()) storage.pages_of_group.assign(groups.windows.size(), config.num_pages);
  return storage;
}

int64_t longest_sequence(const LayerGroups& groups, const KvStorageConfig& storage) {
  int64_t longest = INT32_MAX;
  for (size_t g = 0; g < groups.windows.size(); ++g) {
    // The window of a new token is in so many pages at most. Pages before it are given back.
    const int64_t in_window = (groups.windows[g] + storage.page_size - 2) / storage.page_size + 1;
    const int64_t num_pages = storage.pages_of_group[g];
    if (groups.windows[g] == 0 || num_pages < in_window) longest = std::min(longest, num_pages * storage.page_size);
  }
  return longest;
}

Result<std::unique_ptr<ModelRunner>> ModelRunner::create(const Model& model, const RunnerConfig& config,
                                                         const Execution& execution, Communicator* communicator) {
  return catch_out_of_memory([&] { return make(model, config, execution, communicator); });
}

Result<std::unique_ptr<ModelRunner>> ModelRunner::make(const Model& model, const RunnerConfig& config, const Execution& execution,
                                                       Communicator* communicator) {
  if (config.max_seq_len < 0) return invalid_argument("the sequence length is ", config.max_seq_len, ": it must be positive");
  std::unique_ptr<ModelRunner> runner(new ModelRunner(model));
  runner->execution_ = execution;
  runner->communicator_ = communicator;
  runner->profile_enabled_ = config.profile;
  runner->capture_ = config.capture && !config.profile && execution.device == Device::cuda;

  PROLOGUE_ASSIGN_OR_RETURN(runner->groups_, layer_groups(model));
  const KvStorageConfig storage = storage_config(model, runner->groups_, config);
  PROLOGUE_ASSIGN_OR_RETURN(runner->storage_, KvStorage::create(storage, execution.device));

  StepLimits limits;
  limits.max_tokens = config.max_tokens;
  limits.max_logit_rows = config.max_logit_rows;
  limits.max_seqs = config.max_seqs;
  limits.max_seq_len = longest_sequence(runner->groups_, storage);
  if (config.max_seq_len > 0) limits.max_seq_len = std::min(limits.max_seq_len, config.max_seq_len);
  if (limits.max_seq_len == INT32_MAX) limits.max_seq_len = model.config.context_length;
  limits.batch_invariant = config.batch_invariant;
  PROLOGUE_RETURN_IF_ERROR(runner->make_rope_rows(std::min(limits.max_seq_len, model.config.longest_context()), limits.max_seqs));
  PROLOGUE_RETURN_IF_ERROR(runner->make_results(limits));
  PROLOGUE_RETURN_IF_ERROR(runner->make_executors(limits, config));
  StepSizes sizes;
  sizes.max_tokens = limits.max_tokens;
  sizes.max_seqs = limits.max_seqs;
  sizes.max_logit_rows = limits.max_logit_rows;
  sizes.max_pages_per_seq = divide_up(limits.max_seq_len, storage.page_size);
  sizes.num_position_axes = model.num_position_axes;
  sizes.num_groups = static_cast<int64_t>(runner->groups_.windows.size());
  PROLOGUE_ASSIGN_OR_RETURN(runner->prompt_arrays_, StepBuffers::create(sizes, execution.device));
  sizes.max_tokens = sizes.max_logit_rows = std::min(limits.max_tokens, limits.max_logit_rows);
  PROLOGUE_ASSIGN_OR_RETURN(runner->decode_arrays_, StepBuffers::create(sizes, execution.device));
  return runner;
}

Status ModelRunner::make_executors(const StepLimits& limits, const RunnerConfig& config) {
  auto* const faults = result<FaultRecord>(0);
  Graph graph = model_.graph;
  if (config.fused) {
    PROLOGUE_ASSIGN_OR_RETURN(graph, fuse_attention_prologue(model_.graph, config.rounding));
  }
  const bool of_16_bits = model_.dtype == DType::f16 || model_.dtype == DType::bf16;
  const int64_t few_tokens = most_tokens_of_one_projection(execution_.device);
  const bool fuses_projections = config.fused && config.fused_projections && of_16_bits && !config.batch_invariant;
  if (fuses_projections && few_tokens > 0) {
    PROLOGUE_ASSIGN_OR_RETURN(Graph fused, fuse_projections(graph));
    StepLimits few = limits;
    for (int64_t* limit : {&few.max_tokens, &few.max_seqs, &few.max_logit_rows}) *limit = std::min(*limit, few_tokens);
    PROLOGUE_ASSIGN_OR_RETURN(few_tokens_,
                              GraphExecutor::create(std::move(fused), storage_, few, execution_, faults, communicator_));
  }
  if (fuses_projections && has_qkv_gemm(execution_.device)) {
    PROLOGUE_ASSIGN_OR_RETURN(graph, fuse_prompt_projections(graph));
  }
  if (config.float8_activations) quantize_activations(graph);
  PROLOGUE_ASSIGN_OR_RETURN(executor_,
                            GraphExecutor::create(std::move(graph), storage_, limits, execution_, faults, communicator_));
  return {};
}

GraphExecutor& ModelRunner::executor_of(const StepInputs& step) const {
  if (few_tokens_ == nullptr) return *executor_;
  const StepLimits& few = few_tokens_->limits();
  const bool fits =
      step.num_tokens <= few.max_tokens && step.num_seqs <= few.max_seqs && step.num_logit_rows <= few.max_logit_rows;
  return fits ? *few_tokens_ : *executor_;
}

const float* ModelRunner::logits_of(const StepInputs& step) const {
  const GraphExecutor& executor = executor_of(step);
  return static_cast<const float*>(executor.data(executor.graph().output));
}

// Makes rows of the rope tables for sequences of up to `context` tokens.
Status ModelRunner::make_rope_rows(int64_t context, int64_t max_seqs) {
  rope_sets_ = RopeSets(model_, context, max_seqs);
  if (!rope_sets_.has_several()) {
    for (const auto& table : model_.rope_tables) PROLOGUE_RETURN_IF_ERROR(table->reserve(context, execution_));
    rope_sets_.sets().front().filled = true;
    return {};
  }
  for (const Node& node : model_.graph.nodes) {
    const auto* const scale = std::get_if<QueryScaleParams>(&node.parameters);
    const auto* const rope = std::get_if<RotaryParams>(&node.parameters);
    const bool by_position = (scale != nullptr && scale->q_scale.by_position != PositionScale::none) ||
                             (rope != nullptr && !rope_rows_are_given(rope->rope.source));
    if (by_position) {
      return unsupported(node.name,
                         ": it computes with positions, which the frequencies of a rope that depend on the length move: only ",
                         "one of the two is supported");
    }
  }
  for (const auto& table : model_.rope_tables) PROLOGUE_RETURN_IF_ERROR(table->make_sets(rope_sets_.num_rows(), execution_));
  for (RopeSet& set : rope_sets_.sets()) PROLOGUE_RETURN_IF_ERROR(fill_rope_set(set));
  return {};
}

Status ModelRunner::fill_rope_set(RopeSet& set) {
  if (set.filled) return {};
  for (const auto& table : model_.rope_tables) {
    PROLOGUE_RETURN_IF_ERROR(table->fill(set.first_row, set.num_rows, set.length, execution_));
  }
  set.filled = true;
  return {};
}

Status ModelRunner::make_results(const StepLimits& limits) {
  int64_t end = sizeof(FaultRecord);
  const auto place = [&](int64_t count, int64_t size) {
    const int64_t begin = end;
    end = round_up(end + count * size, 16);
    return begin;
  };
  at_.tokens = place(limits.max_logit_rows, 4);
  at_.row_faults = place(limits.max_logit_rows, 1);
  at_.seq_faults = place(limits.max_seqs, 1);
  at_.logprobs = place(limits.max_logit_rows * (kMaxTopLogprobs + 1), 4);
  at_.ids = place(limits.max_logit_rows * (kMaxTopLogprobs + 1), 4);
  at_.end = end;
  PROLOGUE_ASSIGN_OR_RETURN(results_, Buffer::allocate(execution_.device, at_.end));
  PROLOGUE_RETURN_IF_ERROR(fill_zero(results_.data(), at_.end, execution_));
  for (Results& each : pending_) {
    PROLOGUE_ASSIGN_OR_RETURN(each.memory, StagingBuffer::allocate(execution_.device, at_.end));
  }
  return {};
}

Status ModelRunner::check_room() const {
  if (num_enqueued_ < static_cast<int64_t>(pending_.size())) return {};
  return invalid_argument("runner: ", num_enqueued_, " steps are enqueued: one must be read before the next");
}

Status ModelRunner::enqueue(const StepBatch& batch, int64_t top_logprobs) {
  PROLOGUE_RETURN_IF_ERROR(check_room());
  return catch_out_of_memory([&] { return run_step(batch, top_logprobs); });
}

Status ModelRunner::run_step(const StepBatch& batch, int64_t top_logprobs) {
  last_decodes_ = false;  // until this step is enqueued
  for (RopeSet& set : rope_sets_.sets()) PROLOGUE_RETURN_IF_ERROR(fill_rope_set(set));
  const bool one_each = batch.num_decode_seqs() == batch.num_seqs() && batch.num_seqs() == batch.num_tokens() &&
                        batch.num_seqs() == batch.num_logit_rows() && batch.num_seqs() > 0;
  const bool captures = capture_ && (one_each || verifies(batch));
  StepPadding padding;
  if (captures) {
    padding.num_seqs = std::min((one_each ? bucket_of : coarse_bucket_of)(batch.num_seqs()), limits().max_seqs);
    padding.num_tokens =
        std::min({(one_each ? bucket_of : coarse_bucket_of)(batch.num_tokens()), limits().max_tokens, limits().max_logit_rows});
    padding.max_seqlen_q = std::min(seqlen_bucket(batch.max_seqlen_q()), limits().max_tokens);
    if (one_each) padding.num_seqs = padding.num_tokens = std::min(padding.num_seqs, padding.num_tokens);
  }
  StepBuffers& arrays = one_each || captures ? decode_arrays_ : prompt_arrays_;
  PROLOGUE_ASSIGN_OR_RETURN(const StepInputs step, arrays.upload(batch, execution_, padding, model_.shard.rank));
  if (batch.has_tokens_from()) {
    TakeTokensParams params;
    params.num_tokens = batch.num_tokens();
    params.num_sampled = limits().max_logit_rows;
    params.from = step.token_from;
    params.tokens = result<int32_t>(at_.tokens);
    params.token_ids = step.token_ids;
    PROLOGUE_RETURN_IF_ERROR(take_tokens(params, execution_));
  }
  last_num_seqs_ = batch.num_seqs();
  PROLOGUE_RETURN_IF_ERROR(run(step, captures, top_logprobs));
  last_decodes_ = one_each;
  return {};
}

// Whether every token has a row of logits: the sequences have drafts, or some have.
bool ModelRunner::verifies(const StepBatch& batch) const {
  return batch.each_token_has_a_row() && batch.num_tokens() > 0 && batch.max_seqlen_q() <= kMaxCapturedSeqlen &&
         batch.num_tokens() <= std::min(limits().max_logit_rows, limits().max_tokens);
}

Status ModelRunner::enqueue_next(int64_t max_seq_len, int64_t top_logprobs) {
  PROLOGUE_RETURN_IF_ERROR(check_room());
  if (!std::exchange(last_decodes_, false))
    return invalid_argument("runner: the last step was not a decode step, so none follows it");
  StepInputs step = last_;
  step.max_seq_len = max_seq_len;
  PROLOGUE_RETURN_IF_ERROR(catch_out_of_memory([&] { return run(step, capture_, top_logprobs); }));
  last_decodes_ = true;
  return {};
}

// Every decode step ends with the inputs of the next one.
Status ModelRunner::run(StepInputs step, bool captures, int64_t top_logprobs) {
  last_ = step;
  if (captures) {
    step.max_seq_len = length_bucket(step.max_seq_len);
    PROLOGUE_RETURN_IF_ERROR(replay(step));
  } else {
    PROLOGUE_RETURN_IF_ERROR(enqueue_graph(step));
  }
  return send_results(step, top_logprobs);
}

int64_t ModelRunner::length_bucket(int64_t length) const {
  int64_t bucket = kFirstLengthBucket;
  while (bucket < length) bucket *= 2;
  return std::min(bucket, limits().max_seq_len);
}

// The first step of a size runs as it is, so that whatever is loaded or chosen at first use is there when the second one is captured.
Status ModelRunner::replay(const StepInputs& step) {
  if (static_cast<int64_t>(captured_.size()) >= kMostCaptured) {
    const auto found = captured_.find({step.num_seqs, step.num_tokens, step.max_seqlen_q, step.max_seq_len});
    if (found == captured_.end()) return enqueue_graph(step);
  }
  const auto [found, is_new] = captured_.try_emplace({step.num_seqs, step.num_tokens, step.max_seqlen_q, step.max_seq_len});
  if (is_new) return enqueue_graph(step);
  if (!found->second) {
    PROLOGUE_ASSIGN_OR_RETURN(found->second, CapturedGraph::capture(execution_, [&] { return enqueue_graph(step); }));
    if (communicator_ != nullptr) PROLOGUE_RETURN_IF_ERROR(communicator_->meet());  // no rank waits for one that still captures
  }
  ++num_replayed_;
  return found->second.launch(execution_);
}

// Enqueues the model, the sampled tokens, and the faults; for a decode step also the inputs of the next one.
Status ModelRunner::enqueue_graph(const StepInputs& step) {
  GraphExecutor& executor = executor_of(step);
  if (profile_enabled_) {
    PROLOGUE_RETURN_IF_ERROR(executor.run_profiled(step, execution_));
    add_to_profile(executor, step, decodes(step) ? profile_.decode : profile_.prefill);
  } else {
    PROLOGUE_RETURN_IF_ERROR(executor.run(step, execution_));
  }
  SamplingParams sampling;
  sampling.num_rows = step.num_logit_rows;
  sampling.vocab_size = model_.config.vocab_size;
  sampling.logits = logits_of(step);
  sampling.logits_stride = model_.config.vocab_size;
  sampling.rows = step.sampling_rows;
  sampling.tokens = result<int32_t>(at_.tokens);
  sampling.row_faults = result<uint8_t>(at_.row_faults);
  sampling.num_tokens = step.num_tokens;
  sampling.token_ids = step.token_ids;
  sampling.logit_rows = step.logit_rows;
  sampling.overlaps = true;
  PROLOGUE_RETURN_IF_ERROR(sample(sampling, execution_));

  EndStepParams end;
  end.num_tokens = step.num_tokens;
  end.num_seqs = step.num_seqs;
  end.cu_seqlens_q = step.cu_seqlens_q;
  end.token_faults = executor.token_faults();
  end.seq_faults = result<uint8_t>(at_.seq_faults);
  end.overlaps = true;
  end.tokens = sampling.tokens;
  end.token_ids = step.token_ids;
  end.rows = step.sampling_rows;
  end.vocab_size = model_.config.vocab_size;
  if (!decodes(step)) {
    end.num_rows = step.num_logit_rows;
    end.logit_rows = step.logit_rows;
  } else {
    end.advance = 1;
    end.positions = step.positions;
    end.num_position_axes = step.num_position_axes;
    end.position_axis_stride = step.position_axis_stride;
    end.seq_lens = step.seq_lens;
    const KvStorageConfig& storage = storage_.config();
    end.num_groups = storage.num_groups();
    for (size_t g = 0; g < storage.pages_of_group.size(); ++g) {
      end.groups[g] = {step.slot_mapping[g],   step.block_table[g], step.block_table_stride,
                       step.max_pages_per_seq, storage.page_size,   storage.pages_of_group[g]};
    }
  }
  return end_step(end, execution_);
}

Status ModelRunner::send_results(const StepInputs& step, int64_t top_logprobs) {
  Results& results = pending_[static_cast<size_t>(next_)];
  results.num_seqs = last_num_seqs_;
  results.num_rows = step.num_logit_rows;
  results.top = top_logprobs;
  if (top_logprobs >= 0) {
    LogprobsParams params;
    params.num_rows = step.num_logit_rows;
    params.vocab_size = model_.config.vocab_size;
    params.logits = logits_of(step);
    params.logits_stride = model_.config.vocab_size;
    params.tokens = result<int32_t>(at_.tokens);
    params.top = top_logprobs;
    params.logprobs = result<float>(at_.logprobs);
    params.ids = result<int32_t>(at_.ids);
    PROLOGUE_RETURN_IF_ERROR(logprobs(params, execution_));
  }
  PROLOGUE_RETURN_IF_ERROR(
      results.memory.copy_from_device(results_.data(), top_logprobs >= 0 ? at_.end : at_.logprobs, execution_));
  next_ = 1 - next_;
  ++num_enqueued_;
  return {};
}

Result<bool> ModelRunner::is_done() const {
  if (num_enqueued_ == 0) return true;
  return pending_[static_cast<size_t>((next_ + 2 - num_enqueued_) % 2)].memory.is_done();
}

Result<StepResults> ModelRunner::read() {
  if (num_enqueued_ == 0) return invalid_argument("runner: no step is enqueued");
  Results& results = pending_[static_cast<size_t>((next_ + 2 - num_enqueued_) % 2)];
  --num_enqueued_;
  PROLOGUE_ASSIGN_OR_RETURN(const void* const memory, results.memory.read());
  const auto* const bytes = static_cast<const unsigned char*>(memory);
  const auto num_rows = static_cast<size_t>(results.num_rows);
  StepResults read;
  const auto* const record = reinterpret_cast<const FaultRecord*>(bytes);
  // The record is never cleared, because the next step may be running: what counts is whether it has grown.
  if (record->count != std::exchange(num_faults_, record->count)) read.fault = decode_fault(*record);
  read.tokens = {reinterpret_cast<const int32_t*>(bytes + at_.tokens), num_rows};
  read.row_faults = {bytes + at_.row_faults, num_rows};
  read.seq_faults = {bytes + at_.seq_faults, static_cast<size_t>(results.num_seqs)};
  read.top = results.top;
  read.logprobs = reinterpret_cast<const float*>(bytes + at_.logprobs);
  read.logprob_ids = reinterpret_cast<const int32_t*>(bytes + at_.ids);
  return read;
}

Status ModelRunner::read_logits(std::vector<float>& logits) {
  PROLOGUE_RETURN_IF_ERROR(catch_out_of_memory([&] {
    logits.resize(static_cast<size_t>(last_.num_logit_rows * model_.config.vocab_size));
    return Status();
  }));
  return copy_to_host(logits.data(), logits_of(last_), static_cast<int64_t>(logits.size() * sizeof(float)), execution_);
}

void ModelRunner::add_to_profile(const GraphExecutor& executor, const StepInputs& step, std::vector<NodeProfile>& profile) {
  // "layers.3.mlp.down" and the same node of the other layers are one row.
  const auto role = [](const std::string& name) {
    if (name.rfind("layers.", 0) != 0) return name;
    return name.substr(name.find('.', 7) + 1);
  };
  const std::vector<Node>& nodes = executor.graph().nodes;
  for (size_t n = 0; n < nodes.size(); ++n) {
    const std::string name = role(nodes[n].name);
    auto row = std::find_if(profile.begin(), profile.end(), [&](const NodeProfile& entry) { return entry.name == name; });
    if (row == profile.end()) {
      const bool early = begins_early(executor.graph(), n, step.num_tokens);
      row = profile.insert(profile.end(), NodeProfile{name, nodes[n].kind, early, 0, 0.0});
    }
    row->calls += 1;
    row->seconds += executor.node_seconds()[n];
  }
}

}  // namespace prologue
