#include "fields.h"

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <span>

#include <prologue/engine/base/printable.h>

#include "examples/common/closest.h"

#include "errors.h"

namespace serve {

using nlohmann::json;
using namespace prologue;

namespace {

struct Known {
  std::string_view name;          // of all names that begin so, if it ends with '*'
  const char* neutral = "[]";     // the values, as a JSON list, with which it changes nothing
  std::string_view instead = {};  // the field that does it here, where it is read
};

// These fields change the answer. They are those of the OpenAI API and of the servers vLLM, SGLang, llama.cpp, TGI and Ollama and their
// relatives. The first entry that fits counts.
constexpr Known kRefused[] = {
    // These say what is generated.
    {"tools", "[[]]"},
    {"tool_choice", R"(["none", "auto"])"},
    {"functions", "[[]]"},
    {"function_call", R"(["none", "auto"])"},
    {"response_format", R"([{"type": "text"}])"},
    {"modalities", R"([["text"]])"},
    {"audio"},
    {"moderation"},
    {"web_search_options"},
    {"plugins", "[[]]"},
    {"documents", "[[]]"},
    {"suffix", R"([""])"},
    {"verbosity", R"(["medium"])"},
    // These are about the prompt.
    {"prompt"},
    {"messages"},
    {"inputs"},
    {"input_ids"},
    {"prompt_embeds"},
    {"input_embeds"},
    {"image_data"},
    {"audio_data"},
    {"video_data"},
    {"images", "[[]]"},
    {"multi_modal_data"},
    {"multimodal_data"},
    {"mm_processor_kwargs", "[{}]"},
    {"media_io_kwargs", "[{}]"},
    {"system"},
    {"system_prompt", R"([""])"},
    {"context", "[[]]"},
    {"template", R"([""])"},
    {"raw", "[false]"},
    {"chat_template", R"([""])"},
    {"chat_template_kwargs", "[{}]"},
    {"continue_final_message", "[false]"},
    {"add_generation_prompt", "[true]"},
    {"add_special_tokens"},
    {"echo", "[false]"},
    {"return_full_text", "[false]", "echo"},
    {"truncate_prompt_tokens"},
    {"truncation_side"},
    {"truncate"},
    {"truncation_length"},
    {"safe_prompt", "[false]"},
    {"prompt_mode"},
    {"input_prefix", R"([""])"},
    {"input_suffix", R"([""])"},
    {"input_extra", "[[]]"},
    {"transforms", "[[]]"},
    {"tool_prompt"},
    {"decoder_input_details", "[false]"},
    {"chat_format"},
    {"guideline"},
    {"n_keep", "[0, -1]"},
    {"num_keep", "[0]"},
    {"n_discard", "[0]"},
    // These are about thinking.
    {"reasoning", "[{}]"},
    {"reasoning_effort", "[]", "chat_template_kwargs"},
    {"reasoning_budget", "[-1]"},
    {"reasoning_format", R"(["none"])"},
    {"include_reasoning", "[true]"},
    {"separate_reasoning", "[false]"},
    {"stream_reasoning", "[true]"},
    {"enable_thinking", "[]", "chat_template_kwargs"},
    {"think", "[]", "chat_template_kwargs"},
    {"thinking", "[]", "chat_template_kwargs"},
    {"thinking_*", "[-1, false]"},
    // These set a grammar or a schema that the output follows.
    {"grammar", R"([""])"},
    {"grammar_*", "[false, []]"},
    {"json_schema"},
    {"regex"},
    {"ebnf", R"([""])"},
    {"structural_tag"},
    {"format", R"([""])"},
    {"structured_outputs"},
    {"guided_*"},
    {"preserved_tokens", "[[]]"},
    {"parse_tool_calls", "[false]"},
    // These say how a token is chosen.
    {"use_beam_search", "[false]"},
    {"num_beams", "[1]"},
    {"length_penalty", "[1]"},
    {"early_stopping", "[false]"},
    {"do_sample", "[true]"},
    {"min_tokens", "[0]"},
    {"min_new_tokens", "[0]"},
    {"min_length", "[0]"},
    {"allowed_token_ids"},
    {"bad_words", "[[]]"},
    {"bad_words_ids", "[[]]"},
    {"banned_*", R"([[], ""])"},
    {"custom_token_bans", R"([""])"},
    {"ban_eos_token", "[false]", "ignore_eos"},
    {"sequence_bias", "[{}, []]", "logit_bias"},
    {"logits_processors", "[[]]"},
    {"logit_processors", "[[]]"},
    {"custom_logit_processor"},
    {"custom_params"},
    {"vllm_xargs", "[{}]"},
    {"repetition_detection"},
    {"no_repeat_ngram_size", "[0]"},
    {"encoder_repetition_penalty", "[1]"},
    {"penalty_alpha", "[0]"},
    {"repeat_last_n", "[-1]"},
    {"penalize_nl", "[false]"},
    {"penalize_newline", "[false]"},
    {"penalty_prompt"},
    {"repeat_penalty", "[1]", "repetition_penalty"},
    {"rep_pen", "[1]", "repetition_penalty"},
    {"repetition_penalty_range", "[-1]"},
    {"guidance_scale", "[1]"},
    {"negative_prompt", R"([""])"},
    {"typical_p", "[1]"},
    {"typical", "[1]"},
    {"tfs", "[1]"},
    {"tfs_z", "[1]"},
    {"top_a", "[0]"},
    {"epsilon_cutoff", "[0]"},
    {"eta_cutoff", "[0]"},
    {"top_n_sigma", "[-1, 0]"},
    {"nsigma", "[0]"},
    {"smoothing_*", "[0, 1]"},
    {"mirostat", "[0]"},
    {"mirostat_tau", "[5]"},
    {"mirostat_eta", "[0.1]"},
    {"mirostat_mode", "[0]"},
    {"mirostat_*"},
    {"dry_multiplier", "[0]"},
    {"dry_base", "[1.75]"},
    {"dry_allowed_length", "[2]"},
    {"dry_penalty_last_n", "[-1, 0]"},
    {"dry_sequence_breakers", R"([[], ["\n", ":", "\"", "*"]])"},
    {"dry_*"},
    {"xtc_probability", "[0]"},
    {"xtc_threshold", "[0.1]"},
    {"xtc_*"},
    {"dynatemp_range", "[0]"},
    {"dynatemp_exponent", "[1]"},
    {"dynatemp_*"},
    {"dynamic_temperature", "[false]"},
    {"temperature_last", "[false]"},
    {"adaptive_target", "[-1]"},
    {"adaptive_*"},
    {"samplers"},
    {"sampler_*", "[[]]"},
    {"min_keep", "[0]"},
    {"watermark", "[false]"},
    {"sampling_seed", "[]", "seed"},
    {"random_seed", "[]", "seed"},
    // Where it ends.
    {"max_completion_tokens", "[]", "max_tokens"},
    {"max_new_tokens", "[]", "max_tokens"},
    {"max_length", "[]", "max_tokens"},
    {"n_predict", "[]", "max_tokens"},
    {"num_predict", "[]", "max_tokens"},
    {"num_ctx"},
    {"n_ctx"},
    {"stop_sequences", "[[]]", "stop"},
    {"stop_strings", "[[]]", "stop"},
    {"stop_regex", "[[]]"},
    {"no_stop_trim", "[false]"},
    {"include_stop_str_in_output", "[false]"},
    {"n_indent", "[0]"},
    {"t_max_*", "[0, -1]"},
    {"max_time"},
    // These say what the answer contains.
    {"prompt_logprobs", "[]", "echo"},
    {"top_logprobs", "[0]", "logprobs"},
    {"n_probs", "[0]", "logprobs"},
    {"top_n_tokens", "[0]", "logprobs"},
    {"top_logprobs_num", "[0]", "logprobs"},
    {"logprob_*"},
    {"token_ids_logprob", "[[]]"},
    {"return_logprob", "[false]", "logprobs"},
    {"post_sampling_probs", "[false]"},
    {"return_tokens", "[false]"},
    {"return_token_ids", "[false]"},
    {"return_tokens_as_token_ids", "[false]"},
    {"return_hidden_states", "[false]"},
    {"return_routed_experts", "[false]"},
    {"details", "[false]"},
    {"skip_special_tokens", "[true]"},
    {"detokenize", "[true]"},
    {"response_fields", "[[]]"},
    {"logprobs_mode"},
    // These choose another model.
    {"lora", "[[]]"},
    {"lora_path"},
    {"adapter_id"},
    {"adapters", "[[]]"},
    {"models", "[[]]"},
    {"session_params"},
    {"kv_transfer_params"},
    {"ec_transfer_params"},
    {"bootstrap_*"},
    // These are all fields of a request of another API.
    {"parameters", "[{}]"},
    {"sampling_params", "[{}]"},
    {"options", "[{}]"},
    {"input"},
    {"instructions"},
    // These are fields of a message, and of stream_options.
    {"tool_calls", "[[]]"},
    {"tool_call_id"},
    {"prefix", "[false]"},
    {"continuous_usage_stats", "[false]"},
};

// These fields change nothing of the answer: accounts, caching, scheduling, diagnostics, and details of what the server does not do.
constexpr std::string_view kHarmless[] = {"annotations",
                                          "background",
                                          "cache_control",
                                          "cache_prompt",
                                          "data_parallel_rank",
                                          "extra_key",
                                          "id_slot",
                                          "include_obfuscation",
                                          "keep_alive",
                                          "log_metrics",
                                          "metadata",
                                          "n_cache_reuse",
                                          "num_thread",
                                          "parallel_tool_calls",
                                          "priority",
                                          "prompt_cache_key",
                                          "prompt_cache_retention",
                                          "provider",
                                          "refusal",
                                          "request_id",
                                          "return_progress",
                                          "rid",
                                          "route",
                                          "safety_identifier",
                                          "service_tier",
                                          "slot_id",
                                          "spaces_between_special_tokens",
                                          "speculative.n_max",
                                          "speculative.n_min",
                                          "speculative.p_min",
                                          "store",
                                          "timings_per_token",
                                          "trace_id",
                                          "user"};

bool fits(std::string_view name, std::string_view pattern) {
  if (pattern.back() == '*') return name.starts_with(pattern.substr(0, pattern.size() - 1));
  return name == pattern;
}

template <class Range>
bool contains(const Range& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Returns "0", "\"none\" and \"auto\"".
std::string listed(const json& values) {
  std::string text;
  for (size_t i = 0; i < values.size(); ++i) {
    text += str_cat(i == 0 ? "" : i + 1 == values.size() ? " and " : ", ", values[i].dump());
  }
  return text;
}

void refuse(const Known& known, const std::string& param, const json& value, FieldNames read) {
  const json neutral = json::parse(known.neutral);
  if (std::find(neutral.begin(), neutral.end(), value) != neutral.end()) return;
  std::string message = str_cat("'", param, "' is not supported");
  if (!neutral.empty()) message += ", except " + listed(neutral);
  if (contains(read, known.instead)) message += str_cat(": use '", known.instead, "'");
  throw ApiError{400, message, param, "unsupported_value"};
}

}  // namespace

void UnknownFields::found(const std::string& prefix, const std::string& name, FieldNames read) {
  constexpr size_t kMaxNamed = 64;  // strangers can think of many names
  const std::string shown = printable(name);
  if (strict_) {
    throw ApiError{400,
                   str_cat("'", prefix, shown, "' is not a field that the server knows", examples::did_you_mean(name, read),
                           ": it ignores none (--strict)"),
                   prefix + shown, "unknown_field"};
  }
  const std::lock_guard lock(mutex_);
  if (named_.size() >= kMaxNamed || !named_.insert(shown).second) return;
  std::cerr << str_cat("serve: the field '", shown, "' of requests is not known", examples::did_you_mean(name, read),
                       ": it is ignored, and not named again\n");
}

void check_names(const json& object, FieldNames read, const std::string& parent, UnknownFields& unknown) {
  constexpr size_t kMaxFields = 256;  // each is looked for in all lists
  if (object.size() > kMaxFields) {
    throw ApiError{
        400,
        str_cat(parent.empty() ? "the body" : parent, " has ", object.size(), " fields: at most ", kMaxFields, " are supported"),
        parent};
  }
  const std::string dotted = parent.empty() ? "" : parent + ".";
  for (const auto& [name, value] : object.items()) {
    if (value.is_null() || contains(read, name)) continue;
    const auto known = std::find_if(std::begin(kRefused), std::end(kRefused),
                                    [&field = name](const Known& each) { return fits(field, each.name); });
    if (known != std::end(kRefused)) {
      refuse(*known, dotted + name, value, read);
    } else if (!contains(std::span(kHarmless), name)) {
      unknown.found(dotted, name, read);
    }
  }
}

}  // namespace serve
