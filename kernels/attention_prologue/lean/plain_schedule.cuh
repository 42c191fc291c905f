// blockIdx.x is the token; threadIdx.x the lane, that is the unit (head_unit.cuh), within a head; the rows threadIdx.y of all
// blockIdx.y walk the heads of q, k and v, kUnits of them each, so that a thread keeps its cos and sin for all its heads.
//
// These instances only rotate and write (they have kLayouts and kPerToken at most). They are separate from lean/steps_schedule.cuh, so that
// the needs of the other features cost them nothing. The time of a call is one chain of loads, index -> row of cos and sin. So it starts
// first, both indices are loaded at once, and all loads of data are issued before these return. Padding rows are read too (they are rows of
// the same arrays), but not used.
#pragma once

#include <cstdint>

#include <prologue/kernels/attention_prologue/prologue_args.h>
#include <prologue/kernels/attention_prologue/lean/steps.cuh>
#include <prologue/kernels/attention_prologue/lean/token.cuh>
#include <prologue/kernels/base/device/head_unit.cuh>
#include <prologue/kernels/base/device/instructions.cuh>

namespace prologue::cuda {

// 64 registers a thread let 1024 tokens run in one wave on 132 SMs.
template <class T, int V, int kUnits, int kHints, int kFeatures>
__global__ void __launch_bounds__(256, kUnits > 1 ? 4 : 1) plain_prologue_kernel(const __grid_constant__ PlainArgs p) {
  static_assert(!has_steps(kFeatures));
  wait_for_previous_kernels();  // the launch overlaps them
  constexpr bool kHintedLoads = (kHints & kEvictFirstLoads) != 0;
  constexpr bool kHintedStores = (kHints & kEvictFirstStores) != 0;
  constexpr bool kGroups = (kHints & kTokenGroups) != 0;
  TensorHead of_thread = {0, 0};
  uint32_t t = blockIdx.x;
  if constexpr (kGroups) t = token_of_group(p, of_thread);
  const int unit = static_cast<int>(threadIdx.x);

  // The order was measured for each instance (docs/tuning/prologue.md). If an assembler has registers to spare, it waits for a whole index
  // before it loads data; so the slot's high word, which is needed last, is loaded after the barrier. With few tokens both indices are in
  // flight before the constants that are indexed by the tensor, the slowest of all.
  constexpr bool kPlain = kFeatures == 0, kFewTokens = kUnits == 1 && !kHintedStores;
  constexpr bool kSlotInTwo = kPlain ? kUnits == 1 && !kFewTokens : kUnits > 1;
  PendingToken<kFeatures, V, (kUnits > 1)> pending;
  pending.ask(p, t);
  if (kSlotInTwo) {
    pending.ask_low_slot(p, t);
  } else {
    pending.ask_slot(p, t);
  }
  if (kPlain && !kSlotInTwo) __syncwarp();

  UnitChannels place;
  bool rotated = true;  // without features every head is rotated, in full
  // With many tokens, interleaved pairs, too, come from both halves of the rotated channels, so that neighbouring threads read and write
  // neighbouring vectors.
  constexpr bool kMayHalve = (kFeatures & kLayouts) != 0 && V * sizeof(T) == 16 && kUnits > 1;
  const bool halved = kMayHalve && p.layout.style == RopeStyle::interleaved;
  if constexpr ((kFeatures & kLayouts) != 0) {
    place = channels_of_unit<V>(unit, p.layout);
    rotated = place.pair >= 0;
    if (halved & rotated) {
      place.a = p.layout.rotary_offset + unit * V;
      place.b = place.a + p.layout.rotary_dim / 2;
      place.pair = unit * (V / 2);
    }
  } else {
    const int half = p.layout.head_dim / 2;
    place = {unit * V, half + unit * V, unit * V, true, true};
  }

  // A block keeps to one tensor where a thread has one head. Threads without a head read one that exists: a load that waits for a
  // comparison comes late.
  TensorHead at[kUnits];
  bool active[kUnits];
  Unit<T, V> data[kUnits];
#pragma unroll
  for (int n = 0; n < kUnits; ++n) {
    if constexpr (kUnits == 1) {
      if constexpr (!kGroups) of_thread = heads_of<1>(p, blockIdx.y, threadIdx.y, blockDim.y);
      const int heads = p.tensors[of_thread.tensor].heads;
      active[n] = of_thread.head < heads;
      at[n] = {of_thread.tensor, min(of_thread.head, heads - 1)};
      rotated = rotated & (of_thread.tensor != 2);
    } else {
      const int row = static_cast<int>((n * gridDim.y + blockIdx.y) * blockDim.y + threadIdx.y);
      const int rows = p.tensors[0].heads + p.tensors[1].heads + p.tensors[2].heads;
      active[n] = row < rows;
      at[n] = head_of_row(p.tensors, min(row, rows - 1));
    }
    const auto& tensor = p.tensors[at[n].tensor];
    const char* head = tensor.in + wide_product(tensor.in_token, t) + static_cast<uint32_t>(at[n].head) * tensor.in_head;
    data[n] = load_unit<kHintedLoads, T, V>(head, place);
  }

  __syncwarp();  // keeps the assembler from moving loads of data behind the wait for the position
  if (kSlotInTwo) pending.ask_high_slot(p, t);

  LeanToken token = pending.resolve_position(p, t, 0);
  UnitAngles<V> angles;
  if (rotated) {
    if constexpr (kMayHalve) {
      angles = halved ? pending.template angles<2>(p, token, place.pair, p.layout.rotary_dim / 4)
                      : pending.angles(p, token, place.pair);
    } else {
      angles = pending.angles(p, token, place.pair);
    }
  }
  pending.resolve_slot(p, token);
  const bool records = kGroups ? records_faults(p, of_thread) : (blockIdx.y | threadIdx.y | threadIdx.x) == 0;
  if (__builtin_expect((token.fault != FaultCode::none) & !token.padding & records, 0)) {
    cuda::record_fault(p.faults, p.token_faults, t, token.fault);
  }

#pragma unroll
  for (int n = 0; n < kUnits; ++n) {
    const bool is_q = at[n].tensor == 0;
    if (!active[n] | token.padding | (!is_q & !token.reaches_cache)) return;  // what follows is K and V too
    const auto& tensor = p.tensors[at[n].tensor];
    char* to = tensor.out + wide_product(tensor.out_page, is_q ? 0 : token.page) +
               wide_product(tensor.out_token, is_q ? t : token.offset) + static_cast<uint32_t>(at[n].head) * tensor.out_head;
    if (kUnits == 1 ? rotated : (at[n].tensor != 2) & rotated) {
      UnitValues<V> values = widen<T, V>(data[n]);
      rotate<V>(values, angles, (kFeatures & kLayouts) != 0 ? p.layout.style : RopeStyle::neox);
      data[n] = narrow<T, V>(values);
    }
    if (token.zero) data[n] = Unit<T, V>();
    if (kHintedStores && is_q) {
      store_unit<true, T, V>(to, place, data[n]);
    } else {
      store_unit<false, T, V>(to, place, data[n]);
    }
  }
}

}  // namespace prologue::cuda
