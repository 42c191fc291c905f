// Holds what the targets of operations share.
#pragma once

#include <algorithm>
#include <cstring>

#include <prologue/kernels/base/execution.h>
#include <prologue/kernels/base/faults.h>
#include <prologue/kernels/base/views.h>

#include "tests/fuzz/choices.h"
#include "tests/fuzz/memory_map.h"
#include "tests/support/types.h"

namespace prologue::fuzz {

inline Execution execution(Choices& choices) {
  Execution execution = {Device::cpu, 1};
  if (choices.hostile()) execution.device = static_cast<Device>(choices.byte());
  if (choices.hostile()) execution.num_threads = static_cast<int32_t>(choices.bits(4));
  return execution;
}

// Returns one of `types`, or any other, or one that does not exist.
template <size_t kCount>
DType type_of(Choices& choices, const DType (&types)[kCount]) {
  if (choices.hostile()) return choices.enumerator(DType::uint64);
  return types[choices.integer(0, static_cast<int64_t>(kCount) - 1)];
}
inline DType activation_type(Choices& choices) {
  constexpr DType kTypes[] = {DType::f32, DType::f16, DType::bf16};
  return type_of(choices, kTypes);
}
inline DType float_type(Choices& choices) { return type_of(choices, test::kFloatTypes); }
inline DType integer_type(Choices& choices) { return type_of(choices, test::kIntegerTypes); }
inline DType index_type(Choices& choices) {
  constexpr DType kTypes[] = {DType::int32, DType::int64};
  return type_of(choices, kTypes);
}

inline DType float_type_of(DType type) { return dtype_is_activation(type) ? type : DType::f32; }
inline int64_t index_size(const IndexView& view) { return view.type == DType::int32 ? 4 : 8; }

// Returns a number in [low, high], and now and then any number.
inline int64_t index_value(Choices& choices, int64_t low, int64_t high) {
  return choices.chance(64) ? choices.absurd() : choices.integer(low, std::clamp<int64_t>(high, low, 1 << 20));
}

// Writes element i, whatever its alignment.
inline void set_index(const void* data, int64_t size, int64_t i, int64_t value) {
  std::memcpy(static_cast<char*>(const_cast<void*>(data)) + i * size, &value, static_cast<size_t>(size));
}
inline int64_t get_index(const void* data, int64_t size, int64_t i) {
  const char* at = static_cast<const char*>(data) + i * size;
  if (size == 8) {
    int64_t value;
    std::memcpy(&value, at, 8);
    return value;
  }
  int32_t value;
  std::memcpy(&value, at, 4);
  return value;
}

// Says whether allocate() gave the array memory.
inline bool present(const void* data) { return reinterpret_cast<uintptr_t>(data) > 4096; }

inline void fill_indices(Choices& choices, const IndexView& view, int64_t count, int64_t low, int64_t high) {
  if (!present(view.data)) return;
  for (int64_t i = 0; i < count; ++i) set_index(view.data, index_size(view), i, index_value(choices, low, high));
}

}  // namespace prologue::fuzz
