// Runs a model step by step. It owns the memory of the KV cache, the executor of the (fused) graph, the step's device arrays and the
// captured decode steps, and it samples the next tokens. It knows rows and slots, not requests.
//
// A step is enqueued and read later; two may be enqueued at a time:
//   enqueue(batch)    the arrays in one copy, the graph, sampling, end_step, and the copy of the results
//   enqueue_next()    the same decode batch one token further: the device has written the arrays itself
//   read()            waits for the oldest step that was not read yet
//
// On CUDA a step in which every token has a row of logits (decoding, with drafts or without) is captured when its size comes for the second
// time, and replayed from then on. Sizes are buckets of sequences, of tokens and of lengths: what is between the batch and its bucket is
// padding.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <prologue/engine/model/model.h>
#include <prologue/engine/rope_sets.h>
#include <prologue/kernels/base/captured_graph.h>
#include <prologue/kernels/base/faults.h>
#include <prologue/kernels/token_ops/sampling.h>
#include <prologue/kvcache/kv_storage.h>
#include <prologue/layers/graph/executor.h>

namespace prologue {

struct RunnerConfig {
  KvFormat k_format;  // of the KV cache; unset: the activations' type
  KvFormat v_format;  // unset: that of K
  int64_t page_size = 16;
  int64_t num_pages = 1;                // of each layer group,
  std::vector<int64_t> pages_of_group;  // or these (layer_groups); empty: num_pages
  int64_t max_seq_len = 0;              // of one sequence; 0 = one sequence may use the whole cache
  int64_t max_tokens = 512;             // of one step
  int64_t max_seqs = 1;
  int64_t max_logit_rows = 1;
  bool fused = true;
  // In steps of few tokens, norms, activations and residuals are parts of the projections: five kernels a layer. Only if `fused`, on CUDA, in
  // 16 bits, not batch_invariant: up to 64 tokens on GPUs of compute capability 9.0, up to 16 on later ones. In steps of many
  // tokens, on GPUs of compute capability 9.0, the prologue is a part of the QKV projection, and a gated activation of its own.
  bool fused_projections = true;
  Rounding rounding = Rounding::once;  // of the fused graph
  // x of products of many tokens is quantised (GemmParams::quantize_x), where weights are f8_e4m3. Steps of few tokens with one kernel for each
  // projection, logits and experts are as without.
  bool float8_activations = false;
  bool batch_invariant = false;
  bool capture = true;  // CUDA graphs
  bool profile = false;
};

// Holds the layer groups of a model: layers with the same window use the same pages (kvcache/kv_cache.h).
struct LayerGroups {
  std::vector<int64_t> windows;   // of each group, from small to large, but first 0 (all), if there is a layer that sees all
  std::vector<int32_t> of_layer;  // [num_layers]
};
// If there are more windows than kMaxLayerGroups, layers with the largest ones are in the group that sees all. invalid_argument:
// window_of_layer has not one entry for each layer, or one is not in 0..2^31 - 1.
Result<LayerGroups> layer_groups(const Model& model);

// Returns the configuration of the KV cache's memory.
KvStorageConfig storage_config(const Model& model, const LayerGroups& groups, const RunnerConfig& config);

// Returns the longest sequence that fits in the cache by itself; 2^31 - 1 if all layers have windows that fit.
int64_t longest_sequence(const LayerGroups& groups, const KvStorageConfig& storage);

// Holds the time spent in the graph's nodes, summed over steps and over layers (the names do not contain the layer).
struct NodeProfile {
  std::string name;
  std::string kind;
  bool begins_early = false;  // layers/graph/graph.h; while they are timed, all nodes run one after another
  int64_t calls = 0;
  double seconds = 0.0;
};

// Holds what a step has computed. The views are valid until the next but one step is enqueued.
struct StepResults {
  std::span<const int32_t> tokens;      // by row of logits
  std::span<const uint8_t> row_faults;  // FaultCode by row of logits
  std::span<const uint8_t> seq_faults;  // FaultCode by sequence
  Fault fault;                          // of the whole step
  int64_t top = -1;                     // of each row top + 1 entries, or none (kernels/token_ops/logprobs.h)
  const float* logprobs = nullptr;
  const int32_t* logprob_ids = nullptr;
};

class ModelRunner {
 public:
  // The model must outlive the runner. Its rope tables grow to max_seq_len, so no other runner of the model may run during this call. If the
  // tables have several sets of frequencies (rope_sets()), they are this runner's from then on.
  // invalid_argument: page_size or a number of pages is below 1, another size negative, or the model's windows are bad (layer_groups).
  // unsupported: positions are moved by rope sets, but something in the graph computes with them (QueryScale by position, a rope without
  // a table).
  //   communicator: of the rank whose part the model is (Model::shard); must outlive the runner
  static Result<std::unique_ptr<ModelRunner>> create(const Model& model, const RunnerConfig& config, const Execution& execution,
                                                     Communicator* communicator = nullptr);

  const KvStorage& storage() const { return storage_; }
  const Graph& graph() const { return executor_->graph(); }
  // Returns the graph of steps of few tokens, or null if they use the same one.
  const Graph* graph_of_few_tokens() const { return few_tokens_ == nullptr ? nullptr : &few_tokens_->graph(); }
  const StepLimits& limits() const { return executor_->limits(); }
  const LayerGroups& groups() const { return groups_; }
  // Sequences of a step have a set, and the rope positions in the batch are moved by its first row. A step makes the rows that are missing.
  RopeSets& rope_sets() { return rope_sets_; }
  // Makes the rows of a set, unless it is filled, and marks it as filled.
  Status fill_rope_set(RopeSet& set);
  int64_t activation_bytes() const {
    return executor_->plan().total_bytes + (few_tokens_ == nullptr ? 0 : few_tokens_->plan().total_bytes);
  }

  // top_logprobs: how many most likely tokens are returned for each row, up to kMaxTopLogprobs; -1: no log probabilities at all.
  // invalid_argument: two steps were enqueued and not read.
  Status enqueue(const StepBatch& batch, int64_t top_logprobs = -1);
  // Called only after an enqueued step of one token and one row for each sequence, with no other step in between: every sequence continues
  // with the token that was sampled. Its block tables must have room. max_seq_len: of the longest sequence then.
  Status enqueue_next(int64_t max_seq_len, int64_t top_logprobs = -1);
  Result<StepResults> read();
  // Returns whether read() would not wait.
  Result<bool> is_done() const;
  int64_t num_enqueued() const { return num_enqueued_; }

  // Copies pages of the cache, in stream order.
  Status copy_pages(const std::vector<PageCopy>& copies) { return storage_.copy_pages(copies, execution_); }

  // Reads the logits of the last step, [rows, vocab_size]. Waits.
  Status read_logits(std::vector<float>& logits);

  int64_t num_captured() const { return static_cast<int64_t>(captured_.size()); }
  int64_t num_replayed() const { return num_replayed_; }

  // Holds times by node, in the graph's order, since the last call: of steps with prompts, and of steps of one token of each sequence.
  struct Profile {
    std::vector<NodeProfile> prefill;
    std::vector<NodeProfile> decode;
  };
  Profile take_profile() { return std::exchange(profile_, {}); }

 private:
  struct Results {  // of a step that is not read yet
    StagingBuffer memory;
    int64_t num_seqs = 0;
    int64_t num_rows = 0;
    int64_t top = -1;
  };
  // Where the results are, in bytes from the beginning of their memory.
  struct ResultOffsets {
    int64_t tokens, row_faults, seq_faults, logprobs, ids, end;
  };
  explicit ModelRunner(const Model& model) : model_(model) {}
  static Result<std::unique_ptr<ModelRunner>> make(const Model& model, const RunnerConfig& config, const Execution& execution,
                                                   Communicator* communicator);
  Status make_results(const StepLimits& limits);
  Status make_rope_rows(int64_t context, int64_t max_seqs);
  Status check_room() const;
  Status run_step(const StepBatch& batch, int64_t top_logprobs);
  Status run(StepInputs step, bool captures, int64_t top_logprobs);
  bool verifies(const StepBatch& batch) const;
  Status enqueue_graph(const StepInputs& step);
  Status replay(const StepInputs& step);
  Status send_results(const StepInputs& step, int64_t top_logprobs);
  int64_t length_bucket(int64_t length) const;
  Status make_executors(const StepLimits& limits, const RunnerConfig& config);
  GraphExecutor& executor_of(const StepInputs& step) const;
  const float* logits_of(const StepInputs& step) const;
  static void add_to_profile(const GraphExecutor& executor, const StepInputs& step, std::vector<NodeProfile>& profile);
  template <class T>
  T* result(int64_t offset) const {
    return reinterpret_cast<T*>(results_.as<unsigned char>() + offset);
  }

  const Model& model_;
  Execution execution_;
  Communicator* communicator_ = nullptr;
  bool profile_enabled_ = false;
  bool capture_ = false;
  LayerGroups groups_;
  RopeSets rope_sets_;
  KvStorage storage_;
  Buffer results_;  // before the executor, whose fault record is in it
  ResultOffsets at_ = {};
  std::unique_ptr<GraphExecutor> executor_;
  std::unique_ptr<GraphExecutor> few_tokens_;  // of steps that it has room for; null: none
  StepBuffers prompt_arrays_;
  StepBuffers decode_arrays_;  // captured steps read these
  StepInputs last_;            // the step that was enqueued last,
  int64_t last_num_seqs_ = 0;  // and its sequences without padding
  bool last_decodes_ = false;
  std::array<Results, 2> pending_;
  int64_t next_ = 0;  // of pending_, to be enqueued
  int64_t num_enqueued_ = 0;
  uint64_t num_faults_ = 0;  // of all steps that were read
  // By bucket of sequences, tokens, tokens of a sequence and lengths; empty: it has run once.
  std::map<std::array<int64_t, 4>, CapturedGraph> captured_;
  int64_t num_replayed_ = 0;
  Profile profile_;
};

}  // namespace prologue
