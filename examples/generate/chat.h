// The interactive chat.
#pragma once

#include <prologue/engine/engine.h>
#include <prologue/engine/tokenizer/chat.h>

#include "io.h"
#include "options.h"

namespace generate {

// Messages from standard input, answers to `out`, until the end of input or /exit; everything else goes to stderr. Each answer sees the
// conversation so far. Returns the exit code.
int run_chat(prologue::Engine& engine, const prologue::ChatFormat& format, const Options& options, Output& out);

}  // namespace generate
