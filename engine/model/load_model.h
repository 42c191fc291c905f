// Loads the model of a checkpoint: its family's reader (engine/model/families) makes a specification, and build_model the graph over the
// loaded weights.
#pragma once

#include <atomic>
#include <functional>
#include <string>

#include <prologue/engine/checkpoint/checkpoint.h>
#include <prologue/engine/model/model.h>
#include <prologue/engine/model/model_spec.h>
#include <prologue/engine/model/shard.h>
#include <prologue/engine/model/weight_loader.h>

namespace prologue {

// Holds what a caller chooses about a model.
struct ModelOptions {
  int64_t hadamard_block = 0;    // of Q and K; 0: no Hadamard transform
  int64_t v_hadamard_block = 0;  // of V, and of attention's output; 0: none
  bool keep_quantized = false;   // quantised matrices stay so; dtype is that of the activations
  ModelShard shard = {};         // the part of the model that this rank of several has; all of it if it is the only one
  const std::atomic<bool>* stop = nullptr;  // once it is true, loading ends with the error WeightLoader::kStopped
};

// not_found, data_loss: the configuration lacks a key, or is contradictory. unsupported: the model is of no family that this library knows,
// or uses what it does not support. invalid_argument: it cannot be split among so many ranks (check_shards). All tensors that are missing or
// have a wrong shape or type are listed in one error, before the first is read; a tensor, or a key of a GGUF file, that the model does not use
// is an error too, because ignoring it would change the result. resource_exhausted: the weights (of this rank) need more memory than the
// device has left, which is also found before the first is read.
Result<Model> load_model(const Checkpoint& checkpoint, DType dtype, const Execution& execution,
                         std::function<void(double)> progress, const ModelOptions& options = {});

// Reads only the specification.
Result<ModelSpec> read_model_spec(const Checkpoint& checkpoint);

// This is in engine/model/build_model.cpp.
Result<Model> build_model(const ModelSpec& spec, const ModelOptions& options, WeightLoader& loader);

}  // namespace prologue
