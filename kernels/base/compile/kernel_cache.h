// Keeps compiled kernels in files, so that the next process need not compile them. The files are only a cache: what cannot be read is compiled
// again, what cannot be written is not kept, and neither is an error. Internal.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <prologue/kernels/base/export.h>

namespace prologue::cuda {

struct CompiledKernel {
  std::string symbol;  // of the kernel in the code
  std::vector<char> cubin;
};

inline constexpr int kMostKernelFiles = 256;  // the least recently used ones beyond these are removed

// Returns the folder that the environment names: PROLOGUE_CACHE_DIR; if that is not set, prologue in XDG_CACHE_HOME or in ~/.cache. Empty: there
// is none (PROLOGUE_CACHE_DIR is empty, say), and nothing is kept.
PROLOGUE_API std::string kernel_cache_folder();

// The key is everything that the code depends on. A file is named by its hash and holds all of it: only a file with the same key and a good
// checksum is taken. The folder is used if it belongs to this user and nobody else may write to it; it is made if it does not exist.
PROLOGUE_API std::optional<CompiledKernel> find_kernel(const std::string& folder, const std::string& key);
// Several processes may store at once: a file appears whole or not at all.
PROLOGUE_API void store_kernel(const std::string& folder, const std::string& key, const CompiledKernel& kernel);

}  // namespace prologue::cuda
