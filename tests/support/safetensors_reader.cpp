#include "tests/support/safetensors_reader.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include <prologue/kernels/base/dtype.h>

namespace prologue::test {

int64_t StoredTensor::num_elements() const {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

std::map<std::string, StoredTensor> stored_tensors(const std::string& folder) {
  std::map<std::string, StoredTensor> tensors;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".safetensors") continue;
    std::ifstream file(entry.path(), std::ios::binary);
    uint64_t header_size = 0;
    file.read(reinterpret_cast<char*>(&header_size), sizeof header_size);
    std::string header(header_size, '\0');
    if (!file.read(header.data(), static_cast<std::streamsize>(header_size))) {
      throw std::runtime_error(entry.path().string() + ": no header");
    }
    const nlohmann::json entries = nlohmann::json::parse(header);
    for (const auto& [name, tensor] : entries.items()) {
      if (name == "__metadata__") continue;
      StoredTensor& stored = tensors[name];
      stored.file = entry.path().string();
      stored.dtype = tensor.at("dtype");
      stored.shape = tensor.at("shape").get<std::vector<int64_t>>();
      stored.begin = 8 + header_size + tensor.at("data_offsets").at(0).get<uint64_t>();
      stored.end = 8 + header_size + tensor.at("data_offsets").at(1).get<uint64_t>();
    }
  }
  return tensors;
}

std::vector<float> read_values(const StoredTensor& tensor) {
  std::ifstream file(tensor.file, std::ios::binary);
  file.seekg(static_cast<std::streamoff>(tensor.begin));
  std::vector<float> values(static_cast<size_t>(tensor.num_elements()));
  const auto read = [&](auto* elements) {
    file.read(reinterpret_cast<char*>(elements), static_cast<std::streamsize>(tensor.end - tensor.begin));
  };
  if (tensor.dtype == "F32") {
    read(values.data());
  } else {
    if (tensor.dtype != "F16" && tensor.dtype != "BF16")
      throw std::runtime_error(tensor.file + ": values of type " + tensor.dtype);
    std::vector<uint16_t> halves(values.size());
    read(halves.data());
    for (size_t i = 0; i < halves.size(); ++i) {
      values[i] = tensor.dtype == "F16" ? to_float(Float16{halves[i]}) : to_float(BFloat16{halves[i]});
    }
  }
  if (!file) throw std::runtime_error(tensor.file + ": too short");
  return values;
}

void fill_values(const StoredTensor& tensor, float value) {
  std::string bytes;
  for (int64_t i = 0; i < tensor.num_elements(); ++i) {
    if (tensor.dtype == "F32") {
      bytes.append(reinterpret_cast<const char*>(&value), 4);
    } else {
      const uint16_t half = tensor.dtype == "F16" ? to_float16(value).bits : to_bfloat16(value).bits;
      bytes.append(reinterpret_cast<const char*>(&half), 2);
    }
  }
  if (bytes.size() != tensor.end - tensor.begin) throw std::runtime_error(tensor.file + ": values of type " + tensor.dtype);
  std::fstream file(tensor.file, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(static_cast<std::streamoff>(tensor.begin));
  if (!file.write(bytes.data(), static_cast<std::streamsize>(bytes.size())))
    throw std::runtime_error(tensor.file + ": not written");
}

}  // namespace prologue::test
