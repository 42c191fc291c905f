// ConfigReader over both kinds of checkpoints: every rule once, and that the first error is kept.
#include <prologue/engine/checkpoint/config_reader.h>
#include <prologue/engine/gguf/gguf_checkpoint.h>

#include <gtest/gtest.h>

#include <limits>
#include <memory>

#include "tests/support/gguf_writer.h"
#include "tests/support/safetensors_writer.h"

namespace prologue {
namespace {

using test::GgufWriter;

std::unique_ptr<Checkpoint> gguf() {
  GgufWriter writer;
  writer.add("general.architecture", "tiny");
  writer.add("tiny.size", uint32_t{64});
  writer.add("tiny.none", uint32_t{0});
  writer.add("tiny.huge", uint64_t{1} << 31);
  writer.add("tiny.too_large", ~uint64_t{0});
  writer.add("tiny.negative", int32_t{-3});
  writer.add("tiny.eps", 1e-5f);
  writer.add("tiny.base", 2.5);
  writer.add("tiny.infinite", std::numeric_limits<float>::infinity());
  writer.add("tiny.on", true);
  writer.add("tiny.kind", "linear");
  writer.add("tiny.flags", std::vector<bool>{true, false});
  writer.add("tiny.windows", std::vector<int32_t>{4, -1});
  writer.add("tiny.factors", std::vector<float>{0.5f, 1.0f});
  writer.add("tiny.doubles", std::vector<double>{0.1});
  writer.add("tiny.names", std::vector<std::string>{"a", "b"});
  writer.add_tensor("w", {3, 2}, test::gguf::kF32, std::vector<std::byte>(24, std::byte{7}));
  writer.add_tensor("experts", {4, 3, 2}, test::gguf::kF16, std::vector<std::byte>(48));
  return std::make_unique<GgufCheckpoint>(GgufFile::from_bytes(writer.bytes(), "m.gguf").value());
}

std::unique_ptr<Checkpoint> huggingface(const test::TemporaryDirectory& directory) {
  directory.write("config.json",
                  std::string(R"({"size": 64, "none": 0, "huge": 2147483648, "negative": -3, "eps": 1e-5, "base": 2.5,
    "on": true, "kind": "linear", "flags": [true, false], "windows": [4, -1], "factors": [0.5, 1], "names": ["a", "b"]})"));
  directory.write("model.safetensors", test::SafetensorsWriter().bytes());
  return Checkpoint::open(directory.path()).value();
}

// The same keys of both formats.
class ConfigReaderTest : public testing::TestWithParam<Checkpoint::Format> {
 protected:
  bool is_gguf() const { return GetParam() == Checkpoint::Format::gguf; }
  ConfigReader reader() const { return ConfigReader(*checkpoint_, is_gguf() ? "tiny." : ""); }
  std::string name(const std::string& key) const { return checkpoint_->path() + ": " + (is_gguf() ? "tiny." : "") + key; }

  const test::TemporaryDirectory directory_{testing::TempDir()};
  const std::unique_ptr<Checkpoint> checkpoint_ = is_gguf() ? gguf() : huggingface(directory_);
};

INSTANTIATE_TEST_SUITE_P(Formats, ConfigReaderTest, testing::Values(Checkpoint::Format::gguf, Checkpoint::Format::huggingface),
                         [](const auto& format) { return format.param == Checkpoint::Format::gguf ? "gguf" : "huggingface"; });

TEST_P(ConfigReaderTest, ReadsValues) {
  ConfigReader reader = this->reader();
  EXPECT_TRUE(reader.has("size"));
  EXPECT_FALSE(reader.has("other"));
  EXPECT_EQ(reader.size("size"), 64);
  EXPECT_EQ(reader.size("size", 3), 64);
  EXPECT_EQ(reader.integer("negative"), -3);
  EXPECT_EQ(reader.integer("huge"), int64_t{1} << 31);
  EXPECT_FLOAT_EQ(static_cast<float>(reader.number("eps")), 1e-5f);
  EXPECT_EQ(reader.number("base"), 2.5);
  EXPECT_EQ(reader.number("size"), 64.0);
  EXPECT_TRUE(reader.flag("on"));
  EXPECT_EQ(reader.text("kind"), "linear");
  EXPECT_EQ(reader.integers("flags"), (std::vector<int64_t>{1, 0}));
  EXPECT_EQ(reader.integers("windows"), (std::vector<int64_t>{4, -1}));
  EXPECT_EQ(reader.numbers("factors"), (std::vector<double>{0.5, 1.0}));
  EXPECT_EQ(reader.numbers("windows"), (std::vector<double>{4.0, -1.0}));
  EXPECT_EQ(reader.texts("names"), (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(reader.status().ok()) << reader.status().message();
  EXPECT_EQ(reader.name("size"), name("size"));
  EXPECT_EQ(&reader.checkpoint(), checkpoint_.get());
}

TEST_P(ConfigReaderTest, AFallbackIsForAnAbsentKey) {
  ConfigReader reader = this->reader();
  EXPECT_EQ(reader.size("x", 5), 5);
  EXPECT_EQ(reader.integer("x", 0), 0);
  EXPECT_EQ(reader.number("x", 0.5), 0.5);
  EXPECT_TRUE(reader.flag("x", true));
  EXPECT_EQ(reader.text("x", "y"), "y");
  reader.only("x", true);
  reader.only("x", 3);
  reader.only("x", "y");
  EXPECT_TRUE(reader.status().ok()) << reader.status().message();
}

TEST_P(ConfigReaderTest, WhatIsMissingIsNotFound) {
  const auto code = [&](auto read) {
    ConfigReader reader = this->reader();
    read(reader);
    return reader.status().code();
  };
  EXPECT_EQ(code([](ConfigReader& r) { EXPECT_EQ(r.size("x"), 1); }), StatusCode::not_found);
  EXPECT_EQ(code([](ConfigReader& r) { EXPECT_EQ(r.integer("x"), 1); }), StatusCode::not_found);
  EXPECT_EQ(code([](ConfigReader& r) { EXPECT_EQ(r.number("x"), 1.0); }), StatusCode::not_found);
  EXPECT_EQ(code([](ConfigReader& r) { EXPECT_FALSE(r.flag("x")); }), StatusCode::not_found);
  EXPECT_EQ(code([](ConfigReader& r) { EXPECT_EQ(r.text("x"), ""); }), StatusCode::not_found);
  EXPECT_EQ(code([](ConfigReader& r) { EXPECT_TRUE(r.integers("x").empty()); }), StatusCode::not_found);
  EXPECT_EQ(code([](ConfigReader& r) { EXPECT_TRUE(r.numbers("x").empty()); }), StatusCode::not_found);
  EXPECT_EQ(code([](ConfigReader& r) { EXPECT_TRUE(r.texts("x").empty()); }), StatusCode::not_found);
}

TEST_P(ConfigReaderTest, AnotherTypeIsDataLossEvenWithAFallback) {
  const auto code = [&](auto read) {
    ConfigReader reader = this->reader();
    read(reader);
    return reader.status().code();
  };
  EXPECT_EQ(code([](ConfigReader& r) { EXPECT_EQ(r.size("kind", 5), 5); }), StatusCode::data_loss);
  EXPECT_EQ(code([](ConfigReader& r) { EXPECT_EQ(r.integer("base", 5), 5); }), StatusCode::data_loss);
  EXPECT_EQ(code([](ConfigReader& r) { EXPECT_EQ(r.integer("on", 5), 5); }), StatusCode::data_loss);
  EXPECT_EQ(code([](ConfigReader& r) { EXPECT_EQ(r.number("on", 5.0), 5.0); }), StatusCode::data_loss);
  EXPECT_EQ(code([](ConfigReader& r) { EXPECT_EQ(r.number("kind", 5.0), 5.0); }), StatusCode::data_loss);
  EXPECT_EQ(code([](ConfigReader& r) { EXPECT_TRUE(r.flag("size", true)); }), StatusCode::data_loss);
  EXPECT_EQ(code([](ConfigReader& r) { EXPECT_EQ(r.text("size", "y"), "y"); }), StatusCode::data_loss);
  EXPECT_EQ(code([](ConfigReader& r) { r.integers("size"); }), StatusCode::data_loss);
  EXPECT_EQ(code([](ConfigReader& r) { r.integers("factors"); }), StatusCode::data_loss);
  EXPECT_EQ(code([](ConfigReader& r) { r.numbers("flags"); }), StatusCode::data_loss);
  EXPECT_EQ(code([](ConfigReader& r) { r.texts("windows"); }), StatusCode::data_loss);
}

TEST_P(ConfigReaderTest, SizesHaveARange) {
  for (const auto& [key, value] : {std::pair<const char*, int64_t>{"none", 0}, {"negative", -3}, {"huge", int64_t{1} << 31}}) {
    ConfigReader reader = this->reader();
    EXPECT_EQ(reader.size(key, 7), 7);
    EXPECT_EQ(reader.status().message(), str_cat(name(key), " is ", value, ": it must be between 1 and 2147483647"));
    EXPECT_EQ(reader.status().code(), StatusCode::data_loss);
  }
}

TEST_P(ConfigReaderTest, OnlyOneValueIsSupported) {
  ConfigReader fine = reader();
  fine.only("on", true);
  fine.only("size", 64);
  fine.only("kind", "linear");
  EXPECT_TRUE(fine.status().ok()) << fine.status().message();
  const auto message = [&](auto value, const char* key) {
    ConfigReader reader = this->reader();
    reader.only(key, value);
    EXPECT_TRUE(reader.status().code() == StatusCode::unsupported || reader.status().code() == StatusCode::data_loss);
    return reader.status().message();
  };
  EXPECT_EQ(message(false, "on"), name("on") + " is true: only false is supported");
  EXPECT_EQ(message(int64_t{1}, "size"), name("size") + " is 64: only 1 is supported");
  EXPECT_EQ(message("yarn", "kind"), name("kind") + " is 'linear': only 'yarn' is supported");
  EXPECT_NE(message(true, "kind").find("boolean is expected"), std::string::npos);
}

TEST_P(ConfigReaderTest, KeepsTheFirstError) {
  ConfigReader reader = this->reader();
  reader.size("none");
  const std::string first = reader.status().message();
  EXPECT_EQ(reader.size("size"), 1);
  EXPECT_EQ(reader.size("size", 9), 9);
  EXPECT_EQ(reader.integer("size"), 1);
  EXPECT_EQ(reader.number("size"), 1.0);
  EXPECT_FALSE(reader.flag("on"));
  EXPECT_EQ(reader.text("kind"), "");
  EXPECT_TRUE(reader.integers("flags").empty());
  EXPECT_TRUE(reader.numbers("factors").empty());
  EXPECT_TRUE(reader.texts("names").empty());
  reader.only("size", int64_t{1});
  reader.fail(unsupported("another"));
  EXPECT_EQ(reader.status().message(), first);
}

// ---- What only GGUF has ----

TEST(GgufCheckpoint, NumbersAreFinite) {
  const auto checkpoint = gguf();
  ConfigReader reader(*checkpoint, "tiny.");
  EXPECT_EQ(reader.numbers("doubles"), std::vector<double>{0.1});
  EXPECT_EQ(reader.number("infinite", 3.0), 3.0);
  EXPECT_EQ(reader.status().message(), "m.gguf: tiny.infinite is inf: it must be a finite number");
  EXPECT_EQ(checkpoint->integer("tiny.too_large").status().code(), StatusCode::data_loss);
}

TEST(GgufCheckpoint, ShapesAreRowMajorAndUseIsRecorded) {
  const auto checkpoint = gguf();
  EXPECT_EQ(checkpoint->format(), Checkpoint::Format::gguf);
  EXPECT_EQ(checkpoint->path(), "m.gguf");
  EXPECT_EQ(*checkpoint->architecture(), "tiny");
  EXPECT_EQ(checkpoint->tensors().size(), 2u);
  EXPECT_TRUE(checkpoint->has_tensor("w"));
  EXPECT_FALSE(checkpoint->has_tensor("x"));
  EXPECT_EQ(checkpoint->unused_tensors().size(), 2u) << "to ask is not to use";
  EXPECT_EQ(checkpoint->tensor("x"), nullptr);
  const TensorInfo* const w = checkpoint->tensor("w");
  ASSERT_NE(w, nullptr);
  EXPECT_EQ(w->name, "w");
  EXPECT_EQ(w->shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(w->num_elements(), 6);
  EXPECT_EQ(w->size_bytes, 24);
  EXPECT_EQ(w->type_name, "F32");
  EXPECT_EQ(checkpoint->unused_tensors(), std::vector<std::string>{"experts"});
  EXPECT_EQ(checkpoint->tensor("experts")->shape, (std::vector<int64_t>{2, 3, 4}));
  std::byte last{};
  EXPECT_TRUE(checkpoint->read(*w, 23, 1, &last).ok());
  EXPECT_EQ(last, std::byte{7});
  EXPECT_EQ(checkpoint->read(*w, 23, 2, &last).code(), StatusCode::invalid_argument);
  EXPECT_TRUE(checkpoint->check_unchanged().ok());

  const size_t keys = checkpoint->unused_keys("tiny.").size();
  EXPECT_TRUE(checkpoint->has("tiny.size"));
  EXPECT_EQ(checkpoint->unused_keys("tiny.").size(), keys);
  EXPECT_TRUE(checkpoint->integer("tiny.size").ok());
  EXPECT_EQ(checkpoint->unused_keys("tiny.").size(), keys - 1);
}

}  // namespace
}  // namespace prologue
