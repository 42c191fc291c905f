// This file reads what a model's files say about sampling.
#pragma once

#include <string>
#include <vector>

#include <prologue/engine/checkpoint/checkpoint.h>
#include <prologue/engine/sampling_options.h>

namespace prologue {

// Reads generation_config.json, or the keys general.sampling.* of a GGUF file. do_sample decides about the temperature where it is there:
// false means greedy, whatever else the file says, and true without a temperature means 1. A value that breaks the rules of SamplingOptions,
// and one that would change the output and is not supported, is left out and gets a warning.
SamplingDefaults read_sampling_defaults(const Checkpoint& checkpoint, std::vector<std::string>& warnings);

}  // namespace prologue
