// tokenizer.json against Hugging Face `tokenizers` (tests/golden/tokenizer/README.md), the files around it, and what is refused.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <prologue/engine/huggingface/tokenizer_files.h>
#include <prologue/engine/tokenizer/tokenizer.h>
#include <prologue/engine/tokenizer/utf8.h>

#include "tests/support/source_path.h"

namespace prologue {
namespace {

using nlohmann::json;
using Ids = std::vector<int32_t>;

std::string read_text(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string golden_path(const std::string& name) { return test::source_path("tests/golden/tokenizer/hf/" + name + ".json"); }

json tokenizer_json(const std::string& family) { return json::parse(read_text(golden_path(family + ".tokenizer"))); }

Tokenizer make(const json& file) {
  auto data = parse_tokenizer_json(file.dump());
  if (!data.ok()) throw std::runtime_error(data.status().message());
  auto tokenizer = Tokenizer::create(std::move(data).value());
  if (!tokenizer.ok()) throw std::runtime_error(tokenizer.status().message());
  return std::move(tokenizer).value();
}

Ids encode(const Tokenizer& tokenizer, std::string_view text, bool parse_special = false) {
  auto ids = tokenizer.encode(text, parse_special, false);
  EXPECT_TRUE(ids.ok()) << ids.status().message();
  return ids.ok() ? *ids : Ids{};
}

// ---- Goldens ----

class Family : public testing::TestWithParam<const char*> {
 protected:
  const json golden_ = json::parse(read_text(golden_path(std::string(GetParam()) + ".golden")));
  const Tokenizer tokenizer_ = make(tokenizer_json(GetParam()));
};

TEST_P(Family, EncodesAndDecodesLikeHuggingFace) {
  const json strings = json::parse(read_text(golden_path("strings")));
  for (const json& row : golden_.at("rows")) {
    const std::string text = row.at("text").is_string() ? row.at("text") : strings.at(row.at("text").get<size_t>());
    if (row.contains("plain")) {
      const Ids plain = row.at("plain").get<Ids>();
      EXPECT_EQ(encode(tokenizer_, text), plain) << text;
      EXPECT_EQ(tokenizer_.decode(plain), row.contains("decoded") ? row.at("decoded").get<std::string>() : text) << text;
    }
    EXPECT_EQ(encode(tokenizer_, text, true), row.at(row.contains("parsed") ? "parsed" : "plain").get<Ids>()) << text;
  }
}

TEST_P(Family, KnowsWhatComesBeforeAndAfterAText) {
  Ids ids = *tokenizer_.encode("a", false, tokenizer_.add_bos());
  if (tokenizer_.add_eos()) ids.push_back(tokenizer_.eos_id());
  EXPECT_EQ(ids, golden_.at("with_bos_and_eos_of_a").get<Ids>());
}

// Quadratic work on a megabyte takes longer than any test may.
TEST_P(Family, TakesLongRunsOfAnything) {
#ifdef __OPTIMIZE__
  constexpr size_t kBytes = 1 << 18;
#else
  constexpr size_t kBytes = 1 << 14;
#endif
  for (const std::string unit : {" ", "\n", "a", "A", "1", "'", "é", "e\u0301", "\u0301\u0323", "漢", " \n", "<tool", "<0x0A>",
                                 "<|end|", "\u2581", "\xff"}) {
    std::string text;
    while (text.size() < kBytes) text += unit;
    EXPECT_TRUE(tokenizer_.encode(text + "x", true, false).ok()) << "a run of " << unit;
  }
}

INSTANTIATE_TEST_SUITE_P(HuggingFace, Family,
                         testing::Values("gpt2", "llama3", "qwen2", "neox", "gpt_oss", "prefix_space", "cohere", "gemma",
                                         "llama2_legacy", "llama2", "phi3", "t5", "unigram_bytes", "characters", "words"),
                         [](const auto& row) { return row.param; });

}  // namespace
}  // namespace prologue
