// Writes a line on stderr for each request, except for /health and /metrics as long as they answer 200: programs request these every few
// seconds. It has no text of a client or of the model.
#pragma once

#include <string>

#include "http.h"

namespace serve {

// Returns "2026-11-28T06:25:00Z POST /v1/chat/completions 200 12 + 34 tokens, 532 ms\n".
std::string log_line(const HttpExchange& exchange);

// Never waits: where nobody reads stderr, lines are left out, and the next one that is written says how many. One thread.
class RequestLog {
 public:
  void write(const HttpExchange& exchange);

 private:
  int num_left_out_ = 0;
};

}  // namespace serve
