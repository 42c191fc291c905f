// Makes the cos/sin table of a rotary embedding.
//
//   angle(p, i) = p * inv_freq[i], i in [0, rotary_dim/2)
//   table[p]    = attention_factor * cos(angle(p, 0..rotary_dim/2)), then attention_factor * sin(...)           float32
//
// Frequencies, schemes and the two precisions: rope_scaling.h. The entries of a table are computed so:
//   exact      in float64, then rounded once
//   reference  in float32, as models are trained and served, each step correctly rounded:
//              angle = float32(p) * inv_freq, cos, times float32(attention_factor)
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <prologue/kernels/base/memory.h>
#include <prologue/layers/rope/rope_scaling.h>

namespace prologue {

// Returns [max_position, rotary_dim] float32.
PROLOGUE_API Result<std::vector<float>> rope_cos_sin(const RopeFrequencies& frequencies, int64_t max_position,
                                                     RopePrecision precision);

// Owns the table on a device, which all layers with the same rotation use. It may start short and grow to the longest sequence that will
// run.
class PROLOGUE_API RopeTable {
 public:
  RopeTable() = default;
  // Creates a table for sequences with these frequencies.
  static Result<RopeTable> create(RopeStyle style, const RopeFrequencies& frequencies, int64_t max_position,
                                  RopePrecision precision, const Execution& execution);
  // Creates a table for all sequences of up to max_position tokens: schemes that depend on the length use max_position as the length.
  static Result<RopeTable> create(const RopeConfig& config, int64_t max_position, RopePrecision precision,
                                  const Execution& execution);

  // Makes sure that the table has rows for all positions below `max_position`. Its memory changes when it grows: do not call it while
  // work that reads the table is running, unless what reads it holds the memory. After an error the table is unchanged.
  Status reserve(int64_t max_position, const Execution& execution);

  // Makes this a table with several sets of frequencies, for schemes that depend on the length: a sequence whose set begins at row r has
  // the rope positions r, r + 1, ... This makes new memory of num_rows rows, which are undefined until fill(); max_position() is then
  // num_rows. Errors: as create().
  Status make_sets(int64_t num_rows, const Execution& execution);
  // Makes rows [first_row, first_row + num_rows) those of positions 0, 1, ... of a sequence of sequence_length tokens. In stream order,
  // without new memory on the device: captured steps stay valid. A table that was made of frequencies has these. invalid_argument: the
  // table has no such rows, or as rope_frequencies().
  Status fill(int64_t first_row, int64_t num_rows, int64_t sequence_length, const Execution& execution);
  // Returns rope_length_class() of the table's scheme; 0 for a table that was made of frequencies.
  int64_t length_class(int64_t sequence_length) const { return config_ ? rope_length_class(*config_, sequence_length) : 0; }
  // Whether every length beyond the original one has frequencies of its own (dynamic NTK).
  bool has_many_lengths() const { return config_ && std::holds_alternative<DynamicNtkRope>(config_->scaling); }

  RopeStyle style() const { return style_; }
  int64_t rotary_dim() const { return static_cast<int64_t>(2 * frequencies_.inv_freq.size()); }
  int64_t max_position() const { return max_position_; }
  const float* cos_sin() const { return memory_ == nullptr ? nullptr : memory_->as<float>(); }
  // Returns the memory of cos_sin(), for those that need it after the table has grown.
  const std::shared_ptr<const Buffer>& memory() const { return memory_; }

 private:
  RopeStyle style_ = RopeStyle::neox;
  RopeFrequencies frequencies_;
  std::optional<RopeConfig> config_;
  RopePrecision precision_ = RopePrecision::exact;
  int64_t max_position_ = 0;
  std::shared_ptr<const Buffer> memory_;
};

}  // namespace prologue
