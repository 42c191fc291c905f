// Reads the weights of a checkpoint in safetensors files, by itself: it is the oracle of the library's reader.
// Functions throw std::runtime_error if a file is not as expected.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace prologue::test {

// Holds a tensor, and where its bytes are.
struct StoredTensor {
  std::string file;
  std::string dtype;  // "F32", "F16", "BF16", ...
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // in the file
  uint64_t end = 0;

  int64_t num_elements() const;
};

// Returns the tensors of all *.safetensors in the folder, by name.
std::map<std::string, StoredTensor> stored_tensors(const std::string& folder);

// Reads F32, F16 and BF16.
std::vector<float> read_values(const StoredTensor& tensor);
// Overwrites all elements in the file.
void fill_values(const StoredTensor& tensor, float value);

}  // namespace prologue::test
