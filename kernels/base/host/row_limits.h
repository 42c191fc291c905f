// These are the largest sizes of operations over rows. Together they keep every size in bytes within 64 bits. Internal.
#pragma once

#include <cstdint>

namespace prologue {

inline constexpr int64_t kMaxTokens = int64_t{1} << 31;
inline constexpr int64_t kMaxWidth = int64_t{1} << 24;
inline constexpr int64_t kMaxGroups = 32;  // of width channels in a row

}  // namespace prologue
