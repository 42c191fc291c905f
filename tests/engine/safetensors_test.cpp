// Tests safetensors files: what is read from valid ones, and the sentence that each kind of broken one gets.
#include <prologue/engine/huggingface/json.h>
#include <prologue/engine/huggingface/safetensors.h>

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "tests/support/safetensors_writer.h"

namespace prologue {
namespace {

using test::SafetensorsWriter;
using test::TemporaryDirectory;
using Bytes = std::vector<std::byte>;

Result<SafetensorsFile> open(const std::string& header, size_t data_bytes) {
  return SafetensorsFile::from_bytes(test::safetensors_file(header, Bytes(data_bytes)), "a.safetensors");
}

void expect_refused(const Result<SafetensorsFile>& file, const std::string& message, StatusCode code = StatusCode::data_loss) {
  ASSERT_FALSE(file.ok()) << "want: " << message;
  EXPECT_EQ(file.status().message(), "a.safetensors: " + message);
  EXPECT_EQ(file.status().code(), code) << message;
}
void expect_refused(const std::string& header, size_t data_bytes, const std::string& message) {
  expect_refused(open(header, data_bytes), message);
}

// Returns one tensor "w" with these three members.
std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"w":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
}

// ---- Reading ----

TEST(Safetensors, ReadsTensors) {
  SafetensorsWriter writer;
  writer.add("model.b", "F32", {2, 3}, std::vector<float>{1, 2, 3, 4, 5, 6});
  writer.add("model.a", "BF16", {3}, std::vector<uint16_t>{7, 8, 9});
  writer.add("scalar", "I64", {}, std::vector<int64_t>{-5});
  writer.add("empty", "F16", {4, 0}, std::vector<uint16_t>{});
  writer.add("unknown", "F3_NEW", {100}, std::vector<uint8_t>{1, 2});
  Result<SafetensorsFile> opened = SafetensorsFile::from_bytes(writer.bytes(), "a.safetensors");
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  const SafetensorsFile file = std::move(opened).value();  // names stay valid
  ASSERT_EQ(file.tensors().size(), 5u);
  EXPECT_EQ(file.tensors()[0].name, "empty");
  EXPECT_EQ(file.tensors()[0].shape, (std::vector<int64_t>{4, 0}));
  EXPECT_EQ(file.tensors()[0].size_bytes, 0);
  EXPECT_EQ(file.tensors()[1].name, "model.a");
  EXPECT_EQ(file.tensors()[1].dtype, "BF16");
  EXPECT_EQ(file.tensors()[1].size_bytes, 6);
  const SafetensorsTensor& b = file.tensors()[2];
  EXPECT_EQ(b.name, "model.b");
  EXPECT_EQ(b.shape, (std::vector<int64_t>{2, 3}));
  EXPECT_TRUE(file.tensors()[3].shape.empty());
  EXPECT_EQ(file.tensors()[4].dtype, "F3_NEW");

  float values[2] = {};
  ASSERT_TRUE(file.read(b, 16, 8, values).ok());
  EXPECT_EQ(values[0], 5.0f);
  EXPECT_EQ(values[1], 6.0f);
  EXPECT_TRUE(file.read(b, 24, 0, nullptr).ok());
  for (const auto& [begin, size] : {std::pair<int64_t, int64_t>{-1, 1}, {0, -1}, {0, 25}, {25, 0}, {24, 1}, {1, INT64_MAX}}) {
    EXPECT_EQ(file.read(b, begin, size, values).code(), StatusCode::invalid_argument) << begin << " " << size;
  }
}

TEST(Safetensors, TheHeaderMayHaveMetadataAndPadding) {
  const auto file = open(R"({"__metadata__":{"format":"pt"},"w":{"dtype":"U8","shape":[2],"data_offsets":[0,2],"new":1}}   )", 2);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->tensors().size(), 1u);
  EXPECT_TRUE(open("{}", 0).ok());
}

// ---- Refusing ----

TEST(SafetensorsRefuses, WhatIsNotOne) {
  expect_refused(SafetensorsFile::from_bytes(Bytes(7), "a.safetensors"),
                 "the file has 7 bytes: a safetensors file begins with a header's length of 8 bytes");
  const std::string lfs = "version https://git-lfs.github.com/spec/v1\n";
  const auto* text = reinterpret_cast<const std::byte*>(lfs.data());
  expect_refused(SafetensorsFile::from_bytes(Bytes(text, text + lfs.size()), "a.safetensors"),
                 "this is a Git LFS pointer, not the file that it stands for: fetch that with git lfs pull");
  Bytes bytes = test::safetensors_file("{}", {});
  bytes[0] = std::byte{3};
  expect_refused(SafetensorsFile::from_bytes(bytes, "a.safetensors"),
                 "the header is said to have 3 bytes, but only 2 follow: the file is cut short, or not a safetensors file");
  expect_refused(" {}", 0, "the header does not begin with \"{\": this is not a safetensors file");
  expect_refused("", 0, "the header does not begin with \"{\": this is not a safetensors file");
}

TEST(SafetensorsRefuses, AnEntryOfAnotherForm) {
  const std::string w = "tensor 'w' ";
  expect_refused(R"({"w":1})", 0, w + "has no dtype that is a string");
  expect_refused(entry("3", "[1]", "[0,4]"), 4, w + "has no dtype that is a string");
  expect_refused(R"({"w":{"dtype":"F32"}})", 0, w + "has no shape that is a list");
  expect_refused(entry("\"F32\"", "1", "[0,4]"), 4, w + "has no shape that is a list");
  for (const char* dim : {"-1", "1.0", "\"1\"", "null", "18446744073709551615"}) {
    expect_refused(entry("\"F32\"", str_cat("[", dim, "]"), "[0,4]"), 4,
                   w + "has a dimension that is not an integer of at least 0");
  }
  expect_refused(entry("\"F32\"", "[4294967296,4294967296]", "[0,4]"), 4,
                 w + "has a dimension of 4294967296: the number of elements overflows 64 bits");
  expect_refused(entry("\"F32\"", "[4611686018427387904]", "[0,0]"), 0,
                 w + "has 4611686018427387904 elements of type F32, but its data has 0 bytes");
  for (const char* offsets :
       {"0", "[0]", "[0,4,4]", "[-4,0]", "[4,0]", "[0,4.0]", "[0,\"4\"]", "null", "[0,18446744073709551615]"}) {
    expect_refused(entry("\"F32\"", "[1]", offsets), 4, w + "has no data_offsets that are two integers, 0 <= begin <= end");
  }
  expect_refused(entry("\"F32\"", "[1]", "[0,3]"), 3, w + "has 1 elements of type F32, but its data has 3 bytes");
  expect_refused(entry("\"BF16\"", "[2,3]", "[0,16]"), 16, w + "has 6 elements of type BF16, but its data has 16 bytes");
}

TEST(SafetensorsRefuses, RangesThatDoNotCoverTheData) {
  const auto two = [](const char* first, const char* second) {
    return str_cat(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)", first,
                   R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)", second, "}}");
  };
  EXPECT_TRUE(open(two("[4,8]", "[0,4]"), 8).ok());
  expect_refused(two("[0,4]", "[3,7]"), 8, "the tensors 'a' and 'b' overlap");
  expect_refused(two("[0,4]", "[0,4]"), 8, "the tensors 'a' and 'b' overlap");
  expect_refused(two("[0,4]", "[5,9]"), 9, "1 bytes before the data of tensor 'b' belong to no tensor");
  expect_refused(two("[2,6]", "[6,10]"), 10, "2 bytes before the data of tensor 'a' belong to no tensor");
  expect_refused(two("[0,4]", "[4,8]"), 9, "the last 1 bytes of the file belong to no tensor");
  expect_refused("{}", 3, "the last 3 bytes of the file belong to no tensor");
  expect_refused(two("[0,4]", "[4,8]"), 7, "tensor 'b' ends at byte 8 of the data, of which the file has 7: it is cut short");
  expect_refused(entry("\"U8\"", "[9223372036854775807]", "[0,9223372036854775807]"), 7,
                 "tensor 'w' ends at byte 9223372036854775807 of the data, of which the file has 7: it is cut short");
}

TEST(SafetensorsRefuses, AHeaderThatIsTooLarge) {
  const TemporaryDirectory directory(testing::TempDir());
  const uint64_t length = (uint64_t{32} << 20) + 1;
  directory.write("a.safetensors", std::as_bytes(std::span(&length, 1)));
  std::filesystem::resize_file(directory.file("a.safetensors"), uint64_t{1} << 32);  // sparse
  const auto file = SafetensorsFile::open(directory.file("a.safetensors"));
  EXPECT_EQ(file.status().message(),
            directory.file("a.safetensors") + ": the header has 33554433 bytes: at most 33554432 are supported");
  EXPECT_EQ(file.status().code(), StatusCode::unsupported);
}

// ---- The JSON of headers, indices and configurations ----

TEST(StrictJson, ReadsValues) {
  const auto json = parse_json(
      R"( {"b":[1,-2,2.5,1e3,true,null,"\u20ac"],"a":{"":{}},"big":18446744073709551615,"least":-9223372036854775808} )",
      "x.json");
  ASSERT_TRUE(json.ok()) << json.status().message();
  const Json::List& list = *json->find("b")->get_if<Json::List>();
  ASSERT_EQ(list.size(), 7u);
  EXPECT_EQ(*list[0].get_if<int64_t>(), 1);
  EXPECT_EQ(*list[1].get_if<int64_t>(), -2);
  EXPECT_EQ(*list[2].get_if<double>(), 2.5);
  EXPECT_EQ(*list[3].get_if<double>(), 1000.0);
  EXPECT_EQ(*list[4].get_if<bool>(), true);
  EXPECT_STREQ(list[5].kind(), "null");
  EXPECT_EQ(*list[6].get_if<std::string>(), "\xe2\x82\xac");
  EXPECT_STREQ(json->find("a")->find("")->kind(), "an object");
  EXPECT_EQ(*json->find("big")->get_if<double>(), 18446744073709551616.0);
  EXPECT_EQ(*json->find("least")->get_if<int64_t>(), INT64_MIN);
  EXPECT_EQ(json->find("c"), nullptr);
  EXPECT_EQ(list[0].find("a"), nullptr);
}

TEST(StrictJson, RefusesEverythingElse) {
  const auto message = [](std::string_view text) { return parse_json(text, "x.json").status().message(); };
  for (const char* text : {"", " ", "{", "[1,]", "{\"a\":1,}", "{'a':1}", "[1] [2]", "// no\n1", "nul", "+1", "01", "\"\x01\"",
                           "\"\xff\"", "\"\\ud800\"", "1e999", "{1:2}"}) {
    EXPECT_EQ(message(text).find("x.json: this is not valid JSON: "), 0u) << text << ": " << message(text);
    EXPECT_EQ(parse_json(text, "x.json").status().code(), StatusCode::data_loss);
  }
  for (const char* text : {"[NaN]", "[Infinity]", "[-Infinity]"}) {  // as Python writes them
    EXPECT_NE(message(text).find("last read: '"), std::string::npos) << message(text);
  }
  EXPECT_EQ(
      message("[NaN]"),
      "x.json: this is not valid JSON: parse error at line 1, column 2: syntax error while parsing value - invalid literal; "
      "last read: '[N'");
  EXPECT_EQ(message(R"({"x":{"b":1,"a":2,"b":3}})"), "x.json: the name 'b' occurs twice in a JSON object");
  EXPECT_EQ(message(R"({"a\u001b[2J":1,"a\u001b[2J":1})"), "x.json: the name 'a\\x1b[2J' occurs twice in a JSON object");

  const auto nested = [](size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_TRUE(parse_json(nested(64), "x.json").ok());
  // Parsing takes linear time: with the square of their number, many small objects would take minutes.
  std::string objects = "[{}";
  for (int i = 0; i < 500000; ++i) objects += ",{}";
  const auto start = std::chrono::steady_clock::now();
  EXPECT_TRUE(parse_json(objects + "]", "x.json").ok());
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(120));
  EXPECT_EQ(message(nested(65)), "x.json: the JSON is nested more than 64 levels deep");
  EXPECT_EQ(message(std::string(1 << 20, '[')), "x.json: the JSON is nested more than 64 levels deep");
}

TEST(StrictJson, FilesHaveALargestSize) {
  const TemporaryDirectory directory(testing::TempDir());
  directory.write("x.json", std::string("[1, 2]"));
  EXPECT_TRUE(read_json_file(directory.file("x.json"), 6).ok());
  EXPECT_EQ(read_json_file(directory.file("x.json"), 5).status().message(),
            directory.file("x.json") + ": the file has 6 bytes: at most 5 are supported");
  EXPECT_EQ(read_json_file(directory.file("y.json"), 5).status().code(), StatusCode::not_found);
}

// ---- Files that change while they are open ----

TEST(SafetensorsChanges, ACutFileIsAnErrorWhenItIsRead) {
  const TemporaryDirectory directory(testing::TempDir());
  const std::string path = directory.file("a.safetensors");
  SafetensorsWriter writer;
  writer.add("w", "F32", {1 << 20}, std::vector<float>(1 << 20));
  directory.write("a.safetensors", writer.bytes());
  const auto file = SafetensorsFile::open(path);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_TRUE(file->check_unchanged().ok());
  std::filesystem::resize_file(path, 4096);
  Bytes data(4 << 20);
  const Status status = file->read(file->tensors()[0], 0, 4 << 20, data.data());
  EXPECT_EQ(status.code(), StatusCode::data_loss);
  EXPECT_NE(status.message().find("the file was cut short while it was read: it had "), std::string::npos) << status.message();
  EXPECT_EQ(file->check_unchanged().message(), path + ": the file was changed while it was read");
}

TEST(SafetensorsChanges, AnOverwrittenFileKeepsTheRangesThatWereChecked) {
  const TemporaryDirectory directory(testing::TempDir());
  SafetensorsWriter writer;
  writer.add("w", "U8", {4}, std::vector<uint8_t>{1, 2, 3, 4});
  directory.write("a.safetensors", writer.bytes());
  const auto file = SafetensorsFile::open(directory.file("a.safetensors"));
  ASSERT_TRUE(file.ok()) << file.status().message();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // a file's time goes by ticks of some milliseconds
  std::ofstream(directory.file("a.safetensors"), std::ios::binary | std::ios::in).write(std::string(64, '\xff').data(), 64);
  uint8_t data[4] = {};
  EXPECT_TRUE(file->read(file->tensors()[0], 0, 4, data).ok());
  EXPECT_EQ(file->tensors()[0].size_bytes, 4);
  EXPECT_EQ(file->check_unchanged().code(), StatusCode::data_loss);
}

// A download ran into a full disk: the file may have been cut to any length.
TEST(SafetensorsChanges, NoPartOfAFileIsAFile) {
  SafetensorsWriter writer;
  writer.add("a", "F32", {3}, std::vector<float>(3));
  writer.add("b", "F16", {2, 2}, std::vector<uint16_t>(4));
  const Bytes whole = writer.bytes();
  for (size_t size = 0; size < whole.size(); ++size) {
    const auto file = SafetensorsFile::from_bytes(Bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size)));
    EXPECT_FALSE(file.ok()) << size;
  }
  EXPECT_TRUE(SafetensorsFile::from_bytes(whole).ok());
}

}  // namespace
}  // namespace prologue
