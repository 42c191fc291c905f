// The model architectures that can be loaded. Each has one source file in this folder, which builds a layer graph from a model file.
#pragma once

#include <functional>
#include <span>
#include <string>

#include <prologue/engine/gguf/gguf.h>
#include <prologue/engine/model/model.h>
#include <prologue/engine/model/weight_loader.h>

namespace prologue {

// What a caller chooses about a model.
struct ModelOptions {
  int64_t hadamard_block = 0;  // of Q and K; 0: no Hadamard transform
  bool keep_quantized = false;  // CPU only: matrices that are quantised in the file stay so; dtype is that of the activations
};

struct Architecture {
  const char* name;  // general.architecture
  // Reads the configuration and the weights, and builds the graph. load_model returns an error if keys or tensors are left unread.
  Result<Model> (*load)(WeightLoader& loader, const ModelOptions& options);
};

std::span<const Architecture> architectures();

// Selects the architecture and loads the model. A tensor, or a key of the architecture, that was not read is an error: ignoring it
// would change the result.
Result<Model> load_model(const GgufFile& file, DType dtype, const Execution& execution, std::function<void(double)> progress,
                         const ModelOptions& options = {});

// engine/model/llama.cpp
Result<Model> load_llama(WeightLoader& loader, const ModelOptions& options);

}  // namespace prologue
