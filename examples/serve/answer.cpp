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

// What a token prints. A control token prints nothing, so this is its name; of a part of a character, these are the bytes.
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

// The shape of /v1/completions. `num_characters`: of the text before the tokens; grows by theirs.
ordered_json completion_logprobs(const Tokenizer& tokenizer, std::span<const int32_t> tokens,
                                 std::span<const TokenLogprobs> logprobs, int64_t& num_characters) {
  ordered_json result = {{"text_offset", ordered_json::array()},
                         {"token_logprobs", ordered_json::array()},
                         {"tokens", ordered_json::array()},
                         {"top_logprobs", ordered_json::array()}};
  for (size_t i = 0; i < std::min(tokens.size(), logprobs.size()); ++i) {
    ordered_json top = ordered_json::object();
    for (const auto& [token, logprob] : logprobs[i].top) {
      std::string text = token_text(tokenizer, token);
      if (!top.contains(text)) top[std::move(text)] = logprob;  // the most likely of tokens that look alike
    }
    result["text_offset"].push_back(num_characters);
    result["token_logprobs"].push_back(logprobs[i].logprob);
    result["tokens"].push_back(token_text(tokenizer, tokens[i]));
    result["top_logprobs"].push_back(std::move(top));
    for (const char byte : tokenizer.printed_bytes(tokens[i])) num_characters += (byte & 0xc0) != 0x80;  // first bytes
  }
  return result;
}

ordered_json usage_object(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}}};
}

// One chunk of a stream, as an event.
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
      num_characters_(request.prompts.size() * static_cast<size_t>(request.prompts.front().num_samples)) {}

std::string Answer::whole(std::span<const Completion> choices, const Usage& usage) const {
  const Tokenizer& tokenizer = model_.engine->tokenizer();
  ordered_json list = ordered_json::array();
  for (size_t i = 0; i < choices.size(); ++i) {
    const Completion& completion = choices[i];
    ordered_json choice = {{"index", i}};
    if (request_.chat) {
      choice["message"] = {{"role", "assistant"}, {"content", completion.text}, {"refusal", nullptr}};
    } else {
      choice["text"] = completion.text;
    }
    int64_t num_characters = 0;
    choice["logprobs"] = !has_logprobs() ? ordered_json()
                         : request_.chat ? chat_logprobs(tokenizer, completion.tokens, completion.logprobs)
                                         : completion_logprobs(tokenizer, completion.tokens, completion.logprobs, num_characters);
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

std::string Answer::first_chunk(size_t choice) const {
  ordered_json object = choice_object(request_, choice, {});
  object["delta"] = {{"role", "assistant"}, {"content", ""}};
  return event(request_, model_, id_, created_, ordered_json::array({std::move(object)}));
}

std::string Answer::chunk(size_t choice, std::string_view text, std::span<const int32_t> tokens,
                          std::span<const TokenLogprobs> logprobs) {
  const Tokenizer& tokenizer = model_.engine->tokenizer();
  ordered_json object = choice_object(request_, choice, text);
  if (has_logprobs()) {
    object["logprobs"] = request_.chat ? chat_logprobs(tokenizer, tokens, logprobs)
                                       : completion_logprobs(tokenizer, tokens, logprobs, num_characters_[choice]);
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
