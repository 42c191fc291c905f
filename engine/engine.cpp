#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include <prologue/engine/engine.h>
#include <prologue/engine/gguf/tokenizer_data.h>
#include <prologue/engine/model/architectures.h>
#include <prologue/kernels/base/host/out_of_memory.h>
#include <prologue/layers/graph/fusion.h>

namespace prologue {

namespace {

constexpr int64_t kMaxStepTokens = 512;  // a longer prompt is prefilled in chunks of this size
constexpr int64_t kMaxScoreRows = 64;    // logit rows of a scoring step

}  // namespace

Status Engine::check_process() const {
  if (execution_.device == Device::cpu || getpid() == process_) return {};
  return unsupported("this process was forked from process ", process_,
                     ", which had loaded the engine: a GPU does not survive a fork; load the engine after the fork, or use exec");
}

Result<std::unique_ptr<Engine>> Engine::load(const EngineOptions& options) {
  return catch_out_of_memory([&] { return make(options); });
}

Result<std::unique_ptr<Engine>> Engine::make(const EngineOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  if (options.page_size < 1 || options.page_size > 1024) {
    return invalid_argument("the page size is ", options.page_size, ": it must be between 1 and 1024");
  }
  if (options.cache_tokens < 0)
    return invalid_argument("the KV cache size is ", options.cache_tokens, " tokens: it must be positive");
  if (options.num_threads < 0)
    return invalid_argument("the number of threads is ", options.num_threads, ": it must be at least 1");

  std::unique_ptr<Engine> engine(new Engine());
  engine->options_ = options;
  engine->process_ = getpid();
  Execution& execution = engine->execution_;
  execution.device = options.device.value_or(check_gpu().ok() ? Device::cuda : Device::cpu);
  execution.num_threads =
      options.num_threads > 0 ? options.num_threads : std::max(1, static_cast<int32_t>(std::thread::hardware_concurrency()));
  if (execution.device == Device::cuda) {
    PROLOGUE_ASSIGN_OR_RETURN(engine->stream_, Stream::create());
    execution.stream = engine->stream_.get();
  }
  const DType dtype = options.dtype.value_or(execution.device == Device::cuda ? DType::bf16 : DType::f32);

  PROLOGUE_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::open(options.model_path));
  PROLOGUE_ASSIGN_OR_RETURN(engine->model_, load_model(file, dtype, execution, options.on_load, {options.hadamard_block}));
  PROLOGUE_ASSIGN_OR_RETURN(TokenizerData data, read_tokenizer_data(file));
  auto tokenizer = Tokenizer::create(std::move(data));
  if (!tokenizer.ok()) return error_status(tokenizer.status().code(), file.path(), ": ", tokenizer.status().message());
  engine->tokenizer_ = std::make_unique<Tokenizer>(std::move(tokenizer).value());
  if (engine->tokenizer_->vocab_size() > engine->config().vocab_size) {
    return data_loss(file.path(), ": the tokenizer has ", engine->tokenizer_->vocab_size(), " tokens, but the embedding only ",
                     engine->config().vocab_size, " rows");
  }
  PROLOGUE_RETURN_IF_ERROR(synchronize(execution));
  engine->load_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return engine;
}

int64_t Engine::context_length() const {
  return options_.cache_tokens > 0 ? std::min(options_.cache_tokens, config().context_length) : config().context_length;
}

Result<Graph> Engine::graph() const {
  if (options_.fused) return fuse_attention_prologue(model_.graph, options_.rounding);
  return catch_out_of_memory([&]() -> Result<Graph> { return model_.graph; });
}

Engine::Profile Engine::take_profile() {
  const std::lock_guard lock(in_use_);
  return std::exchange(profile_, {});
}

Result<std::unique_ptr<ModelRunner>> Engine::make_runner(int64_t cache_tokens, int64_t max_seq_len, int64_t max_seqs,
                                                         int64_t max_logit_rows) const {
  RunnerConfig config;
  config.k_type = k_type();
  config.v_type = v_type();
  config.page_size = options_.page_size;
  config.cache_tokens = cache_tokens;
  config.max_seq_len = max_seq_len;
  config.max_tokens = std::max(std::min(kMaxStepTokens, cache_tokens), max_seqs);
  config.max_seqs = max_seqs;
  config.max_logit_rows = max_logit_rows;
  config.fused = options_.fused;
  config.rounding = options_.rounding;
  config.profile = options_.profile;
  return ModelRunner::create(model_, config, execution_);
}

Status Engine::check_request(const Request& request) const {
  const int64_t length = static_cast<int64_t>(request.prompt.size());
  if (length == 0) return invalid_argument("the prompt is empty: it must have at least one token");
  for (const int32_t token : request.prompt) {
    if (token < 0 || token >= config().vocab_size) {
      return invalid_argument("the prompt has token id ", token, ": the vocabulary has ids 0 to ", config().vocab_size - 1);
    }
  }
  if (request.max_tokens < 1) return invalid_argument("max-tokens is ", request.max_tokens, ": it must be at least 1");
  if (length >= config().context_length) {
    return invalid_argument("the prompt has ", length, " tokens: the model's context is ", config().context_length,
                            ", and at least one token must be left to generate");
  }
  if (options_.cache_tokens > 0 && length >= options_.cache_tokens) {
    return invalid_argument("the prompt has ", length, " tokens: the context was set to ", options_.cache_tokens,
                            ", and at least one token must be left to generate");
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
  for (const std::string& stop : request.stop) {
    if (stop.empty()) return invalid_argument("a stop text is empty: it would end every generation at once");
  }
  return {};
}

Result<Score> Engine::score(std::span<const int32_t> prompt, std::span<const int32_t> tokens) {
  PROLOGUE_RETURN_IF_ERROR(check_process());
  const std::lock_guard lock(in_use_);
  return catch_out_of_memory([&] { return run_score(prompt, tokens); });
}

Result<Score> Engine::run_score(std::span<const int32_t> prompt, std::span<const int32_t> tokens) {
  std::vector<int32_t> all(prompt.begin(), prompt.end());
  all.insert(all.end(), tokens.begin(), tokens.end());
  const int64_t num_prompt = static_cast<int64_t>(prompt.size());
  const int64_t length = static_cast<int64_t>(all.size());
  if (prompt.empty()) return invalid_argument("prompt_tokens is empty: the first token needs something before it");
  if (tokens.empty()) return invalid_argument("tokens is empty: there is nothing to score");
  if (length > config().context_length) {
    return invalid_argument("prompt_tokens and tokens have ", length, " tokens: the model's context is ",
                            config().context_length);
  }
  if (length > context_length()) {
    return invalid_argument("prompt_tokens and tokens have ", length, " tokens: the context was set to ", context_length());
  }
  for (const int32_t token : all) {
    if (token < 0 || token >= config().vocab_size) {
      return invalid_argument("token id ", token, " is not in the vocabulary: ids are 0 to ", config().vocab_size - 1);
    }
  }
  PROLOGUE_ASSIGN_OR_RETURN(const auto runner, make_runner(length, length, 1, kMaxScoreRows));
  PROLOGUE_ASSIGN_OR_RETURN(const SequenceId id, runner->cache().add_sequence());
  Score score;
  double sum = 0.0;
  StepBatch batch;
  std::vector<float> logits;
  const int64_t vocab = config().vocab_size;
  for (int64_t at = 0; at + 1 < length;) {
    // The logits of the last token are not needed. Of the prompt, only those of its last token are needed.
    const int64_t end = length - 1;
    const int64_t without_logits = std::max<int64_t>(0, num_prompt - 1 - at);
    const int64_t count =
        std::min(runner->limits().max_tokens, without_logits > 0 ? without_logits : std::min(kMaxScoreRows, end - at));
    const int64_t num_rows = without_logits > 0 ? 0 : count;
    PROLOGUE_RETURN_IF_ERROR(runner->cache().append(id, count));
    PROLOGUE_ASSIGN_OR_RETURN(const std::vector<int32_t>* const pages, runner->cache().pages(id));
    batch.clear();
    batch.add_sequence(all.data() + at, count, at, *pages, runner->cache().page_size(), num_rows);
    PROLOGUE_RETURN_IF_ERROR(runner->run(batch));
    PROLOGUE_RETURN_IF_ERROR(runner->read_logits(logits));
    for (int64_t r = 0; r < num_rows; ++r) {
      const float* row = logits.data() + r * vocab;
      const int32_t token = all[static_cast<size_t>(at + r + 1)];
      const auto best = static_cast<int32_t>(std::max_element(row, row + vocab) - row);  // if several are equal: the lowest id
      double mass = 0.0;
      for (int64_t i = 0; i < vocab; ++i) mass += std::exp(static_cast<double>(row[i]) - static_cast<double>(row[best]));
      const double logprob = static_cast<double>(row[token]) - static_cast<double>(row[best]) - std::log(mass);
      score.argmax.push_back(best);
      score.logit_of_argmax.push_back(row[best]);
      score.logit_of_token.push_back(row[token]);
      score.logprob_of_token.push_back(logprob);
      sum += logprob;
    }
    at += count;
  }
  score.perplexity = std::exp(-sum / static_cast<double>(tokens.size()));
  return score;
}

}  // namespace prologue
