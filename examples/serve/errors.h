// Errors as the OpenAI API has them: {"error": {"message", "type", "param", "code"}}.
#pragma once

#include <string>

#include <prologue/kernels/base/status.h>

namespace serve {

// Thrown by the functions that read a request.
struct ApiError {
  int status = 400;  // of HTTP
  std::string message;
  std::string param = {};  // the field that is wrong; empty: null
  std::string code = {};   // empty: null
};

std::string error_body(const ApiError& error);

// The error of a request whose submission or generation failed.
ApiError error_of(const prologue::Status& status);
ApiError shutting_down();

}  // namespace serve
