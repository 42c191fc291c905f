// The engine: it loads a model file and generates text. examples/generate shows how to use it.
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
  std::optional<Device> device;  // none: a usable GPU if there is one, else the CPU
  std::optional<DType> dtype;    // none: float32 on the CPU, bfloat16 on CUDA
  std::optional<DType> kv_type;  // of the KV cache; none: same as dtype. Quantised types have computed scales (KvFormat)
  std::optional<DType> v_type;   // of V in the KV cache; none: same as K
  int64_t hadamard_block = 0;    // of the Hadamard transform of Q and K, with which a quantised K loses less; 0 = none
  int64_t page_size = 16;
  int64_t cache_tokens = 0;  // limit for all requests of a call together; 0 = as many as they need
  int32_t num_threads = 0;   // CPU; 0 = all cores
  bool fused = true;         // run the fused graph
  Rounding rounding =
      Rounding::once;  // of the fused graph: with per_step it matches the unfused graph bit for bit in 16-bit types too
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
  int64_t max_tokens = 128;  // generated tokens; the model's context or EngineOptions::cache_tokens may end generation earlier
  SamplingOptions sampling;
  std::vector<std::string> stop;     // generation stops at the first of these texts, which is not returned
  std::vector<int32_t> stop_tokens;  // generation stops at these tokens, as at EOS (a chat format's end of turn)
  bool ignore_eos = false;
};

enum class StopReason {
  eos,         // an end-of-text token, or one of Request::stop_tokens
  stop,        // the text reached one of Request::stop
  max_tokens,  // Request::max_tokens tokens were generated
  context,     // Engine::context_length() was reached
  cancelled,   // GenerationEvents::should_stop returned true; the tokens generated before are kept
};
const char* stop_reason_name(StopReason reason);  // the enumerator's name

struct Completion {
  Status status;                // of this request only
  std::vector<int32_t> tokens;  // without EOS
  std::string text;             // valid UTF-8; without the stop text
  StopReason stop = StopReason::cancelled;
  int64_t prefill_tokens = 0;
  double prefill_seconds = 0.0;  // from the start of the call to the first token
  int64_t decode_tokens = 0;     // tokens after the first, EOS included
  double decode_seconds = 0.0;   // does not include time in which other prompts are prefilled
};

// Callbacks while requests run; each may be empty. `request` is the index of the request. They are called between steps, on the
// thread that called the engine.
struct GenerationEvents {
  std::function<void(size_t request, std::string_view text)> on_text;  // whole characters
  std::function<void(double fraction)> on_prefill;  // of all prompt tokens; called before the text generated after them
  std::function<bool()> should_stop;  // called before each step: true ends all running requests (StopReason::cancelled)
};

// Given tokens and the probability that the model assigns to each; one entry per token.
struct Score {
  std::vector<int32_t> argmax;
  std::vector<float> logit_of_argmax;
  std::vector<float> logit_of_token;
  std::vector<double> logprob_of_token;
  double perplexity = 0.0;  // exp of minus the mean log probability
};

// Threads: several threads may call one engine; its calls to generate, score and take_profile then run one after another. A callback
// may call the engine again from the same thread.
//
// Fork: a forked child may use an engine on the CPU if no thread of the parent was using it at the time of the fork. On the GPU,
// generate and score return unsupported in the child, because CUDA cannot be used after a fork. Load the model after the fork, or start
// the child with exec.
//
// Memory: if there is not enough, the error is resource_exhausted. If the system cannot create threads, the calling thread does all
// the work.
class Engine {
 public:
  static Result<std::unique_ptr<Engine>> load(const EngineOptions& options);

  const ModelConfig& config() const { return model_.config; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  Device device() const { return execution_.device; }
  DType dtype() const { return model_.dtype; }
  DType k_type() const { return options_.kv_type.value_or(model_.dtype); }  // of the KV cache
  DType v_type() const { return options_.v_type.value_or(k_type()); }
  double load_seconds() const { return load_seconds_; }
  // The most tokens that one sequence can have, prompt and generated together: the context length of the model, or
  // EngineOptions::cache_tokens if that is smaller.
  int64_t context_length() const;
  // The graph that runs: the fused one, unless EngineOptions::fused is false.
  Result<Graph> graph() const;

  // Runs all requests as one batch, prompts first. Returns one completion per request, in the same order. If a request fails, the
  // status of its completion is the error, and the completion keeps what was generated before it. The call itself fails only if there
  // is no memory for the completions, or in a forked process (see above).
  Result<std::vector<Completion>> generate(std::span<const Request> requests, const GenerationEvents& events = {});

  // Log probabilities of `tokens` after `prompt`.
  Result<Score> score(std::span<const int32_t> prompt, std::span<const int32_t> tokens);

  // Times of the graph's nodes since the last call, for prompt steps and for decoding steps. Empty without EngineOptions::profile.
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
  int64_t process_ = 0;          // the process that loaded the engine
  std::recursive_mutex in_use_;  // held by the thread whose call runs; its callbacks may lock it again
  Profile profile_;
};

}  // namespace prologue
