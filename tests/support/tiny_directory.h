// What tests of small Hugging Face directories with quantised weights share.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include <prologue/engine/engine.h>

namespace prologue::test {

// A tokenizer.json with four tokens: a, b, ab and a special one.
inline constexpr const char* kTinyTokenizer = R"({"added_tokens": [{"id": 3, "content": "<s>", "special": true}],
  "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false}, "decoder": {"type": "ByteLevel"},
  "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}})";

// Returns the logits of five tokens that the model in `directory` has on the CPU in float32, and sets *types to how its weights are held.
inline std::vector<float> tiny_logits(const std::string& directory, std::optional<bool> keep_quantized,
                                      std::string* types = nullptr) {
  EngineOptions options;
  options.model_path = directory;
  options.device = Device::cpu;
  options.num_threads = 1;
  options.context_length = 32;
  options.max_seqs = 1;
  options.dtype = DType::f32;
  options.keep_quantized = keep_quantized;
  const auto engine = Engine::load(options);
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  std::vector<float> all;
  if (!engine.ok()) return all;
  if (types != nullptr) *types = (*engine)->weight_types();
  ScoreOptions score;
  score.on_logits = [&](size_t, std::span<const float> row) { all.insert(all.end(), row.begin(), row.end()); };
  EXPECT_TRUE((*engine)->score(std::vector<int32_t>{0, 1}, std::vector<int32_t>{2, 1, 0}, score).ok());
  return all;
}

}  // namespace prologue::test
