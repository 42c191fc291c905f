// The elements x of a row or of a head are normalised by one of these:
//   rms    x / sqrt(mean(x^2) + eps)
//   layer  (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps)
#pragma once

#include <cstdint>

namespace prologue {

enum class NormKind : int32_t { rms = 0, layer };

}  // namespace prologue
