// This file loads the model, submits requests and delivers their results. engine_step.cpp has what happens in a step.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <thread>

#include <prologue/engine/active.h>
#include <prologue/engine/base/printable.h>
#include <prologue/engine/checkpoint/name_list.h>
#include <prologue/engine/speculation/prompt_lookup.h>
#include <prologue/engine/tokenizer/read_tokenizer.h>
#include <prologue/kernels/base/divide_up.h>
#include <prologue/kernels/base/out_of_memory.h>
#include <prologue/kernels/internal/run.h>
#include <prologue/layers/graph/memory_plan.h>

namespace prologue {

namespace {

constexpr int64_t kMaxSeqs = 4096;
constexpr int64_t kMaxStepDrafts = 256;                       // a step with more rows costs more than its drafts bring
constexpr double kRowCostOnGpu = 0.002, kRowCostOnCpu = 0.1;  // what is tried at first: StepCosts
// Tables of positions and pages are as long as this: a file must not ask for any length.
constexpr int64_t kDefaultContext = int64_t{1} << 18;

double seconds_since(EngineClock::time_point start) { return std::chrono::duration<double>(EngineClock::now() - start).count(); }

// Does a step of SplitMix64.
void mix(uint64_t& key, uint64_t value) {
  key += 0x9e3779b97f4a7c15 + value;
  key = (key ^ (key >> 30)) * 0xbf58476d1ce4e5b9;
  key = (key ^ (key >> 27)) * 0x94d049bb133111eb;
  key ^= key >> 31;
}

// Markers may be added to a tokenizer without making the embedding larger: a model does without them. What plain text becomes must have a row.
Status check_vocabulary(const Tokenizer& tokenizer, const std::string& path, Model& model) {
  const int64_t num_rows = model.config.vocab_size, num_tokens = tokenizer.vocab_size();
  if (num_tokens <= num_rows) return {};
  std::vector<std::string> markers;
  for (auto id = static_cast<int32_t>(num_rows); id < num_tokens; ++id) {
    const TokenType type = tokenizer.type(id);
    if (type == TokenType::normal || type == TokenType::byte) {
      return data_loss(path, ": the tokenizer has ", num_tokens, " tokens, but the embedding only ", num_rows, " rows: token ",
                       id, ", ", in_quotes(tokenizer.token_text(id)), ", comes from plain text");
    }
    if (type != TokenType::unused) markers.emplace_back(tokenizer.token_text(id));
  }
  if (markers.empty()) return {};
  model.warnings.push_back(str_cat(path, ": the embedding has ", num_rows, " rows, and none for the tokens ", name_list(markers),
                                   ": a prompt with one of them is refused"));
  return {};
}

}  // namespace

const char* finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::end: return "end";
    case FinishReason::stop: return "stop";
    case FinishReason::length: return "length";
    case FinishReason::context: return "context";
    case FinishReason::cancelled: return "cancelled";
    case FinishReason::error: return "error";
  }
  return "unknown";
}

Engine::Engine() = default;

Engine::~Engine() {
  // Steps that were not read still use this memory.
  if (ranks_ == nullptr || !check_process().ok()) return;
  (void)ranks_->run([this](int64_t rank) { return synchronize(ranks_->execution(rank)); });
}

Status Engine::check_process() const {
  if ((execution_.device != Device::cpu || ranks_->size() > 1) && getpid() != process_) {
    return unsupported("this process was forked from process ", process_, ", which had loaded the engine: ",
                       execution_.device != Device::cpu ? "a GPU does" : "the threads of several ranks do",
                       " not survive a fork; load the engine after the fork, or use exec");
  }
  if (stepper_.load() == std::this_thread::get_id()) {
    return unsupported("a callback of the engine runs a step or a score: it may only submit and cancel requests");
  }
  return {};
}

Result<std::unique_ptr<Engine>> Engine::load(const EngineOptions& options) {
  return catch_out_of_memory([&] { return make(options); });
}

Result<std::unique_ptr<Engine>> Engine::create(const EngineOptions& options, Model model, Tokenizer tokenizer) {
  return catch_out_of_memory([&]() -> Result<std::unique_ptr<Engine>> {
    if (options.tensor_parallel > 1) {
      return unsupported("tensor_parallel is ", options.tensor_parallel, ": a model that is made already is that of one rank");
    }
    PROLOGUE_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, prepare(options));
    engine->options_.dtype = model.dtype;
    engine->models_.push_back(std::move(model));
    engine->tokenizer_ = std::make_unique<Tokenizer>(std::move(tokenizer));
    PROLOGUE_RETURN_IF_ERROR(check_vocabulary(*engine->tokenizer_, "the model", engine->model()));
    PROLOGUE_RETURN_IF_ERROR(engine->start());
    return engine;
  });
}

// Prepares everything but the model and what depends on it.
Result<std::unique_ptr<Engine>> Engine::prepare(const EngineOptions& options) {
  std::unique_ptr<Engine> engine(new Engine());
  engine->options_ = options;
  engine->process_ = getpid();
  PROLOGUE_RETURN_IF_ERROR(engine->fill_in_defaults());
  const EngineOptions& filled = engine->options_;
  PROLOGUE_ASSIGN_OR_RETURN(engine->ranks_,
                            Ranks::create(*filled.device, filled.tensor_parallel, filled.num_threads, filled.rank_seconds));
  engine->execution_ = engine->ranks_->execution(0);
  if (filled.batch_invariant && engine->num_ranks() > 1 && !engine->ranks_->communicator(0)->uses_peer_memory()) {
    return unsupported("batch_invariant needs GPUs that have access to each other's memory: the bits of sums by ",
                       engine->transport(), " depend on the batch");
  }
  return engine;
}

Result<std::unique_ptr<Engine>> Engine::make(const EngineOptions& options) {
  const auto start = EngineClock::now();
  PROLOGUE_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, prepare(options));
  PROLOGUE_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint, Checkpoint::open(options.model_path));
  const Checkpoint& file = *checkpoint;
  const ModelOptions choices{options.hadamard_block, options.v_hadamard_block, *engine->options_.keep_quantized};
  PROLOGUE_ASSIGN_OR_RETURN(
      engine->models_, load_parts(file, options.model_path, *engine->options_.dtype, *engine->ranks_, options.on_load, choices));
  PROLOGUE_ASSIGN_OR_RETURN(TokenizerData data, read_tokenizer(file));
  auto tokenizer = Tokenizer::create(std::move(data));
  if (!tokenizer.ok()) return error_status(tokenizer.status().code(), file.path(), ": ", tokenizer.status().message());
  engine->tokenizer_ = std::make_unique<Tokenizer>(std::move(tokenizer).value());
  PROLOGUE_RETURN_IF_ERROR(check_vocabulary(*engine->tokenizer_, file.path(), engine->model()));
  PROLOGUE_RETURN_IF_ERROR(engine->start());
  engine->load_seconds_ = seconds_since(start);
  return engine;
}

int64_t Engine::weight_bytes() const {
  int64_t bytes = 0;
  for (const Model& each : models_) bytes += each.weight_bytes;
  return bytes + (draft_model_ == nullptr ? 0 : draft_model_->weight_bytes());
}

Status Engine::start() {
  PROLOGUE_RETURN_IF_ERROR(ranks_->run([this](int64_t rank) { return synchronize(ranks_->execution(rank)); }));
  PROLOGUE_RETURN_IF_ERROR(make_runner());
  if (num_ranks() > 1 && !ranks_->communicator(0)->uses_peer_memory()) {
    model().warnings.push_back(str_cat("the GPUs have no access to each other's memory: all values go by ", transport(),
                                       ", and steps of few tokens are slower"));
  }
  if (execution_.device == Device::cuda) PROLOGUE_RETURN_IF_ERROR(warm_up());
  update_stats();
  return {};
}

Status Engine::fill_in_defaults() {
  EngineOptions& o = options_;
  const struct {
    const char* name;
    int64_t value, least, limit;
  } checks[] = {{"page size", o.page_size, 1, 1024},
                {"context length", o.context_length, 0, INT64_MAX},
                {"KV cache's memory", o.kv_memory, 0, INT64_MAX},
                {"number of ranks (tensor_parallel)", o.tensor_parallel, 1, kMaxRanks},
                {"number of sequences of a step", o.max_seqs, 0, kMaxSeqs},
                {"number of tokens of a step", o.max_step_tokens, 0, INT32_MAX},
                {"number of drafts of a sequence", o.max_drafts, 1, kMaxDrafts},
                {"length of the queue", o.max_queue, 0, INT64_MAX}};
  for (const auto& [name, value, least, limit] : checks) {
    if (value < least || value > limit)
      return invalid_argument("the ", name, " is ", value, ": it must be between ", least, " and ", limit);
  }
  if ((o.speculation == Speculation::draft_model) == o.draft_model_path.empty()) {
    return invalid_argument("speculation is ",
                            o.draft_model_path.empty() ? "draft_model without" : "not draft_model, but there is",
                            " a draft_model_path: draft_model needs one, and no other kind has one");
  }
  if (o.speculation == Speculation::draft_model && o.tensor_parallel > 1) {
    return unsupported("there is a draft model, and tensor_parallel is ", o.tensor_parallel,
                       ": a draft model runs on one rank only");
  }
  if ((o.speculation == Speculation::custom) != (o.proposer != nullptr)) {
    return invalid_argument("speculation is ", o.proposer == nullptr ? "custom without" : "not custom, but there is",
                            " a proposer: custom needs one, and no other kind has one");
  }
  if (!(o.rank_seconds >= 0.0))
    return invalid_argument("rank_seconds is ", o.rank_seconds, ": it must be 0 (chosen) or positive");
  if (o.num_threads < 0)
    return invalid_argument("the number of threads is ", o.num_threads, ": it must be 0, one for each CPU, or more");
  execution_.device = o.device.value_or(check_gpu().ok() ? Device::cuda : Device::cpu);
  o.device = execution_.device;
  const bool on_gpu = execution_.device == Device::cuda;
  if (o.rank_seconds == 0.0) o.rank_seconds = on_gpu ? 10.0 : 60.0;
  if (o.num_threads == 0) o.num_threads = std::max(1, static_cast<int32_t>(std::thread::hardware_concurrency()));
  execution_.num_threads = o.num_threads;
  o.keep_quantized = o.keep_quantized.value_or(!on_gpu && !o.dtype);
  o.dtype = o.dtype.value_or(on_gpu ? DType::bf16 : DType::f32);
  if (o.max_seqs == 0) o.max_seqs = on_gpu ? 256 : 32;
  if (o.max_step_tokens == 0) o.max_step_tokens = on_gpu ? 4096 : 512;
  o.max_step_tokens = std::max(o.max_step_tokens, o.max_seqs);  // every sequence that decodes has a token in every step
  o.overlap = o.overlap && on_gpu;                              // on the CPU a step has run when it is enqueued
  o.cuda_graphs = o.cuda_graphs && on_gpu && !o.profile;
  return {};
}

// Returns how much memory is free where there is least: all ranks have as many pages.
Result<int64_t> Engine::free_bytes_of_each_rank() {
  std::vector<int64_t> free(static_cast<size_t>(ranks_->size()));
  const Status found = ranks_->run([&](int64_t rank) -> Status {
    PROLOGUE_ASSIGN_OR_RETURN(free[static_cast<size_t>(rank)], available_bytes(execution_.device));
    return {};
  });
  PROLOGUE_RETURN_IF_ERROR(found);
  return *std::min_element(free.begin(), free.end());
}

// Chooses the pages of each layer group. The KV cache gets what is left of the memory after the weights and the activations, but no more
// than can be used.
Result<std::vector<int64_t>> Engine::choose_pages(const RunnerConfig& runner, const LayerGroups& groups, int64_t wanted_context) {
  const EngineOptions& o = options_;
  const KvStorageConfig storage = storage_config(model(), groups, runner);
  int64_t page_bytes = 0;
  for (int64_t g = 0; g < storage.num_groups(); ++g) page_bytes += storage.bytes_per_page(g);
  if (page_bytes < 1) return invalid_argument("a page of the KV cache has ", page_bytes, " bytes: the model has no heads");
  int64_t num_bytes = o.kv_memory;
  if (num_bytes > 0 && num_bytes < page_bytes) {
    return invalid_argument("the KV cache's memory is ", num_bytes, " bytes: a page of ", o.page_size, " tokens takes ",
                            page_bytes);
  }
  if (num_bytes == 0) {
    PROLOGUE_ASSIGN_OR_RETURN(const MemoryPlan activations, plan_memory(model().graph, runner.max_tokens, runner.max_logit_rows));
    PROLOGUE_ASSIGN_OR_RETURN(const int64_t free_bytes, free_bytes_of_each_rank());
    // On a GPU nothing else needs the rest. The CPU's memory is everybody's, and pages take theirs when they are first written.
    const double usable = execution_.device == Device::cuda ? 0.9 : 0.25 / static_cast<double>(ranks_->size());
    num_bytes = static_cast<int64_t>(usable * static_cast<double>(std::max<int64_t>(0, free_bytes - activations.total_bytes)));
  }
  KvSizing sizing;
  sizing.windows = groups.windows;
  sizing.max_seqs = o.max_seqs;
  const int64_t steps_at_a_time = o.overlap ? 2 : 1;
  sizing.max_step_tokens = std::min<int64_t>(steps_at_a_time * o.max_step_tokens + o.max_seqs * kTokensAhead, INT32_MAX);
  const int64_t most = std::min<int64_t>(divide_up(wanted_context, o.page_size) * o.max_seqs, INT32_MAX);
  const auto fit = [&](int64_t bytes) -> Result<std::vector<int64_t>> {
    auto pages = pages_that_fit(storage, sizing, bytes);
    if (!pages.ok() && pages.status().code() != StatusCode::resource_exhausted) return pages.status();
    // What does not even fit one page is left to the allocation to refuse.
    std::vector<int64_t> num_pages = pages.ok() ? *pages : std::vector<int64_t>(groups.windows.size(), 1);
    for (int64_t& each : num_pages) each = std::min(each, most);
    return num_pages;
  };
  PROLOGUE_ASSIGN_OR_RETURN(std::vector<int64_t> num_pages, fit(num_bytes));
  if (draft_model_ == nullptr || o.kv_memory > 0) return num_pages;
  // The draft model's cache has as many pages as the largest group. Both together must fit.
  constexpr int kRounds = 8;  // mostly the second one is right
  double own_bytes = static_cast<double>(num_bytes);
  for (int round = 0; round < kRounds; ++round) {
    double bytes = static_cast<double>(*std::max_element(num_pages.begin(), num_pages.end()) * draft_model_->page_bytes());
    for (int64_t g = 0; g < storage.num_groups(); ++g) {
      bytes += static_cast<double>(num_pages[static_cast<size_t>(g)] * storage.bytes_per_page(g));
    }
    if (bytes <= static_cast<double>(num_bytes)) break;
    own_bytes *= static_cast<double>(num_bytes) / bytes;
    PROLOGUE_ASSIGN_OR_RETURN(num_pages, fit(static_cast<int64_t>(own_bytes)));
  }
  return num_pages;
}

// Returns whether x of products of many tokens is quantised.
Result<bool> Engine::choose_activations() {
  const EngineOptions& o = options_;
  const bool on_gpu = execution_.device == Device::cuda, is_wanted = o.activations == ActivationQuantization::fp8;
  if (o.activations == ActivationQuantization::as_dtype) return false;
  if (!is_wanted && !(on_gpu && model().quantizes_activations)) return false;
  const std::vector<WeightFormat>& formats = model().weight_formats;
  Status problem;
  if (formats != std::vector{WeightFormat::f8_e4m3}) {
    problem =
        invalid_argument("activations are fp8: the weights that stay quantised must be f8_e4m3, all of them, but the ",
                         "weights are held as ", model().weight_types, *o.keep_quantized ? "" : ", since keep_quantized is off");
  } else if (on_gpu && o.batch_invariant) {
    problem = unsupported("activations are fp8: they cannot be combined with batch_invariant");
  } else if (const Status found = check_float8_gemm(execution_.device); !found.ok()) {
    problem = error_status(found.code(), "activations are fp8: ", found.message());
  }
  if (problem.ok()) return true;
  if (is_wanted || problem.code() == StatusCode::device_error || problem.code() == StatusCode::resource_exhausted) return problem;
  if (problem.code() == StatusCode::unsupported)
    model().warnings.push_back(str_cat(problem.message(), ": they are not quantised"));
  return false;
}

Status Engine::make_runner() {
  EngineOptions& o = options_;
  const int64_t wanted_context = o.context_length > 0 ? std::min(o.context_length, config().longest_context())
                                                      : std::min(kDefaultContext, config().context_length);
  o.max_step_tokens = std::max(o.max_seqs, std::min(o.max_step_tokens, o.max_seqs * wanted_context));

  RunnerConfig runner;
  runner.k_format = k_format();
  runner.v_format = v_format();
  runner.page_size = o.page_size;
  runner.max_tokens = o.max_step_tokens;
  runner.max_seqs = o.max_seqs;
  const int64_t max_drafts = o.speculation == Speculation::none ? 0 : std::min(kMaxStepDrafts, o.max_seqs * o.max_drafts);
  runner.max_logit_rows = std::max(o.max_seqs + max_drafts, kScoreRows);
  runner.fused = o.fused;
  runner.fused_projections = o.fused_projections;
  runner.rounding = o.rounding;
  PROLOGUE_ASSIGN_OR_RETURN(quantizes_activations_, choose_activations());
  runner.float8_activations = quantizes_activations_;
  runner.batch_invariant = o.batch_invariant;
  runner.capture = o.cuda_graphs;
  runner.profile = o.profile;

  PROLOGUE_ASSIGN_OR_RETURN(const LayerGroups groups, layer_groups(model()));
  if (o.speculation == Speculation::draft_model) PROLOGUE_RETURN_IF_ERROR(load_draft_model());
  PROLOGUE_ASSIGN_OR_RETURN(runner.pages_of_group, choose_pages(runner, groups, wanted_context));
  context_length_ = std::min(wanted_context, longest_sequence(groups, storage_config(model(), groups, runner)));
  runner.max_seq_len = context_length_;
  PROLOGUE_ASSIGN_OR_RETURN(runner_, ParallelRunner::create(*ranks_, models_, runner));
  o.kv_memory = runner_->front().storage().memory().size_bytes();
  batch_ = StepBatch(model().num_position_axes, static_cast<int64_t>(groups.windows.size()));

  KvCacheConfig cache;
  cache.page_size = o.page_size;
  for (size_t g = 0; g < groups.windows.size(); ++g) cache.groups.push_back({runner.pages_of_group[g], groups.windows[g]});
  cache.prefix_reuse = o.prefix_cache;
  cache.keep_until_released = true;
  const auto key_of = [](const KvFormat& format) {
    return static_cast<uint64_t>(format.scaling) << 8 | static_cast<uint64_t>(format.type);
  };
  cache.format_key = key_of(k_format()) << 16 | key_of(v_format());
  PROLOGUE_ASSIGN_OR_RETURN(cache_, KvCache::create(cache));
  scheduler_ =
      std::make_unique<Scheduler>(*cache_, runner_->rope_sets(), SchedulerLimits{o.max_step_tokens, o.max_seqs, max_drafts});
  if (o.speculation != Speculation::none) {
    const bool on_gpu = execution_.device == Device::cuda;
    std::shared_ptr<Proposer> proposer = o.proposer;
    if (o.speculation == Speculation::prompt_lookup) proposer = std::make_shared<PromptLookup>();
    if (draft_model_ != nullptr) {
      const std::vector<int64_t>& pages = runner.pages_of_group;
      PROLOGUE_RETURN_IF_ERROR(draft_model_->start(*std::max_element(pages.begin(), pages.end())));
      proposer = draft_model_;
    }
    drafts_ = std::unique_ptr<Drafts>(
        new Drafts{Speculator(proposer, max_drafts, o.all_drafts, on_gpu ? kRowCostOnGpu : kRowCostOnCpu), {}, {}, {}, {}, {}});
  }
  return {};
}

Status Engine::load_draft_model() {
  const EngineOptions& o = options_;
  DraftModelOptions draft;
  draft.path = o.draft_model_path;
  draft.dtype = model().dtype;
  draft.keep_quantized = *o.keep_quantized;
  draft.page_size = o.page_size;
  draft.context_length = o.context_length > 0 ? o.context_length : config().context_length;
  draft.max_seqs = std::min(o.max_seqs, kMaxDraftedSeqs);
  draft.vocab_size = config().vocab_size;
  draft.max_step_tokens = o.max_step_tokens;
  draft.capture = o.cuda_graphs;
  PROLOGUE_ASSIGN_OR_RETURN(draft_model_, DraftModel::load(draft, *tokenizer_, execution_));
  return {};
}

// Kernels and libraries are loaded at their first use, which takes 100 ms and more: not in the first request.
Status Engine::warm_up() {
  Request request;
  request.prompt.assign(static_cast<size_t>(std::min<int64_t>(32, context_length_ - 1)), 0);
  if (request.prompt.empty()) return {};
  request.max_tokens = 4;
  request.ignore_eos = true;
  PROLOGUE_ASSIGN_OR_RETURN(const std::vector<Completion> completions, generate({&request, 1}));
  PROLOGUE_RETURN_IF_ERROR(completions.front().status);
  counts_ = {};
  return {};
}

ModelRunner::Profile Engine::take_profile() {
  const StepLock lock(*this);
  return runner_->take_profile();
}

Status Engine::check_integrity() {
  PROLOGUE_RETURN_IF_ERROR(check_process());
  const StepLock lock(*this);
  return cache_->check_integrity();
}

Status Engine::check_request(const Request& request) const {
  const auto length = static_cast<int64_t>(request.prompt.size());
  if (length == 0) return invalid_argument("the prompt is empty: it must have at least one token");
  const auto check_token = [&](const char* what, int32_t token) -> Status {
    if (token >= 0 && token < config().vocab_size) return {};
    return invalid_argument(what, " has token id ", token, ": the vocabulary has ids 0 to ", config().vocab_size - 1);
  };
  for (const int32_t token : request.prompt) PROLOGUE_RETURN_IF_ERROR(check_token("the prompt", token));
  if (static_cast<int64_t>(request.prediction.size()) > context_length_) {
    return invalid_argument("the prediction has ", request.prediction.size(), " tokens: the context has only ", context_length_);
  }
  for (const int32_t token : request.prediction) PROLOGUE_RETURN_IF_ERROR(check_token("the prediction", token));
  if (request.max_tokens < 1) return invalid_argument("max-tokens is ", request.max_tokens, ": it must be at least 1");
  if (request.num_samples < 1 || request.num_samples > kMaxSamples) {
    return invalid_argument("the number of samples is ", request.num_samples, ": it must be between 1 and ", kMaxSamples);
  }
  if (request.num_logprobs < -1 || request.num_logprobs > kMaxTopLogprobs) {
    return invalid_argument("the number of log probabilities is ", request.num_logprobs, ": it must be between 0 and ",
                            kMaxTopLogprobs, ", or -1 for none");
  }
  if (length >= context_length_) {
    return invalid_argument("the prompt has ", length, " tokens: ",
                            context_length_ == config().context_length ? "the model's context is " : "the context was set to ",
                            context_length_, ", and at least one token must be left to generate");
  }
  const SamplingOptions& sampling = request.sampling;
  if (!(sampling.temperature >= 0.0f) || !std::isfinite(sampling.temperature)) {
    return invalid_argument("the temperature is ", sampling.temperature, ": it must be 0 (greedy) or positive");
  }
  if (sampling.top_k < 0) return invalid_argument("top-k is ", sampling.top_k, ": it must be 0 (off) or positive");
  if (!(sampling.top_p > 0.0f && sampling.top_p <= 1.0f)) {
    return invalid_argument("top-p is ", sampling.top_p, ": it must be above 0 and at most 1 (off)");
  }
  if (!(sampling.min_p >= 0.0f && sampling.min_p <= 1.0f)) {
    return invalid_argument("min-p is ", sampling.min_p, ": it must be between 0 (off) and 1");
  }
  if (!(sampling.repetition_penalty > 0.0f) || !std::isfinite(sampling.repetition_penalty)) {
    return invalid_argument("the repetition penalty is ", sampling.repetition_penalty, ": it must be positive; 1 = off");
  }
  if (!std::isfinite(sampling.presence_penalty) || !std::isfinite(sampling.frequency_penalty)) {
    return invalid_argument("a presence or frequency penalty is not a finite number");
  }
  for (const auto& [token, bias] : sampling.logit_bias) {
    PROLOGUE_RETURN_IF_ERROR(check_token("the logit bias", token));
    if (std::isnan(bias) || bias == INFINITY)
      return invalid_argument("the logit bias of token ", token, " is ", bias, ": it must be finite or -inf");
  }
  for (const std::string& stop : request.stop) {
    if (stop.empty()) return invalid_argument("a stop text is empty: it would end every generation at once");
  }
  return {};
}

// Where a sequence of up to `length` tokens is on the ropes.
Result<RopePositions> Engine::rope_positions_of(const std::vector<int32_t>& positions, int64_t num_prompt, int64_t length,
                                                int64_t rope_length) const {
  if (rope_length < 0 || rope_length > context_length_) {
    return invalid_argument("the rope length is ", rope_length, ": it must be between 0 (prompt and generated tokens) and ",
                            context_length_, ", the context");
  }
  const int64_t num_axes = model().num_position_axes;
  const auto num_given = static_cast<int64_t>(positions.size());
  if (num_given != 0 && num_given != num_axes * num_prompt) {
    return invalid_argument("there are ", num_given, " positions: there must be one on each of ", num_axes, " axes for each of ",
                            num_prompt, " tokens of the prompt, or none");
  }
  RopePositions rope_positions;
  rope_positions.num_prompt = num_prompt;
  rope_positions.positions = positions;
  int64_t end = num_prompt;
  if (num_given > 0) {
    const auto [least, most] = std::minmax_element(positions.begin(), positions.end());
    if (*least < 0 || *most >= context_length_) {
      return invalid_argument("a position is ", *least < 0 ? *least : *most, ": it must be between 0 and ", context_length_ - 1,
                              ", the last one of the context");
    }
    end = int64_t{*most} + 1;
    rope_positions.steady_from = num_prompt + 1;
  }
  rope_positions.delta = end - num_prompt;
  rope_positions.length = std::min(length, context_length_ + 1 - rope_positions.delta);
  rope_positions.num_positions = std::max(end, rope_positions.length - 1 + rope_positions.delta);
  rope_positions.length_class = rope_length_class(model(), rope_length > 0 ? rope_length : length);
  if (rope_positions.length_class == 0 && num_given == 0) return rope_positions;
  rope_positions.key = static_cast<uint64_t>(rope_positions.length_class) + 1;
  for (const int32_t position : positions) mix(rope_positions.key, static_cast<uint64_t>(position));
  return rope_positions;
}

Result<std::shared_ptr<Engine::Active>> Engine::make_active(Request request, OutputCallback on_output) const {
  if (request.prompt.empty() && !request.text.empty()) {
    PROLOGUE_ASSIGN_OR_RETURN(request.prompt, tokenizer_->encode(request.text, true, tokenizer_->add_bos()));
  }
  PROLOGUE_RETURN_IF_ERROR(check_request(request));
  if (request.group == nullptr) request.group = std::make_shared<RequestGroup>();
  std::vector<int32_t>& stop_tokens = request.stop_tokens;  // every token is looked up
  std::sort(stop_tokens.begin(), stop_tokens.end());
  stop_tokens.erase(std::unique(stop_tokens.begin(), stop_tokens.end()), stop_tokens.end());
  if (options_.speculation != Speculation::prompt_lookup && options_.speculation != Speculation::custom)
    request.prediction.clear();
  auto active = std::make_shared<Active>();
  active->request = std::move(request);
  active->on_output = std::move(on_output);
  active->submitted = EngineClock::now();
  const auto length = static_cast<int64_t>(active->request.prompt.size());
  const int64_t max_length = length + std::min(active->request.max_tokens, context_length_ - length);
  PROLOGUE_ASSIGN_OR_RETURN(active->rope,
                            rope_positions_of(active->request.positions, length, max_length, active->request.rope_length));
  if (!active->request.cache_salt.empty()) {
    for (const char byte : active->request.cache_salt)
      mix(active->rope.key, static_cast<uint64_t>(static_cast<unsigned char>(byte)));
  }
  for (int64_t i = 0; i < active->request.num_samples; ++i) {
    auto sample = std::make_unique<Sample>(*active, i, *tokenizer_, active->request.stop);
    sample->group = active->request.group.get();
    sample->num_prompt = length;
    sample->max_length = active->rope.length;
    sample->cache_key = active->rope.key;
    sample->rope_length = active->rope.length_class;
    sample->num_positions = active->rope.num_positions;
    sample->steady_from = active->rope.steady_from;
    sample->completion.prompt_tokens = length;
    active->samples.push_back(std::move(sample));
  }
  active->samples[0]->tokens = active->request.prompt;
  for (size_t i = 1; i < active->samples.size(); ++i) active->samples[0]->siblings.push_back(active->samples[i].get());
  return active;
}

Result<RequestId> Engine::submit(Request request, OutputCallback on_output) {
  return submit(std::move(request), std::move(on_output), options_.max_queue);
}

Result<RequestId> Engine::submit(Request request, OutputCallback on_output, int64_t max_queue) {
  return catch_out_of_memory([&]() -> Result<RequestId> {
    auto made = make_active(std::move(request), std::move(on_output));
    const std::lock_guard lock(inbox_);
    const Status refused = !made.ok()   ? made.status()
                           : shut_down_ ? unsupported("the engine is shut down: it takes no more requests")
                           : num_queued_ >= max_queue
                               ? resource_exhausted("the queue is full: ", num_queued_, " requests wait, and ", max_queue, " may")
                               : Status();
    if (!refused.ok()) {
      ++num_refused_;
      return refused;
    }
    (*made)->id = next_id_;
    submitted_.push_back(std::move(*made));
    ++num_queued_;
    wake_.notify_all();
    return next_id_++;
  });
}

void Engine::cancel(RequestId request) {
  const std::lock_guard lock(inbox_);
  (void)catch_out_of_memory([&]() -> Status {
    cancelled_.push_back(request);
    return {};
  });
  wake_.notify_all();
}

void Engine::shutdown() {
  const std::lock_guard lock(inbox_);
  shut_down_ = true;
  wake_.notify_all();
}

EngineStats Engine::stats() const {
  const std::lock_guard lock(inbox_);
  EngineStats stats = stats_;
  stats.refused = num_refused_;
  return stats;
}

Result<bool> Engine::step() {
  PROLOGUE_RETURN_IF_ERROR(check_process());
  const StepLock lock(*this);
  return catch_out_of_memory([&] { return run_step(); });
}

// Called between two steps of one thread, since a mutex knows no order.
void Engine::let_others_step() const {
  while (num_step_waiters_ > 0) std::this_thread::sleep_for(std::chrono::microseconds(50));
}

Status Engine::run() {
  for (;;) {
    PROLOGUE_ASSIGN_OR_RETURN(const bool worked, step());
    let_others_step();
    std::unique_lock lock(inbox_);
    if (shut_down_) break;
    if (!worked) wake_.wait(lock, [&] { return shut_down_ || !submitted_.empty() || !cancelled_.empty(); });
  }
  {
    const StepLock lock(*this);
    take_inbox();
    while (!active_.empty()) finish_request(*active_.begin()->second, FinishReason::cancelled, {});
  }
  PROLOGUE_RETURN_IF_ERROR(step().status());  // what was enqueued is read
  return {};
}

// Takes requests out without telling their callbacks.
void Engine::forget(std::span<const RequestId> requests) {
  const StepLock lock(*this);
  take_inbox();
  for (const RequestId id : requests) {
    const auto found = active_.find(id);
    if (found == active_.end()) continue;
    found->second->on_output = nullptr;
    finish_request(*found->second, FinishReason::cancelled, {});
  }
  update_stats();
}

Result<std::vector<Completion>> Engine::generate(std::span<const Request> requests, const GenerationEvents& events) {
  PROLOGUE_RETURN_IF_ERROR(check_process());
  const auto samples_of = [](const Request& request) {
    return static_cast<size_t>(std::clamp<int64_t>(request.num_samples, 1, kMaxSamples));
  };
  // What the callbacks use lives until forget() below.
  std::vector<RequestId> ids;
  std::mutex mutex;  // another thread may run the steps, and with them the callbacks
  std::vector<Completion> completions;
  std::vector<int64_t> prefilled, prompt_tokens;  // of each request
  size_t num_left = 0;
  double announced = 0.0;
  const auto announce = [&] {
    if (!events.on_prefill || announced >= 1.0) return;
    const int64_t done = std::accumulate(prefilled.begin(), prefilled.end(), int64_t{0});
    const int64_t all = std::accumulate(prompt_tokens.begin(), prompt_tokens.end(), int64_t{0});
    const double fraction = static_cast<double>(done) / static_cast<double>(std::max<int64_t>(all, 1));
    if (fraction > announced) events.on_prefill(announced = fraction);
  };
  const auto run = [&]() -> Status {
    ids.reserve(requests.size());
    prefilled.resize(requests.size());
    prompt_tokens.reserve(requests.size());
    for (const Request& request : requests) {
      completions.resize(completions.size() + samples_of(request));
      // A text has not many more tokens than bytes; how many is known when it is read.
      prompt_tokens.push_back(static_cast<int64_t>(request.prompt.empty() ? request.text.size() : request.prompt.size()));
    }
    for (Completion& completion : completions) {  // until what became of it is copied here
      completion.status = Status::out_of_memory();
      completion.finish_reason = FinishReason::error;
    }
    for (size_t i = 0, first = 0; i < requests.size(); first += samples_of(requests[i]), ++i) {
      const auto on_output = [&, i, first](const Output& output) {
        const std::lock_guard lock(mutex);
        const size_t index = first + static_cast<size_t>(output.sample);
        prefilled[i] = std::max(prefilled[i], output.prefilled);
        prompt_tokens[i] = output.prompt_tokens;
        announce();
        if (!output.text.empty() && events.on_text) events.on_text(index, output.text);
        if (output.completion == nullptr) return;
        --num_left;
        Completion copy = *output.completion;  // may throw; then what it replaces stays whole
        completions[index] = std::move(copy);
      };
      {
        const std::lock_guard lock(mutex);
        num_left += samples_of(requests[i]);
      }
      const auto id = submit(requests[i], on_output, INT64_MAX);
      if (id.ok()) {
        ids.push_back(*id);
        continue;
      }
      const std::lock_guard lock(mutex);
      num_left -= samples_of(requests[i]);
      prompt_tokens[i] = 0;
      for (size_t s = first; s < first + samples_of(requests[i]); ++s) completions[s].status = id.status();
    }
    const auto done = [&] {
      const std::lock_guard lock(mutex);
      return num_left == 0;
    };
    for (bool cancelled = false; !done();) {
      if (!cancelled && events.should_stop) {
        PROLOGUE_RETURN_IF_ERROR(call_back("should_stop", [&] { cancelled = events.should_stop(); }));
        if (cancelled) {
          for (const RequestId id : ids) cancel(id);
        }
      }
      PROLOGUE_ASSIGN_OR_RETURN(const bool worked, step());
      if (!worked) break;  // a callback that threw has ended its request without a word
    }
    return {};
  };
  const Status status = catch_out_of_memory(run);
  forget(ids);  // nothing is left of them, unless the call failed
  PROLOGUE_RETURN_IF_ERROR(status);
  return completions;
}

}  // namespace prologue
