// Reads the command line of `serve`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <prologue/engine/engine.h>

#include "examples/common/chat_template_options.h"

#include "api.h"
#include "http.h"

namespace serve {

struct Options {
  prologue::EngineOptions engine;
  examples::ChatTemplateOptions chat_template;
  HttpOptions http;
  std::string host = "127.0.0.1";
  int port = 8080;
  std::string model_name;  // as clients call it; by default the name of the file without .gguf
  int64_t timeout_seconds = 600;
  bool quiet = false;  // no log of requests, nothing about loading
  ApiRules rules;
};

// Returns the options, or the exit code of the program: 0 after --help, 2 for wrong usage. The message has then been printed.
struct ParsedOptions {
  std::optional<Options> options;
  int exit_code = 0;
};
ParsedOptions parse_options(int argc, char** argv);

// Prints "serve: MESSAGE" on stderr, on one line. Returns 1, the exit code of a failure.
int fail(std::string_view message);

}  // namespace serve
