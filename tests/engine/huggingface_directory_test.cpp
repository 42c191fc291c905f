// Directories as transformers writes them: how keys are found in config.json, how shards become one checkpoint, and the sentence that each
// kind of broken directory gets.
#include <prologue/engine/checkpoint/checkpoint.h>
#include <prologue/engine/huggingface/model_directory.h>

#include <gtest/gtest.h>

#include <memory>

#include "tests/support/gguf_writer.h"
#include "tests/support/safetensors_writer.h"

namespace prologue {
namespace {

using test::SafetensorsWriter;
using Floats = std::vector<float>;

class HuggingFaceDirectoryTest : public testing::Test {
 protected:
  void SetUp() override {
    directory_.write("config.json", std::string("{\"model_type\": \"llama\"}"));
    SafetensorsWriter writer;
    writer.add("a", "F32", {2, 3}, Floats{1, 2, 3, 4, 5, 6});
    directory_.write("model.safetensors", writer.bytes());
  }
  void remove(const std::string& name) const { std::filesystem::remove(directory_.file(name)); }
  void write_shard(const std::string& name, const std::vector<std::string>& tensors) const {
    SafetensorsWriter writer;
    for (const std::string& tensor : tensors) writer.add(tensor, "F32", {1}, Floats{static_cast<float>(tensor.size())});
    directory_.write(name, writer.bytes());
  }
  void write_index(const std::string& weight_map) const {
    remove("model.safetensors");
    directory_.write("model.safetensors.index.json", "{\"metadata\":{\"total_size\":8},\"weight_map\":" + weight_map + "}");
  }
  std::unique_ptr<Checkpoint> with_config(const std::string& text) const {
    directory_.write("config.json", text);
    return Checkpoint::open(directory_.path()).value();
  }
  void expect_refused(const std::string& message, StatusCode code) const {
    const auto opened = Checkpoint::open(directory_.path());
    ASSERT_FALSE(opened.ok()) << "want: " << message;
    EXPECT_EQ(opened.status().message(), directory_.path() + ": " + message);
    EXPECT_EQ(opened.status().code(), code) << message;
  }

  const test::TemporaryDirectory directory_{testing::TempDir()};
};

// ---- config.json ----

TEST_F(HuggingFaceDirectoryTest, KeysArePaths) {
  const auto config = with_config(R"({"model_type": "qwen3", "rope_parameters": {"full": {"rope_theta": 1e6}}, "none": null,
    "whole": 4.0, "half": 0.5, "large": 1e300, "object": {}, "mixed": [1, "a"], "whole_list": [2.0]})");
  EXPECT_EQ(config->format(), Checkpoint::Format::huggingface);
  EXPECT_EQ(config->path(), directory_.path());
  EXPECT_EQ(*config->architecture(), "qwen3");
  EXPECT_EQ(*config->number("rope_parameters.full.rope_theta"), 1e6);
  EXPECT_TRUE(config->has("rope_parameters.full"));
  EXPECT_TRUE(config->has("object"));
  for (const char* key : {"none", "none.x", "rope_parameters.full.x", "rope_parameters.x.rope_theta", "whole.x", "", ".",
                          "object.", "rope_parameters..full", "x"}) {
    EXPECT_FALSE(config->has(key)) << key;
    EXPECT_EQ(config->integer(key).status().code(), StatusCode::not_found) << key;
    EXPECT_EQ(config->texts(key).status().code(), StatusCode::not_found) << key;
  }
  EXPECT_EQ(*config->integer("whole"), 4);
  EXPECT_EQ(*config->integers("whole_list"), std::vector<int64_t>{2});
  EXPECT_TRUE(config->unused_keys("").empty());

  const auto message = [&](const Status& status) {
    EXPECT_EQ(status.code(), StatusCode::data_loss);
    return status.message().substr(directory_.path().size() + 2);
  };
  EXPECT_EQ(message(config->integer("half").status()), "'half' in config.json is 0.5: an integer is expected");
  EXPECT_EQ(message(config->integer("large").status()), "'large' in config.json is 1e+300: an integer is expected");
  EXPECT_EQ(message(config->number("object").status()), "'object' in config.json is an object: a number is expected");
  EXPECT_EQ(message(config->flag("whole").status()), "'whole' in config.json is 4: a boolean is expected");
  EXPECT_EQ(message(config->text("mixed").status()), "'mixed' in config.json is a list: a string is expected");
  EXPECT_EQ(message(config->integers("model_type").status()), "'model_type' in config.json is a string: a list is expected");
  EXPECT_EQ(message(config->integers("mixed").status()), "item 1 of 'mixed' in config.json is a string: an integer is expected");
  EXPECT_EQ(message(config->texts("mixed").status()), "item 0 of 'mixed' in config.json is an integer: a string is expected");
  EXPECT_EQ(config->integer("x").status().message(), directory_.path() + ": config.json has no key 'x'");
}

TEST_F(HuggingFaceDirectoryTest, AMultimodalModelIsItsTextModel) {
  const auto config = with_config(R"({"model_type": "gemma3", "tie_word_embeddings": true, "hidden_size": 7, "window": 3,
    "rope": {"theta": 1, "factor": 2}, "vision_config": {"hidden_size": 9},
    "text_config": {"model_type": "gemma3_text", "hidden_size": 5, "window": null, "rope": {"theta": 10}}})");
  EXPECT_EQ(*config->architecture(), "gemma3_text");
  EXPECT_EQ(*config->integer("hidden_size"), 5);
  EXPECT_TRUE(*config->flag("tie_word_embeddings"));
  EXPECT_FALSE(config->has("window")) << "null in text_config is the value";
  EXPECT_EQ(*config->integer("rope.theta"), 10);
  EXPECT_FALSE(config->has("rope.factor")) << "an object is not put together from two";
  EXPECT_EQ(*config->integer("text_config.hidden_size"), 5);
  EXPECT_EQ(*config->integer("vision_config.hidden_size"), 9);

  EXPECT_EQ(*with_config(R"({"model_type": "llava", "text_config": {}})")->architecture(), "llava");
  EXPECT_EQ(*with_config(R"({"model_type": "llava", "text_config": null})")->architecture(), "llava");
}

TEST_F(HuggingFaceDirectoryTest, RefusesAConfigurationThatIsNone) {
  directory_.write("config.json", std::string("[1]"));
  expect_refused("config.json is a list: an object is expected", StatusCode::data_loss);
  directory_.write("config.json", std::string("{\"a\": NaN}"));
  const Status status = Checkpoint::open(directory_.path()).status();
  EXPECT_EQ(status.message().find(directory_.path() + "/config.json: this is not valid JSON: "), 0u) << status.message();
  directory_.write("config.json", std::string((16 << 20) + 1, ' '));
  EXPECT_EQ(Checkpoint::open(directory_.path()).status().code(), StatusCode::unsupported);
  remove("config.json");
  expect_refused("there is no config.json: a GGUF file or the directory of a Hugging Face model is expected",
                 StatusCode::not_found);
}

// ---- Weights ----

TEST_F(HuggingFaceDirectoryTest, OneFile) {
  SafetensorsWriter writer;
  writer.add("h", "F16", {2}, std::vector<uint16_t>{1, 2});
  writer.add("b", "BF16", {1, 2}, std::vector<uint16_t>{1, 2});
  writer.add("f", "F32", {2}, Floats{8, 9});
  writer.add("position_ids", "I64", {1}, std::vector<int64_t>{0});
  directory_.write("model.safetensors", writer.bytes());
  const auto opened = Checkpoint::open(directory_.path());
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  const Checkpoint& checkpoint = **opened;
  EXPECT_EQ(checkpoint.tensors().size(), 4u);
  EXPECT_TRUE(checkpoint.has_tensor("f"));
  EXPECT_EQ(checkpoint.unused_tensors(), (std::vector<std::string>{"b", "f", "h", "position_ids"}));
  EXPECT_EQ(checkpoint.tensor("h")->type, GgmlType::f16);
  EXPECT_EQ(checkpoint.tensor("b")->type, GgmlType::bf16);
  EXPECT_EQ(checkpoint.tensor("b")->shape, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(checkpoint.tensor("position_ids")->type, kUnreadableType);
  EXPECT_EQ(checkpoint.tensor("position_ids")->type_name, "I64");
  EXPECT_EQ(checkpoint.tensor("x"), nullptr);
  EXPECT_EQ(checkpoint.unused_tensors(), std::vector<std::string>{"f"});
  float value = 0.0f;
  EXPECT_TRUE(checkpoint.read(*checkpoint.tensor("f"), 4, 4, &value).ok());
  EXPECT_EQ(value, 9.0f);
  EXPECT_EQ(checkpoint.read(*checkpoint.tensor("f"), 4, 5, &value).code(), StatusCode::invalid_argument);
}

TEST_F(HuggingFaceDirectoryTest, ShardsAndSymbolicLinks) {
  // This is how the cache of the hub is built: the directory's files are links to blobs elsewhere.
  const test::TemporaryDirectory blobs(testing::TempDir());
  write_shard("1.safetensors", {"model.a", "model.bb"});
  std::filesystem::rename(directory_.file("1.safetensors"), blobs.file("0123"));
  std::filesystem::create_symlink(blobs.file("0123"), directory_.file("1.safetensors"));
  std::filesystem::create_directory(directory_.file("more"));
  write_shard("more/2.safetensors", {"model.ccc"});
  write_index(R"({"model.ccc": "more/2.safetensors", "model.a": "1.safetensors", "model.bb": "1.safetensors"})");
  const auto opened = Checkpoint::open(directory_.path());
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  for (const char* name : {"model.a", "model.bb", "model.ccc"}) {
    const TensorInfo* const tensor = (*opened)->tensor(name);
    ASSERT_NE(tensor, nullptr) << name;
    float value = 0.0f;
    EXPECT_TRUE((*opened)->read(*tensor, 0, 4, &value).ok());
    EXPECT_EQ(value, static_cast<float>(std::string(name).size()));
  }
  EXPECT_TRUE((*opened)->check_unchanged().ok());
  std::filesystem::resize_file(directory_.file("more/2.safetensors"), 8);
  EXPECT_EQ((*opened)->check_unchanged().message(),
            directory_.file("more/2.safetensors") + ": the file was changed while it was read");
}

TEST_F(HuggingFaceDirectoryTest, RefusesMissingWeights) {
  remove("model.safetensors");
  expect_refused("there is neither model.safetensors nor model.safetensors.index.json", StatusCode::not_found);
  directory_.write("pytorch_model.bin", std::string("x"));
  expect_refused("the weights are in PyTorch's format (pytorch_model.bin), which can run code: convert them to safetensors",
                 StatusCode::unsupported);
  std::filesystem::create_symlink(directory_.file("nowhere"), directory_.file("model.safetensors"));
  EXPECT_EQ(Checkpoint::open(directory_.path()).status().message(),
            directory_.file("model.safetensors") + ": there is no such file");
}

TEST_F(HuggingFaceDirectoryTest, RefusesAnIndexOfAnotherForm) {
  remove("model.safetensors");
  for (const char* text : {"[]", "{}", "{\"weight_map\": []}"}) {
    directory_.write("model.safetensors.index.json", std::string(text));
    expect_refused("model.safetensors.index.json has no weight_map that is an object", StatusCode::data_loss);
  }
  write_index(R"({"a": 1})");
  expect_refused("model.safetensors.index.json: the file of 'a' is an integer: a string is expected", StatusCode::data_loss);
}

TEST_F(HuggingFaceDirectoryTest, RefusesPathsThatLeaveTheDirectory) {
  const test::TemporaryDirectory other(testing::TempDir());
  SafetensorsWriter writer;
  writer.add("a", "F32", {1}, Floats{1});
  other.write("x.safetensors", writer.bytes());
  const std::string name = std::filesystem::path(other.path()).filename().string();
  for (const std::string& path : {other.file("x.safetensors"), "../" + name + "/x.safetensors", std::string("more/../../x"),
                                  std::string(".."), std::string(""), std::string("more/"), std::string("/")}) {
    write_index("{\"a\": \"" + path + "\"}");
    const Status status = Checkpoint::open(directory_.path()).status();
    EXPECT_NE(status.message().find(": it must be the name of a file within the directory"), std::string::npos)
        << status.message();
    EXPECT_EQ(status.code(), StatusCode::data_loss);
  }
  write_index(R"({"a": "model.safetensors\u0000.x"})");
  EXPECT_EQ(Checkpoint::open(directory_.path()).status().code(), StatusCode::data_loss);
}

TEST_F(HuggingFaceDirectoryTest, RefusesShardsThatDoNotMatchTheIndex) {
  write_shard("1", {"a", "b"});
  write_index(R"({"a": "1", "b": "1", "c": "3", "d": "2"})");
  expect_refused("model.safetensors.index.json names files that are missing: '2' and '3'", StatusCode::not_found);
  write_shard("2", {"c"});
  write_index(R"({"a": "1", "b": "1", "c": "2", "d": "2", "e": "1"})");
  expect_refused("not in the shards in which model.safetensors.index.json says they are: the tensors 'd' and 'e'",
                 StatusCode::data_loss);
  write_index(R"({"a": "1", "b": "2", "c": "2"})");
  expect_refused("not in the shards in which model.safetensors.index.json says they are: the tensors 'b'", StatusCode::data_loss);
  write_index(R"({"a": "1", "c": "2"})");
  expect_refused("in a shard, but not in model.safetensors.index.json: the tensors 'b'", StatusCode::data_loss);
  write_shard("2", {"c", "b", "a"});
  write_index(R"({"a": "1", "b": "2", "c": "2"})");
  expect_refused("more than one shard has the tensors 'a' and 'b'", StatusCode::data_loss);
  directory_.write("2", std::string("no shard"));
  EXPECT_EQ(Checkpoint::open(directory_.path()).status().code(), StatusCode::data_loss);
}

TEST_F(HuggingFaceDirectoryTest, AMessageNamesAtMostTwentyTensors) {
  write_shard("1", {"a"});
  std::string map = "{\"a\": \"1\"";
  for (int i = 100; i < 125; ++i) map += ", \"t" + std::to_string(i) + "\": \"1\"";
  write_index(map + "}");
  const std::string message = Checkpoint::open(directory_.path()).status().message();
  EXPECT_NE(message.find("'t118', 't119' and 5 more"), std::string::npos) << message;
  EXPECT_EQ(message.find("t120"), std::string::npos) << message;
}

// ---- Which format a path has ----

TEST_F(HuggingFaceDirectoryTest, FilesOfADirectoryStandForIt) {
  write_shard("model-00001-of-00001.safetensors", {"a"});
  directory_.write("model.safetensors.index.json", std::string("{\"weight_map\":{\"a\":\"model-00001-of-00001.safetensors\"}}"));
  for (const char* name :
       {"", "config.json", "model.safetensors", "model.safetensors.index.json", "model-00001-of-00001.safetensors"}) {
    const auto opened = Checkpoint::open(directory_.file(name));
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    EXPECT_EQ((*opened)->format(), Checkpoint::Format::huggingface) << name;
    EXPECT_EQ((*opened)->tensors().front().shape.size(), 2u) << "model.safetensors goes before the index";
  }
  directory_.write("adapter.safetensors", std::string("x"));
  EXPECT_NE(Checkpoint::open(directory_.file("adapter.safetensors")).status().message().find("this is not a GGUF file"),
            std::string::npos);
  EXPECT_EQ(Checkpoint::open(directory_.file("nothing.gguf")).status().code(), StatusCode::not_found);
  EXPECT_EQ(Checkpoint::open(directory_.file("more/config.json")).status().code(), StatusCode::not_found);

  ASSERT_TRUE(test::write_tiny_llama(directory_.file("m.gguf")));
  const auto gguf = Checkpoint::open(directory_.file("m.gguf"));
  ASSERT_TRUE(gguf.ok()) << gguf.status().message();
  EXPECT_EQ((*gguf)->format(), Checkpoint::Format::gguf);
}

}  // namespace
}  // namespace prologue
