// Checks a Rope for the operations that take every kind of it, and adds its arrays to their regions. Internal.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/host/view_checks.h>
#include <prologue/kernels/base/rope.h>
#include <prologue/kernels/base/status.h>

namespace prologue {

inline constexpr int64_t kMaxRows = int64_t{1} << 40;  // of a table

struct Dim {
  int64_t count;
  int64_t stride;
};

// Returns the region of elements of `size` bytes. A dimension of one entry has no stride that matters.
Region strided_region(const char* name, const void* data, int64_t size, const Dim (&dims)[4]);

// Checks which channels form pairs.
Status check_rope_channels(const char* operation, const Rope& rope, int64_t head_dim);
// Checks where cos and sin come from. `rows_are_read`: the call has tokens.
Status check_rope_angles(const char* operation, const Rope& rope, bool rows_are_read);
Status check_rope_axes(const char* operation, const Rope& rope);

// Adds cos, sin, angles or inv_freq.
Status add_rope_angles(const char* operation, const Rope& rope, int64_t batch, int64_t seq_len, RegionChecks& regions);
Status add_pair_axis(const Rope& rope, RegionChecks& regions);

}  // namespace prologue
