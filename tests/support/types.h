// Lists of element types, for random cases and for tests over every type.
#pragma once

#include <prologue/kernels/base/dtype.h>

namespace prologue::test {

// The first three are the activations' types.
inline constexpr DType kFloatTypes[] = {DType::f32, DType::f16, DType::bf16, DType::f64};
inline constexpr DType kIntegerTypes[] = {DType::int8,  DType::int16,  DType::int32,  DType::int64,
                                          DType::uint8, DType::uint16, DType::uint32, DType::uint64};
inline constexpr DType kKvTypes[] = {DType::f32,      DType::f16,  DType::bf16, DType::fp8_e4m3,
                                     DType::fp8_e5m2, DType::int8, DType::int4, DType::uint4};
inline constexpr auto kNoType = static_cast<DType>(99);

}  // namespace prologue::test
