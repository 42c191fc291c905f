// The flags of the model and of the engine, which generate and serve share.
#pragma once

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

}  // namespace examples
