// The prologue of multi-head latent attention in float64, from its formulas (docs/numerics.md; DeepSeek V2's paper; the record from vLLM's
// description of fp8_ds_mla). Shares no code with the library.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/oracle/quantize.h"

namespace prologue::test::oracle {

// Holds a value, and the sum of |terms| of its last sum.
struct MlaValue {
  double value = 0.0;
  double scale = 0.0;
};

enum class MlaStand { padding, zeros, rotated, copied };

struct MlaPlace {
  MlaStand stand = MlaStand::rotated;
  int64_t slot = -1;       // that is written; -1 = none
  int64_t fault_code = 0;  // 1 position out of range, 2 slot out of range
};

// `past` is 0 for record, 1 for zero, 2 for identity. max_position = 0: no bound.
MlaPlace mla_place(int64_t position, int64_t slot, int64_t max_position, int past, int64_t num_slots);

// `weight` may be empty.
std::vector<MlaValue> mla_norm(const std::vector<double>& x, const std::vector<double>& weight, double offset,
                                      double eps);

// There are one cos and one sin for each pair.
std::vector<MlaValue> mla_rotate(const std::vector<MlaValue>& x, bool interleaved, const std::vector<double>& cos,
                                        const std::vector<double>& sin);

// Returns the values of fp8 codes of x with one scale: x times the reciprocal, which is rounded to float32, as the product is.
std::vector<double> mla_codes(const std::vector<double>& x, float scale, Quantized type);

// Returns a latent of fp8_ds_mla: the values of its codes, and its scales.
struct MlaRecord {
  std::vector<double> values;
  std::vector<float> scales;
};
MlaRecord mla_record(const std::vector<double>& x);

}  // namespace prologue::test::oracle
