// The bodies of /v1/completions and /v1/chat/completions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <prologue/engine/engine.h>
#include <prologue/engine/tokenizer/chat.h>

#include "errors.h"

namespace serve {

struct ApiRequest {
  bool chat = false;
  std::vector<prologue::Request> prompts;  // one, or those of a list; they differ only in Request::prompt
  bool stream = false;
  bool include_usage = false;  // in a last chunk of the stream
};

// What a request is read against.
struct ApiModel {
  std::string name;  // as clients call it
  const prologue::Engine* engine = nullptr;
  prologue::Result<prologue::ChatFormat> chat;
};

// Reads a body. Throws ApiError: it is not JSON, a field has the wrong type or is out of range, or asks for something that the server
// cannot do. Fields that it does not know are ignored, as OpenAI-compatible servers do.
ApiRequest read_completion_request(const std::string& body, const ApiModel& model);
ApiRequest read_chat_request(const std::string& body, const ApiModel& model);

}  // namespace serve
