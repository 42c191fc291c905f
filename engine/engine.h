// The engine: a model file in, text out. examples/generate is its use on one page.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <prologue/engine/model/model.h>
#include <prologue/engine/model_runner.h>
#include <prologue/engine/tokenizer/tokenizer.h>
#include <prologue/kernels/base/gpu.h>

namespace prologue {

struct EngineOptions {
  std::string model_path;
  std::optional<Device> device;   // none: the GPU where there is one that works, else the CPU
  std::optional<DType> dtype;     // none: float32 on the CPU, bfloat16 on CUDA
  std::optional<KvType> kv_type;  // of the KV cache; none: as dtype. Quantised ones have a scale for each token and head
  int64_t page_size = 16;
  int64_t cache_tokens = 0;            // of all requests of a call together, at most; 0 = what they need
  int32_t num_threads = 0;             // CPU; 0 = all cores
  bool fused = true;                   // run the fused graph
  Rounding rounding = Rounding::once;  // of the fused graph: per_step gives the bits of the unfused one in 16-bit types too
  bool profile = false;
  std::function<void(double fraction)> on_load;
};

struct SamplingOptions {
  float temperature = 0.0f;  // 0 = greedy
  int32_t top_k = 0;         // 0 = off
  float top_p = 1.0f;        // 1 = off
  float min_p = 0.0f;        // 0 = off
  uint64_t seed = 0;
};

struct Request {
  std::vector<int32_t> prompt;
  int64_t max_tokens = 128;  // generated; the model's context and EngineOptions::cache_tokens may end it before
  SamplingOptions sampling;
  std::vector<std::string> stop;     // generation ends before the first of these in the text
  std::vector<int32_t> stop_tokens;  // end the generation like EOS (a chat format's end of turn)
  bool ignore_eos = false;
};

enum class StopReason {
  eos,         // an end-of-text token, or one of Request::stop_tokens
  stop,        // one of Request::stop is in the text
  max_tokens,  // Request::max_tokens were generated
  context,     // Engine::context_length() is reached
  cancelled,   // GenerationEvents::should_stop said so; the tokens up to then are there
};
const char* stop_reason_name(StopReason reason);  // as it is written here

struct Completion {
  Status status;                // of this request; the others are not concerned
  std::vector<int32_t> tokens;  // without EOS
  std::string text;             // valid UTF-8; without the stop text
  StopReason stop = StopReason::cancelled;
  int64_t prefill_tokens = 0;
  double prefill_seconds = 0.0;  // from the start of the call to the first token
  int64_t decode_tokens = 0;     // tokens (EOS included) after the first
  double decode_seconds = 0.0;   // without the time in which other prompts are still prefilled
};

// What happens while requests run; each may be empty. Indices are those of the requests. The thread of the call runs them, between
// steps.
struct GenerationEvents {
  std::function<void(size_t request, std::string_view text)> on_text;  // whole characters
  std::function<void(double fraction)> on_prefill;                     // of all prompt tokens; before the text that follows them
  std::function<bool()> should_stop;  // asked before each step: true ends all requests that still run (StopReason::cancelled)
};

// Forced tokens and what the model thinks of them, one entry per token.
struct Score {
  std::vector<int32_t> argmax;
  std::vector<float> logit_of_argmax;
  std::vector<float> logit_of_token;
  std::vector<double> logprob_of_token;
  double perplexity = 0.0;  // exp of minus the mean log probability
};

// Threads: one engine may be called from several; generate, score and take_profile then run one after another. From the callbacks of a
// call, the same thread may call the engine again.
//
// Fork: a forked child may use an engine on the CPU if no thread of the parent used it at the time of the fork. On the GPU generate and
// score return unsupported there: a GPU does not survive a fork. Load after the fork, or start the child by exec.
//
// Memory: where there is too little of it, the error is resource_exhausted. Where the system grants no threads, the caller's does all.
class Engine {
 public:
  static Result<std::unique_ptr<Engine>> load(const EngineOptions& options);

  const ModelConfig& config() const { return model_.config; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  Device device() const { return execution_.device; }
  DType dtype() const { return model_.dtype; }
  KvType kv_type() const { return resolve_kv_type(options_.kv_type.value_or(KvType::as_dtype), model_.dtype); }
  double load_seconds() const { return load_seconds_; }
  // Tokens of one sequence at most, prompt and generated ones: what the model was made for, or EngineOptions::cache_tokens if fewer.
  int64_t context_length() const;
  // The graph that runs: fused, unless the options say otherwise.
  Result<Graph> graph() const;

  // Runs all requests as one batch, prompts first. One completion per request, in order: what went wrong with a request, or cut it
  // short, is the status of its completion, beside what it had generated until then. An error of the whole call is one that left no
  // memory for the completions, or that of a forked process.
  Result<std::vector<Completion>> generate(std::span<const Request> requests, const GenerationEvents& events = {});

  // Log probabilities of `tokens` after `prompt`.
  Result<Score> score(std::span<const int32_t> prompt, std::span<const int32_t> tokens);

  // Node times of the prompt steps and of the decoding steps since the last call; empty without EngineOptions::profile.
  struct Profile {
    std::vector<NodeProfile> prefill;
    std::vector<NodeProfile> decode;
  };
  Profile take_profile();

 private:
  Engine() = default;
  Status check_process() const;
  static Result<std::unique_ptr<Engine>> make(const EngineOptions& options);
  Status run_requests(std::span<const Request> requests, const GenerationEvents& events, std::vector<Completion>& completions);
  Result<Score> run_score(std::span<const int32_t> prompt, std::span<const int32_t> tokens);
  Status check_request(const Request& request) const;
  // For `max_seqs` sequences of up to `max_seq_len` tokens each, over a cache of `cache_tokens`.
  Result<std::unique_ptr<ModelRunner>> make_runner(int64_t cache_tokens, int64_t max_seq_len, int64_t max_seqs,
                                                   int64_t max_logit_rows) const;

  EngineOptions options_;
  Stream stream_;
  Execution execution_;
  Model model_;
  std::unique_ptr<Tokenizer> tokenizer_;
  double load_seconds_ = 0.0;
  int64_t process_ = 0;  // that loaded it
  std::recursive_mutex in_use_;  // by one thread; what its callbacks ask for is part of its call
  Profile profile_;
};

}  // namespace prologue
