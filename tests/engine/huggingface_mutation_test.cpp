// Valid safetensors files and configurations, mutated tens of thousands of times: reading them never crashes, hangs or allocates more than
// the file's size warrants. Meant for the sanitizers, useful without them.
#include <prologue/engine/base/printable.h>
#include <prologue/engine/huggingface/json.h>
#include <prologue/engine/huggingface/safetensors.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#include "tests/support/random.h"
#include "tests/support/safetensors_writer.h"

// This is the largest single allocation since the counter was last cleared.
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

// The worst file is a list of one-digit numbers: 40 bytes for each two, and a vector that doubles.
size_t allowed(size_t size) { return 48 * size + 8192; }

void check_message(const Status& status) {
  EXPECT_FALSE(status.message().empty());
  EXPECT_LT(status.message().size(), 1000u);
  EXPECT_EQ(status.message(), escape_controls(status.message())) << "a message has bytes that act on a terminal";
}

Bytes sample_file() {
  test::SafetensorsWriter writer;
  int number = 0;
  for (const char* dtype : {"F32", "F16", "BF16", "I64", "U8", "BOOL", "F8_E4M3", "F6_NEW"}) {
    const int64_t size = dtype[0] == 'I' ? 8 : std::strstr(dtype, "32") ? 4 : std::strstr(dtype, "16") ? 2 : 1;
    writer.add("model.layers." + std::to_string(number) + ".weight", dtype, {2, 1 + number},
               std::vector<uint8_t>(static_cast<size_t>(2 * (1 + number) * size), 0x35));
    ++number;
  }
  writer.add("scalar", "F32", {}, std::vector<float>{1.0f});
  writer.add("empty", "F32", {0}, std::vector<float>{});
  return writer.bytes();
}

// Calls everything that can be called on a file. Returns whether it could be opened.
bool exercise(Bytes bytes) {
  const auto file_size = static_cast<int64_t>(bytes.size());
  const auto file = SafetensorsFile::from_bytes(std::move(bytes));
  if (!file.ok()) {
    check_message(file.status());
    return false;
  }
  int64_t total = 0;
  for (const SafetensorsTensor& tensor : file->tensors()) {
    total += tensor.size_bytes;
    EXPECT_LE(total, file_size);  // tensors are inside the file and apart
    if (total > file_size) break;
    Bytes data(static_cast<size_t>(tensor.size_bytes));
    EXPECT_TRUE(file->read(tensor, 0, tensor.size_bytes, data.data()).ok());
  }
  return true;
}

bool exercise_json(const std::string& text) {
  const auto json = parse_json(text, "config.json");
  if (!json.ok()) check_message(json.status());
  return json.ok();
}

const std::string& sample_config() {
  static const std::string text = R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "rms_norm_eps": 1e-05, "head_dim": null,
  "tie_word_embeddings": true, "eos_token_id": [128001, 128009], "torch_dtype": "bfloat16",
  "rope_scaling": {"factor": 8.0, "rope_type": "llama3", "original_max_position_embeddings": 8192, "text": "\u20ac\"\\"},
  "layer_types": ["sliding_attention", "full_attention"], "big": 18446744073709551615, "least": -9223372036854775808})";
  return text;
}

template <class Container>
void splice(Container& bytes, test::Random& random) {
  const auto size = static_cast<int64_t>(bytes.size());
  const int64_t from = random.integer(0, size - 1);
  const int64_t length = random.integer(1, std::min<int64_t>(size - from, 60));
  const int64_t to = random.integer(0, size - length);
  const Container piece(bytes.begin() + from, bytes.begin() + from + length);
  switch (random.integer(0, 2)) {
    case 0: std::copy(piece.begin(), piece.end(), bytes.begin() + to); break;
    case 1: bytes.insert(bytes.begin() + to, piece.begin(), piece.end()); break;
    default: bytes.erase(bytes.begin() + from, bytes.begin() + from + length);
  }
}

// Replaces a digit or a run of digits of the text: numbers are what a reader believes.
void overwrite_number(Bytes& bytes, int64_t begin, int64_t end, test::Random& random) {
  constexpr const char* kNumbers[] = {"0",   "1",   "-1",    "4294967296", "9223372036854775807",  "9223372036854775808",
                                      "1.0", "1e3", "1e999", "[]",         "18446744073709551615", "\"1\""};
  std::vector<int64_t> digits;
  for (int64_t i = begin; i < end; ++i) {
    const auto c = static_cast<char>(bytes[static_cast<size_t>(i)]);
    if (c >= '0' && c <= '9') digits.push_back(i);
  }
  if (digits.empty()) return;
  const int64_t at = digits[static_cast<size_t>(random.integer(0, static_cast<int64_t>(digits.size()) - 1))];
  const std::string number =
      random.integer(0, 2) == 0 ? kNumbers[random.integer(0, 11)] : std::string(1, static_cast<char>('0' + random.integer(0, 9)));
  const auto* text = reinterpret_cast<const std::byte*>(number.data());
  bytes.erase(bytes.begin() + at);
  bytes.insert(bytes.begin() + at, text, text + number.size());
}

// Makes the header's length fit its text again.
void fix_length(Bytes& bytes, int64_t header_end) {
  const auto length = static_cast<uint64_t>(header_end - 8);
  std::memcpy(bytes.data(), &length, sizeof length);
}

TEST(HuggingFaceMutation, TheSamplesThemselvesAreRead) {
  EXPECT_TRUE(exercise(sample_file()));
  EXPECT_TRUE(exercise_json(sample_config()));
}

TEST(HuggingFaceMutation, EveryTruncation) {
  const Bytes file = sample_file();
  for (size_t size = 0; size < file.size(); ++size) {
    EXPECT_FALSE(exercise(Bytes(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(size)))) << size << " bytes";
  }
  for (size_t size = 0; size < sample_config().size(); ++size)
    EXPECT_FALSE(exercise_json(sample_config().substr(0, size))) << size;
}

TEST(HuggingFaceMutation, EveryBitOfTheLength) {
  const Bytes file = sample_file();
  for (int bit = 0; bit < 64; ++bit) {
    for (const uint64_t value : {uint64_t{1} << bit, ~(uint64_t{1} << bit), (uint64_t{1} << bit) - 1}) {
      Bytes bytes = file;
      std::memcpy(bytes.data(), &value, sizeof value);
      largest_allocation = 0;
      exercise(std::move(bytes));
      ASSERT_LE(largest_allocation.load(), allowed(file.size())) << value;
    }
  }
}

TEST(HuggingFaceMutation, Files) {
  const Bytes file = sample_file();
  uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof length);
  test::Random random(21);
  constexpr int kRounds = 20'000;
  int opened = 0;
  for (int round = 0; round < kRounds && !HasFailure(); ++round) {
    Bytes bytes = file;
    const auto header_end = static_cast<int64_t>(8 + length);
    switch (random.integer(0, 3)) {
      case 0:
        for (int64_t i = random.integer(1, 3); i > 0; --i) {
          bytes[static_cast<size_t>(random.integer(0, header_end - 1))] ^= static_cast<std::byte>(1 << random.integer(0, 7));
        }
        break;
      case 1: splice(bytes, random); break;
      default: {
        const size_t before = bytes.size();
        for (int64_t i = random.integer(1, 2); i > 0; --i) overwrite_number(bytes, 8, header_end, random);
        fix_length(bytes, header_end + static_cast<int64_t>(bytes.size()) - static_cast<int64_t>(before));
      }
    }
    const size_t size = bytes.size();
    largest_allocation = 0;
    opened += exercise(std::move(bytes)) ? 1 : 0;
    ASSERT_LE(largest_allocation.load(), allowed(size)) << "round " << round;
  }
  EXPECT_GT(opened, kRounds / 100) << "mutations too coarse: hardly any file gets as far as being read";
  EXPECT_LT(opened, kRounds) << "mutations too mild";
}

TEST(HuggingFaceMutation, Configurations) {
  test::Random random(22);
  constexpr int kRounds = 20'000;
  int opened = 0;
  for (int round = 0; round < kRounds && !HasFailure(); ++round) {
    std::string text = sample_config();
    for (int64_t i = random.integer(1, 3); i > 0; --i) {
      if (random.integer(0, 1) == 0) {
        splice(text, random);
      } else {
        text[static_cast<size_t>(random.integer(0, static_cast<int64_t>(text.size()) - 1))] = static_cast<char>(random.bits());
      }
    }
    largest_allocation = 0;
    opened += exercise_json(text) ? 1 : 0;
    ASSERT_LE(largest_allocation.load(), allowed(text.size())) << "round " << round;
  }
  EXPECT_GT(opened, kRounds / 100);
  EXPECT_LT(opened, kRounds);
}

}  // namespace
}  // namespace prologue
