// Tests model files whose configuration lies: thousands of mutated copies of a small valid file go through the whole loading path. Every
// one loads or is refused with a sentence; none crashes, hangs or asks for absurd amounts of memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include <prologue/engine/gguf/gguf_checkpoint.h>
#include <prologue/engine/gguf/tokenizer_data.h>
#include <prologue/engine/model/load_model.h>
#include <prologue/engine/tokenizer/tokenizer.h>

#include "tests/support/gguf_writer.h"
#include "tests/support/random.h"

namespace prologue {
namespace {

struct Outcome {
  bool loaded = false;
  std::string message;
};

Outcome load(std::vector<std::byte> bytes) {
  auto file = GgufFile::from_bytes(std::move(bytes));
  if (!file.ok()) return {false, file.status().message()};
  const GgufCheckpoint checkpoint(std::move(file).value());
  const auto model = load_model(checkpoint, DType::f32, Execution{}, {});
  if (!model.ok()) return {false, model.status().message()};
  auto data = read_tokenizer_data(checkpoint.file());
  if (!data.ok()) return {false, data.status().message()};
  const auto tokenizer = Tokenizer::create(std::move(data).value());
  return {tokenizer.ok(), tokenizer.status().message()};
}

TEST(ModelMutation, EveryFileLoadsOrIsRefusedWithASentence) {
  test::TinyLlamaOptions options;
  options.num_layers = 1;
  options.hidden_size = 16;
  options.num_q_heads = 2;
  options.num_kv_heads = 1;
  options.head_dim = 8;
  options.ffn_size = 16;
  options.rope_freqs = true;
  const std::vector<std::byte> valid = test::tiny_llama(options).bytes();
  ASSERT_TRUE(load(valid).loaded) << load(valid).message;

  // Metadata comes first; the tensors' data fill the rest and cannot lie.
  const auto last_key = std::search(valid.begin(), valid.end(), reinterpret_cast<const std::byte*>("output_norm.weight"),
                                    reinterpret_cast<const std::byte*>("output_norm.weight") + 18);
  ASSERT_NE(last_key, valid.end());
  const int64_t header = last_key - valid.begin() + 64;
  test::Random random(11);
  int num_refused = 0;
  for (int i = 0; i < 6000; ++i) {
    std::vector<std::byte> bytes = valid;
    if (i % 3 == 0) {  // an extreme number somewhere
      const uint64_t values[] = {0, 1, 0x7fffffff, 0x80000000, 0xffffffff, 0x7f800000, 0x7fc00000, ~uint64_t{0}, uint64_t{1} << 62};
      const uint64_t value = values[random.integer(0, 8)];
      const size_t size = random.integer(0, 1) == 0 ? 4 : 8;
      std::memcpy(bytes.data() + random.integer(0, header - 8), &value, size);
    } else {
      for (int64_t flips = random.integer(1, 3); flips > 0; --flips) {
        bytes[static_cast<size_t>(random.integer(0, header - 1))] ^= static_cast<std::byte>(1 << random.integer(0, 7));
      }
    }
    const Outcome outcome = load(std::move(bytes));
    if (outcome.loaded) continue;
    ++num_refused;
    ASSERT_FALSE(outcome.message.empty()) << i;
  }
  EXPECT_GT(num_refused, 1000);
}

// Each number of the configuration is set to each of these values, under the names that the loader reads.
TEST(ModelMutation, ExtremeConfigurationsAreRefused) {
  for (const char* key : {"llama.block_count", "llama.context_length", "llama.embedding_length", "llama.feed_forward_length",
                          "llama.attention.head_count", "llama.attention.head_count_kv", "llama.rope.dimension_count",
                          "llama.vocab_size"}) {
    for (const uint32_t value : {0u, 3u, 0x7fffffffu, 0xffffffffu}) {
      std::vector<std::byte> bytes = test::tiny_llama().bytes();
      const std::string name = key;
      const auto* begin = reinterpret_cast<const std::byte*>(name.data());
      const auto at = std::search(bytes.begin(), bytes.end(), begin, begin + name.size());
      ASSERT_NE(at, bytes.end()) << key;
      std::memcpy(&*at + name.size() + 4, &value, 4);  // behind the name: the type, then the value
      const Outcome outcome = load(std::move(bytes));
      const bool harmless = name == "llama.context_length" && (value == 3 || value == 0x7fffffff);
      EXPECT_EQ(outcome.loaded, harmless) << key << " = " << value << ": " << outcome.message;
    }
  }
}

}  // namespace
}  // namespace prologue
