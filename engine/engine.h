// The engine loads a model file and serves requests. examples/generate shows how to use it.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include <prologue/engine/model/model.h>
#include <prologue/engine/parallel_runner.h>
#include <prologue/engine/request.h>
#include <prologue/engine/scheduler.h>
#include <prologue/engine/speculation/draft_model.h>
#include <prologue/engine/tokenizer/tokenizer.h>
#include <prologue/kernels/base/gpu.h>
#include <prologue/kvcache/kv_cache.h>

namespace prologue {

// Of products of many tokens with weights in f8_e4m3 (GemmParams::quantize_x). as_dtype: activations are not quantised. fp8: they are; an error
// if there are packed weights in other formats or none, or if the device has no such products. automatic: on CUDA, fp8 if the model's files say so
// (W8A8 with dynamic scales) and there is no such error.
enum class ActivationQuantization { automatic, as_dtype, fp8 };

// Who proposes drafts (docs/speculation.md). prompt_lookup: PromptLookup. draft_model: DraftModel, that of draft_model_path. custom: proposer.
enum class Speculation { none, prompt_lookup, draft_model, custom };

struct EngineOptions {
  std::string model_path;        // for load()
  std::optional<Device> device;  // none: a usable GPU if there is one, else the CPU
  // Activations have this type, and weights that do not stay quantised. None: bfloat16 on CUDA and float32 on the CPU.
  std::optional<DType> dtype;
  // Matrices that are quantised in the model's files stay so, but for those of experts; false: all are converted to dtype. None: true on
  // the CPU if no dtype is given, else false. On CUDA, true makes steps of few tokens faster, and others slower. A model without such
  // matrices is loaded as with false.
  std::optional<bool> keep_quantized;
  ActivationQuantization activations = ActivationQuantization::automatic;
  KvFormat kv_format = {};       // of the KV cache, with computed scales (computed_format, kv_format_of); unset: dtype
  KvFormat v_format = {};        // of V in the KV cache; unset: that of K
  int64_t hadamard_block = 0;    // of the Hadamard transform of Q and K, with which a quantised K loses less; 0 = none
  int64_t v_hadamard_block = 0;  // of that of V, which is undone on attention's output; 0 = none
  // So many ranks share the model, each with a GPU, or on the CPU with a part of the threads (docs/parallel.md). At most kMaxRanks, and what
  // the model's counts of heads and channels allow.
  int64_t tensor_parallel = 1;
  // A rank that the others wait for so long counts as failed, and ends all requests; 0 = 10 on CUDA, 60 on the CPU.
  double rank_seconds = 0.0;
  int64_t page_size = 16;
  // The most tokens of one sequence, prompt and generated, are limited to this; 0 = the model's limit, up to 262144. At most
  // ModelConfig::longest_context().
  int64_t context_length = 0;
  // Bytes of the KV cache, on each rank; 0: what max_seqs sequences of that length need, within a part of the free memory.
  int64_t kv_memory = 0;
  int64_t max_seqs = 0;         // sequences of one step; 0 = 256 on CUDA, 32 on the CPU
  int64_t max_step_tokens = 0;  // of one step; longer prompts are read in chunks; 0 = 4096 on CUDA, 512 on the CPU
  int64_t max_queue = 4096;     // requests that wait; more are refused
  bool prefix_cache = true;     // prompts that begin alike use the same pages
  bool cuda_graphs = true;      // decode steps are captured and replayed
  bool overlap = true;          // CUDA: a step is enqueued before the host knows the tokens of the previous one
  // Drafts of the next tokens are verified, several in a step. Sampled tokens are those that come without; bits of logits may differ as they
  // do between batches.
  Speculation speculation = Speculation::none;
  int64_t max_drafts = kMaxDrafts;     // of a sequence in a step, 1 to kMaxDrafts
  std::string draft_model_path;        // for Speculation::draft_model. Its KV cache comes on top of kv_memory, if that is given
  bool all_drafts = false;             // all drafts are verified; false: as many as pay, by what steps were measured to cost
  std::shared_ptr<Proposer> proposer;  // for Speculation::custom, which no other engine may use
  // The bits of a request depend on nothing else: not on the batch, chunks, prefix hits or preemption.
  bool batch_invariant = false;
  int32_t num_threads = 0;  // CPU; 0 = all cores
  bool fused = true;        // run the fused graph
  bool fused_projections = true;  // and on CUDA, in steps of few tokens, five kernels a layer (model_runner.h)
  Rounding rounding =
      Rounding::once;  // of the fused graph: with per_step it matches the unfused graph bit for bit in 16-bit types too
  bool profile = false;
  std::function<void(double fraction)> on_load;
};

// The numbers are those since the engine was loaded, or at the end of the last step. A sample counts on its own.
struct EngineStats {
  int64_t waiting = 0;
  int64_t running = 0;
  std::array<int64_t, kNumFinishReasons> finished = {};  // by FinishReason
  int64_t refused = 0;                                   // submissions
  int64_t preemptions = 0;
  int64_t steps = 0;
  int64_t replayed_steps = 0;  // of them, captured ones
  int64_t captured_graphs = 0;
  int64_t prompt_tokens = 0;  // of requests that began, cached ones included
  int64_t cached_tokens = 0;  // of these, found in the cache
  int64_t generated_tokens = 0;
  int64_t draft_tokens = 0;     // that were verified,
  int64_t accepted_tokens = 0;  // and of these accepted
  double step_seconds = 0.0;    // in step(),
  double wait_seconds = 0.0;    // of these, waiting for the device
  KvCacheStats kv;
};

// Callbacks of generate(); each may be empty. They are called between steps, and obey the rules of OutputCallback. If should_stop throws,
// the call fails, and its requests end.
struct GenerationEvents {
  std::function<void(size_t completion, std::string_view text)> on_text;  // whole characters
  std::function<void(double fraction)> on_prefill;  // of all prompt tokens; called before the text generated after them
  std::function<bool()> should_stop;  // called before each step: true ends all of the call's requests (FinishReason::cancelled)
};

// Receives the logits of the model before tokens[index] of a score, [vocab_size], in the order of the tokens; they are valid during the
// call. It runs under the rules of OutputCallback; if it throws, score() fails.
using LogitsCallback = std::function<void(size_t index, std::span<const float> logits)>;

struct ScoreOptions {  // as in Request; `positions` are those of the prompt, and the scored tokens are like generated ones
  std::vector<int32_t> positions = {};
  int64_t rope_length = 0;    // 0: prompt and tokens together
  int64_t num_logprobs = -1;  // as in Request: fills in Score::logprobs
  LogitsCallback on_logits = {};
};

// Holds given tokens and the probability that the model assigns to each; one entry per token.
struct Score {
  std::vector<int32_t> argmax;
  std::vector<float> logit_of_argmax;
  std::vector<float> logit_of_token;
  std::vector<double> logprob_of_token;
  std::vector<TokenLogprobs> logprobs;  // if requested
  double perplexity = 0.0;              // exp of minus the mean log probability
};

// Requests come in by submit(). Each step runs one token of every sequence that decodes and chunks of prompts (engine/scheduler.h), and
// delivers what it has made to the callbacks. Somebody must call step(): a loop of the caller's, run() on a thread of a server, or
// generate(). The pages of finished requests stay in the KV cache until they are needed, so a prompt that begins like an earlier one (the
// next turn of a chat) is not computed again.
//
// Threads: every function may be called from any thread. Steps run one at a time, on the threads that call step(), run(), generate() and
// score(); if several do, each step serves the requests of all. A callback must not call these four (unsupported).
//
// Fork: a forked child may use an engine on the CPU if no thread of the parent was using it at the time of the fork. On the GPU, steps
// and scores return unsupported in the child, because CUDA cannot be used after a fork. Load the model after the fork, or start
// the child with exec.
//
// Errors: bad tokens, slots or lengths that a step finds, and logits that are not numbers, end the requests concerned and no others. If a
// step cannot run at all (no host memory, a CUDA error), the requests that were running end with that error, or the first that waits if
// none was; the others stay. If one of several ranks fails, or does not come to a collective, all requests end with an error that names it,
// and step() and run() return it from then on.
// If the system cannot create threads, the calling thread does all the work.
class Engine {
 public:
  static Result<std::unique_ptr<Engine>> load(const EngineOptions& options);
  // Creates an engine for a model that is made already, on options.device. It ignores model_path, dtype, both Hadamard blocks and on_load.
  // unsupported: options.tensor_parallel is above 1.
  static Result<std::unique_ptr<Engine>> create(const EngineOptions& options, Model model, Tokenizer tokenizer);
  ~Engine();

  const EngineOptions& options() const { return options_; }  // with the defaults filled in
  const ModelConfig& config() const { return model().config; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  Device device() const { return execution_.device; }
  int64_t num_ranks() const { return ranks_->size(); }
  // Returns how values go from rank to rank (Communicator::transport); empty for one rank.
  std::string transport() const { return num_ranks() > 1 ? ranks_->communicator(0)->transport() : ""; }
  DType dtype() const { return model().dtype; }
  // Returns the formats of the matrices that are kept quantised, or an empty list if there are none.
  const std::vector<WeightFormat>& weight_formats() const { return model().weight_formats; }
  // Returns how the matrices are held, for programs to print: "q4_k and q6_k", "bfloat16".
  const std::string& weight_types() const { return model().weight_types; }
  // Returns whether x of products of many tokens is quantised (EngineOptions::activations).
  bool quantizes_activations() const { return quantizes_activations_; }
  int64_t weight_bytes() const;  // of all weights, on all ranks, and of the draft model
  KvFormat k_format() const {    // of the KV cache
    return options_.kv_format.type == DType::unset ? KvFormat{model().dtype, KvScaling::none} : options_.kv_format;
  }
  KvFormat v_format() const { return options_.v_format.type == DType::unset ? k_format() : options_.v_format; }
  // Returns what the model's files recommend. Requests are not changed: who makes one starts from these values (SamplingDefaults::over).
  const SamplingDefaults& default_sampling() const { return model().sampling; }
  // Returns what is unusual about the model's files, one sentence each, for programs to print.
  const std::vector<std::string>& warnings() const { return model().warnings; }
  double load_seconds() const { return load_seconds_; }
  // Returns the most tokens that one sequence can have, prompt and generated together: the context length of the model, or less if
  // EngineOptions::context_length says so or the KV cache holds less.
  int64_t context_length() const { return context_length_; }
  // Returns the graph that runs: the fused one, unless EngineOptions::fused is false.
  const Graph& graph() const { return runner_->front().graph(); }
  // Returns the graph of steps of few tokens if they have one of their own (ModelRunner), otherwise null.
  const Graph* graph_of_few_tokens() const { return runner_->front().graph_of_few_tokens(); }

  // Queues a request. invalid_argument: a value breaks a rule, or the prompt leaves no room in the context. resource_exhausted: the queue is
  // full, or there is no memory. unsupported: after shutdown().
  Result<RequestId> submit(Request request, OutputCallback on_output = {});
  // Ends a request, running or waiting, before the next step. Its callback is told. Ids that are not in the engine are ignored.
  void cancel(RequestId request);
  // Runs one step. False: there was nothing to do.
  Result<bool> step();
  // Runs steps until shutdown(); sleeps while there is nothing to do. Then cancels what is left.
  Status run();
  // Accepts no more submissions; run() returns.
  void shutdown();
  EngineStats stats() const;

  // Submits all requests, whatever the queue's limit, and steps until they are done. Returns num_samples completions for each
  // request, in order. If a request fails or is refused, the status of its completions is the error, and they keep what was generated before it.
  Result<std::vector<Completion>> generate(std::span<const Request> requests, const GenerationEvents& events = {});

  // Returns the log probabilities of `tokens` after `prompt`, in steps of its own, which alternate with those of the requests. Attention
  // reads K and V of every token from the KV cache, as it stores them. Logits that are not numbers give log probabilities that are NaN.
  Result<Score> score(std::span<const int32_t> prompt, std::span<const int32_t> tokens, const ScoreOptions& options = {});

  // Returns the times of the graph's nodes since the last call. Empty without EngineOptions::profile.
  ModelRunner::Profile take_profile();

  // Checks the bookkeeping of the KV cache (KvCache::check_integrity), between steps. For tests.
  Status check_integrity();

 private:
  struct Sample;
  struct Active;  // a request in the engine
  struct EnqueuedSequence;
  struct EnqueuedStep;
  class StepLock;
  struct Drafts;

  Engine();
  Status check_process() const;
  static Result<std::unique_ptr<Engine>> prepare(const EngineOptions& options);
  static Result<std::unique_ptr<Engine>> make(const EngineOptions& options);
  Status fill_in_defaults();
  Status start();
  Status make_runner();
  Status load_draft_model();
  Result<bool> choose_activations();
  Result<int64_t> free_bytes_of_each_rank();
  Result<std::vector<int64_t>> choose_pages(const RunnerConfig& runner, const LayerGroups& groups, int64_t wanted_context);
  Status warm_up();
  Status check_request(const Request& request) const;
  Result<RopePositions> rope_positions_of(const std::vector<int32_t>& positions, int64_t num_prompt, int64_t length,
                                          int64_t rope_length) const;
  Result<std::shared_ptr<Active>> make_active(Request request, OutputCallback on_output) const;
  Result<RequestId> submit(Request request, OutputCallback on_output, int64_t max_queue);

  void let_others_step() const;
  void take_inbox();
  Result<bool> run_step();
  void read_steps(size_t may_wait);
  Status propose_drafts();
  Result<bool> ask_for_drafts(bool tokens_are_known);
  Status enqueue(const StepPlan& plan, std::chrono::steady_clock::time_point begin);
  void begin(Sample& sample, int64_t cached_tokens);
  void leave_queue(Active& active);
  Status fill_batch(const StepPlan& plan);
  Status add_to_batch(SequenceId id, const int32_t* tokens, int64_t first, int64_t count, int64_t num_rows,
                      const RopePositions& rope_positions, const RopeSet& set);
  SamplingRow sampling_of(const Sample& sample, int64_t position) const;
  Status set_sampling(int64_t index, Sample& sample, int64_t position, int32_t chain);
  Status make_adjustments(Sample& sample);
  Status read_step();
  void note_cost(const EnqueuedStep& step);
  void process(EnqueuedStep& step, const StepResults& results);
  void process_sequence(const EnqueuedStep& step, size_t index, const StepResults& results);
  Status take_verified(const EnqueuedSequence& sequence, const StepResults& results);
  void take_token(Sample& sample, size_t row, const StepResults& results);
  void finish(Sample& sample, FinishReason reason, Status status = {});
  void finish_request(Active& active, FinishReason reason, const Status& status);
  void fail_running(const Status& status);
  Status end_all(const Status& status);
  void forget(std::span<const RequestId> requests);
  void deliver(Sample& sample, std::string_view text, size_t num_tokens, bool ended);
  void update_stats();
  Result<Score> run_score(std::span<const int32_t> prompt, std::span<const int32_t> tokens, const ScoreOptions& options);
  struct Scored;  // a sequence that is scored
  Status begin_score(Scored& scored, const ScoreOptions& options);
  void add_scores(const Scored& scored, const float* row, const ScoreOptions& options, Score& score) const;
  Status score_step(const Scored& scored, int64_t first, int64_t count, int64_t num_rows, std::vector<float>& logits);

  const Model& model() const { return models_.front(); }
  Model& model() { return models_.front(); }

  EngineOptions options_;
  std::unique_ptr<Ranks> ranks_;
  Execution execution_;        // of rank 0
  std::vector<Model> models_;  // of each rank, its part
  std::unique_ptr<Tokenizer> tokenizer_;
  std::optional<KvCache> cache_;
  std::unique_ptr<ParallelRunner> runner_;
  std::unique_ptr<Scheduler> scheduler_;
  std::shared_ptr<DraftModel> draft_model_;  // null without one
  std::unique_ptr<Drafts> drafts_;           // null without speculation
  int64_t context_length_ = 0;
  double load_seconds_ = 0.0;
  bool quantizes_activations_ = false;
  int64_t process_ = 0;  // the process that loaded the engine

  // Whoever runs a step holds this.
  std::mutex stepping_;
  std::atomic<std::thread::id> stepper_;
  std::atomic<int> num_step_waiters_ = 0;
  std::unordered_map<RequestId, std::shared_ptr<Active>> active_;
  std::vector<EnqueuedStep> enqueued_;               // at most two, the older first
  std::chrono::steady_clock::time_point last_read_;  // of a step
  StepBatch batch_;
  std::vector<std::vector<Buffer>> free_adjustments_;  // of each rank
  EngineStats counts_;                                 // but for what the parts count themselves

  // All threads use these, under the mutex.
  mutable std::mutex inbox_;
  std::condition_variable wake_;
  std::vector<std::shared_ptr<Active>> submitted_;
  std::vector<RequestId> cancelled_;
  RequestId next_id_ = 1;
  int64_t num_queued_ = 0;  // requests that have not begun
  int64_t num_refused_ = 0;
  bool shut_down_ = false;
  EngineStats stats_;
};

}  // namespace prologue
