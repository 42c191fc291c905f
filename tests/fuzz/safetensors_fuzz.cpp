// Takes any bytes as a safetensors file: opens it, checks and reads every tensor. An input is a header's text, a zero byte and the data;
// its length is put before it, or, if the input begins with 0xff, the rest of it is the whole file.
#include <prologue/engine/huggingface/safetensors.h>

#include "tests/fuzz/json_mutator.h"
#include "tests/fuzz/sentence.h"
#include "tests/support/safetensors_writer.h"

using namespace prologue;
using namespace prologue::fuzz;

namespace {

std::string as_text(std::span<const std::byte> bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

const std::vector<std::string>& samples() {
  static const std::vector<std::string> all = [] {
    test::SafetensorsWriter one, types;
    one.add("model.embed_tokens.weight", "BF16", {4, 2}, std::vector<uint16_t>(8, 0x3f80));
    one.add("model.norm.weight", "F32", {2}, std::vector<float>{1.0f, 2.0f});
    types.add("a", "F16", {2, 1, 3}, std::vector<uint16_t>(6));
    types.add("b", "I64", {}, std::vector<int64_t>{1});
    types.add("c", "F8_E4M3", {0, 5}, std::vector<uint8_t>{});
    types.add("d", "F4_NEW", {3}, std::vector<uint8_t>{1, 2});
    const std::string metadata = R"({"__metadata__":{"format":"pt"},)" + one.header().substr(1);
    return std::vector<std::string>{one.header() + std::string(1, '\0') + as_text(one.data()),
                                    types.header() + std::string(1, '\0') + as_text(types.data()),
                                    metadata + std::string(1, '\0') + as_text(one.data()), "\xff" + as_text(types.bytes())};
  }();
  return all;
}

const std::vector<std::string> kWords = {"\"dtype\"", "\"shape\"", "\"data_offsets\"",
                                         "F32",       "F16",       "BF16",
                                         "I64",       "U8",        "__metadata__",
                                         "[]",        "{}",        "null",
                                         "1.5",       "[0,4]",     "[4,8]",
                                         "1e3",       "\"a\":",    "\\u0000",
                                         "-1",        "true",      ",\"b\":{"};

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed) {
  return mutate_json(data, size, max_size, seed, samples(), kWords);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Tally tally("safetensors");
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  std::vector<std::byte> bytes;
  if (input.starts_with('\xff')) {
    const auto rest = std::as_bytes(std::span(input.substr(1)));
    bytes.assign(rest.begin(), rest.end());
  } else {
    const size_t end = std::min(input.find('\0'), size), data_begin = std::min(end + 1, size);
    bytes = test::safetensors_file(std::string(input.substr(0, end)), std::as_bytes(std::span(input.substr(data_begin))));
  }
  const auto file_size = static_cast<int64_t>(bytes.size());
  const auto file = SafetensorsFile::from_bytes(std::move(bytes));
  tally.count(file.ok());
  if (!file.ok()) {
    check_sentence(file.status());
    return 0;
  }
  int64_t total = 0;
  for (const SafetensorsTensor& tensor : file->tensors()) {
    total += tensor.size_bytes;
    if (tensor.size_bytes < 0 || total > file_size) fail("the tensors do not fit in the file");
    std::vector<std::byte> stored(static_cast<size_t>(tensor.size_bytes));
    if (!file->read(tensor, 0, tensor.size_bytes, stored.data()).ok()) fail("a tensor of an open file cannot be read");
    if (file->read(tensor, 1, tensor.size_bytes, stored.data()).ok()) fail("a byte behind a tensor was read");
  }
  return 0;
}
