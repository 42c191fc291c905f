// The standalone rotary operation in long double, from its formulas (docs/numerics.md) over dense arrays. Shares no code with the
// library.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace prologue::test::oracle {

enum class AngleSource { cos_sin, angles, inv_freq, theta };
enum class Tail { copy, leave, zero };

// Holds a table of rows, as a caller sees it: value(b, r, c).
struct Table {
  int64_t rows = 0;
  int64_t columns = 0;
  bool per_batch = false;
  std::vector<double> values;  // [batch or 1, rows, columns]

  long double at(int64_t b, int64_t r, int64_t c) const {
    return values.at(static_cast<size_t>(((per_batch ? b : 0) * rows + r) * columns + c));
  }
};

struct RotaryInput {
  int64_t batch = 1, seq_len = 0, head_dim = 0;
  int64_t rotary_dim = 0, rotary_offset = 0, num_blocks = 1;
  bool interleaved = false, inverse = false, inverse_by_own_sine = false;
  Tail tail = Tail::copy;
  struct Tensor {
    int64_t num_heads = 0;
    bool rotate = true;
    std::vector<double> x;  // [batch, seq_len, num_heads, head_dim]
  };
  std::vector<Tensor> tensors;

  AngleSource source = AngleSource::cos_sin;
  bool full = false, per_token = false;
  Table cos, sin, angles;
  std::vector<double> inv_freq;
  double theta = 0.0, factor = 1.0;
  int64_t max_position = 0;
  bool identity_past_table = false;

  std::optional<std::vector<int64_t>> ids;  // [num_axes, batch, seq_len]; the largest int64 stands for what it cannot hold
  int64_t offset = 0;
  std::vector<int64_t> offsets;     // of each sequence; empty = none
  std::vector<int64_t> cu_seqlens;  // empty = not packed
  int64_t max_seqlen = 0;
  int64_t num_axes = 1;
  std::vector<int64_t> pair_axis;  // empty = the pair's block
};

enum class Wanted { untouched, zero, copied, rotated };

struct RotaryElement {
  Wanted wanted = Wanted::untouched;
  long double value = 0.0L;
  long double scale = 0.0L;  // sum of |terms|
  long double slope = 0.0L;  // how much an error of the angle, relative to it, moves the value at most
};

struct RotaryOutput {
  std::vector<std::vector<RotaryElement>> y;        // as x
  std::vector<std::pair<int64_t, int64_t>> faults;  // token, code: 1 position out of range, 5 sequence too long
};

RotaryOutput rotary(const RotaryInput& in);

}  // namespace prologue::test::oracle
