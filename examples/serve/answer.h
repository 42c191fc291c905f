// This file writes the bodies of answers, in the shapes of the OpenAI API: whole ones, and the chunks of a stream.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <prologue/engine/engine.h>

#include "api_request.h"

namespace serve {

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t draft_tokens = 0;     // that were verified,
  int64_t accepted_tokens = 0;  // and of these accepted
};

// A choice is one sample of one prompt: choice p * n + s is sample s of prompt p.
class Answer {
 public:
  // `request` and `model` must outlive the answer.
  Answer(const ApiRequest& request, const ApiModel& model);

  std::string whole(std::span<const prologue::Completion> choices, const Usage& usage) const;

  // ---- The chunks of a stream, in this order ----
  std::string first_chunk(size_t choice);  // the role in a chat, the prompt's text if it is echoed, else nothing
  std::string chunk(size_t choice, std::string_view text, std::span<const int32_t> tokens,
                    std::span<const prologue::TokenLogprobs> logprobs);
  std::string last_chunk(size_t choice, prologue::FinishReason reason) const;
  std::string usage_chunk(const Usage& usage) const;  // if ApiRequest::include_usage

 private:
  const ApiRequest& request_;
  const ApiModel& model_;
  const std::string id_;
  const int64_t created_;
  std::vector<int64_t> num_characters_;  // of each choice so far
};

}  // namespace serve
