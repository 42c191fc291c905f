// This kernel is for up to 64 tokens and packed weights with a linear layer's end (unpacking/stages.cuh, finish/output.cuh). A block has some
// rows of y; with a gated activation the first half of its groups are rows of gate, the second half the rows of up that go with them. When the
// sums are done, sixteen warps finish them, four neighbours of a token at a time. Blocks that divide k divide the tokens then.
#pragma once

#include <cstdint>
#include <span>

#include <prologue/kernels/projection/finish/output.cuh>
#include <prologue/kernels/projection/unpacking/norm_warps.cuh>

namespace prologue::cuda {

template <class Product>
__global__ void __launch_bounds__(PROLOGUE_HOPPER ? kUnpackingThreadsWithNorm : 32, 1)
    unpacking_output_kernel(const __grid_constant__ PackedArgs<UnpackingArgs> a, const __grid_constant__ OutputArgs o) {
#if PROLOGUE_HOPPER
  using T = typename Product::T;
  auto* const memory = swizzled_dynamic_shared<unsigned char>();
  UnpackingTail& tail = *reinterpret_cast<UnpackingTail*>(memory + a.tail_at);
  const int groups_of_half = o.gated != 0 ? a.groups / 2 : a.groups, rows_of_half = groups_of_half * kPackedGroupRows;
  const int first_row = static_cast<int>(blockIdx.x >> a.log_k_blocks) * rows_of_half;  // of y
  // Rows that there are not are multiplied as well, and no one reads their sums. Where a tile begins with them, all rows have one format.
  const PackedGroup none = {nullptr, a.packed.segments[0].format, 0};
  const auto group_of = [&](int group) -> PackedGroup {
    const bool is_up = group >= groups_of_half;
    const int of_y = first_row + (is_up ? group - groups_of_half : group) * kPackedGroupRows;
    return of_y < o.n ? PackedWeights<T>::rows_at(a, int64_t{of_y} + (is_up ? o.n : 0)) : none;
  };
  open_stages(a, tail, Product::kWeighsX);
  __syncthreads();
  let_next_kernel_start();
  const int norm_threads = a.normed != 0 ? kNormWarps * 32 : 0, thread = static_cast<int>(threadIdx.x);
  if (thread >= kUnpackingConsumers && thread < kUnpackingThreads) {
    const int group = thread % 32;
    fill_stages(a, memory, tail, group < a.groups ? group_of(group) : none);
    return;
  }
  float* const sums = unpacking_sums(memory);
  {
    Product product;
    const UnpackingWarp warp(a);
    const bool is_of_norm = thread >= kUnpackingThreads, multiplies = !is_of_norm && warp.multiplies(a);
    if (is_of_norm) {
      NormWarps<T, Product::kTokens, Product::kWeighsX>(a).run(memory, tail);
    } else {
      wait_for_previous_kernels();  // x is waited for anyway; the residual can be seen
    }
    if (multiplies) {
      product.multiply(a, memory, tail, group_of(warp.group() / Product::kGroupsOfFormat * Product::kGroupsOfFormat).format);
    }
    sync_barrier(1, kUnpackingConsumers + norm_threads);  // no warp reads the ring after this
    if (is_of_norm) return;
    if (multiplies) product.store(a, warp, sums);
  }
  a.log_k_blocks != 0 ? sync_cluster() : sync_barrier(1, kUnpackingConsumers);

  if (a.normed != 0) {
    if (thread < a.num_tokens) find_factor(a, tail, thread);
    sync_barrier(1, kUnpackingConsumers);
  }
  const int rows = min(rows_of_half, o.n - first_row), groups = rows / kRowsAtOnce;
  const int rank = a.log_k_blocks != 0 ? static_cast<int>(cluster_rank()) : 0, threads = kUnpackingConsumers << a.log_k_blocks;
#pragma unroll 1
  for (int i = rank * kUnpackingConsumers + thread; i < a.num_tokens * groups; i += threads) {
    const int t = i / groups, row = (i - t * groups) * kRowsAtOnce, at = first_row + row;
    char* const to = address_of_output<T>(o, t, at);
    Packed<T, kRowsAtOnce> residual = {};
    if (o.adds != 0) residual = load_packed<T>(to);
    finish_rows<T>(o, row, rows_of_half, at, to, residual,
                   [&](int of_block, float(&values)[kRowsAtOnce]) { gather_rows(a, tail, sums, t, of_block, values); });
  }
  if (a.log_k_blocks != 0) sync_cluster();  // no other block reads this one's sums after this
#endif
}

// ---- on the host ------------------------------------------------------------------------------------------------------------

struct UnpackingOutputInstance {
  int most_tokens;
  int groups_of_format;  // so many groups of 16 rows of a block, from its first on, have one format
  bool rounds;           // weights to 16 bits
  void (*kernel)(PackedArgs<UnpackingArgs>, OutputArgs);
};

// Lists the kernels that ship, in the order in which they are chosen (unpacking/instances.cuh).
std::span<const UnpackingOutputInstance> float16_unpacking_outputs();
std::span<const UnpackingOutputInstance> bfloat16_unpacking_outputs();

}  // namespace prologue::cuda
