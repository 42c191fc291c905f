// Takes any text as config.json or as the index of the shards of a Hugging Face directory: opens it, reads every key as every type, and
// every tensor. The first byte of an input chooses the file.
#include <prologue/engine/checkpoint/config_reader.h>
#include <prologue/engine/huggingface/model_directory.h>

#include "tests/fuzz/json_mutator.h"
#include "tests/fuzz/sentence.h"
#include "tests/support/safetensors_writer.h"

using namespace prologue;
using namespace prologue::fuzz;

namespace {

const std::vector<std::string> kSamples = {
    R"(c{"model_type":"llama","hidden_size":64,"rms_norm_eps":1e-05,"tie_word_embeddings":true,"head_dim":null,
"rope_scaling":{"rope_type":"llama3","factor":8.0,"low_freq_factor":1},"eos_token_id":[1,2],"layer_types":["a","b"]})",
    R"(c{"model_type":"gemma3","text_config":{"model_type":"gemma3_text","hidden_size":8,"rope_parameters":{"full_attention":
{"rope_theta":1000000.0}},"x":null},"x":[true,false,3],"vision_config":{"hidden_size":4}})",
    R"(c{"model_type":"llama","quantization_config":{"quant_method":"fp8","fmt":"e4m3","weight_block_size":[128,128]}})",
    R"(c{"quantization_config":{"quant_method":"compressed-tensors","format":"naive-quantized","sparsity_config":{},"config_groups":
{"group_0":{"weights":{"num_bits":8,"type":"int","strategy":"channel","symmetric":true,"block_structure":[128,128]}},"g":{"weights":
{"num_bits":8,"type":"float","strategy":"tensor"}}}}})",
    R"(c{"quantization_config":{"quant_method":"gptq","bits":4,"group_size":32,"desc_act":true,"checkpoint_format":"gptq_v2"}})",
    R"(c{"quantization_config":{"quant_method":"awq","bits":4,"group_size":32,"version":"gemm","zero_point":true,"backend":"autoawq"}})",
    R"(c{"quantization_config":{"quant_method":"compressed-tensors","format":"pack-quantized","config_groups":{"g":{"weights":
{"num_bits":4,"type":"int","strategy":"group","group_size":32,"symmetric":true}}}}})",
    R"(i{"metadata":{"total_size":8},"weight_map":{"a":"1.safetensors","b":"2.safetensors"}})",
    R"(i{"weight_map":{"b":"2.safetensors","a":"1.safetensors","c":"../x","d":"3"}})"};

const std::vector<std::string> kWords = {"\"model_type\"",
                                         "\"text_config\":{",
                                         "\"weight_map\"",
                                         "1.safetensors",
                                         "2.safetensors",
                                         "..",
                                         "/",
                                         "null",
                                         "true",
                                         "[1,2.0]",
                                         "[\"a\"]",
                                         "{}",
                                         "1e-5",
                                         "4.0",
                                         "1e999",
                                         "NaN",
                                         "\"a\":",
                                         "\\u0000",
                                         "\"x\":",
                                         "\"quantization_config\":{",
                                         "\"quant_method\":\"fp8\"",
                                         "\"weights\":{"};

// Two valid directories, of which one file is replaced in each run.
struct Directories {
  Directories() {
    test::SafetensorsWriter a, b;
    a.add("a", "F32", {1}, std::vector<float>{1.0f});
    test::SafetensorsWriter quantized = a;
    quantized.add("f.weight", "F8_E4M3", {3, 128}, std::vector<uint8_t>(384, 0x38));
    quantized.add("f.weight_scale", "F32", {3, 1}, std::vector<float>{1.0f, 2.0f, 3.0f});
    quantized.add("f.input_scale", "F32", {}, std::vector<float>{1.0f});
    quantized.add("i.weight", "I8", {2, 5}, std::vector<uint8_t>(10, 0x7f));
    quantized.add("i.weight_scale", "BF16", {}, std::vector<uint16_t>{0x3f80});
    // One of 4 bits in the form of gptq, awq (which is [8, 64] here) and compressed-tensors.
    quantized.add("q.qweight", "I32", {8, 8}, std::vector<uint32_t>(64, 0x89abcdef));
    quantized.add("q.qzeros", "I32", {2, 1}, std::vector<uint32_t>(2, 0x77777777));
    quantized.add("q.scales", "F16", {2, 8}, std::vector<uint16_t>(16, 0x2000));
    quantized.add("q.g_idx", "I32", {64}, std::vector<uint32_t>(64, 1));
    quantized.add("p.weight_packed", "I32", {3, 4}, std::vector<uint32_t>(12, 0x89abcdef));
    quantized.add("p.weight_scale", "BF16", {3, 1}, std::vector<uint16_t>(3, 0x3c00));
    quantized.add("p.weight_zero_point", "I32", {1, 1}, std::vector<uint32_t>{0x888});
    quantized.add("p.weight_shape", "I64", {2}, std::vector<int64_t>{3, 32});
    b.add("b", "F16", {2}, std::vector<uint16_t>{1, 2});
    config.write("model.safetensors", quantized.bytes());
    index.write("config.json", std::string("{\"model_type\":\"llama\"}"));
    index.write("1.safetensors", a.bytes());
    index.write("2.safetensors", b.bytes());
  }
  const test::TemporaryDirectory config{std::filesystem::temp_directory_path().string()};
  const test::TemporaryDirectory index{std::filesystem::temp_directory_path().string()};
};

// Adds every key of the object, as a path.
void add_keys(const Json& json, const std::string& prefix, std::vector<std::string>& keys) {
  const auto* members = json.get_if<Json::Object>();
  if (members == nullptr) return;
  for (const JsonMember& member : *members) {
    keys.push_back(prefix + member.name);
    add_keys(member.value, keys.back() + ".", keys);
  }
}

template <class T>
bool read(const Checkpoint& checkpoint, const std::string& key, const Result<T>& value) {
  if (value.ok()) return true;
  check_sentence(value.status());
  if ((value.status().code() == StatusCode::not_found) == checkpoint.has(key)) fail("a key is there and not there");
  return false;
}

void read_key(const Checkpoint& checkpoint, const std::string& key) {
  const auto integer = checkpoint.integer(key);
  const auto number = checkpoint.number(key);
  int types = 0;
  types += read(checkpoint, key, number) ? 1 : 0;
  if (read(checkpoint, key, integer) && (!number.ok() || static_cast<double>(*integer) != *number)) {
    fail("an integer is not the number that it is");
  }
  types += read(checkpoint, key, checkpoint.flag(key)) ? 1 : 0;
  types += read(checkpoint, key, checkpoint.text(key)) ? 1 : 0;
  const bool integers = read(checkpoint, key, checkpoint.integers(key)), numbers = read(checkpoint, key, checkpoint.numbers(key));
  types += integers || numbers || read(checkpoint, key, checkpoint.texts(key)) ? 1 : 0;
  if (types > 1) fail("a value has two types");

  ConfigReader reader(checkpoint, "");
  const int64_t size = reader.size(key, 1);
  if (size < 1 || size >= int64_t{1} << 31) fail("a size out of its range");
  reader.number(key);
  reader.only(key, "llama");
  if (!reader.status().ok()) check_sentence(reader.status());
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed) {
  return mutate_json(data, size, max_size, seed, kSamples, kWords);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Tally tally("config_json");
  static const Directories directories;
  if (size == 0) return 0;
  const bool is_index = data[0] == 'i';
  const test::TemporaryDirectory& directory = is_index ? directories.index : directories.config;
  directory.write(is_index ? "model.safetensors.index.json" : "config.json",
                  std::string(reinterpret_cast<const char*>(data) + 1, size - 1));
  const auto opened = HuggingFaceDirectory::open(directory.path());
  tally.count(opened.ok());
  if (!opened.ok()) {
    check_sentence(opened.status());
    return 0;
  }
  const HuggingFaceDirectory& checkpoint = **opened;
  std::vector<std::string> keys = {"", ".", "model_type", "x.y"};
  add_keys(checkpoint.config(), "", keys);
  for (const std::string& key : keys) read_key(checkpoint, key);
  if (is_index && checkpoint.tensors().size() > 2) fail("there are more tensors than in the shards");
  for (const TensorInfo& tensor : checkpoint.tensors()) {
    std::vector<std::byte> stored(static_cast<size_t>(tensor.size_bytes));
    if (!checkpoint.read(tensor, 0, tensor.size_bytes, stored.data()).ok()) fail("a tensor of an open file cannot be read");
    if (checkpoint.tensor(tensor.name) != &tensor) fail("a tensor is not found by its name");
  }
  if (!checkpoint.unused_tensors().empty()) fail("a tensor that was used counts as unused");
  return 0;
}
