// This file has a case for the standalone rotary operation: its options, its memory layout, and the lists of cases.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include <prologue/kernels/rotary/rotary.h>

namespace prologue::test {

// Describes a layout: sizes outermost first by order[0..3], dimensions being batch, token, head, channel; `holes` elements after each.
struct RotaryLayout {
  std::array<int, 4> order = {0, 1, 2, 3};
  std::array<int64_t, 4> holes = {};  // by dimension
};

struct RotaryCaseTensor {
  int64_t num_heads = 1;
  bool rotate = true;
  bool in_place = false;
  RotaryLayout x = {};
  RotaryLayout y = {};
};

enum class IdsKind { none, shared, per_batch };

// The sources of a RotaryCase: per_token is a flag of its own.
inline constexpr RopeSource kSources[] = {RopeSource::table, RopeSource::angles, RopeSource::inv_freq, RopeSource::theta};

struct RotaryCase {
  int64_t batch = 1, seq_len = 5, head_dim = 16;
  DType dtype = DType::f32;
  std::vector<RotaryCaseTensor> tensors = {{2}, {1}};
  RopeStyle style = RopeStyle::neox;
  int64_t rotary_dim = 16, rotary_offset = 0, num_blocks = 1;
  bool inverse = false, inverse_by_own_sine = false;
  RotaryTail tail = RotaryTail::copy;

  RopeSource source = RopeSource::table;
  DType type = DType::f32;
  RopeWidth width = RopeWidth::half;
  bool per_token = false, table_per_batch = false, bounded = true;
  int64_t max_position = 24;
  PastTable past_table = PastTable::record;
  int64_t table_holes = 0, column_stride = 1;
  double attention_factor = 1.0;

  IdsKind ids = IdsKind::shared;
  DType ids_type = DType::int32;
  int64_t ids_token_stride = 1;
  bool bad_ids = true;
  bool extremes = false;  // the ends of int64 in cu_seqlens and offsets
  int64_t offset = 0;
  bool offsets = false, one_offset = false;
  int64_t num_seqs = 0;  // packed where > 0
  int64_t max_seqlen = 0;
  int64_t num_axes = 1;
  bool pair_axis = false;

  int64_t misalign = 0;  // elements, of every tensor and table
  bool faults = true, token_faults = true, plan = false;
  uint64_t seed = 1;

  std::string describe() const;
};

// The lists of rotary_cases.cpp: chosen ones, and any struct that the contract allows, small. The same seed gives the same case.
std::vector<RotaryCase> rotary_cases();
RotaryCase random_rotary_case(uint64_t seed);

}  // namespace prologue::test
