#include "known_fields.h"

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include <prologue/engine/base/printable.h>

#include "errors.h"
#include "examples/common/closest.h"

namespace serve {

using nlohmann::json;
using namespace prologue;

namespace {

// What the parser of api_request.cpp reads.
constexpr std::string_view kRead[] = {
    "best_of",
    "cache_salt",
    "frequency_penalty",
    "ignore_eos",
    "logit_bias",
    "logprobs",
    "max_tokens",
    "min_p",
    "modalities",
    "model",
    "n",
    "presence_penalty",
    "repetition_penalty",
    "response_format",
    "seed",
    "stop",
    "stop_token_ids",
    "stream",
    "stream_options",
    "temperature",
    "top_k",
    "top_p",
};
constexpr std::string_view kReadInCompletions[] = {"echo", "prompt"};
constexpr std::string_view kReadInChats[] = {"max_completion_tokens", "messages", "top_logprobs"};

// Fields of other servers and of the OpenAI API that change no token and no shape of the answer here, whatever their value: names and
// bookkeeping of the caller, hints about speed, and parameters of fields that are refused.
constexpr std::string_view kHarmless[] = {
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "request_id",
    "rid",
    "priority",
    "keep_alive",
    "cache_prompt",
    "id_slot",
    "slot_id",
    "parallel_tool_calls",
    "stream_reasoning",
    "vllm_xargs",
    "guided_decoding_backend",
    "guided_whitespace_pattern",
    "mirostat_tau",
    "mirostat_eta",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "dry_sequence_breakers",
    "xtc_threshold",
    "dynatemp_exponent",
    "smoothing_curve",
    "num_thread",
    "speculative.n_max",
    "speculative.n_min",
    "speculative.p_min",
};

constexpr const char* kConstrained = "answers cannot be constrained";
constexpr const char* kSampler = "this sampler is not there";
constexpr const char* kSearch = "there is no search, only sampling";
constexpr const char* kTemplate = "the chat format is the model's own";
constexpr const char* kTools = "there are no tools";
constexpr const char* kText = "prompts and answers are text";
constexpr const char* kThinking = "how much a model thinks cannot be chosen";
constexpr const char* kShape = "the answer has no such part";
constexpr const char* kTokens = "tokens are neither banned nor held back, except by 'logit_bias' and 'stop_token_ids'";
constexpr const char* kMaxTokens = "the limit is 'max_tokens'";
constexpr const char* kCut = "a prompt that is too long is refused, not cut";
constexpr const char* kAdapter = "there are no adapters";
constexpr const char* kOtherApi = "this is a field of another API";

// Fields that change the answer, of vLLM, SGLang, llama.cpp, TGI, Ollama, text-generation-webui and the OpenAI API. `neutral` is a list of
// the values with which they change nothing here.
struct Refused {
  std::string_view name;
  const char* neutral;
  const char* reason;
};
constexpr Refused kRefused[] = {
    {"suffix", R"([""])", "text is generated behind a prompt, not before another text"},
    {"tools", "[[]]", kTools},
    {"tool_choice", R"(["none", "auto"])", kTools},
    {"functions", "[[]]", kTools},
    {"function_call", R"(["none", "auto"])", kTools},
    {"parse_tool_calls", "[false]", kTools},
    {"documents", "[[]]", kTools},
    {"web_search_options", "[]", kTools},
    {"audio", "[]", kText},
    {"images", "[[]]", kText},
    {"image_data", "[[]]", kText},
    {"mm_processor_kwargs", "[{}]", kText},
    {"prompt_embeds", "[]", kText},
    {"prediction", "[]", "answers are not predicted"},
    {"verbosity", R"(["medium"])", "how long an answer is cannot be chosen, except by 'max_tokens'"},

    {"reasoning_effort", "[]", kThinking},
    {"reasoning", "[{}]", kThinking},
    {"enable_thinking", "[]", kThinking},
    {"thinking", "[]", kThinking},
    {"think", "[]", kThinking},
    {"thinking_budget", "[]", kThinking},
    {"thinking_token_budget", "[]", kThinking},
    {"thinking_forced_open", "[false]", kThinking},
    {"include_reasoning", "[true]", "thoughts are part of the text"},
    {"separate_reasoning", "[false]", "thoughts are part of the text"},
    {"reasoning_format", R"(["none"])", "thoughts are part of the text"},

    {"grammar", R"([""])", kConstrained},
    {"grammar_lazy", "[false]", kConstrained},
    {"grammar_triggers", "[[]]", kConstrained},
    {"json_schema", "[{}]", kConstrained},
    {"regex", R"([""])", kConstrained},
    {"ebnf", R"([""])", kConstrained},
    {"structural_tag", "[]", kConstrained},
    {"structured_outputs", "[{}]", kConstrained},
    {"guided_json", "[]", kConstrained},
    {"guided_regex", R"([""])", kConstrained},
    {"guided_choice", "[[]]", kConstrained},
    {"guided_grammar", R"([""])", kConstrained},
    {"guided_json_object", "[false]", kConstrained},
    {"format", R"([""])", kConstrained},

    {"chat_template", "[]", kTemplate},
    {"chat_template_kwargs", "[{}]", kTemplate},
    {"continue_final_message", "[false]", kTemplate},
    {"add_generation_prompt", "[true]", kTemplate},
    {"template", R"([""])", kTemplate},
    {"system", R"([""])", kOtherApi},
    {"raw", "[]", kOtherApi},
    {"options", "[{}]", kOtherApi},
    {"parameters", "[{}]", kOtherApi},
    {"inputs", "[]", kOtherApi},
    {"input", "[]", kOtherApi},
    {"instructions", R"([""])", kOtherApi},
    {"input_ids", "[]", kOtherApi},
    {"sampling_params", "[{}]", kOtherApi},
    {"context", "[[]]", kOtherApi},

    {"allowed_token_ids", "[]", kTokens},
    {"bad_words", "[[]]", kTokens},
    {"bad_words_ids", "[[]]", kTokens},
    {"banned_tokens", "[[]]", kTokens},
    {"custom_token_bans", R"([""])", kTokens},
    {"banned_strings", "[[]]", kTokens},
    {"ban_eos_token", "[false]", kTokens},
    {"min_tokens", "[0]", kTokens},
    {"min_length", "[0]", kTokens},
    {"logits_processors", "[[]]", kTokens},
    {"logit_processors", "[[]]", kTokens},
    {"custom_logit_processor", R"([""])", kTokens},
    {"custom_params", "[{}]", kTokens},
    {"sequence_bias", "[{}, []]", kTokens},
    {"stop_regex", "[[]]", "the ends of a text are those of 'stop'"},
    {"stop_strings", "[[]]", "the ends of a text are those of 'stop'"},
    {"stop_sequences", "[[]]", "the ends of a text are those of 'stop'"},
    {"include_stop_str_in_output", "[false]", "the text that ends an answer is not part of it"},
    {"no_stop_trim", "[false]", "the text that ends an answer is not part of it"},

    {"max_new_tokens", "[]", kMaxTokens},
    {"max_length", "[]", kMaxTokens},
    {"n_predict", "[]", kMaxTokens},
    {"num_predict", "[]", kMaxTokens},
    {"t_max_predict_ms", "[0, -1]", kMaxTokens},
    {"truncate_prompt_tokens", "[]", kCut},
    {"truncation_side", R"(["right", "left"])", kCut},
    {"truncate", "[]", kCut},
    {"truncation_length", "[]", kCut},
    {"n_keep", "[0, -1]", kCut},
    {"n_discard", "[0]", kCut},
    {"num_ctx", "[]", "the context is the server's (--context)"},
    {"n_ctx", "[]", "the context is the server's (--context)"},

    {"typical_p", "[1, 0]", kSampler},
    {"typical", "[1, 0]", kSampler},
    {"mirostat", "[0]", kSampler},
    {"mirostat_mode", "[0]", kSampler},
    {"dry_multiplier", "[0]", kSampler},
    {"xtc_probability", "[0]", kSampler},
    {"dynatemp_range", "[0]", kSampler},
    {"dynamic_temperature", "[false]", kSampler},
    {"top_n_sigma", "[0, -1]", kSampler},
    {"nsigma", "[0, -1]", kSampler},
    {"adaptive_target", "[-1]", kSampler},
    {"tfs", "[1, 0]", kSampler},
    {"tfs_z", "[1, 0]", kSampler},
    {"top_a", "[0]", kSampler},
    {"epsilon_cutoff", "[0]", kSampler},
    {"eta_cutoff", "[0]", kSampler},
    {"smoothing_factor", "[0]", kSampler},
    {"no_repeat_ngram_size", "[0]", kSampler},
    {"encoder_repetition_penalty", "[1]", kSampler},
    {"samplers", "[]", "the order of samplers cannot be chosen"},
    {"sampler_priority", "[[]]", "the order of samplers cannot be chosen"},
    {"temperature_last", "[false]", "the order of samplers cannot be chosen"},
    {"min_keep", "[0, 1]", kSampler},
    {"min_temp", "[]", kSampler},
    {"repeat_penalty", "[1]", "its name here is 'repetition_penalty'"},
    {"rep_pen", "[1]", "its name here is 'repetition_penalty'"},
    {"repeat_last_n", "[-1]", "penalties are for the whole text"},
    {"repetition_penalty_range", "[-1]", "penalties are for the whole text"},
    {"penalize_nl", "[true]", "penalties are for all tokens"},
    {"guidance_scale", "[1]", kSampler},
    {"negative_prompt", R"([""])", kSampler},
    {"watermark", "[false]", kSampler},
    {"do_sample", "[true]", "a temperature of 0 takes the most likely token"},

    {"use_beam_search", "[false]", kSearch},
    {"num_beams", "[1]", kSearch},
    {"length_penalty", "[1]", kSearch},
    {"early_stopping", "[false]", kSearch},
    {"penalty_alpha", "[0]", kSearch},

    {"prompt_logprobs", "[]", "the log probabilities of a prompt come with 'echo' and 'logprobs'"},
    {"logprob_start_len", "[-1]", kShape},
    {"return_logprob", "[false]", "log probabilities come with 'logprobs'"},
    {"top_logprobs_num", "[0]", "log probabilities come with 'logprobs'"},
    {"n_probs", "[0]", "log probabilities come with 'logprobs'"},
    {"top_n_tokens", "[0]", "log probabilities come with 'logprobs'"},
    {"token_ids_logprob", "[[]]", "log probabilities come with 'logprobs'"},
    {"logprob_token_ids", "[[]]", "log probabilities come with 'logprobs'"},
    {"post_sampling_probs", "[false]", "log probabilities are those of the model"},
    {"return_tokens_as_token_ids", "[false]", kShape},
    {"return_token_ids", "[false]", kShape},
    {"return_tokens", "[false]", kShape},
    {"return_hidden_states", "[false]", kShape},
    {"return_routed_experts", "[false]", kShape},
    {"return_progress", "[false]", kShape},
    {"return_full_text", "[false]", "the prompt comes with 'echo'"},
    {"decoder_input_details", "[false]", kShape},
    {"details", "[false]", kShape},
    {"timings_per_token", "[false]", kShape},
    {"response_fields", "[[]]", kShape},
    {"skip_special_tokens", "[true]", "special tokens print nothing"},
    {"spaces_between_special_tokens", "[true]", "special tokens print nothing"},
    {"n_indent", "[0]", kShape},
    {"input_extra", "[[]]", kOtherApi},
    {"input_prefix", R"([""])", kOtherApi},
    {"input_suffix", R"([""])", kOtherApi},

    {"lora", "[[]]", kAdapter},
    {"lora_path", "[]", kAdapter},
    {"adapter_id", "[]", kAdapter},
    {"adapters", "[[]]", kAdapter},
    {"session_params", "[{}]", "there are no sessions"},
    {"kv_transfer_params", "[{}]", "the KV cache is not transferred"},
    {"repetition_detection", "[]", kSampler},
};

// With another meaning in completions and in chats.
constexpr Refused kRefusedInCompletions[] = {
    {"add_special_tokens", "[true]", "prompts get the tokens that the model's tokenizer adds"},
};
constexpr Refused kRefusedInChats[] = {
    {"add_special_tokens", "[false]", "the chat format has all special tokens"},
    {"echo", "[false]", "an answer is not preceded by the messages"},
};

bool contains(const auto& list, std::string_view name) {
  return std::find(std::begin(list), std::end(list), name) != std::end(list);
}

const Refused* find(const auto& list, std::string_view name) {
  const auto found = std::find_if(std::begin(list), std::end(list), [&](const Refused& each) { return each.name == name; });
  return found == std::end(list) ? nullptr : &*found;
}

std::vector<std::string_view> names_that_are_read(bool chat) {
  std::vector<std::string_view> names(std::begin(kRead), std::end(kRead));
  if (chat) {
    names.insert(names.end(), std::begin(kReadInChats), std::end(kReadInChats));
  } else {
    names.insert(names.end(), std::begin(kReadInCompletions), std::end(kReadInCompletions));
  }
  return names;
}

}  // namespace

void UnknownFields::meet(const std::string& name, const std::string& hint) {
  const std::string what = str_cat("the field ", in_quotes(name), " is not known", hint);
  if (strict_)
    throw ApiError{400, str_cat(what, ": this server ignores no field (--strict)"), name.substr(0, kMost), "unknown_field"};
  const std::lock_guard lock(mutex_);
  if (named_.size() < kMost && named_.insert(name.substr(0, kMost)).second) {
    std::cerr << str_cat("serve: ", what, ": it is ignored, and not named again\n");
  }
}

void check_other_fields(const json& body, bool chat, UnknownFields& unknown) {
  const std::vector<std::string_view> read = names_that_are_read(chat);
  for (const auto& [name, value] : body.items()) {
    if (value.is_null() || contains(read, name) || contains(kHarmless, name)) continue;
    const Refused* refused = find(kRefused, name);
    if (refused == nullptr) refused = chat ? find(kRefusedInChats, name) : find(kRefusedInCompletions, name);
    if (refused == nullptr) {
      unknown.meet(name, examples::did_you_mean(name, read));
    } else if (const json neutral = json::parse(refused->neutral);
               std::find(neutral.begin(), neutral.end(), value) == neutral.end()) {
      throw ApiError{400, str_cat("'", name, "' is not supported: ", refused->reason), name, "unsupported_value"};
    }
  }
}

}  // namespace serve
