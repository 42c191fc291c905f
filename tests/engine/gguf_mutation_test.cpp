// A valid file, mutated tens of thousands of times: opening it, reading every value and dequantising every tensor never crashes,
// hangs or allocates more than the file's size warrants. Meant for the sanitizers, useful without them.
#include <prologue/engine/base/printable.h>
#include <prologue/engine/gguf/dequantize.h>
#include <prologue/engine/gguf/gguf.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <vector>

#include "tests/support/gguf_writer.h"
#include "tests/support/random.h"

// This is the largest single allocation since the counter was last cleared. A reader that believed a lying count would ask for gigabytes,
// which on most machines succeeds quietly.
static std::atomic<size_t> largest_allocation{0};

// It is not inlined: GCC would see malloc without its free in one place and free without its malloc in another, and warn.
[[gnu::noinline]] void* operator new(size_t size) {
  size_t seen = largest_allocation.load(std::memory_order_relaxed);
  while (size > seen && !largest_allocation.compare_exchange_weak(seen, size, std::memory_order_relaxed)) {
  }
  void* memory = std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace prologue {
namespace {

using Bytes = std::vector<std::byte>;

struct Sample {
  Bytes bytes;
  std::vector<test::GgufWriter::Field> fields;
};

// Every value type, arrays of each kind, every tensor type, one to four dimensions: about 4 KB.
Sample make_sample() {
  test::GgufWriter writer;
  test::Random random(3);
  writer.add("general.architecture", "llama");
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
  writer.add("strings", std::vector<std::string>{"a", "", "token", "\xe2\x82\xac"});
  writer.add("integers", std::vector<int32_t>{1, -2, 3});
  writer.add("floats", std::vector<float>{0.5f, -0.25f});
  writer.add("flags", std::vector<bool>{true, false});
  writer.add("nothing", std::vector<uint64_t>{});
  writer.alignment = 64;
  int number = 0;
  for (const uint32_t type :
       {test::gguf::kF32, test::gguf::kF16, test::gguf::kBF16, test::gguf::kQ8_0, test::gguf::kQ4_0, test::gguf::kQ4_1,
        test::gguf::kQ5_0, test::gguf::kQ5_1, test::gguf::kQ4_K, test::gguf::kQ5_K, test::gguf::kQ6_K, test::gguf::kQ2_K,
        test::gguf::kQ3_K, test::gguf::kIQ4_NL, test::gguf::kIQ4_XS, test::gguf::kMXFP4, test::gguf::kNVFP4}) {
    const GgmlTypeInfo& info = *ggml_type_info(static_cast<GgmlType>(type));
    const int64_t row_elements = info.block_elements == 1 ? 8 : info.block_elements;
    std::vector<uint64_t> dims = {static_cast<uint64_t>(row_elements)};
    if (number % 4 >= 1) dims.push_back(2);
    if (number % 4 >= 2) dims.push_back(1);
    if (number % 4 >= 3) dims.push_back(1);
    Bytes data(static_cast<size_t>(row_elements / info.block_elements * info.block_bytes * (number % 4 >= 1 ? 2 : 1)));
    for (std::byte& byte : data) byte = static_cast<std::byte>(random.bits());
    writer.add_tensor("blk." + std::to_string(number++) + ".weight", dims, type, std::move(data));
  }
  Sample sample;
  sample.bytes = writer.bytes(&sample.fields);
  return sample;
}

template <class T>
void read_as(const GgufFile& file, const std::string& key, int& readings) {
  if (file.get<T>(key).ok()) ++readings;
}

// Calls everything that can be called on a file. Returns whether it could be opened.
bool exercise(Bytes bytes) {
  const size_t file_size = bytes.size();
  Result<GgufFile> opened = GgufFile::from_bytes(std::move(bytes));
  if (!opened.ok()) {
    const std::string message = opened.status().message();
    EXPECT_FALSE(message.empty());
    EXPECT_LT(message.size(), 1000u);
    EXPECT_EQ(message, escape_controls(message)) << "a message has bytes that act on a terminal";
    return false;
  }
  const GgufFile& file = *opened;
  for (const std::string& key : file.keys()) {
    int readings = 0;
    read_as<bool>(file, key, readings);
    read_as<int32_t>(file, key, readings);
    read_as<uint32_t>(file, key, readings);
    read_as<int64_t>(file, key, readings);
    read_as<uint64_t>(file, key, readings);
    read_as<float>(file, key, readings);
    read_as<double>(file, key, readings);
    read_as<std::string>(file, key, readings);
    read_as<std::vector<bool>>(file, key, readings);
    read_as<std::vector<int32_t>>(file, key, readings);
    read_as<std::vector<uint32_t>>(file, key, readings);
    read_as<std::vector<int64_t>>(file, key, readings);
    read_as<std::vector<float>>(file, key, readings);
    read_as<std::vector<std::string>>(file, key, readings);
  }
  int64_t tensor_bytes = 0;
  for (const GgufTensor& tensor : file.tensors()) {
    tensor_bytes += tensor.size_bytes;
    EXPECT_LE(tensor_bytes,
              static_cast<int64_t>(file_size));  // tensors are inside the file and apart: this bounds what is allocated
    if (tensor_bytes > static_cast<int64_t>(file_size)) break;
    std::vector<std::byte> data(static_cast<size_t>(tensor.size_bytes));
    EXPECT_TRUE(file.read(tensor, 0, tensor.size_bytes, data.data()).ok());
    std::vector<float> values(static_cast<size_t>(tensor.num_elements()));
    EXPECT_TRUE(
        dequantize_rows(tensor.type, data.data(), tensor.num_rows(), tensor.row_elements(), DType::f32, values.data(), 1).ok());
    EXPECT_TRUE(file.tensor(tensor.name).ok());
  }
  EXPECT_TRUE(file.unused_tensors().empty());
  return true;
}

// Runs `mutate` on fresh copies. No single allocation may exceed a small multiple of the file.
template <class Mutate>
void mutate_many(int rounds, uint64_t seed, Mutate mutate) {
  const Sample sample = make_sample();
  test::Random random(seed);
  int opened = 0;
  for (int round = 0; round < rounds && !::testing::Test::HasFailure(); ++round) {
    Bytes bytes = sample.bytes;
    mutate(sample, bytes, random);
    const size_t allowed = 16 * bytes.size() + 8192;
    largest_allocation = 0;
    opened += exercise(std::move(bytes)) ? 1 : 0;
    ASSERT_LE(largest_allocation.load(), allowed) << "round " << round;
  }
  EXPECT_GT(opened, rounds / 100) << "mutations too coarse: hardly any file gets as far as being read";
  EXPECT_LT(opened, rounds) << "mutations too mild";
}

uint64_t extreme(test::Random& random, uint64_t current) {
  constexpr uint64_t kValues[] = {0,
                                  1,
                                  2,
                                  3,
                                  4,
                                  5,
                                  31,
                                  32,
                                  33,
                                  127,
                                  255,
                                  256,
                                  65535,
                                  0x7fffffff,
                                  0x80000000,
                                  0xffffffff,
                                  1ull << 32,
                                  1ull << 40,
                                  1ull << 62,
                                  (1ull << 63) - 1,
                                  1ull << 63,
                                  ~0ull,
                                  ~0ull - 7,
                                  ~0ull - 31,
                                  ~0ull / 3,
                                  ~0ull / 4 + 1,
                                  ~0ull / 32 + 1};
  switch (random.integer(0, 3)) {
    case 0: return current + static_cast<uint64_t>(random.integer(-9, 9));
    case 1: return random.bits() >> random.integer(0, 63);
    default: return kValues[random.integer(0, static_cast<int64_t>(std::size(kValues)) - 1)];
  }
}

void overwrite_field(const Sample& sample, Bytes& bytes, test::Random& random) {
  const auto& field = sample.fields[static_cast<size_t>(random.integer(0, static_cast<int64_t>(sample.fields.size()) - 1))];
  uint64_t value = 0;
  std::memcpy(&value, bytes.data() + field.offset, field.size);
  value = extreme(random, value);
  std::memcpy(bytes.data() + field.offset, &value, field.size);
}

TEST(GgufMutation, TheSampleItselfIsRead) {
  const Sample sample = make_sample();
  EXPECT_GT(sample.fields.size(), 100u);
  EXPECT_TRUE(exercise(sample.bytes));
}

TEST(GgufMutation, EveryTruncation) {
  const Sample sample = make_sample();
  for (size_t size = 0; size < sample.bytes.size(); ++size) {
    EXPECT_FALSE(exercise(Bytes(sample.bytes.begin(), sample.bytes.begin() + static_cast<std::ptrdiff_t>(size))))
        << size << " bytes";
  }
}

TEST(GgufMutation, EveryFieldWithEveryExtreme) {
  const Sample sample = make_sample();
  for (const auto& field : sample.fields) {
    for (int bit = 0; bit < static_cast<int>(field.size) * 8; ++bit) {
      for (const uint64_t value : {uint64_t{1} << bit, ~(uint64_t{1} << bit)}) {
        Bytes bytes = sample.bytes;
        std::memcpy(bytes.data() + field.offset, &value, field.size);
        largest_allocation = 0;
        exercise(std::move(bytes));
        ASSERT_LE(largest_allocation.load(), 16 * sample.bytes.size() + 8192) << field.what << " = " << value;
        ASSERT_FALSE(HasFailure()) << field.what << " = " << value;
      }
    }
  }
}

TEST(GgufMutation, FieldOverwrites) {
  mutate_many(12'000, 11, [](const Sample& sample, Bytes& bytes, test::Random& random) {
    for (int64_t i = random.integer(1, 3); i > 0; --i) overwrite_field(sample, bytes, random);
  });
}

TEST(GgufMutation, ByteFlips) {
  mutate_many(8'000, 12, [](const Sample& sample, Bytes& bytes, test::Random& random) {
    // Most changes are in the part before the tensor data, which is what is parsed.
    const int64_t header = static_cast<int64_t>(sample.fields.back().offset) + 8;
    for (int64_t i = random.integer(1, 6); i > 0; --i) {
      const int64_t end = random.integer(0, 7) == 0 ? static_cast<int64_t>(bytes.size()) : header;
      bytes[static_cast<size_t>(random.integer(0, end - 1))] ^= static_cast<std::byte>(random.integer(1, 255));
    }
  });
}

TEST(GgufMutation, Splices) {
  mutate_many(3'000, 13, [](const Sample&, Bytes& bytes, test::Random& random) {
    const auto size = static_cast<int64_t>(bytes.size());
    const int64_t from = random.integer(0, size - 1);
    const int64_t length = random.integer(1, std::min<int64_t>(size - from, 200));
    const int64_t to = random.integer(0, size - length);
    const auto first = bytes.begin() + from;
    switch (random.integer(0, 2)) {
      case 0: {  // copied over another place
        const Bytes piece(first, first + length);
        std::copy(piece.begin(), piece.end(), bytes.begin() + to);
        break;
      }
      case 1: {  // inserted at another place
        const Bytes piece(first, first + length);
        bytes.insert(bytes.begin() + to, piece.begin(), piece.end());
        break;
      }
      default: bytes.erase(first, first + length);
    }
  });
}

TEST(GgufMutation, Mixtures) {
  mutate_many(8'000, 14, [](const Sample& sample, Bytes& bytes, test::Random& random) {
    for (int64_t i = random.integer(1, 2); i > 0; --i) overwrite_field(sample, bytes, random);
    for (int64_t i = random.integer(0, 2); i > 0; --i) {
      bytes[static_cast<size_t>(random.integer(0, static_cast<int64_t>(bytes.size()) - 1))] =
          static_cast<std::byte>(random.bits());
    }
    if (random.integer(0, 3) == 0) bytes.resize(static_cast<size_t>(random.integer(0, static_cast<int64_t>(bytes.size()))));
  });
}

}  // namespace
}  // namespace prologue
