// This file has the flags of the model and of the engine, which generate and serve have in common.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <prologue/engine/engine.h>

namespace CLI {
class Option;
}

namespace examples {

class Flags;

class EngineFlags {
 public:
  // Adds the flags, in the help's group "Execution" (--model: in "Input"). `flags`, `options` and this object must outlive the parse.
  // `context_note` ends the help of --context.
  EngineFlags(Flags& flags, prologue::EngineOptions& options, const std::string& context_note = "");
  EngineFlags(const EngineFlags&) = delete;
  EngineFlags& operator=(const EngineFlags&) = delete;

  bool has_context() const;  // --context was given

  // Called after the parse: fills in the options whose flags are words. Returns the message about a wrong one; empty: none.
  std::string apply();

 private:
  prologue::EngineOptions& options_;
  CLI::Option* context_ = nullptr;
  std::string device_ = "auto";
  std::string dtype_ = "auto";
  std::string kv_cache_dtype_ = "auto";
  std::string rounding_ = "once";
  std::string speculate_ = "off";
  std::string prefix_cache_ = "on";
  std::string activations_ = "auto";
  bool keep_quantized_ = false;
  bool unfused_ = false;
  bool unfused_projections_ = false;
  bool no_cuda_graphs_ = false;
  bool no_overlap_ = false;
};

// Returns "bfloat16, weights as q4_k and q6_k, 4.6 GB": the type of activations, how the weights are held, and their bytes. If activations of
// prompts are quantised, ", prompts with fp8 activations" follows.
std::string types_of(const prologue::Engine& engine);
// Returns "4.6 GB", "131 MB" or "0.2 MB".
std::string bytes_text(int64_t num_bytes);

// Returns what a user should know about a loaded engine, one line each: what is unusual about the model's files, and what became of the
// context if fewer tokens than `asked_context` are possible (0: the user gave none).
std::vector<std::string> notes_about(const prologue::Engine& engine, int64_t asked_context);

}  // namespace examples
