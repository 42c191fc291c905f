// The model families that can be loaded: each is one file beside this one, from the names in a model file to a layer graph.
#pragma once

#include <functional>
#include <span>
#include <string>

#include <prologue/engine/gguf/gguf.h>
#include <prologue/engine/model/model.h>
#include <prologue/engine/model/weight_loader.h>

namespace prologue {

struct Architecture {
  const char* name;  // general.architecture
  // Reads configuration and weights and writes the graph down. Keys and tensors that it leaves unread are refused afterwards.
  Result<Model> (*load)(WeightLoader& loader);
};

std::span<const Architecture> architectures();

// Picks the architecture, loads it, and refuses what nobody read: a tensor, or a key of the architecture, would change the result.
Result<Model> load_model(const GgufFile& file, DType dtype, const Execution& execution, std::function<void(double)> progress);

// engine/model/llama.cpp
Result<Model> load_llama(WeightLoader& loader);

}  // namespace prologue
