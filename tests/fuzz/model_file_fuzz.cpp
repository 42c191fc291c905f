// Takes any bytes as a model file: opens it, reads every value, loads it, and, if it loads, tokenizes, chats and generates with it. The
// mutator knows where the numbers of a GGUF file are; a file that it cannot walk through becomes one of the valid samples.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include <prologue/engine/base/utf8.h>
#include <prologue/engine/engine.h>
#include <prologue/engine/gguf/dequantize.h>
#include <prologue/engine/gguf/gguf.h>
#include <prologue/engine/tokenizer/chat.h>

#include "tests/fuzz/choices.h"
#include "tests/fuzz/memory_map.h"
#include "tests/fuzz/sentence.h"
#include "tests/support/gguf_writer.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

using namespace prologue;
using namespace prologue::fuzz;

namespace {

template <class... Types>
void read_values(const GgufFile& file, const std::string& key) {
  (void)((file.get<Types>(key).ok()) + ... + 0);
}

bool read_file(const uint8_t* data, size_t size) {
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  const Result<GgufFile> file = GgufFile::from_bytes({bytes, bytes + size});
  if (!file.ok()) {
    check_sentence(file.status());
    return false;
  }
  for (const std::string& key : file->keys()) {
    read_values<bool, int32_t, uint64_t, float, std::string, std::vector<bool>, std::vector<int32_t>, std::vector<int64_t>,
                std::vector<float>, std::vector<std::string>>(*file, key);
  }
  for (const GgufTensor& tensor : file->tensors()) {
    std::vector<std::byte> stored(static_cast<size_t>(tensor.size_bytes));
    std::vector<float> values(static_cast<size_t>(tensor.num_elements()));
    if (!file->read(tensor, 0, tensor.size_bytes, stored.data()).ok() ||
        !dequantize_rows(tensor.type, stored.data(), tensor.num_rows(), tensor.row_elements(), DType::f32, values.data(), 1).ok())
      fail("a tensor of an open file cannot be read");
  }
  return true;
}

void use(Engine& engine) {
  const Tokenizer& tokenizer = engine.tokenizer();
  std::vector<Request> requests(2);
  for (Request& request : requests) {
    const Result<std::vector<int32_t>> ids = tokenizer.encode("the <|im_end|> \xe2\x82\xac\xff", true, tokenizer.add_bos());
    if (!ids.ok()) return check_sentence(ids.status());
    request.prompt = *ids;
    request.max_tokens = 3;
    request.sampling.temperature = 1.0f;
  }
  requests[1].stop = {"a"};
  const Result<std::vector<Completion>> completions = engine.generate(requests);
  if (!completions.ok()) return check_sentence(completions.status());
  for (const Completion& completion : *completions) {
    if (!completion.status.ok()) check_sentence(completion.status);
    if (!is_valid_utf8(completion.text)) fail("generated text is not UTF-8");
  }
  const Result<ChatFormat> format = ChatFormat::create(tokenizer);
  if (!format.ok()) return check_sentence(format.status());
  const ChatMessage message = {"user", "hello"};
  if (const auto ids = format->encode_chat({&message, 1}); !ids.ok()) check_sentence(ids.status());
}

test::TinyLlamaOptions small_llama() {
  test::TinyLlamaOptions options;
  options.num_layers = 1;
  options.hidden_size = 16;
  options.num_q_heads = 2;
  options.num_kv_heads = 1;
  options.head_dim = 8;
  options.ffn_size = 16;
  return options;
}

const std::vector<std::vector<std::byte>>& samples() {
  static const std::vector<std::vector<std::byte>> all = [] {
    std::vector<std::vector<std::byte>> made;
    test::TinyLlamaOptions options = small_llama();
    made.push_back(test::tiny_llama(options).bytes());
    options.rope_freqs = options.qkv_bias = true;
    options.tied_output = false;
    options.matrix_type = test::gguf::kF16;
    made.push_back(test::tiny_llama(options).bytes());
    options = small_llama();
    options.extra = [](test::GgufWriter& writer) {
      writer.add("llama.rope.scaling.type", "yarn");
      writer.add("llama.rope.scaling.factor", 4.0f);
      writer.add("llama.rope.scaling.original_context_length", uint32_t{128});
      writer.add("odd", std::vector<float>{0.5f, 1.0f});
    };
    made.push_back(test::tiny_llama(options).bytes());
    test::GgufWriter types;  // every tensor type; no model
    types.alignment = 64;
    types.add("general.architecture", "llama");
    for (const uint32_t type :
         {test::gguf::kBF16, test::gguf::kQ8_0, test::gguf::kQ4_0, test::gguf::kQ4_1, test::gguf::kQ5_0, test::gguf::kQ5_1,
          test::gguf::kQ4_K, test::gguf::kQ5_K, test::gguf::kQ6_K, test::gguf::kQ2_K, test::gguf::kQ3_K, test::gguf::kIQ4_NL,
          test::gguf::kIQ4_XS, test::gguf::kMXFP4, test::gguf::kNVFP4}) {
      const GgmlTypeInfo& info = *ggml_type_info(static_cast<GgmlType>(type));
      types.add_tensor(info.name, {static_cast<uint64_t>(info.block_elements), 1}, type,
                       std::vector<std::byte>(static_cast<size_t>(info.block_bytes), std::byte{0x35}));
    }
    made.push_back(types.bytes());
    return made;
  }();
  return all;
}

// Finds the numbers of a file that nothing protects, and its metadata entries, as far as it can be walked through.
struct Walk {
  struct Range {
    size_t offset;
    size_t size;
  };
  std::vector<Range> numbers;
  std::vector<Range> texts;
  std::vector<Range> entries;
  bool complete = false;
};

Walk walk(const uint8_t* data, size_t size) {
  Walk found;
  size_t at = 0;
  const auto number = [&](size_t bytes, uint64_t& value) {
    if (size - at < bytes) return false;
    value = 0;
    std::memcpy(&value, data + at, bytes);
    found.numbers.push_back({at, bytes});
    at += bytes;
    return true;
  };
  const auto text = [&] {
    uint64_t length = 0;
    if (!number(8, length) || length > size - at) return false;
    found.texts.push_back({at, static_cast<size_t>(length)});
    at += static_cast<size_t>(length);
    return true;
  };
  uint64_t tensors = 0, entries = 0, ignored = 0;
  if (size < 4 || std::memcmp(data, "GGUF", 4) != 0) return found;
  at = 4;
  if (!number(4, ignored) || !number(8, tensors) || !number(8, entries)) return found;
  constexpr size_t kBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  const auto value = [&](uint64_t type) {
    return type == test::gguf::kString ? text() : type < 13 && type != 9 && number(kBytes[type], ignored);
  };
  for (uint64_t i = 0; i < entries; ++i) {
    const size_t begin = at;
    uint64_t type = 0, count = 1;
    if (!text() || !number(4, type)) return found;
    if (type == test::gguf::kArray) {
      if (!number(4, type) || !number(8, count)) return found;
    }
    for (uint64_t n = 0; n < count; ++n)
      if (!value(type)) return found;
    found.entries.push_back({begin, at - begin});
  }
  for (uint64_t i = 0; i < tensors; ++i) {
    uint64_t dims = 0;
    if (!text() || !number(4, dims) || dims > 8) return found;
    for (uint64_t d = 0; d < dims; ++d)
      if (!number(8, ignored)) return found;
    if (!number(4, ignored) || !number(8, ignored)) return found;
  }
  found.complete = true;
  return found;
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed) {
  Choices choices(reinterpret_cast<const uint8_t*>(&seed), sizeof seed);
  Walk found = walk(data, size);
  if (!found.complete && choices.chance(found.numbers.empty() ? 2 : 8)) {
    const std::vector<std::byte>& sample = samples()[choices.byte() % samples().size()];
    if (sample.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
    std::memcpy(data, sample.data(), sample.size());
    size = sample.size();
    found = walk(data, size);
  }
  const auto any_of = [&](const std::vector<Walk::Range>& ranges) {
    return ranges[static_cast<size_t>(choices.integer(0, static_cast<int64_t>(ranges.size()) - 1))];
  };
  const int64_t what = choices.integer(0, 9);
  if (what < 5 && !found.numbers.empty()) {  // another number
    const Walk::Range range = any_of(found.numbers);
    uint64_t value = 0;
    std::memcpy(&value, data + range.offset, range.size);
    value = choices.chance(2) ? static_cast<uint64_t>(choices.absurd()) : value + static_cast<uint64_t>(choices.integer(-3, 3));
    std::memcpy(data + range.offset, &value, range.size);
    return size;
  }
  if (what < 8 && !found.texts.empty()) {  // another text of the same length, or a copy of one over another
    const Walk::Range range = any_of(found.texts), other = any_of(found.texts);
    if (choices.chance(2)) {
      std::memmove(data + range.offset, data + other.offset, std::min(range.size, other.size));
    } else if (range.size > 0) {
      LLVMFuzzerMutate(data + range.offset, range.size, range.size);
    }
    return size;
  }
  if (what < 9 && !found.entries.empty()) {  // an entry less
    const Walk::Range range = any_of(found.entries);
    std::memmove(data + range.offset, data + range.offset + range.size, size - range.offset - range.size);
    uint64_t count = 0;
    std::memcpy(&count, data + 16, 8);
    --count;
    std::memcpy(data + 16, &count, 8);
    return size - range.size;
  }
  return LLVMFuzzerMutate(data, size, max_size);
}

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {  // libFuzzer's default are files of 4 KB
  static std::vector<char*> arguments(*argv, *argv + *argc);
  static char max_len[] = "-max_len=65536";
  arguments.insert(arguments.begin() + 1, max_len);
  *argc = static_cast<int>(arguments.size());
  *argv = arguments.data();
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Tally tally("model_file");
  if (!read_file(data, size)) return 0;
  static const int file = memfd_create("model", 0);
  static const std::string path = "/proc/self/fd/" + std::to_string(file);
  if (file < 0 || ftruncate(file, 0) != 0 || pwrite(file, data, size, 0) != static_cast<ssize_t>(size)) fail("no temporary file");
  EngineOptions options;
  options.model_path = path;
  options.device = Device::cpu;
  options.num_threads = 1;
  const Result<std::unique_ptr<Engine>> engine = Engine::load(options);
  tally.count(engine.ok());
  if (engine.ok()) {
    use(**engine);
  } else {
    check_sentence(engine.status());
  }
  return 0;
}
