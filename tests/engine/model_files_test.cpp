// Tests model files as people have them: what transformers and llama.cpp load although it is unusual, and what a model's files say about
// sampling. What transformers makes of them was found with version 5.24.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <prologue/engine/engine.h>
#include <prologue/engine/gguf/gguf_checkpoint.h>
#include <prologue/engine/model/load_model.h>
#include <prologue/engine/model/sampling_defaults.h>

#include "tests/support/gguf_writer.h"
#include "tests/support/random.h"
#include "tests/support/safetensors_writer.h"

namespace prologue {
namespace {

using test::GgufWriter;
using test::TemporaryDirectory;
using Strings = std::vector<std::string>;

EngineOptions options_for(const std::string& path) {
  EngineOptions options;
  options.model_path = path;
  options.device = Device::cpu;
  options.num_threads = 1;
  options.context_length = 32;
  options.max_seqs = 1;
  return options;
}

Request request_of(std::vector<int32_t> prompt) {
  Request request;
  request.prompt = std::move(prompt);
  request.max_tokens = 4;
  request.ignore_eos = true;
  return request;
}

std::vector<float> logits_of(const std::string& path) {
  auto engine = Engine::load(options_for(path));
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  std::vector<float> logits;
  if (!engine.ok()) return logits;
  ScoreOptions options;
  options.on_logits = [&](size_t, std::span<const float> row) { logits.insert(logits.end(), row.begin(), row.end()); };
  EXPECT_TRUE((*engine)->score(std::vector<int32_t>{0, 1}, std::vector<int32_t>{2, 1, 0}, options).ok());
  return logits;
}

// ---- A GGUF file in parts (ollama#5245) ----

class GgufParts : public testing::Test {
 protected:
  static constexpr uint16_t kCount = 3;

  std::string file(int part, int count = kCount) const {
    char suffix[64];
    std::snprintf(suffix, sizeof suffix, "-%05d-of-%05d.gguf", part, count);
    return directory_.file("tiny" + std::string(suffix));
  }
  void write(const std::vector<GgufWriter>& parts) const {
    for (size_t i = 0; i < parts.size(); ++i) ASSERT_TRUE(parts[i].write(file(static_cast<int>(i) + 1)));
  }
  static void expect_refused(const std::string& path, StatusCode code, const std::string& message) {
    const Status status = Engine::load(options_for(path)).status();
    EXPECT_EQ(status.message(), message);
    EXPECT_EQ(status.code(), code) << message;
  }

  const TemporaryDirectory directory_{testing::TempDir()};
  const GgufWriter whole_ = test::tiny_llama();
};

TEST_F(GgufParts, TheFirstStandsForTheModel) {
  write(whole_.parts(kCount));
  ASSERT_TRUE(whole_.write(directory_.file("whole.gguf")));
  EXPECT_EQ(logits_of(file(1)), logits_of(directory_.file("whole.gguf")));
  const auto parts = GgufCheckpoint::open(file(1));
  ASSERT_TRUE(parts.ok()) << parts.status().message();
  EXPECT_EQ((*parts)->tensors().size(), GgufFile::from_bytes(whole_.bytes())->tensors().size());
  EXPECT_EQ((*parts)->unused_tensors().size(), (*parts)->tensors().size());
  (void)(*parts)->tensor("output_norm.weight");
  EXPECT_EQ((*parts)->unused_tensors().size() + 1, (*parts)->tensors().size());
  EXPECT_TRUE((*parts)->check_unchanged().ok());
}

// llama-gguf-split --merge leaves split.count 0 behind.
TEST_F(GgufParts, AWholeFileMayHaveTheKeys) {
  for (const uint16_t count : {0, 1}) {
    GgufWriter merged = whole_;
    merged.add("split.no", uint16_t{0});
    merged.add("split.count", count);
    merged.add("split.tensors.count", int32_t{99});
    ASSERT_TRUE(merged.write(directory_.file("merged.gguf")));
    EXPECT_FALSE(logits_of(directory_.file("merged.gguf")).empty());
  }
}

TEST_F(GgufParts, AnotherPartSaysWhichOneToGive) {
  write(whole_.parts(kCount));
  expect_refused(file(2), StatusCode::invalid_argument,
                 file(2) + ": this is part 2 of 3 of a model: give the first part, " + file(1));
  const std::string renamed = directory_.file("renamed.gguf");
  std::filesystem::copy(file(3), renamed);
  expect_refused(
      renamed, StatusCode::invalid_argument,
      renamed + ": this is part 3 of 3 of a model: give the first part, the one whose name ends with -00001-of-00003.gguf");
}

TEST_F(GgufParts, MissingPartsAreNamedInOneError) {
  write(whole_.parts(kCount));
  std::filesystem::remove(file(2));
  std::filesystem::remove(file(3));
  expect_refused(file(1), StatusCode::not_found,
                 file(1) +
                     ": this is the first of 3 parts of a model, and parts are missing: 'tiny-00002-of-00003.gguf' and "
                     "'tiny-00003-of-00003.gguf'");
  const std::string renamed = directory_.file("renamed.gguf");
  std::filesystem::copy(file(1), renamed);
  expect_refused(
      renamed, StatusCode::invalid_argument,
      renamed +
          ": this is the first of 3 parts of a model: its name must end with -00001-of-00003.gguf, so that the others are "
          "found");
}

TEST_F(GgufParts, PartsMustBelongTogether) {
  write(whole_.parts(kCount));
  std::filesystem::copy_file(file(3), file(2), std::filesystem::copy_options::overwrite_existing);
  expect_refused(file(1), StatusCode::data_loss,
                 file(2) + ": by its keys split.no and split.count this is part 3 of 3, but by its name part 2 of 3");

  std::vector<GgufWriter> parts = whole_.parts(kCount);
  parts[2].add_tensor("token_embd.weight", {1}, test::gguf::kF32, std::vector<std::byte>(4));
  write(parts);
  expect_refused(file(1), StatusCode::data_loss,
                 file(3) + ": an earlier part of the model has the tensor token_embd.weight, too");

  parts = whole_.parts(kCount);
  parts[2].add_tensor("one_more", {1}, test::gguf::kF32, std::vector<std::byte>(4));
  write(parts);
  const size_t count = GgufFile::from_bytes(whole_.bytes())->tensors().size();
  expect_refused(file(1), StatusCode::data_loss,
                 str_cat(file(1), ": split.tensors.count is ", count, ", but the 3 parts have ", count + 1, " tensors"));

  GgufWriter lying = whole_;
  lying.add("split.no", uint16_t{7});
  lying.add("split.count", uint16_t{3});
  ASSERT_TRUE(lying.write(file(1)));
  expect_refused(file(1), StatusCode::data_loss,
                 file(1) + ": split.no is 7 and split.count is 3: the first must be below the second, and that at most 65535");
}

// ---- A directory of Hugging Face ----

// The model is a llama of one layer whose vocabulary is a, b, ab and a marker.
class Directory : public testing::Test {
 protected:
  static constexpr int64_t kHidden = 16, kHeadDim = 8, kWidth = 24, kVocab = 4;

  struct Tensor {
    std::string dtype;
    std::vector<int64_t> shape;
    std::vector<double> values;
  };

  void SetUp() override {
    const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
      int64_t count = 1;
      for (const int64_t dim : shape) count *= dim;
      Tensor& tensor = tensors_[name] = {"F32", std::move(shape), {}};
      for (const float value : random_.normals<float>(count, 0.3)) tensor.values.push_back(static_cast<double>(value));
    };
    add("model.embed_tokens.weight", {kVocab, kHidden});
    add("model.norm.weight", {kHidden});
    const std::string layer = "model.layers.0.";
    add(layer + "input_layernorm.weight", {kHidden});
    add(layer + "post_attention_layernorm.weight", {kHidden});
    add(layer + "self_attn.q_proj.weight", {2 * kHeadDim, kHidden});
    add(layer + "self_attn.k_proj.weight", {kHeadDim, kHidden});
    add(layer + "self_attn.v_proj.weight", {kHeadDim, kHidden});
    add(layer + "self_attn.o_proj.weight", {kHidden, 2 * kHeadDim});
    add(layer + "mlp.gate_proj.weight", {kWidth, kHidden});
    add(layer + "mlp.up_proj.weight", {kWidth, kHidden});
    add(layer + "mlp.down_proj.weight", {kHidden, kWidth});
    directory_.write("config.json",
                     std::string(R"({"model_type": "llama", "hidden_size": 16, "intermediate_size": 24, "vocab_size": 4,
      "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64,
      "tie_word_embeddings": true})"));
    write_tokenizer("");
    write_weights();
  }
  void write_tokenizer(const std::string& more_tokens) const {
    directory_.write("tokenizer.json", R"({"added_tokens": [{"id": 3, "content": "<s>", "special": true})" + more_tokens + R"(],
      "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false}, "decoder": {"type": "ByteLevel"},
      "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}})");
  }
  void write_weights() const {
    test::SafetensorsWriter writer;
    for (const auto& [name, tensor] : tensors_) {
      if (tensor.dtype == "F64") {
        writer.add(name, tensor.dtype, tensor.shape, tensor.values);
      } else if (tensor.dtype == "F32") {
        writer.add(name, tensor.dtype, tensor.shape, std::vector<float>(tensor.values.begin(), tensor.values.end()));
      } else {
        writer.add(name, tensor.dtype, tensor.shape, std::vector<uint8_t>(tensor.values.begin(), tensor.values.end()));
      }
    }
    directory_.write("model.safetensors", writer.bytes());
  }
  std::unique_ptr<Engine> load() const {
    auto engine = Engine::load(options_for(directory_.path()));
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    return engine.ok() ? std::move(*engine) : nullptr;
  }
  std::string refusal() const { return Engine::load(options_for(directory_.path())).status().message(); }

  const TemporaryDirectory directory_{testing::TempDir()};
  test::Random random_{3};
  std::map<std::string, Tensor> tensors_;
};

// vllm#3323. transformers ties equal tensors, and takes a head that differs, with a warning: with twice the embedding the logits are twice as
// large.
TEST_F(Directory, ATiedModelMayStoreItsHead) {
  const std::vector<float> tied = logits_of(directory_.path());
  const Tensor embedding = tensors_.at("model.embed_tokens.weight");
  tensors_["lm_head.weight"] = embedding;
  write_weights();
  EXPECT_EQ(logits_of(directory_.path()), tied);
  EXPECT_TRUE(load()->warnings().empty());

  for (double& value : tensors_.at("lm_head.weight").values) value *= 2.0;
  write_weights();
  std::vector<float> twice = tied;
  for (float& logit : twice) logit *= 2.0f;
  EXPECT_EQ(logits_of(directory_.path()), twice);
  EXPECT_EQ(load()->warnings(),
            Strings{directory_.path() +
                    ": the configuration ties lm_head.weight to model.embed_tokens.weight, but the files have both, and "
                    "they differ: the stored lm_head.weight is used"});

  tensors_.erase("model.embed_tokens.weight");  // the head alone is both
  tensors_["lm_head.weight"] = embedding;
  write_weights();
  EXPECT_EQ(logits_of(directory_.path()), tied);
}

TEST_F(Directory, TensorsMayBeFloat64) {
  const std::vector<float> want = logits_of(directory_.path());
  for (auto& [name, tensor] : tensors_) tensor.dtype = "F64";
  write_weights();
  EXPECT_EQ(logits_of(directory_.path()), want);
}

// What transformers reports as unexpected and ignores, where its name says that it is a constant of older versions.
TEST_F(Directory, ConstantsOfOlderVersionsAreIgnored) {
  const std::vector<float> want = logits_of(directory_.path());
  tensors_["model.embeddings.position_ids"] = {"I64", {1, 1}, std::vector<double>(8)};
  tensors_["model.layers.0.self_attn.rotary_emb.inv_freq"] = {"F32", {4}, {1, 2, 3, 4}};
  tensors_["model.rotary_emb.inv_freq"] = {"F32", {4}, {1, 2, 3, 4}};
  tensors_["model.layers.0.attn.bias"] = {"BOOL", {1, 1, 2, 2}, {1, 0, 1, 1}};
  tensors_["model.layers.0.attn.masked_bias"] = {"F32", {}, {-1e9}};
  write_weights();
  EXPECT_EQ(logits_of(directory_.path()), want);

  tensors_["model.layers.0.attn.bias"] = {"F32", {16}, std::vector<double>(16, 1.0)};  // a bias that would change the result
  write_weights();
  EXPECT_EQ(refusal(),
            directory_.path() + ": the llama loader does not know these tensors of the model: model.layers.0.attn.bias");
}

TEST_F(Directory, MarkersMayBeMoreThanTheEmbeddingHasRows) {
  write_tokenizer(R"(, {"id": 4, "content": "[PAD]", "special": true})");
  const std::unique_ptr<Engine> engine = load();
  ASSERT_NE(engine, nullptr);
  EXPECT_EQ(engine->warnings(),
            Strings{directory_.path() + ": the embedding has 4 rows, and none for the tokens '[PAD]': a prompt with one "
                                        "of them is refused"});
  Request request = request_of({});
  request.text = "ab[PAD]";
  const auto refused = engine->generate({&request, 1});
  ASSERT_TRUE(refused.ok());
  EXPECT_EQ(refused->front().status.message(), "the prompt has token id 4: the vocabulary has ids 0 to 3");
  request.text = "ab";
  EXPECT_TRUE(engine->generate({&request, 1})->front().status.ok());

  write_tokenizer(R"(, {"id": 4, "content": "c"})");  // plain text becomes it
  EXPECT_FALSE(load()->warnings().empty());
  directory_.write("tokenizer.json", std::string(R"({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
      "decoder": {"type": "ByteLevel"}, "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "d": 3, "e": 4}, "merges": []}})"));
  EXPECT_EQ(refusal(), directory_.path() +
                           ": the tokenizer has 5 tokens, but the embedding only 4 rows: token 4, 'e', comes from plain text");
}

// ---- Sampling ----

bool same(const SamplingDefaults& a, const SamplingDefaults& b) {
  return a.temperature == b.temperature && a.top_k == b.top_k && a.top_p == b.top_p && a.min_p == b.min_p &&
         a.repetition_penalty == b.repetition_penalty;
}

TEST_F(Directory, RecommendsSampling) {
  EXPECT_TRUE(same(load()->default_sampling(), {}));
  struct Case {
    const char* file;
    SamplingDefaults want;
  };
  const Case cases[] = {
      {R"({"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.01, "repetition_penalty": 1.05})",
       {0.6f, 20, 0.95f, 0.01f, 1.05f}},
      {R"({"temperature": 0.7, "top_p": null})", {.temperature = 0.7f}},
      {R"({"do_sample": true, "top_k": 0})", {.temperature = 1.0f, .top_k = 0}},
      {R"({"do_sample": false, "temperature": 0.6, "top_p": 0.9, "repetition_penalty": 1.1})",
       {.temperature = 0.0f, .repetition_penalty = 1.1f}},
      {R"({"top_k": -1, "typical_p": 1.0, "num_beams": 1, "min_length": 0, "eos_token_id": 2})", {.top_k = 0}},
      {"{}", {}}};
  for (const Case& c : cases) {
    directory_.write("generation_config.json", std::string(c.file));
    const std::unique_ptr<Engine> engine = load();
    EXPECT_TRUE(same(engine->default_sampling(), c.want)) << c.file;
    EXPECT_TRUE(engine->warnings().empty()) << c.file << ": " << engine->warnings().front();
  }
  directory_.write("generation_config.json", std::string(R"({"temperature": -1, "top_p": 1.5, "top_k": "many", "min_p": "x",
    "repetition_penalty": 0, "typical_p": 0.9, "bad_words_ids": [[1]]})"));
  const std::unique_ptr<Engine> engine = load();
  EXPECT_TRUE(same(engine->default_sampling(), {}));
  const std::string file = directory_.path() + ": generation_config.json: ";
  EXPECT_EQ(engine->warnings(), (Strings{file + "temperature is -1: it must be 0 (greedy) or positive, and is not applied",
                                         file + "top_k is no whole number: it is not applied",
                                         file + "top_p is 1.5: it must be above 0 and at most 1 (off), and is not applied",
                                         file + "min_p is no number: it is not applied",
                                         file + "repetition_penalty is 0: it must be positive, and is not applied",
                                         file + "typical_p is not supported: it is not applied",
                                         file + "bad_words_ids is not supported: it is not applied"}));
}

TEST(SamplingDefaults, OfAGgufFileAreReadAndGoBeforeOthers) {
  GgufWriter writer;
  writer.add("general.sampling.temp", 0.6f);
  writer.add("general.sampling.top_k", int32_t{20});
  writer.add("general.sampling.top_p", 0.95f);
  writer.add("general.sampling.min_p", 0.0f);
  writer.add("general.sampling.penalty_repeat", 1.05f);
  writer.add("general.sampling.mirostat", int32_t{0});
  writer.add("general.sampling.xtc_probability", 0.5f);
  const GgufCheckpoint checkpoint(GgufFile::from_bytes(writer.bytes(), "m.gguf").value());
  Strings warnings;
  const SamplingDefaults defaults = read_sampling_defaults(checkpoint, warnings);
  EXPECT_TRUE(same(defaults, {0.6f, 20, 0.95f, 0.0f, 1.05f}));
  EXPECT_EQ(warnings, Strings{"m.gguf: general.sampling.xtc_probability is not supported: it is not applied"});

  const SamplingOptions base = {.temperature = 0.8f, .top_k = 40, .seed = 7, .presence_penalty = 0.5f};
  const SamplingDefaults chosen = {.temperature = 0.0f};
  const SamplingOptions sampling = chosen.over(defaults.over(base));
  EXPECT_EQ(sampling.temperature, 0.0f);
  EXPECT_EQ(sampling.top_k, 20);
  EXPECT_EQ(sampling.repetition_penalty, 1.05f);
  EXPECT_EQ(sampling.seed, 7u);
  EXPECT_EQ(sampling.presence_penalty, 0.5f);
}

}  // namespace
}  // namespace prologue
