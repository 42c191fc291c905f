// Takes any bytes as the weights of a Hugging Face directory that is quantised: opens it, and reads every tensor. An input is a letter, which
// chooses the quantization_config, a safetensors header's text, a zero byte and the data.
#include <prologue/engine/huggingface/model_directory.h>

#include <filesystem>

#include "tests/fuzz/json_mutator.h"
#include "tests/fuzz/sentence.h"
#include "tests/support/safetensors_writer.h"

using namespace prologue;
using namespace prologue::fuzz;

namespace {

struct Method {
  char letter;
  const char* config;
};
constexpr Method kMethods[] = {
    {'f', R"({"quant_method":"fp8"})"},
    {'g', R"({"quant_method":"gptq","bits":4,"group_size":32})"},
    {'a', R"({"quant_method":"awq","bits":4,"group_size":32})"},
    {'c',
     R"({"quant_method":"compressed-tensors","format":"pack-quantized","config_groups":{"g":{"weights":{"num_bits":4,"type":"int",
             "strategy":"group","group_size":32,"symmetric":false}}}})"},
    {'m', R"({"quant_method":"mxfp4"})"},
    {'n',
     R"({"quant_method":"compressed-tensors","format":"nvfp4-pack-quantized","config_groups":{"g":{"weights":{"num_bits":4,
             "type":"float","strategy":"tensor_group","group_size":16}}}})"},
    {'o', R"({"quant_method":"modelopt","quant_algo":"NVFP4"})"},
};

std::string sample(char letter, const test::SafetensorsWriter& writer) {
  const std::string data(reinterpret_cast<const char*>(writer.data().data()), writer.data().size());
  return letter + writer.header() + std::string(1, '\0') + data;
}

const std::vector<std::string>& samples() {
  static const std::vector<std::string> all = [] {
    test::SafetensorsWriter f, g, a, c, m, n, o;
    f.add("f.weight", "F8_E4M3", {3, 128}, std::vector<uint8_t>(384, 0x38));
    f.add("f.weight_scale", "F32", {3, 1}, std::vector<float>{1.0f, 2.0f, 3.0f});
    g.add("q.qweight", "I32", {8, 8}, std::vector<uint32_t>(64, 0x89abcdef));
    g.add("q.qzeros", "I32", {2, 1}, std::vector<uint32_t>(2, 0x77777777));
    g.add("q.scales", "F16", {2, 8}, std::vector<uint16_t>(16, 0x2000));
    g.add("q.g_idx", "I32", {64}, std::vector<uint32_t>(64, 1));
    a.add("q.qweight", "I32", {64, 1}, std::vector<uint32_t>(64, 0x89abcdef));
    a.add("q.qzeros", "I32", {2, 1}, std::vector<uint32_t>(2, 0x77777777));
    a.add("q.scales", "F16", {2, 8}, std::vector<uint16_t>(16, 0x2000));
    c.add("p.weight_packed", "I32", {3, 4}, std::vector<uint32_t>(12, 0x89abcdef));
    c.add("p.weight_scale", "BF16", {3, 1}, std::vector<uint16_t>(3, 0x3c00));
    c.add("p.weight_zero_point", "I32", {1, 1}, std::vector<uint32_t>{0x888});
    c.add("p.weight_shape", "I64", {2}, std::vector<int64_t>{3, 32});
    m.add("e_blocks", "U8", {2, 3, 1, 16}, std::vector<uint8_t>(96, 0x9b));
    m.add("e_scales", "U8", {2, 3, 1}, std::vector<uint8_t>(6, 120));
    n.add("n.weight_packed", "U8", {2, 128}, std::vector<uint8_t>(256, 0x9b));
    n.add("n.weight_scale", "F8_E4M3", {2, 16}, std::vector<uint8_t>(32, 0x38));
    n.add("n.weight_global_scale", "F32", {1}, std::vector<float>{100.0f});
    o.add("o.weight", "U8", {3, 16}, std::vector<uint8_t>(48, 0x9b));
    o.add("o.weight_scale", "F8_E4M3", {3, 2}, std::vector<uint8_t>(6, 0x38));
    o.add("o.weight_scale_2", "F32", {}, std::vector<float>{0.01f});
    return std::vector<std::string>{sample('f', f), sample('g', g), sample('a', a), sample('c', c),
                                    sample('m', m), sample('n', n), sample('o', o)};
  }();
  return all;
}

const std::vector<std::string> kWords = {"\"dtype\"",
                                         "\"shape\"",
                                         "\"data_offsets\"",
                                         "F32",
                                         "F16",
                                         "BF16",
                                         "I32",
                                         "I64",
                                         "U8",
                                         "F8_E4M3",
                                         "[]",
                                         "\"\":{",
                                         "[0,4]",
                                         "-1",
                                         "e_blocks",
                                         "e_scales",
                                         "_blocks",
                                         "_scales",
                                         "q.qweight",
                                         "q.qzeros",
                                         "q.scales",
                                         "weight_shape",
                                         "weight_g_idx",
                                         ".bias",
                                         ".weight_packed",
                                         ".weight_global_scale",
                                         ".weight_scale_2",
                                         "[0,1]",
                                         "[64]",
                                         "4611686018427387904"};

struct Directory {
  test::TemporaryDirectory folder{std::filesystem::temp_directory_path().string()};
};

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed) {
  return mutate_json(data, size, max_size, seed, samples(), kWords);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Tally tally("quantized_tensors");
  static const Directory directory;
  if (size == 0) return 0;
  const Method* method = kMethods;
  for (const Method& each : kMethods) {
    if (each.letter == static_cast<char>(data[0])) method = &each;
  }
  const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  const size_t end = std::min(input.find('\0'), input.size()), data_begin = std::min(end + 1, input.size());
  directory.folder.write("config.json", str_cat(R"({"model_type":"llama","quantization_config":)", method->config, "}"));
  directory.folder.write("model.safetensors", test::safetensors_file(std::string(input.substr(0, end)),
                                                                     std::as_bytes(std::span(input.substr(data_begin)))));
  const auto opened = HuggingFaceDirectory::open(directory.folder.path());
  tally.count(opened.ok());
  if (!opened.ok()) {
    check_sentence(opened.status());
    return 0;
  }
  const HuggingFaceDirectory& checkpoint = **opened;
  for (const TensorInfo& tensor : checkpoint.tensors()) {
    // A code of 4 bits becomes at most a float32.
    if (tensor.size_bytes < 0 || tensor.size_bytes > 8 * static_cast<int64_t>(size)) fail("a tensor is larger than its file");
    std::vector<std::byte> whole(static_cast<size_t>(tensor.size_bytes));
    const Status status = checkpoint.read(tensor, 0, tensor.size_bytes, whole.data());
    if (!status.ok()) check_sentence(status);
    const int64_t begin = tensor.size_bytes / 3, count = tensor.size_bytes / 2;
    std::vector<std::byte> part(static_cast<size_t>(count));
    if (checkpoint.read(tensor, begin, count, part.data()).ok() && status.ok() &&
        !std::equal(part.begin(), part.end(), whole.begin() + begin)) {
      fail("a part of a tensor is not that of the whole");
    }
    if (checkpoint.tensor(tensor.name) != &tensor) fail("a tensor is not found by its name");
  }
  return 0;
}
