// This kernel is for up to 64 tokens and packed weights with a linear layer's end (unpacking/product.cuh, finish/output.cuh). A block has some
// rows of y; with a gated activation the first half of its tiles are rows of gate, the second half the rows of up that go with them. When the
// sums are done, all threads but those of the copying warp finish them, four neighbours of a token at a time. Blocks that divide k divide the
// tokens then.
#pragma once

#include <cstdint>
#include <span>

#include <prologue/kernels/projection/finish/output.cuh>
#include <prologue/kernels/projection/unpacking/product.cuh>

namespace prologue::cuda {

template <class W, int kTokens>
__global__ void __launch_bounds__(kUnpackingLaunchBound, 1)
    unpacking_output_kernel(const __grid_constant__ typename W::template With<UnpackingArgs> a,
                            const __grid_constant__ OutputArgs o) {
#if PROLOGUE_HOPPER
  using T = typename W::T;
  auto* const memory = swizzled_dynamic_shared<unsigned char>();
  UnpackingTail& tail = *reinterpret_cast<UnpackingTail*>(memory + a.tail_at);
  const int rows_of_all = kUnpackingTileRows << a.log_tiles, rows_of_half = o.gated != 0 ? rows_of_all / 2 : rows_of_all;
  const int first_row = static_cast<int>(blockIdx.x >> a.log_k_blocks) * rows_of_half;  // of y
  // Returns the group that begins at this row of the block.
  const auto group_at = [&](int row) -> PackedGroup {
    const bool is_up = row >= rows_of_half;
    const int of_y = first_row + row - (is_up ? rows_of_half : 0);
    return of_y < o.n ? W::rows_at(a, int64_t{of_y} + (is_up ? o.n : 0)) : PackedGroup{nullptr, WeightFormat::q8_0, 0};
  };
  open_stages(a, tail);
  __syncthreads();
  let_next_kernel_start();
  const int thread = static_cast<int>(threadIdx.x);
  if (thread >= kUnpackingConsumers) {
    const int row = thread % 32 * kPackedGroupRows;
    fill_stages(a, memory, tail, row < rows_of_all ? group_at(row) : PackedGroup{nullptr, WeightFormat::q8_0, 0});
    return;
  }
  UnpackingProduct<T, kTokens> product(a, memory, tail);
  wait_for_previous_kernels();  // x is waited for anyway; the residual can be seen
  product.multiply(group_at(product.tile() * kUnpackingTileRows).format);
  a.log_k_blocks != 0 ? sync_cluster() : sync_barrier(1, kUnpackingConsumers);

  float* const sums = product.sums(memory);
  const int rows = min(rows_of_half, o.n - first_row), groups = rows / kRowsAtOnce;
  const int rank = a.log_k_blocks != 0 ? static_cast<int>(cluster_rank()) : 0, threads = kUnpackingConsumers << a.log_k_blocks;
#pragma unroll 1
  for (int i = rank * kUnpackingConsumers + thread; i < a.num_tokens * groups; i += threads) {
    const int t = i / groups, row = (i - t * groups) * kRowsAtOnce, at = first_row + row;
    char* const to = address_of_output<T>(o, t, at);
    Packed<T, kRowsAtOnce> residual = {};
    if (o.adds != 0) residual = load_packed<T>(to);
    const float factor = norm_of_token<T>(a, tail, t);
    finish_rows<T>(o, row, rows_of_half, at, to, residual,
                   [&](int of_block, float(&values)[kRowsAtOnce]) { gather_rows(a, sums, t, of_block, factor, values); });
  }
  if (a.log_k_blocks != 0) sync_cluster();  // no other block reads this one's sums after this
#endif
}

// ---- on the host ------------------------------------------------------------------------------------------------------------

struct UnpackingOutputInstance {
  int most_tokens;
  void (*kernel)(PackedArgs<UnpackingArgs>, OutputArgs);
};

// Lists the kernels that ship, in the order in which they are chosen (unpacking/instances.cuh).
std::span<const UnpackingOutputInstance> float16_unpacking_outputs();
std::span<const UnpackingOutputInstance> bfloat16_unpacking_outputs();

}  // namespace prologue::cuda
