// This file has the order of a sum over the channels of a head. It is the same on the CPU (steps/head_steps_cpu.h) and on the device
// (steps/head_lanes.cuh), whatever the layout, the vectors and the threads are, so that fused and unfused, CPU and GPU, give the same bits:
//
// 1. Neighbours, two channels, are one term each.
// 2. Each half of the head is cut into pieces of 8 channels; the terms of a piece are summed as a binary tree of neighbours.
// 3. Piece i of the first half and piece i of the second half are added.
// 4. These sums are added as a binary tree of neighbours.
//
// What is missing to fill a piece or a tree is zero. (A thread mostly holds pieces i of both halves: one number to exchange.)
#pragma once

#include <prologue/kernels/base/shared/rotation.h>

namespace prologue {

inline constexpr int kSumPiece = 8;  // channels

// Says what is summed. `pair` is the term of two neighbours.
struct SumOfValues {
  PROLOGUE_HOST_DEVICE static float pair(float x, float y) { return add_rounded(x, y); }
};
struct SumOfSquares {
  PROLOGUE_HOST_DEVICE static float pair(float x, float y) { return fused_multiply_add(y, y, multiply_rounded(x, x)); }
};

}  // namespace prologue
