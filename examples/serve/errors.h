// Errors have the form of the OpenAI API: {"error": {"message", "type", "param", "code"}}.
#pragma once

#include <string>

#include <prologue/kernels/base/status.h>

namespace serve {

// The functions that read a request throw this.
struct ApiError {
  int status = 400;  // of HTTP
  std::string message;
  std::string param = {};  // the field that is wrong; empty: null
  std::string code = {};   // empty: null
};

std::string error_body(const ApiError& error);

// Returns the error of a request whose submission or generation failed.
ApiError error_of(const prologue::Status& status);
ApiError shutting_down();

}  // namespace serve
