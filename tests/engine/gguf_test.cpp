// Tests GGUF files: what is read from valid ones, and the sentence that each kind of broken one gets.
#include <prologue/engine/gguf/gguf.h>
#include <prologue/engine/gguf/tokenizer_data.h>
#include <prologue/engine/tokenizer/tokenizer.h>

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/gguf_writer.h"
#include "tests/support/source_path.h"

namespace prologue {
namespace {

using Bytes = std::vector<std::byte>;
using test::append_bytes;
using test::GgufWriter;
namespace type = test::gguf;
using Strings = std::vector<std::string>;

Bytes bytes_of(size_t count, uint8_t value = 0) { return Bytes(count, std::byte{value}); }

// A file with one value and one tensor, to be made worse.
GgufWriter small_file() {
  GgufWriter writer;
  writer.add("llama.block_count", uint32_t{2});
  writer.add_tensor("a.weight", {32, 2}, type::kQ4_0, bytes_of(36, 1));
  return writer;
}

// Reads one byte of a tensor's data.
std::byte byte_of(const GgufFile& file, const GgufTensor& tensor, int64_t at) {
  std::byte value{0xee};
  EXPECT_TRUE(file.read(tensor, at, 1, &value).ok());
  return value;
}
std::byte byte_of(const GgufFile& file, std::string_view tensor, int64_t at) { return byte_of(file, **file.tensor(tensor), at); }

GgufFile open_valid(const GgufWriter& writer) {
  Result<GgufFile> file = GgufFile::from_bytes(writer.bytes(), "model.gguf");
  EXPECT_TRUE(file.ok()) << file.status().message();
  return std::move(file).value();
}

void expect_refused(const Result<GgufFile>& file, StatusCode code, const std::string& message) {
  ASSERT_FALSE(file.ok()) << "want: " << message;
  EXPECT_EQ(file.status().message(), message);
  EXPECT_EQ(file.status().code(), code) << message;
}
void expect_refused(Bytes bytes, StatusCode code, const std::string& message) {
  expect_refused(GgufFile::from_bytes(std::move(bytes), "model.gguf"), code, "model.gguf: " + message);
}
void expect_refused(const GgufWriter& writer, StatusCode code, const std::string& message) {
  expect_refused(writer.bytes(), code, message);
}

// Returns the file of `writer` with the named field overwritten.
Bytes with_field(const GgufWriter& writer, const std::string& what, uint64_t value) {
  std::vector<GgufWriter::Field> fields;
  Bytes bytes = writer.bytes(&fields);
  for (const auto& field : fields) {
    if (field.what != what) continue;
    std::memcpy(bytes.data() + field.offset, &value, field.size);
    return bytes;
  }
  ADD_FAILURE() << "no field " << what;
  return bytes;
}

// ---- Reading ----

TEST(Gguf, ReadsEveryScalarType) {
  GgufWriter writer;
  writer.add("u8", uint8_t{200});
  writer.add("i8", int8_t{-100});
  writer.add("u16", uint16_t{50000});
  writer.add("i16", int16_t{-30000});
  writer.add("u32", uint32_t{3000000000});
  writer.add("i32", int32_t{-2000000000});
  writer.add("u64", uint64_t{1} << 63);
  writer.add("i64", std::numeric_limits<int64_t>::min());
  writer.add("f32", 1.5f);
  writer.add("f64", 2.5);
  writer.add("yes", true);
  writer.add("no", false);
  writer.add("text", "h\xc3\xa9llo");
  const GgufFile file = open_valid(writer);
  EXPECT_EQ(file.version(), 3u);
  EXPECT_EQ(*file.get<int64_t>("u8"), 200);
  EXPECT_EQ(*file.get<int32_t>("i8"), -100);
  EXPECT_EQ(*file.get<int32_t>("u16"), 50000);
  EXPECT_EQ(*file.get<int64_t>("i16"), -30000);
  EXPECT_EQ(*file.get<uint32_t>("u32"), 3000000000u);
  EXPECT_EQ(*file.get<int32_t>("i32"), -2000000000);
  EXPECT_EQ(*file.get<uint64_t>("u64"), uint64_t{1} << 63);
  EXPECT_EQ(*file.get<int64_t>("i64"), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(*file.get<float>("f32"), 1.5f);
  EXPECT_EQ(*file.get<double>("f32"), 1.5);
  EXPECT_EQ(*file.get<float>("f64"), 2.5f);
  EXPECT_TRUE(*file.get<bool>("yes"));
  EXPECT_FALSE(*file.get<bool>("no"));
  EXPECT_EQ(*file.get<std::string>("text"), "h\xc3\xa9llo");
}

TEST(Gguf, ReadsArrays) {
  GgufWriter writer;
  writer.add("strings", Strings{"one", "", "three"});
  writer.add("small", std::vector<int8_t>{-1, 2});
  writer.add("wide", std::vector<uint64_t>{7, 8, 9});
  writer.add("floats", std::vector<float>{0.5f, -1.0f});
  writer.add("flags", std::vector<bool>{true, false, true});
  writer.add("nothing", std::vector<int32_t>{});
  const GgufFile file = open_valid(writer);
  EXPECT_EQ(*file.get<Strings>("strings"), (Strings{"one", "", "three"}));
  EXPECT_EQ(*file.get<std::vector<int32_t>>("small"), (std::vector<int32_t>{-1, 2}));
  EXPECT_EQ(*file.get<std::vector<uint32_t>>("wide"), (std::vector<uint32_t>{7, 8, 9}));
  EXPECT_EQ(*file.get<std::vector<int64_t>>("wide"), (std::vector<int64_t>{7, 8, 9}));
  EXPECT_EQ(*file.get<std::vector<float>>("floats"), (std::vector<float>{0.5f, -1.0f}));
  EXPECT_EQ(*file.get<std::vector<bool>>("flags"), (std::vector<bool>{true, false, true}));
  EXPECT_TRUE(file.get<std::vector<int64_t>>("nothing")->empty());
}

TEST(GgufRefuses, MoreKeysThanAnyModelHas) {
  GgufWriter writer;
  for (int i = 0; i < (1 << 16); ++i) writer.add(std::to_string(i), uint8_t{1});
  EXPECT_EQ(open_valid(writer).keys().size(), size_t{1} << 16);
  writer.add("more", uint8_t{1});
  expect_refused(writer, StatusCode::unsupported,
                 "the file has 65537 metadata keys and 0 tensors: at most 65536 and 1048576 are supported");
}

TEST(Gguf, ArraysThatAreReadHaveALargestSize) {
  GgufWriter writer;
  writer.add("most", std::vector<uint8_t>(size_t{1} << 22, 7));
  writer.add("more", std::vector<uint8_t>((size_t{1} << 22) + 1, 7));
  const GgufFile file = open_valid(writer);
  EXPECT_EQ(file.get<std::vector<int32_t>>("most")->size(), size_t{1} << 22);
  const auto more = file.get<std::vector<int32_t>>("more");
  EXPECT_EQ(more.status().code(), StatusCode::unsupported);
  EXPECT_EQ(more.status().message(), "model.gguf: key more is an array of 4194305 values: at most 4194304 are read");
}

TEST(Gguf, ReadsTensors) {
  GgufWriter writer;
  Bytes values;
  for (const float value : {1.0f, 2.0f, 3.0f, 4.0f, 5.0f, 6.0f}) append_bytes(values, value);
  writer.add_tensor("first", {3, 2}, type::kF32, values);
  writer.add_tensor("second", {256, 2, 3, 4}, type::kQ6_K, bytes_of(24 * 210, 7));
  const GgufFile file = open_valid(writer);
  ASSERT_EQ(file.tensors().size(), 2u);
  const GgufTensor& first = **file.tensor("first");
  EXPECT_EQ(first.name, "first");
  EXPECT_EQ(first.type, GgmlType::f32);
  EXPECT_EQ(first.dims, (std::vector<int64_t>{3, 2}));
  EXPECT_EQ(first.row_elements(), 3);
  EXPECT_EQ(first.num_rows(), 2);
  EXPECT_EQ(first.size_bytes, 24);
  Bytes data(values.size());
  ASSERT_TRUE(file.read(first, 0, first.size_bytes, data.data()).ok());
  EXPECT_EQ(data, values);
  const GgufTensor& second = **file.tensor("second", {256, 2, 3, 4});
  EXPECT_EQ(second.num_rows(), 24);
  EXPECT_EQ(second.num_elements(), 256 * 24);
  EXPECT_EQ(second.size_bytes, 24 * 210);
  EXPECT_EQ(byte_of(file, second, 24 * 210 - 1), std::byte{7});
}

TEST(Gguf, ReadsNothingOutsideATensor) {
  const GgufFile file = open_valid(small_file());
  const GgufTensor& tensor = **file.tensor("a.weight");
  std::byte data[64];
  EXPECT_TRUE(file.read(tensor, 36, 0, data).ok());
  for (const auto& [begin, size] :
       {std::pair<int64_t, int64_t>{0, 37}, {36, 1}, {-1, 1}, {0, -1}, {INT64_MAX, INT64_MAX}, {1, INT64_MAX}}) {
    EXPECT_EQ(file.read(tensor, begin, size, data).message(),
              str_cat("the bytes from ", begin, " on, ", size, " of them, are read of a tensor of 36 bytes"));
  }
}

TEST(Gguf, VersionTwoAndOtherAlignments) {
  for (const uint32_t version : {2u, 3u}) {
    for (const uint32_t alignment : {8u, 32u, 4096u}) {
      GgufWriter writer = small_file();
      writer.add_tensor("b", {4}, type::kF16, bytes_of(8, 9));
      writer.version = version;
      writer.alignment = alignment;
      const GgufFile file = open_valid(writer);
      EXPECT_EQ(file.version(), version);
      EXPECT_EQ(byte_of(file, "a.weight", 35), std::byte{1});
      EXPECT_EQ(byte_of(file, "b", 0), std::byte{9});
    }
  }
}

TEST(Gguf, AFileOfKeysOnly) {
  GgufWriter writer;
  writer.add("llama.block_count", uint32_t{2});
  EXPECT_TRUE(open_valid(writer).tensors().empty());
  EXPECT_TRUE(open_valid(GgufWriter()).keys().empty());
}

TEST(Gguf, MovesWithItsContents) {
  GgufFile file = open_valid(small_file());
  GgufFile moved = std::move(file);
  file = open_valid(small_file());
  file = std::move(moved);
  EXPECT_EQ(*file.get<int32_t>("llama.block_count"), 2);
  EXPECT_EQ(byte_of(file, "a.weight", 0), std::byte{1});
}

TEST(Gguf, FromDisk) {
  const std::string path = ::testing::TempDir() + "prologue_gguf_test.gguf";
  ASSERT_TRUE(small_file().write(path));
  Result<GgufFile> opened = GgufFile::open(path);
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  const GgufFile file = std::move(opened).value();
  unlink(path.c_str());
  EXPECT_EQ(file.path(), path);
  EXPECT_EQ(*file.get<int32_t>("llama.block_count"), 2);
  EXPECT_EQ(byte_of(file, "a.weight", 35), std::byte{1});
}

// ---- Files that change while they are open ----

// Makes tensors and metadata of several MiB, so that a file is read in many pieces.
GgufWriter large_file() {
  GgufWriter writer;
  writer.add("llama.block_count", uint32_t{2});
  std::vector<std::string> strings;
  for (int i = 0; i < 200000; ++i) strings.push_back(str_cat("token ", i));
  writer.add("tokenizer.ggml.tokens", strings);
  writer.add_tensor("a.weight", {1 << 10, 1 << 10}, type::kF32, bytes_of(4 << 20, 1));
  return writer;
}

TEST(GgufChanges, ACutFileKeepsItsMetadataAndItsTensorsAreAnError) {
  const std::string path = ::testing::TempDir() + "prologue_gguf_cut.gguf";
  ASSERT_TRUE(large_file().write(path));
  const GgufFile file = std::move(GgufFile::open(path)).value();
  ASSERT_EQ(truncate(path.c_str(), 4096), 0);
  EXPECT_EQ(*file.get<int32_t>("llama.block_count"), 2);
  EXPECT_EQ(file.get<Strings>("tokenizer.ggml.tokens")->back(), "token 199999");
  const GgufTensor& tensor = **file.tensor("a.weight");
  std::vector<std::byte> data(static_cast<size_t>(tensor.size_bytes));
  const Status status = file.read(tensor, 0, tensor.size_bytes, data.data());
  EXPECT_EQ(status.code(), StatusCode::data_loss);
  EXPECT_NE(status.message().find("the file was cut short while it was read: it had "), std::string::npos) << status.message();
  EXPECT_EQ(file.check_unchanged().message(), path + ": the file was changed while it was read");
  unlink(path.c_str());
}

TEST(GgufChanges, AnOverwrittenFileKeepsTheLengthsThatWereChecked) {
  const std::string path = ::testing::TempDir() + "prologue_gguf_overwritten.gguf";
  ASSERT_TRUE(large_file().write(path));
  const GgufFile file = std::move(GgufFile::open(path)).value();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // a file's time goes by ticks of some milliseconds
  {
    const std::string ones(8 << 20, '\xff');  // every length is now 2^64 - 1
    std::ofstream(path, std::ios::binary | std::ios::in).write(ones.data(), static_cast<std::streamsize>(ones.size()));
  }
  EXPECT_EQ(*file.get<int32_t>("llama.block_count"), 2);
  const Strings tokens = *file.get<Strings>("tokenizer.ggml.tokens");
  ASSERT_EQ(tokens.size(), 200000u);
  EXPECT_EQ(tokens[1], "token 1");
  EXPECT_EQ(byte_of(file, "a.weight", 0), std::byte{0xff});
  EXPECT_EQ(file.check_unchanged().code(), StatusCode::data_loss);
  unlink(path.c_str());
}

// Other threads cut and restore the file the whole time: every open and read ends in a value or a Status.
TEST(GgufChanges, AFileThatChangesAllTheTimeIsNeverAFault) {
  const std::string path = ::testing::TempDir() + "prologue_gguf_changing.gguf";
  const Bytes good = large_file().bytes();
  ASSERT_TRUE(large_file().write(path));
  std::atomic<bool> stop = false;
  std::thread others([&] {
    const Bytes garbage(good.size() / 2, std::byte{0x7f});
    for (int round = 0; !stop; ++round) {
      const Bytes& content = round % 2 == 0 ? garbage : good;
      std::ofstream(path, std::ios::binary | std::ios::trunc)
          .write(reinterpret_cast<const char*>(content.data()), static_cast<std::streamsize>(content.size()));
    }
  });
  int opened = 0, whole = 0;
  for (int round = 0; round < 4000 && (round < 200 || opened < 3 || whole == opened); ++round) {
    const Result<GgufFile> file = GgufFile::open(path);
    if (!file.ok()) continue;
    ++opened;
    const auto tokens = file->get<Strings>("tokenizer.ggml.tokens");
    EXPECT_TRUE(!tokens.ok() || tokens->size() == 200000u);
    bool all = tokens.ok();
    for (const GgufTensor& tensor : file->tensors()) {
      std::vector<std::byte> data(static_cast<size_t>(tensor.size_bytes));
      all = file->read(tensor, 0, tensor.size_bytes, data.data()).ok() && all;
    }
    whole += all && file->check_unchanged().ok() ? 1 : 0;
  }
  stop = true;
  others.join();
  unlink(path.c_str());
}

// If a sparse file claims to be all metadata, it is not read into memory.
TEST(GgufChanges, MetadataHaveALargestSize) {
  const std::string path = ::testing::TempDir() + "prologue_gguf_sparse.gguf";
  Bytes bytes = GgufWriter().bytes();
  const uint64_t length = uint64_t{1} << 39;
  std::memcpy(bytes.data() + 16, "\1\0\0\0\0\0\0", 8);  // one key ...
  append_bytes(bytes, length);                          // ... whose name is 512 GiB long
  {
    std::ofstream out(path, std::ios::binary);
    out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  }
  if (truncate(path.c_str(), int64_t{1} << 40) != 0) GTEST_SKIP() << "no sparse files of a TiB here";
  expect_refused(GgufFile::open(path), StatusCode::unsupported,
                 path + ": the metadata takes more than 256 MiB: that is more than is supported");
  unlink(path.c_str());
}

// ---- What was used ----

TEST(Gguf, RemembersWhatWasRead) {
  GgufWriter writer;
  for (const char* key : {"general.name", "tokenizer.ggml.model", "quantize.imatrix.file"}) writer.add(key, "x");
  writer.add("llama.block_count", uint32_t{2});
  writer.add("llama.expert_count", uint32_t{8});
  writer.add("other.key", uint32_t{8});
  writer.add_tensor("a", {1}, type::kF32, bytes_of(4));
  writer.add_tensor("b", {1}, type::kF32, bytes_of(4));
  const GgufFile file = open_valid(writer);
  EXPECT_EQ(file.unused_keys(), (Strings{"llama.block_count", "llama.expert_count", "other.key"}));
  EXPECT_EQ(file.unused_tensors(), (Strings{"a", "b"}));

  EXPECT_TRUE(file.has("llama.expert_count"));  // looking is not reading, and neither is failing to read
  EXPECT_TRUE(file.has_tensor("a"));
  EXPECT_FALSE(file.get<std::string>("llama.expert_count").ok());
  EXPECT_FALSE(file.tensor("a", {2}).ok());
  EXPECT_EQ(*file.get_or<int32_t>("llama.block_count", 7), 2);
  EXPECT_TRUE(file.tensor("b").ok());
  EXPECT_EQ(file.unused_keys("llama."), (Strings{"llama.expert_count"}));
  EXPECT_EQ(file.unused_keys("general."), Strings{});
  EXPECT_EQ(file.unused_tensors(), (Strings{"a"}));
}

// ---- Asking for the wrong thing ----

template <class T>
void expect_no_value(const GgufFile& file, const char* key, StatusCode code, const std::string& message) {
  const Result<T> value = file.get<T>(key);
  ASSERT_FALSE(value.ok()) << key;
  EXPECT_EQ(value.status().code(), code);
  EXPECT_EQ(value.status().message(), message);
}

TEST(Gguf, MissingAndMistypedValues) {
  GgufWriter writer;
  writer.add("count", int32_t{-3});
  writer.add("big", uint64_t{1} << 40);
  writer.add("text", "abc");
  writer.add("flag", true);
  writer.add("ratio", 0.5f);
  writer.add("huge", -1e300);
  writer.add("list", std::vector<int32_t>{1, 2, -3});
  const GgufFile file = open_valid(writer);
  const auto broken = StatusCode::data_loss;
  expect_no_value<int32_t>(file, "none", StatusCode::not_found, "model.gguf: the metadata key none is missing");
  expect_no_value<uint32_t>(file, "count", broken, "model.gguf: key count is -3: must be 0 to 4294967295");
  expect_no_value<int32_t>(file, "big", broken, "model.gguf: key big is 1099511627776: must be -2147483648 to 2147483647");
  expect_no_value<int32_t>(file, "text", broken, "model.gguf: key text has type string: integer is expected");
  expect_no_value<int32_t>(file, "ratio", broken, "model.gguf: key ratio has type float32: integer is expected");
  expect_no_value<int32_t>(file, "flag", broken, "model.gguf: key flag has type boolean: integer is expected");
  expect_no_value<bool>(file, "count", broken, "model.gguf: key count has type int32: boolean is expected");
  expect_no_value<float>(file, "count", broken, "model.gguf: key count has type int32: float is expected");
  expect_no_value<float>(file, "huge", broken, "model.gguf: key huge is -1e+300: must be -3.40282e+38 to 3.40282e+38");
  expect_no_value<std::string>(file, "list", broken, "model.gguf: key list has type array of int32: string is expected");
  expect_no_value<int32_t>(file, "list", broken, "model.gguf: key list has type array of int32: integer is expected");
  expect_no_value<Strings>(file, "list", broken, "model.gguf: key list has type array of int32: array of string is expected");
  expect_no_value<Strings>(file, "text", broken, "model.gguf: key text has type string: array of string is expected");
  expect_no_value<std::vector<uint32_t>>(file, "list", broken,
                                         "model.gguf: key list holds -3 at index 2: must be 0 to 4294967295");
  EXPECT_EQ(*file.get_or<int32_t>("none", 5), 5);
  EXPECT_FALSE(file.get_or<int32_t>("text", 5).ok());
}

TEST(Gguf, MissingAndMisshapenTensors) {
  const GgufFile file = open_valid(small_file());
  const auto missing = file.tensor("b.weight");
  EXPECT_EQ(missing.status().code(), StatusCode::not_found);
  EXPECT_EQ(missing.status().message(), "model.gguf: the tensor b.weight is missing");
  const auto misshapen = file.tensor("a.weight", {32, 3});
  EXPECT_EQ(misshapen.status().code(), StatusCode::data_loss);
  EXPECT_EQ(misshapen.status().message(), "model.gguf: tensor a.weight has shape [32, 2]: [32, 3] is expected");
  EXPECT_FALSE(file.tensor("a.weight", {32}).ok());
  EXPECT_FALSE(file.tensor("a.weight", {32, 2, 1}).ok());
  EXPECT_TRUE(file.tensor("a.weight", {32, 2}).ok());
}

// ---- Files that cannot be opened ----

TEST(GgufRefuses, WhatIsNoReadableFile) {
  const std::string folder = ::testing::TempDir();
  const std::string missing = folder + "prologue_no_such_file.gguf";
  expect_refused(GgufFile::open(missing), StatusCode::not_found, missing + ": there is no such file");
  expect_refused(GgufFile::open(""), StatusCode::not_found, ": there is no such file");
  expect_refused(GgufFile::open(folder), StatusCode::invalid_argument, folder + ": this is a directory, but a file is expected");

  const std::string pipe = folder + "prologue_gguf_test.pipe";
  unlink(pipe.c_str());
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  expect_refused(GgufFile::open(pipe), StatusCode::invalid_argument, pipe + ": this is not a regular file");
  unlink(pipe.c_str());

  const std::string empty = folder + "prologue_gguf_test_empty.gguf";
  { const std::ofstream created(empty); }
  expect_refused(GgufFile::open(empty), StatusCode::data_loss, empty + ": the file is empty, but a GGUF file is expected");
  unlink(empty.c_str());
}

TEST(GgufRefuses, WhatMayNotBeRead) {
  if (geteuid() == 0) GTEST_SKIP() << "root may read everything";
  const std::string path = ::testing::TempDir() + "prologue_gguf_test_locked.gguf";
  ASSERT_TRUE(small_file().write(path));
  ASSERT_EQ(chmod(path.c_str(), 0), 0);
  expect_refused(GgufFile::open(path), StatusCode::invalid_argument,
                 path + ": the file cannot be opened for reading: Permission denied");
  unlink(path.c_str());
}

TEST(GgufRefuses, WhatIsNotGguf) {
  expect_refused(Bytes(), StatusCode::data_loss, "the file is empty, but a GGUF file is expected");
  Bytes zip = small_file().bytes();
  std::memcpy(zip.data(), "PK\x03\x04", 4);
  expect_refused(zip, StatusCode::data_loss, "this is not a GGUF file: it starts with \"PK\\x03\\x04\", not with \"GGUF\"");
  zip.resize(2);
  expect_refused(zip, StatusCode::data_loss, "this is not a GGUF file: it starts with \"PK\", not with \"GGUF\"");
}

TEST(GgufRefuses, OtherVersions) {
  const auto refused = StatusCode::unsupported;
  for (const uint32_t version : {0u, 1u, 4u, 0x01020304u}) {
    expect_refused(with_field(small_file(), "version", version), refused,
                   "the GGUF version is " + std::to_string(version) + ", but only 2 and 3 are supported");
  }
  expect_refused(with_field(small_file(), "version", 0x03000000), refused,
                 "the file is big-endian, but only little-endian GGUF files are supported");
}

TEST(GgufRefuses, TruncatedFiles) {
  const Bytes whole = small_file().bytes();
  const auto cut = [&](size_t size) { return Bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size)); };
  const auto broken = StatusCode::data_loss;
  expect_refused(cut(6), broken, "the file is cut short: it ends after 6 bytes, inside the version");
  expect_refused(cut(20), broken, "the file is cut short: it ends after 20 bytes, inside the number of metadata keys");
  expect_refused(cut(whole.size() - 1), broken,
                 "tensor a.weight of 36 bytes at offset 0 lies outside the tensor data, of which the file has 35 bytes");
  expect_refused(cut(whole.size() - 37), broken,
                 "the file is cut short: it ends after " + std::to_string(whole.size() - 37) + " bytes, before the tensor data");
  for (size_t size = 0; size < whole.size(); ++size) EXPECT_FALSE(GgufFile::from_bytes(cut(size)).ok()) << size;
}

// ---- Numbers that lie ----

TEST(GgufRefuses, LyingCountsAndLengths) {
  const auto broken = StatusCode::data_loss;
  const std::string all = "18446744073709551615";
  const GgufWriter writer = small_file();
  const size_t left = writer.bytes().size() - 24;
  expect_refused(with_field(writer, "number of keys", ~0ull), broken,
                 "the number of metadata keys is " + all + ", but the remaining " + std::to_string(left) +
                     " bytes hold at most " + std::to_string(left / 14));
  expect_refused(with_field(writer, "number of tensors", 1ull << 60), broken,
                 "the number of tensors is 1152921504606846976, but the remaining " + std::to_string(left) +
                     " bytes hold at most " + std::to_string(left / 33));
  expect_refused(with_field(writer, "llama.block_count: key length", ~0ull), broken,
                 "metadata key 0 is said to be " + all + " bytes long, but only " + std::to_string(left - 8) +
                     " bytes are left in the file");
  expect_refused(with_field(writer, "a.weight: name length", 1ull << 40), broken,
                 "the name of tensor 0 is said to be 1099511627776 bytes long, but only " + std::to_string(left - 33 - 8) +
                     " bytes are left in the file");

  GgufWriter lists;
  lists.add("numbers", std::vector<uint64_t>{1, 2});
  expect_refused(
      with_field(lists, "numbers: number of elements", (1ull << 61) + 2), broken,  // times 8 is 16 again
      "key numbers is said to hold 2305843009213693954 values of at least 8 bytes, but only 16 bytes are left in the file");
  GgufWriter strings;
  strings.add("words", Strings{"one", "two"});
  expect_refused(with_field(strings, "words: number of elements", 1ull << 50), broken,
                 "key words is said to hold 1125899906842624 values of at least 8 bytes, but only 22 bytes are left in the file");
  expect_refused(
      with_field(strings, "words: first string's length", ~0ull - 3), broken,
      "string 0 of key words is said to be 18446744073709551612 bytes long, but only 22 bytes are left in the file, its "
      "length included");
  GgufWriter text;
  text.add("word", "one");
  expect_refused(with_field(text, "word: string length", 4), broken,
                 "string 0 of key word is said to be 4 bytes long, but only 11 bytes are left in the file, its length included");
  GgufWriter scalar;
  scalar.add_raw("number", type::kUint64, bytes_of(7));
  expect_refused(scalar, broken, "key number needs at least 8 bytes, but only 7 bytes are left in the file");
}

TEST(GgufRefuses, BadKeys) {
  const auto broken = StatusCode::data_loss;
  GgufWriter twice;
  twice.add("a", 1);
  twice.add("a", 2);
  expect_refused(twice, broken, "key a occurs twice");
  GgufWriter nameless;
  nameless.add("", 1);
  expect_refused(nameless, broken, "metadata key 0 has an empty name");
  GgufWriter unknown;
  unknown.add_raw("a\n\xff", 13, bytes_of(8));
  expect_refused(unknown, broken, "the type of key a\\x0a\\xff is 13, but types are 0 to 12");
  GgufWriter boolean;
  boolean.add_raw("flag", type::kBool, bytes_of(1, 2));
  expect_refused(boolean, broken, "key flag holds 2 as a boolean: must be 0 or 1");

  GgufWriter element;
  element.add("list", std::vector<int32_t>{1});
  expect_refused(with_field(element, "list: element type", 77), broken,
                 "the element type of key list is 77, but types are 0 to 12");
  expect_refused(with_field(element, "list: element type", type::kArray), StatusCode::unsupported,
                 "key list is an array of arrays: arrays of numbers, booleans and strings are supported");
}

TEST(GgufRefuses, BadAlignment) {
  for (const uint32_t alignment : {0u, 1u, 4u, 12u, 33u}) {
    GgufWriter writer = small_file();
    writer.add("general.alignment", alignment);
    expect_refused(writer, StatusCode::data_loss,
                   "general.alignment is " + std::to_string(alignment) + ": must be a power of two of at least 8");
  }
  GgufWriter text = small_file();
  text.add("general.alignment", "32");
  expect_refused(text, StatusCode::data_loss, "key general.alignment has type string: integer is expected");
  GgufWriter huge = small_file();
  huge.add("general.alignment", uint32_t{1} << 31);
  expect_refused(
      huge, StatusCode::data_loss,
      "the file is cut short: it ends after " + std::to_string(huge.bytes().size()) + " bytes, before the tensor data");
}

TEST(GgufRefuses, BadTensors) {
  const auto broken = StatusCode::data_loss;
  const GgufWriter writer = small_file();
  expect_refused(with_field(writer, "a.weight: number of dimensions", 0), broken,
                 "tensor a.weight has 0 dimensions: must be 1 to 4");
  expect_refused(with_field(writer, "a.weight: number of dimensions", 5), broken,
                 "tensor a.weight has 5 dimensions: must be 1 to 4");
  expect_refused(with_field(writer, "a.weight: dimension", 0), broken, "dimension 0 of tensor a.weight is 0: must be at least 1");
  expect_refused(with_field(writer, "a.weight: dimension", 1ull << 63), broken,
                 "dimension 0 of tensor a.weight is 9223372036854775808: the number of elements overflows 64 bits");
  expect_refused(with_field(writer, "a.weight: dimension", 1ull << 62), broken,
                 "dimension 1 of tensor a.weight is 2: the number of elements overflows 64 bits");
  expect_refused(with_field(writer, "a.weight: dimension", 33), broken,
                 "tensor a.weight has rows of 33 elements: type Q4_0 needs a multiple of 32");
  expect_refused(with_field(writer, "a.weight: dimension", 64), broken,
                 "tensor a.weight of 72 bytes at offset 0 lies outside the tensor data, of which the file has 36 bytes");
  expect_refused(with_field(writer, "a.weight: type", 17), StatusCode::unsupported,
                 "tensor a.weight has type IQ2_XS: supported are F32, F16, BF16, F64, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, "
                 "Q6_K, Q2_K, Q3_K, IQ4_NL, IQ4_XS, MXFP4, NVFP4");
  expect_refused(with_field(writer, "a.weight: type", 99), StatusCode::unsupported,
                 "tensor a.weight has type unknown type 99: supported are F32, F16, BF16, F64, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, "
                 "Q4_K, Q5_K, Q6_K, Q2_K, Q3_K, IQ4_NL, IQ4_XS, MXFP4, NVFP4");
  expect_refused(with_field(writer, "a.weight: type", 0x10000), StatusCode::unsupported,  // one of the library's own
                 "tensor a.weight has type unknown type 65536: supported are F32, F16, BF16, F64, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, "
                 "Q4_K, Q5_K, Q6_K, Q2_K, Q3_K, IQ4_NL, IQ4_XS, MXFP4, NVFP4");
  expect_refused(with_field(writer, "a.weight: offset", 31), broken,
                 "tensor a.weight lies at offset 31: must be a multiple of the alignment, 32");
  expect_refused(with_field(writer, "a.weight: offset", 32), broken,
                 "tensor a.weight of 36 bytes at offset 32 lies outside the tensor data, of which the file has 36 bytes");
  expect_refused(
      with_field(writer, "a.weight: offset", ~0ull - 31), broken,
      "tensor a.weight of 36 bytes at offset 18446744073709551584 lies outside the tensor data, of which the file has 36 bytes");

  GgufWriter wide;
  wide.add_tensor("w", {1ull << 40, 1ull << 22}, type::kF32, bytes_of(4));
  expect_refused(wide, broken, "tensor w has shape [1099511627776, 4194304]: its size in bytes overflows 64 bits");
  GgufWriter nameless;
  nameless.add_tensor("", {1}, type::kF32, bytes_of(4));
  expect_refused(nameless, broken, "tensor 0 has an empty name");
  GgufWriter twice = small_file();
  twice.add_tensor("a.weight", {1}, type::kF32, bytes_of(4));
  expect_refused(twice, broken, "tensor a.weight occurs twice");
  GgufWriter overlapping = small_file();
  overlapping.add_tensor("b", {8}, type::kF32, bytes_of(32));
  EXPECT_TRUE(GgufFile::from_bytes(overlapping.bytes()).ok());
  expect_refused(with_field(overlapping, "b: offset", 32), broken, "tensors a.weight and b overlap in the file");
}

TEST(GgufRefuses, WithAShortNameInTheMessage) {
  GgufWriter writer;
  writer.add_tensor(std::string(200, 'x'), {1}, 99, bytes_of(4));
  const Result<GgufFile> file = GgufFile::from_bytes(writer.bytes(), "model.gguf");
  EXPECT_EQ(file.status().message().find("model.gguf: tensor " + std::string(96, 'x') + "... (200 bytes) has type"), 0u);
}

// ---- The tokenizer's part of a file ----

TEST(TokenizerDataTest, IsReadFromAFile) {
  const std::string path = ::testing::TempDir() + "prologue_gguf_test_tokenizer.gguf";
  ASSERT_TRUE(test::write_tiny_llama(path));
  const Result<TokenizerData> data = read_tokenizer_data(path);
  unlink(path.c_str());
  ASSERT_TRUE(data.ok()) << data.status().message();
  EXPECT_EQ(data->model, TokenizerModel::bpe);
  EXPECT_TRUE(data->byte_level);
  EXPECT_EQ(data->pre_tokenizer.size(), 2u);  // digits, then GPT-2's pattern
  ASSERT_EQ(data->tokens.size(), 267u);
  EXPECT_EQ(data->tokens[2], "<|im_end|>");
  EXPECT_EQ(data->tokens[3], "!");
  ASSERT_EQ(data->token_types.size(), 267u);
  EXPECT_EQ(data->token_types[2], 3);
  EXPECT_EQ(data->token_types[3], 1);
  ASSERT_EQ(data->merges.size(), 8u);
  EXPECT_EQ(data->merges[1].left, "h");
  EXPECT_EQ(data->merges[1].right, "e");
  EXPECT_EQ(data->bos_id, 1);
  EXPECT_EQ(data->eos_id, 2);
  EXPECT_EQ(data->eot_id, -1);
  EXPECT_FALSE(data->add_bos);
  EXPECT_NE(data->chat_template.find("<|im_start|>"), std::string::npos);
  EXPECT_EQ(read_tokenizer_data(path).status().code(), StatusCode::not_found);
}

GgufWriter tokenizer_file(const char* pre) {
  GgufWriter writer;
  writer.add("tokenizer.ggml.model", "gpt2");
  writer.add("tokenizer.ggml.pre", pre);
  writer.add("tokenizer.ggml.tokens", Strings{"a", "b", "ab"});
  writer.add("tokenizer.ggml.merges", Strings{"a b"});
  return writer;
}

TEST(TokenizerDataTest, DefaultsAreThoseOfTheFormat) {
  const Result<TokenizerData> plain = read_tokenizer_data(open_valid(tokenizer_file("gpt-2")));
  ASSERT_TRUE(plain.ok()) << plain.status().message();
  EXPECT_EQ(plain->token_types, (std::vector<int32_t>{1, 1, 1}));
  EXPECT_EQ(plain->bos_id, -1);
  EXPECT_EQ(plain->eos_id, -1);
  EXPECT_FALSE(plain->add_bos);
  EXPECT_TRUE(plain->chat_template.empty());

  GgufWriter llama = tokenizer_file("llama-bpe");
  EXPECT_TRUE(read_tokenizer_data(open_valid(llama))->add_bos);
  llama.add("tokenizer.ggml.add_bos_token", false);
  EXPECT_FALSE(read_tokenizer_data(open_valid(llama))->add_bos);
  // As llama.cpp has it: of Mistral's tokenizer, too.
  for (const char* name : {"llama3", "falcon3", "pixtral", "tekken"}) {
    EXPECT_TRUE(read_tokenizer_data(open_valid(tokenizer_file(name)))->add_bos) << name;
    EXPECT_TRUE(read_tokenizer_data(open_valid(tokenizer_file(name)))->whole_pieces_first) << name;
  }
  for (const char* name : {"smaug-bpe", "glm4", "chatglm-bpe", "deepseek-r1-qwen", "llama4"}) {
    EXPECT_FALSE(read_tokenizer_data(open_valid(tokenizer_file(name)))->add_bos) << name;
  }
}

// llama.cpp#9606: a file names one or two tokens that end a generation, and llama.cpp knows the others by their texts.
TEST(TokenizerDataTest, KnowsTokensThatEndAGenerationByTheirTexts) {
  const auto ends = [](const Strings& tokens, const std::vector<std::pair<std::string, uint32_t>>& keys) {
    GgufWriter writer;
    writer.add("tokenizer.ggml.model", "gpt2");
    writer.add("tokenizer.ggml.pre", "gpt-2");
    writer.add("tokenizer.ggml.tokens", tokens);
    writer.add("tokenizer.ggml.merges", Strings{});
    for (const auto& [key, id] : keys) writer.add("tokenizer.ggml." + key + "_token_id", id);
    const auto tokenizer = Tokenizer::create(read_tokenizer_data(open_valid(writer)).value());
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
    std::vector<int32_t> ids(tokenizer->end_ids().begin(), tokenizer->end_ids().end());
    std::sort(ids.begin(), ids.end());
    for (const int32_t id : ids) EXPECT_EQ(tokenizer->type(id), id == 0 ? TokenType::normal : TokenType::control) << id;
    return ids;
  };
  using Want = std::vector<int32_t>;
  for (const char* text : {"<|eot_id|>",
                           "<|im_end|>",
                           "<|end|>",
                           "<|return|>",
                           "<|call|>",
                           "<|flush|>",
                           "<|calls|>",
                           "<end_of_turn>",
                           "<|endoftext|>",
                           "</s>",
                           "<|eom_id|>",
                           "<EOT>",
                           "_<EOT>",
                           "[EOT]",
                           "[EOS]",
                           "<|end_of_text|>",
                           "<end_of_utterance>",
                           "<eos>",
                           "<turn|>",
                           "<|tool_response>",
                           "<\uff5cend\u2581of\u2581sentence\uff5c>",
                           "[e~[",
                           "<|fim_pad|>",
                           "<|fim_repo|>",
                           "<|repo_name|>",
                           "<reponame>",
                           "<|file_sep|>",
                           "[PAD]"}) {
    EXPECT_EQ(ends({"a", text, "<|fim_prefix|>"}, {}), (Want{1})) << text;
  }
  EXPECT_EQ(ends({"a", "b", "<|im_start|>"}, {}), Want{});
  EXPECT_EQ(ends({"a", "<|endoftext|>", "<|im_end|>"}, {{"eos", 2}}), (Want{1, 2}));
  EXPECT_EQ(ends({"a", "<|endoftext|>"}, {{"eot", 0}}), (Want{0, 1}));
  EXPECT_EQ(ends({"a", "<|endoftext|>"}, {{"eom", 0}}), (Want{0, 1}));
  EXPECT_EQ(ends({"a", "<|fim_pad|>"}, {{"fim_pad", 0}}), (Want{0}));  // named: the texts do not count
  EXPECT_EQ(ends({"a", "<|fim_pad|>", "<|file_sep|>"}, {{"fim_rep", 0}}), (Want{0, 1, 2}));
  EXPECT_EQ(ends({"a", "<|end|>", "<|return|>", "<|call|>"}, {}), (Want{2, 3}));  // there <|end|> ends a message
  EXPECT_EQ(ends({"a", "<|end|>", "<|flush|>", "<|calls|>"}, {}), (Want{2, 3}));
  EXPECT_EQ(ends({"a", "<|end|>", "<|return|>"}, {}), (Want{1, 2}));
  EXPECT_EQ(ends({"a", "</s>", "<|tool_response>"}, {}), (Want{2}));
}

// The demo model's file names <|im_end|>; llama.cpp ends at these three.
TEST(TokenizerDataTest, TheDemoModelEndsAtEveryTokenOfLlamaCpp) {
  const std::string path = test::source_path("models/SmolLM2-135M-Instruct.Q4_1.gguf");
  if (!std::ifstream(path).good()) GTEST_SKIP() << path << " is missing";
  const Tokenizer tokenizer = Tokenizer::create(read_tokenizer_data(path).value()).value();
  for (const char* text : {"<|endoftext|>", "<|im_end|>", "<reponame>"}) {
    EXPECT_TRUE(tokenizer.is_end_of_generation(tokenizer.find(text).value())) << text;
  }
  EXPECT_EQ(tokenizer.end_ids().size(), 3u);
}

TEST(TokenizerDataTest, MarkersAreControlTokensWhateverTheirType) {
  GgufWriter writer;
  writer.add("tokenizer.ggml.model", "gpt2");
  writer.add("tokenizer.ggml.pre", "qwen2");
  writer.add("tokenizer.ggml.tokens", Strings{"a", "<|im_start|>", "<|im_end|>", "<start_of_turn>", "", ""});
  writer.add("tokenizer.ggml.token_type", std::vector<int32_t>{1, 1, 4, 2, 1, 1});
  writer.add("tokenizer.ggml.merges", Strings{});
  const Tokenizer tokenizer = Tokenizer::create(read_tokenizer_data(open_valid(writer)).value()).value();
  EXPECT_EQ(tokenizer.encode("<|im_start|>a<|im_end|>", true, false).value(), (std::vector<int32_t>{1, 0, 2}));
  EXPECT_EQ(tokenizer.encode("<|im_start|>a<|im_end|>", false, false).value(),
            (std::vector<int32_t>{0, 0}));  // the a of "start", too; other bytes have no token
  EXPECT_EQ(tokenizer.type(3), TokenType::unknown);
  EXPECT_EQ(tokenizer.type(4), TokenType::unused);  // a token without a text
}

TEST(TokenizerDataTest, HasSeveralChatTemplatesAndNamedTokens) {
  GgufWriter writer = tokenizer_file("gpt-2");
  writer.add("tokenizer.chat_template", "one");
  writer.add("tokenizer.chat_templates", Strings{"tool_use", "missing"});
  writer.add("tokenizer.chat_template.tool_use", "two");
  writer.add("tokenizer.ggml.padding_token_id", uint32_t{1});
  const Result<TokenizerData> data = read_tokenizer_data(open_valid(writer));
  ASSERT_TRUE(data.ok()) << data.status().message();
  EXPECT_EQ(data->chat_template, "one");
  ASSERT_EQ(data->named_chat_templates.size(), 1u);
  EXPECT_EQ(data->named_chat_templates[0].name, "tool_use");
  EXPECT_EQ(data->named_chat_templates[0].source, "two");
  ASSERT_EQ(data->named_tokens.size(), 1u);
  EXPECT_EQ(data->named_tokens[0].first + "=" + data->named_tokens[0].second, "pad_token=b");
}

TEST(TokenizerDataTest, RefusesWhatWouldChangeTheResult) {
  for (const char* key : {"tokenizer.ggml.add_eos_token", "tokenizer.ggml.add_sep_token"}) {
    GgufWriter writer = tokenizer_file("gpt-2");
    writer.add(key, true);
    const Result<TokenizerData> data = read_tokenizer_data(open_valid(writer));
    ASSERT_FALSE(data.ok());
    EXPECT_EQ(data.status().code(), StatusCode::unsupported);
    EXPECT_EQ(data.status().message(),
              std::string("model.gguf: key ") + key + " is true, but appending a token to every text is not supported");
  }
  GgufWriter no_merges;
  no_merges.add("tokenizer.ggml.model", "gpt2");
  no_merges.add("tokenizer.ggml.tokens", Strings{"a"});
  const Result<TokenizerData> data = read_tokenizer_data(open_valid(no_merges));
  EXPECT_EQ(data.status().code(), StatusCode::not_found);
  EXPECT_EQ(data.status().message(), "model.gguf: the metadata key tokenizer.ggml.merges is missing");
  no_merges.add("tokenizer.ggml.merges", Strings{});
  EXPECT_EQ(read_tokenizer_data(open_valid(no_merges)).status().message(),
            "model.gguf: the metadata key tokenizer.ggml.pre is missing: it names the pre-tokenizer, and with another one a text "
            "has other "
            "tokens; convert the model anew");
}

TEST(TokenizerDataTest, RefusesWhatItDoesNotKnow) {
  const auto refusal = [](const char* model, const std::string& pre, Strings merges) {
    GgufWriter writer;
    writer.add("tokenizer.ggml.model", model);
    writer.add("tokenizer.ggml.pre", pre);
    writer.add("tokenizer.ggml.tokens", Strings{"a", "b", "ab"});
    writer.add("tokenizer.ggml.merges", std::move(merges));
    const Status status = read_tokenizer_data(open_valid(writer)).status();
    return str_cat(status_code_name(status.code()), ": ", status.message());
  };
  const std::string names =
      "default, gpt-2, phi-2, olmo, mpt, jais, trillion, granite-docling, gigachat, a.x-4.0, mellum, modern-bert, exaone4, "
      "smollm, "
      "starcoder, refact, command-r, codeshell, exaone, minerva-7b, mellum2, llama-bpe, llama3, llama-v3, falcon3, falcon-h1, "
      "pixtral, "
      "midm-2.0, lfm2, dbrx, smaug-bpe, glm4, chatglm-bpe, minicpm5, qwen2, deepseek-r1-qwen, kormo, f2llmv2, megrez, stablelm2, "
      "hunyuan, "
      "solar-open, grok-2, bailingmoe, bailingmoe2, llada-moe, qwen35, seed-coder, gpt-4o, llama4, kanana2, talkie, minimax-m2, "
      "tiny_aya, "
      "cohere2moe, tekken, bloom, poro-chat, gpt3-finnish, viking, deepseek-coder, deepseek-v3, hunyuan-dense, joyai-llm, hy_v4, "
      "falcon";
  EXPECT_EQ(
      refusal("bert", "gpt-2", {"a b"}),
      "unsupported: the tokenizer model 'bert' (tokenizer.ggml.model) is not supported: supported are gpt2 (byte-level BPE) and "
      "llama (SentencePiece's BPE)");
  EXPECT_EQ(refusal("gpt2", "kimi-k2", {"a b"}),
            "unsupported: the pre-tokenizer 'kimi-k2' (tokenizer.ggml.pre) is not supported: supported are " + names);
  EXPECT_EQ(refusal("gpt2", std::string(1000, 'x') + "\n", {"a b"}),
            "unsupported: the pre-tokenizer '" + std::string(96, 'x') +
                "...' (1001 bytes) (tokenizer.ggml.pre) is not supported: supported are " + names);
  for (const char* line : {"ab", " b", "a ", "a b c", ""}) {
    EXPECT_EQ(refusal("gpt2", "gpt-2", {"a b", line}),
              str_cat("data loss: merge 1, '", line, "', is not two tokens with one space between them"));
  }
}

TEST(TokenizerDataTest, ReadsSentencePiece) {
  const auto writer = [] {
    GgufWriter made;
    made.add("tokenizer.ggml.model", "llama");
    made.add("tokenizer.ggml.tokens", Strings{"<unk>", "<s>", "a", "\u2581a"});
    made.add("tokenizer.ggml.token_type", std::vector<int32_t>{2, 3, 1, 1});
    return made;
  };
  EXPECT_EQ(read_tokenizer_data(open_valid(writer())).status().message(),
            "model.gguf: the metadata key tokenizer.ggml.scores is missing");
  GgufWriter plain = writer();
  plain.add("tokenizer.ggml.scores", std::vector<float>{0, 0, -2, -1});
  plain.add("tokenizer.ggml.bos_token_id", uint32_t{1});
  const Result<TokenizerData> data = read_tokenizer_data(open_valid(plain));
  ASSERT_TRUE(data.ok()) << data.status().message();
  EXPECT_EQ(data->model, TokenizerModel::spm_bpe);
  EXPECT_EQ(data->scores, (std::vector<double>{0, 0, -2, -1}));
  EXPECT_TRUE(data->add_bos);
  EXPECT_TRUE(data->strip_first_space);
  EXPECT_EQ(data->normalizer.size(), 2u);
  plain.add("tokenizer.ggml.add_space_prefix", false);
  plain.add("tokenizer.ggml.add_bos_token", false);
  EXPECT_FALSE(read_tokenizer_data(open_valid(plain))->add_bos);
  EXPECT_FALSE(read_tokenizer_data(open_valid(plain))->strip_first_space);
  EXPECT_EQ(read_tokenizer_data(open_valid(plain))->normalizer.size(), 1u);
}

// ---- The tests' own small models ----

TEST(TinyLlama, IsAValidFileInEveryForm) {
  const GgufFile plain = open_valid(test::tiny_llama());
  EXPECT_EQ(*plain.get<int32_t>("llama.vocab_size"), 267);
  EXPECT_TRUE(plain.tensor("token_embd.weight", {64, 267}).ok());
  EXPECT_TRUE(plain.tensor("blk.1.attn_k.weight", {64, 32}).ok());
  EXPECT_TRUE(plain.tensor("blk.1.ffn_down.weight", {96, 64}).ok());
  EXPECT_FALSE(plain.has_tensor("output.weight") || plain.has_tensor("rope_freqs.weight") ||
               plain.has_tensor("blk.0.attn_q.bias"));

  test::TinyLlamaOptions options;
  options.matrix_type = type::kBF16;
  options.tied_output = false;
  options.rope_freqs = true;
  options.qkv_bias = true;
  options.extra = [](GgufWriter& writer) { writer.add("llama.expert_count", uint32_t{4}); };
  const GgufFile full = open_valid(test::tiny_llama(options));
  EXPECT_EQ((*full.tensor("output.weight", {64, 267}))->type, GgmlType::bf16);
  EXPECT_EQ((*full.tensor("rope_freqs.weight", {8}))->type, GgmlType::f32);
  EXPECT_EQ((*full.tensor("blk.0.attn_v.bias", {32}))->type, GgmlType::f32);
  EXPECT_TRUE(full.has("llama.expert_count"));
  EXPECT_EQ(test::tiny_llama(options).bytes(), test::tiny_llama(options).bytes());
}

}  // namespace
}  // namespace prologue
