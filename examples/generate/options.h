// Reads the command line of `generate`.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <prologue/engine/engine.h>

#include "examples/common/chat_template_options.h"
#include "io.h"

namespace generate {

struct Options {
  prologue::EngineOptions engine;
  prologue::Request request;  // what every prompt gets, without its tokens
  prologue::SamplingDefaults
      chosen_sampling;         // what of request.sampling the command line names; for the rest the model's files may have values
  bool names_context = false;  // --context was given
  std::vector<std::string> prompts;
  bool chat = false;                  // without prompts: interactive
  std::optional<std::string> system;  // of a chat; none: the model's own system prompt, if it has one
  examples::ChatTemplateOptions chat_template;
  bool json = false;
  bool quiet = false;
  bool profile = false;
  std::string print_graph;  // "", "table", "full" or "dot"
  std::string score_file;
};

// Returns the options, or the exit code of the program: 0 after --help (which goes to `out`), 1 if a file cannot be read, 2 for wrong
// usage. The error message has then been printed.
struct ParsedOptions {
  std::optional<Options> options;
  int exit_code = 0;
};
ParsedOptions parse_options(int argc, char** argv, StandardOutput& out);

}  // namespace generate
