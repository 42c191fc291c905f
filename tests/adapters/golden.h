// Holds what the tests of docs/coming-from.md share: the goldens of tests/golden/adapters, the inputs they were made from, and the
// rotation in float64 for systems that have none.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <prologue/kernels/base/faults.h>
#include <prologue/kernels/base/shared/any_type.h>

#include "tests/support/arena.h"
#include "tests/support/source_path.h"

namespace prologue::test {

class Adapters : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override { PROLOGUE_REQUIRE_BACKEND(GetParam()); }
};

// Declares the fixture of one system, on every backend.
#define PROLOGUE_ADAPTER(System)                                                \
  class System : public Adapters {};                                            \
  INSTANTIATE_TEST_SUITE_P(Adapters, System, testing::ValuesIn(all_backends()), \
                           [](const auto& one) { return std::string(backend_name(one.param)); })

using Bytes = std::vector<unsigned char>;
using Values = std::vector<double>;

template <class T, class From>
void put(Bytes& bytes, From value) {
  const T stored = static_cast<T>(value);
  const size_t at = bytes.size();
  bytes.resize(at + sizeof stored);
  std::memcpy(bytes.data() + at, &stored, sizeof stored);
}

inline Bytes encode(DType type, const Values& values) {
  Bytes bytes;
  for (const double value : values) {
    switch (type) {
      case DType::f32: put<float>(bytes, value); break;
      case DType::f16: put<uint16_t>(bytes, to_float16(static_cast<float>(value)).bits); break;
      case DType::bf16: put<uint16_t>(bytes, to_bfloat16(static_cast<float>(value)).bits); break;
      default: put<double>(bytes, value); break;
    }
  }
  return bytes;
}

inline Values decode(DType type, const Bytes& bytes) {
  const auto size = static_cast<size_t>(dtype_size(type));
  Values values;
  for (size_t at = 0; at + size <= bytes.size(); at += size) {
    const auto get = [&](auto value) {
      std::memcpy(&value, bytes.data() + at, sizeof value);
      return value;
    };
    switch (type) {
      case DType::f32: values.push_back(double{get(float{})}); break;
      case DType::f16: values.push_back(double{to_float(get(Float16{}))}); break;
      case DType::bf16: values.push_back(double{to_float(get(BFloat16{}))}); break;
      default: values.push_back(get(double{})); break;
    }
  }
  return values;
}

// The inputs that make_goldens.py calls fill(seed, ...): multiples of 1/256 in [-1, 1), exact in every type.
inline Values fill(uint64_t seed, int64_t count) {
  Values values;
  for (uint64_t i = 1; i <= static_cast<uint64_t>(count); ++i) {
    const uint64_t k = (((i * 2654435761u + seed * 40503u) % (uint64_t{1} << 32)) >> 7) % 512;
    values.push_back((static_cast<double>(k) - 256.0) / 256.0);
  }
  return values;
}

// Widens tables [rows, half] to a column per channel: side by side (numpy's tile) or each column twice (repeat).
inline Values widen(const Values& table, int64_t half, bool repeat) {
  Values wide;
  for (size_t row = 0; row < table.size(); row += static_cast<size_t>(half)) {
    for (size_t i = 0; i < 2 * static_cast<size_t>(half); ++i) {
      wide.push_back(table[row + (repeat ? i / 2 : i % static_cast<size_t>(half))]);
    }
  }
  return wide;
}

struct GoldenArray {
  DType type = DType::f32;
  Values values;
};

struct Golden {
  std::string name;
  std::map<std::string, Values> numbers;
  std::map<std::string, GoldenArray> arrays;

  bool has(const std::string& key) const { return numbers.count(key) + arrays.count(key) > 0; }
  double number(const std::string& key) const { return numbers.at(key).at(0); }
  int64_t integer(const std::string& key) const { return static_cast<int64_t>(number(key)); }
  bool flag(const std::string& key) const { return number(key) != 0.0; }
  template <class T = int64_t>
  std::vector<T> integers(const std::string& key) const {
    const Values& values = numbers.at(key);
    return std::vector<T>(values.begin(), values.end());
  }
  const GoldenArray& array(const std::string& key) const { return arrays.at(key); }
};

// tests/golden/adapters/SYSTEM.txt; make_goldens.py beside it states the format. What cannot be read throws: the test fails.
inline std::vector<Golden> read_goldens(const std::string& system) {
  const std::string path = source_path("tests/golden/adapters/" + std::string(system) + ".txt");
  std::ifstream file(path);
  const std::map<std::string, DType> types = {
      {"f32", DType::f32}, {"f16", DType::f16}, {"bf16", DType::bf16}, {"f64", DType::f64}};
  std::vector<Golden> goldens;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words(line);
    std::string key, word;
    words >> key;
    if (key == "case") {
      goldens.emplace_back();
      words >> goldens.back().name;
      continue;
    }
    Values& numbers = goldens.back().numbers[key];
    while (words >> word) {
      const auto type = types.find(word);
      if (type == types.end()) {
        numbers.push_back(std::stod(word));
        continue;
      }
      words >> word;
      const auto digits = static_cast<size_t>(2 * dtype_size(type->second));
      Bytes bytes;
      for (size_t at = 0; at < word.size(); at += digits) {
        const uint64_t bits = std::stoull(word.substr(at, digits), nullptr, 16);
        const auto* raw = reinterpret_cast<const unsigned char*>(&bits);  // little-endian, as the goldens' machine
        bytes.insert(bytes.end(), raw, raw + digits / 2);
      }
      goldens.back().arrays[key] = {type->second, decode(type->second, bytes)};
      goldens.back().numbers.erase(key);
    }
  }
  if (goldens.empty()) throw std::runtime_error("no goldens in " + path);
  return goldens;
}

// The values are the same if the tolerance is 0. Otherwise |got - want| <= tolerance, and half an ulp of a 16-bit type's rounding is added.
inline void expect_values(const Bytes& got_bytes, DType type, const Values& want, double tolerance = 0.0) {
  const Values got = decode(type, got_bytes);
  ASSERT_EQ(got.size(), want.size());
  const int mantissa = type == DType::bf16 ? 8 : type == DType::f16 ? 11 : 24;
  int failures = 0;
  for (size_t i = 0; i < got.size() && failures < 5; ++i) {
    const double allowed = tolerance == 0.0 ? 0.0 : tolerance + std::ldexp(std::fabs(want[i]), -mantissa);
    if (std::fabs(got[i] - want[i]) <= allowed) continue;
    ++failures;
    ADD_FAILURE() << "element " << i << ": got " << got[i] << ", want " << want[i] << ", allowed " << allowed;
  }
}
inline void expect_golden(const Bytes& got, const GoldenArray& want, double tolerance = 0.0) {
  expect_values(got, want.type, want.values, tolerance);
}

// Rotates heads of head_dim channels, laid end to end, in float64: pair i of head h is rotated by (cos, sin)(h, i).
using Rotation = std::function<std::pair<double, double>(int64_t head, int64_t pair)>;
inline Values rotate_heads(Values x, int64_t head_dim, int64_t rotary_offset, int64_t rotary_dim, bool interleaved,
                           const Rotation& rotation) {
  for (int64_t h = 0; h < static_cast<int64_t>(x.size()) / head_dim; ++h) {
    for (int64_t i = 0; i < rotary_dim / 2; ++i) {
      const int64_t base = h * head_dim + rotary_offset;
      double& a = x[static_cast<size_t>(base + (interleaved ? 2 * i : i))];
      double& b = x[static_cast<size_t>(base + (interleaved ? 2 * i + 1 : i + rotary_dim / 2))];
      const auto [cosine, sine] = rotation(h, i);
      const double rotated_a = a * cosine - b * sine;
      b = a * sine + b * cosine;
      a = rotated_a;
    }
  }
  return x;
}

inline Fault read_fault(const Arena& arena, const FaultRecord* faults) { return decode_fault(arena.read(faults).at(0)); }

}  // namespace prologue::test
