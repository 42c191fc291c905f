// This file has the cache of an AttentionCase on the host, in every format and layout.
#pragma once

#include <cstdint>
#include <vector>

#include <prologue/kernels/paged_attention/paged_attention.h>

#include "tests/support/arena.h"
#include "tests/support/attention_case.h"

namespace prologue::test {

// Holds one layer's cache on the host: bytes, strides and scales.
struct AttentionCache {
  PagedKvView view;      // its pointers are null: place() returns a view with pointers
  int64_t v_offset = 0;  // bytes; K and V are in one buffer
  std::vector<unsigned char> data;
  std::vector<float> k_scale, v_scale;

  AttentionCache(const AttentionCase& c, int64_t num_pages);

  // Returns the index of an element, counted from the first element of K or V.
  int64_t element(bool is_k, int64_t page, int64_t offset, int64_t head, int64_t d) const;
  size_t scale_index(bool is_k, int64_t page, int64_t offset, int64_t head) const;

  // Returns 0 except for uint4.
  float zero_point(bool is_k, int64_t page, int64_t offset, int64_t head) const {
    if ((is_k ? view.k : view.v).format.type != DType::uint4) return 0.0f;
    return (is_k ? k_scale : v_scale)[scale_index(is_k, page, offset, head) + 1];
  }

  // Stores one head of K or V from floats, as the cache has it; or one channel of it.
  void store(bool is_k, int64_t page, int64_t offset, int64_t head, const std::vector<float>& values);
  void store_one(bool is_k, int64_t page, int64_t offset, int64_t head, int64_t d, float value);

  // Returns a value of the cache, as the oracle reads the formats.
  double value(bool is_k, int64_t page, int64_t offset, int64_t head, int64_t d) const;

  // Copies the cache into the arena, and returns a view of the copy.
  PagedKvView place(Arena& arena) const;
};

}  // namespace prologue::test
