// Loads weights as a model has them: rows of k elements of 16 bits. A format of weights is one struct like this one, in a file here, and
// all that the ways know of it. Each way is a template of it, and its instances name it. x is of 16 bits whatever the weights are.
//
//   vector, registers   a lane loads pieces of 8 neighbouring channels of a row; pieces of two rows are operands of two mma.m16n8k16
//   ring, tiles         TMA copies boxes of 64 channels of some rows, with the 128-byte swizzle; mma takes fragments of 16 channels from
//                       there, wgmma reads them by a descriptor
#pragma once

#include <cstdint>
#include <initializer_list>

#include <prologue/kernels/base/device/head_unit.cuh>
#include <prologue/kernels/base/device/hopper.cuh>
#include <prologue/kernels/base/device/instructions.cuh>
#include <prologue/kernels/base/device/tensor_map.cuh>

namespace prologue::cuda {

// Encodes the tensor map of weights of one format; false if the driver does not take it.
using EncodeWeights = bool (*)(CUtensorMap& map, const void* weights, int64_t channels, std::initializer_list<OuterDim> outer,
                               CUtensorMapL2promotion promotion);

// Returns the table of an element type; it is empty for others.
template <class Table>
auto of_16_bits(DType type, const Table& float16, const Table& bfloat16) {
  return type == DType::f16 ? float16() : type == DType::bf16 ? bfloat16() : decltype(float16())();
}

template <class Element>
struct DenseWeights {
  using T = Element;       // of x, and of the operands of a product
  using Stored = Element;  // of the weights in shared memory

  // Returns the bytes of the channels of a row that take so many bytes of x.
  template <class Int>
  __host__ __device__ static constexpr Int beside_x(Int x_bytes) {
    return x_bytes;
  }

  // ---- rows of a matrix -------------------------------------------------------------------------------------------------------

  template <class Args>
  using With = Args;  // the arguments of a kernel: those of a way have all that it needs
  using Rows = const char*;
  static constexpr Rows kNoRows = nullptr;
  template <class Args>
  __device__ static Rows rows_at(const Args& a, int64_t row) {
    return a.weight + row * (int64_t{a.slices} * kSliceBytes);
  }
  // A warp's part of k is any number of slices of 32 channels.
  template <class Args>
  __device__ static constexpr int log_unit(const Args&) {
    return 0;
  }
  static constexpr int kSliceBytes = 64;
  // An SM has many warps of few registers, each with little in flight: 2 KB for each of 24 warps of an SM keep the memory busy.
  static constexpr int kWarpsOfSm = 32, kHeadWarpsOfSm = 32;
  // Where chunk `chunk` of x, 8 channels, is in shared memory; store_x() stores it there.
  __device__ static int place_of_x(int chunk) { return chunk * 16; }
  __device__ static void store_x(unsigned char* to, const Bytes<16>& x) { store_bytes<16, false>(to, x); }

  // ---- through registers ------------------------------------------------------------------------------------------------------

  using Piece = uint4;
  static constexpr int kPieceBytes = 16;

  __device__ static Piece no_piece() { return make_uint4(0, 0, 0, 0); }
  // They are read once in a step.
  __device__ static Piece load_piece(const char* from) { return load_once(from); }
  // The first operands of two products, whose k are the first and the second four channels of each lane's piece; the second operands must
  // have the channels of x in the same order, as they are in memory. `low` and `high` are of the rows lane / 4 and lane / 4 + 8 of an
  // operand.
  __device__ static void make_operands(const Piece& low, const Piece& high, uint32_t (&first)[4], uint32_t (&second)[4]) {
    first[0] = low.x, first[1] = high.x, first[2] = low.y, first[3] = high.y;
    second[0] = low.z, second[1] = high.z, second[2] = low.w, second[3] = high.w;
  }

  // ---- through shared memory --------------------------------------------------------------------------------------------------

  static constexpr int kBoxRowBytes = 128;  // of a box's 64 channels
  static constexpr int kStepBytes = 32;     // of the 16 channels of a product

  // Lane i gives the address of a row of one of the four 8 x 8 matrices of a fragment: rows, then rows + 8, of 8 channels, then of the next
  // 8. Returns the offset of step `step` of a box in `row`, lane % 16 of a fragment's rows.
  __device__ static int offset_of_step(int row, int lane, int step) { return ((step * 2 + lane / 16) ^ row % 8) << 4; }
  __device__ static void load_fragment(uint32_t (&fragment)[4], const unsigned char* from) { load_matrices(fragment, from); }

  // Describes rows in a box from step `step` on.
  __device__ static uint64_t descriptor(const void* rows, int step) {
    constexpr int kStrideOfEightRows = 8 * kBoxRowBytes;
    return matrix_descriptor(static_cast<const unsigned char*>(rows) + step * kStepBytes, 0, kStrideOfEightRows);
  }

  static bool encode(CUtensorMap& map, const void* weights, int64_t channels, std::initializer_list<OuterDim> outer,
                     CUtensorMapL2promotion promotion) {
    return encode_map(map, weights, channels, outer, promotion);
  }
};

}  // namespace prologue::cuda
