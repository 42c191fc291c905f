#include "answer.h"

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>
#include <random>

#include <prologue/engine/base/utf8.h>

namespace serve {

using nlohmann::ordered_json;
using namespace prologue;

namespace {

std::string new_id(const char* prefix) {
  std::random_device device;
  char digits[33];
  std::snprintf(digits, sizeof digits, "%08x%08x%08x", device(), device(), device());
  return std::string(prefix) + digits;
}

std::string dump(const ordered_json& object) { return object.dump(-1, ' ', false, ordered_json::error_handler_t::replace); }

const char* finish_text(FinishReason reason) {
  return reason == FinishReason::length || reason == FinishReason::context ? "length" : "stop";
}

// Returns what a token prints. A control token prints nothing, so this is its name; of a part of a character, these are the bytes.
std::string token_text(const Tokenizer& tokenizer, int32_t token) {
  const std::string_view bytes = tokenizer.printed_bytes(token);
  if (bytes.empty()) return std::string(tokenizer.token_text(token));
  if (is_valid_utf8(bytes)) return std::string(bytes);
  std::string text = "bytes:";
  for (const char byte : bytes) {
    char escape[8];
    std::snprintf(escape, sizeof escape, "\\x%02x", static_cast<unsigned>(static_cast<unsigned char>(byte)));
    text += escape;
  }
  return text;
}

ordered_json chat_token(const Tokenizer& tokenizer, int32_t token, float logprob) {
  ordered_json bytes = ordered_json::array();
  for (const char byte : tokenizer.printed_bytes(token)) bytes.push_back(static_cast<unsigned char>(byte));
  return {{"token", token_text(tokenizer, token)}, {"logprob", logprob}, {"bytes", bytes}};
}

ordered_json chat_logprobs(const Tokenizer& tokenizer, std::span<const int32_t> tokens, std::span<const TokenLogprobs> logprobs) {
  ordered_json content = ordered_json::array();
  for (size_t i = 0; i < std::min(tokens.size(), logprobs.size()); ++i) {
    ordered_json entry = chat_token(tokenizer, tokens[i], logprobs[i].logprob);
    entry["top_logprobs"] = ordered_json::array();
    for (const auto& [token, logprob] : logprobs[i].top) entry["top_logprobs"].push_back(chat_token(tokenizer, token, logprob));
    content.push_back(std::move(entry));
  }
  return {{"content", content}, {"refusal", nullptr}};
}

int64_t count_characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char byte) { return (byte & 0xc0) != 0x80; });  // first bytes
}

ordered_json no_logprobs() {
  return {{"text_offset", ordered_json::array()},
          {"token_logprobs", ordered_json::array()},
          {"tokens", ordered_json::array()},
          {"top_logprobs", ordered_json::array()}};
}

// Writes them in the shape of /v1/completions. Null: those of a text's first token, which nothing is before. `num_characters`: of the text
// before the token; grows by its own.
void add_completion_logprobs(ordered_json& result, const Tokenizer& tokenizer, int32_t token, const TokenLogprobs* logprobs,
                             int64_t& num_characters) {
  ordered_json top;
  if (logprobs != nullptr) top = ordered_json::object();
  for (const auto& [id, logprob] : logprobs == nullptr ? decltype(logprobs->top)() : logprobs->top) {
    std::string text = token_text(tokenizer, id);
    if (!top.contains(text)) top[std::move(text)] = logprob;  // the most likely of tokens that look alike
  }
  result["text_offset"].push_back(std::max<int64_t>(num_characters, 0));
  result["token_logprobs"].push_back(logprobs == nullptr ? ordered_json() : ordered_json(logprobs->logprob));
  result["tokens"].push_back(token_text(tokenizer, token));
  result["top_logprobs"].push_back(std::move(top));
  num_characters += count_characters(tokenizer.printed_bytes(token));
}

void add_completion_logprobs(ordered_json& result, const Tokenizer& tokenizer, std::span<const int32_t> tokens,
                             std::span<const TokenLogprobs> logprobs, int64_t& num_characters) {
  for (size_t i = 0; i < std::min(tokens.size(), logprobs.size()); ++i) {
    add_completion_logprobs(result, tokenizer, tokens[i], &logprobs[i], num_characters);
  }
}

// Adds the log probabilities of a prompt that is echoed. Afterwards num_characters are those of the echo.
void add_prompt_logprobs(ordered_json& result, const Tokenizer& tokenizer, const ApiRequest& request, size_t prompt,
                         int64_t& num_characters) {
  const std::vector<int32_t>& tokens = request.prompts[prompt];
  const std::vector<TokenLogprobs>& logprobs = request.prompt_logprobs[prompt];
  int64_t printed = 0;
  for (const int32_t token : tokens) printed += count_characters(tokenizer.printed_bytes(token));
  // Some tokenizers add a space at the beginning of a text.
  num_characters = std::min<int64_t>(0, count_characters(request.echo_texts[prompt]) - printed);
  add_completion_logprobs(result, tokenizer, tokens.front(), nullptr, num_characters);
  add_completion_logprobs(result, tokenizer, std::span(tokens).subspan(1), logprobs, num_characters);
}

ordered_json usage_object(const Usage& usage) {
  ordered_json object = {{"prompt_tokens", usage.prompt_tokens},
                         {"completion_tokens", usage.completion_tokens},
                         {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
                         {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}}};
  if (usage.draft_tokens > 0) {
    object["completion_tokens_details"] = {{"accepted_prediction_tokens", usage.accepted_tokens},
                                           {"rejected_prediction_tokens", usage.draft_tokens - usage.accepted_tokens}};
  }
  return object;
}

// Returns one chunk of a stream, as an event.
std::string event(const ApiRequest& request, const ApiModel& model, const std::string& id, int64_t created, ordered_json choices,
                  ordered_json usage = nullptr) {
  ordered_json object = {{"id", id},
                         {"object", request.chat ? "chat.completion.chunk" : "text_completion"},
                         {"created", created},
                         {"model", model.name},
                         {"choices", std::move(choices)}};
  if (request.include_usage) object["usage"] = std::move(usage);
  return "data: " + dump(object) + "\n\n";
}

ordered_json choice_object(const ApiRequest& request, size_t index, std::string_view text) {
  ordered_json choice = {{"index", index}};
  if (request.chat) {
    choice["delta"] = text.empty() ? ordered_json::object() : ordered_json{{"content", text}};
  } else {
    choice["text"] = text;
  }
  choice["logprobs"] = nullptr;
  choice["finish_reason"] = nullptr;
  return choice;
}

}  // namespace

Answer::Answer(const ApiRequest& request, const ApiModel& model)
    : request_(request),
      model_(model),
      id_(new_id(request.chat ? "chatcmpl-" : "cmpl-")),
      created_(std::time(nullptr)),
      num_characters_(request.num_choices()) {}

std::string Answer::whole(std::span<const Completion> choices, const Usage& usage) const {
  const Tokenizer& tokenizer = model_.engine->tokenizer();
  ordered_json list = ordered_json::array();
  for (size_t i = 0; i < choices.size(); ++i) {
    const Completion& completion = choices[i];
    ordered_json choice = {{"index", i}};
    if (request_.chat) {
      choice["message"] = {{"role", "assistant"}, {"content", completion.text}, {"refusal", nullptr}};
    } else {
      choice["text"] = (request_.echo ? request_.echo_texts[i / request_.num_samples()] : "") + completion.text;
    }
    ordered_json logprobs;
    if (request_.has_logprobs() && request_.chat) {
      logprobs = chat_logprobs(tokenizer, completion.tokens, completion.logprobs);
    } else if (request_.has_logprobs()) {
      int64_t num_characters = 0;
      logprobs = no_logprobs();
      if (request_.echo) add_prompt_logprobs(logprobs, tokenizer, request_, i / request_.num_samples(), num_characters);
      add_completion_logprobs(logprobs, tokenizer, completion.tokens, completion.logprobs, num_characters);
    }
    choice["logprobs"] = std::move(logprobs);
    choice["finish_reason"] = finish_text(completion.finish_reason);
    list.push_back(std::move(choice));
  }
  return dump({{"id", id_},
               {"object", request_.chat ? "chat.completion" : "text_completion"},
               {"created", created_},
               {"model", model_.name},
               {"choices", std::move(list)},
               {"usage", usage_object(usage)}});
}

std::string Answer::first_chunk(size_t choice) {
  if (!request_.chat && !request_.echo) return {};
  ordered_json object = choice_object(request_, choice, {});
  if (request_.chat) object["delta"] = {{"role", "assistant"}, {"content", ""}};
  if (request_.echo) {
    const size_t prompt = choice / request_.num_samples();
    object["text"] = request_.echo_texts[prompt];
    if (request_.has_logprobs()) {
      object["logprobs"] = no_logprobs();
      add_prompt_logprobs(object["logprobs"], model_.engine->tokenizer(), request_, prompt, num_characters_[choice]);
    }
  }
  return event(request_, model_, id_, created_, ordered_json::array({std::move(object)}));
}

std::string Answer::chunk(size_t choice, std::string_view text, std::span<const int32_t> tokens,
                          std::span<const TokenLogprobs> logprobs) {
  const Tokenizer& tokenizer = model_.engine->tokenizer();
  ordered_json object = choice_object(request_, choice, text);
  if (request_.has_logprobs() && request_.chat) {
    object["logprobs"] = chat_logprobs(tokenizer, tokens, logprobs);
  } else if (request_.has_logprobs()) {
    object["logprobs"] = no_logprobs();
    add_completion_logprobs(object["logprobs"], tokenizer, tokens, logprobs, num_characters_[choice]);
  }
  return event(request_, model_, id_, created_, ordered_json::array({std::move(object)}));
}

std::string Answer::last_chunk(size_t choice, FinishReason reason) const {
  ordered_json object = choice_object(request_, choice, {});
  object["finish_reason"] = finish_text(reason);
  return event(request_, model_, id_, created_, ordered_json::array({std::move(object)}));
}

std::string Answer::usage_chunk(const Usage& usage) const {
  return event(request_, model_, id_, created_, ordered_json::array(), usage_object(usage));
}

}  // namespace serve
