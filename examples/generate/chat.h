// Runs the interactive chat.
#pragma once

#include <prologue/engine/engine.h>
#include <prologue/engine/tokenizer/chat.h>

#include "io.h"
#include "options.h"

namespace generate {

// Reads messages from standard input and writes answers to `out`, until the end of input or /exit. Everything else goes to stderr. The
// prompt of each answer is the conversation so far. Returns the exit code.
int run_chat(prologue::Engine& engine, const prologue::ChatFormat& format, const Options& options, StandardOutput& out);

}  // namespace generate
