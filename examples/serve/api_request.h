// This file reads the bodies of /v1/completions and /v1/chat/completions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <prologue/engine/engine.h>
#include <prologue/engine/tokenizer/chat.h>

#include "errors.h"
#include "fields.h"

namespace serve {

struct ApiRequest {
  bool chat = false;
  prologue::Request common;                   // all but Request::prompt; max_tokens may be 0, with `echo`
  std::vector<std::vector<int32_t>> prompts;  // one, or those of a list
  bool echo = false;                          // the prompt's text, and its log probabilities, come before the generated text
  std::vector<std::string> echo_texts;        // of each prompt
  std::vector<std::vector<prologue::TokenLogprobs>>
      prompt_logprobs;  // of each prompt's tokens but the first; score_prompts() fills them in
  bool stream = false;
  bool include_usage = false;  // in a last chunk of the stream

  size_t num_samples() const { return static_cast<size_t>(common.num_samples); }  // of each prompt
  size_t num_choices() const { return prompts.size() * num_samples(); }
  bool has_logprobs() const { return common.num_logprobs >= 0; }
};

// Holds what a request is read against.
struct ApiModel {
  std::string name;  // as clients call it
  const prologue::Engine* engine = nullptr;
  prologue::Result<prologue::ChatFormat> chat;
  bool private_prefixes = false;  // requests without a salt use nothing of others
  UnknownFields* unknown = nullptr;
};

// Reads a body. Throws ApiError: it is not JSON, a field has the wrong type or is out of range, or needs something that the server cannot
// do. `ApiModel::unknown` is told about fields that it does not know.
ApiRequest read_completion_request(const std::string& body, const ApiModel& model);
ApiRequest read_chat_request(const std::string& body, const ApiModel& model);

}  // namespace serve
