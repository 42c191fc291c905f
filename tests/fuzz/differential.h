// Makes the same call on two backends and compares what it wrote byte for byte, or within a bound where the contract promises no more.
// differential.cpp runs it, differential_*.cpp have the operations.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <prologue/kernels/gemm/gemm.h>

#include "tests/support/arena.h"
#include "tests/support/random.h"
#include "tests/support/types.h"

namespace prologue::test {

enum class Element { byte, int32, int64, f16, bf16, f32, f64 };

template <class T>
constexpr Element element_of() {
  if constexpr (std::is_same_v<T, Float16>) return Element::f16;
  if constexpr (std::is_same_v<T, BFloat16>) return Element::bf16;
  if constexpr (std::is_same_v<T, float>) return Element::f32;
  if constexpr (std::is_same_v<T, double>) return Element::f64;
  if constexpr (std::is_same_v<T, int32_t>) return Element::int32;
  return Element::byte;
}

struct Axis {
  const char* name;
  int64_t stride;  // elements
};

// Says what an array, or a part of it from here on, holds: how a difference is shown, and how large it may be. NaNs are equal to each
// other. |got - want| <= units of `want` in the last place * units + absolute.
struct Output {
  const void* data;
  std::string name;
  Element element = Element::byte;
  std::vector<Axis> axes = {};  // in any order
  double units = 0.0;
  double absolute = 0.0;
};

// This is one call on one backend.
struct Outcome {
  std::string description;  // of the case, the same on every backend
  Status status;
  std::vector<Arena::Written> written;
  std::vector<Output> outputs;
};

// Says how large a case may be. Few are that large: the smaller, the more of them there are.
struct Sizes {
  int64_t max_tokens = 9000;
  int64_t max_elements = int64_t{1} << 26;  // of the largest tensor, about
  int64_t max_products = int64_t{1} << 33;  // multiply-adds of a matrix product or of attention, about
};

struct Operation {
  const char* name;
  // Runs the case of a seed. Everything depends on the seed alone.
  std::function<Outcome(Backend, uint64_t seed, const Sizes&)> run;
};

std::vector<Operation> prologue_operations();
std::vector<Operation> rotary_operations();
std::vector<Operation> attention_operations();
std::vector<Operation> token_operations();

// Sizes of real models, and what surrounds them.

struct ModelHeads {
  int64_t num_q_heads, num_kv_heads, head_dim;
};
ModelHeads random_heads(Random& random);
int64_t random_width(Random& random);
// Returns the context of this thread.
Result<GemmContext*> context_for(Backend backend);
// Returns a number of tokens: mostly few or many, up to max_tokens, and no more than max_elements of `width` each.
int64_t random_tokens(Random& random, const Sizes& sizes, int64_t width);

// `count` numbers, cheap to make: a stretch of normal ones again and again (its length is prime, so no row is like another).
template <class T>
std::vector<T> many_normals(Random& random, int64_t count, double deviation = 1.0) {
  constexpr int64_t kStretch = 65521;
  if (count <= kStretch) return random.normals<T>(count, deviation);
  const std::vector<T> stretch = random.normals<T>(kStretch, deviation);
  std::vector<T> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) values[static_cast<size_t>(i)] = stretch[static_cast<size_t>(i % kStretch)];
  return values;
}

template <class F>
auto with_random_dtype(Random& random, F&& f) {
  return with_host_type(kFloatTypes[random.integer(0, 2)], f);
}

inline Outcome outcome(std::string description, Status status, const Arena& arena, std::vector<Output> outputs) {
  return {std::move(description), std::move(status), arena.written(), std::move(outputs)};
}

}  // namespace prologue::test
