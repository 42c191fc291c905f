// The flags of the model and of the engine, which generate and serve share.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <prologue/engine/engine.h>

#include "flags.h"

namespace examples {

class EngineFlags {
 public:
  // Adds the flags, in the help's group "Execution" (--model: in "Input"). `flags`, `options` and this object must outlive the parse.
  // `context_note` ends the help of --context.
  EngineFlags(Flags& flags, prologue::EngineOptions& options, const std::string& context_note = "");
  EngineFlags(const EngineFlags&) = delete;
  EngineFlags& operator=(const EngineFlags&) = delete;

  bool has_context() const { return context_->count() > 0; }  // --context was given

  // After the parse: fills in the options whose flags are words. Returns the message about a wrong one; empty: none.
  std::string apply();

 private:
  prologue::EngineOptions& options_;
  CLI::Option* context_ = nullptr;
  std::string device_ = "auto";
  std::string dtype_ = "auto";
  std::string kv_cache_dtype_ = "auto";
  std::string rounding_ = "once";
  std::string prefix_cache_ = "on";
  bool unfused_ = false;
  bool unfused_projections_ = false;
  bool no_cuda_graphs_ = false;
  bool no_overlap_ = false;
};

// What a user should know about a loaded engine, one line each: what is unusual about the model's files, and what became of the context if
// fewer tokens than `asked_context` are possible (0: nobody asked).
std::vector<std::string> notes_about(const prologue::Engine& engine, int64_t asked_context);

}  // namespace examples
