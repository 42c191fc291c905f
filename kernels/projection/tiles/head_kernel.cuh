// Prompts with the attention prologue: tiles of x W^T (tiles/product.cuh) with whole heads, or parts of them. Other warps finish a tile
// (lean/most_steps_schedule.cuh) while the next one is multiplied, so q, k and v are never in memory unfinished.
#pragma once

#include <cstdint>
#include <span>

#include <prologue/kernels/projection/finish/head.cuh>
#include <prologue/kernels/projection/tiles/product.cuh>

namespace prologue::cuda {

// Where a head of 128 channels is two parts (kColumnsInParts), what is said of heads holds for parts. In a tile, the channels of part 1 of
// a head are `part_shift` columns before where they would be, and their second half another `second_shift`.
struct TilesHeadArgs : TilesArgs {
  int32_t lanes = 32;  // of a head
  int32_t heads = 0;   // of q, k and v
  int32_t heads_of_tile = 0;
  int32_t columns_of_head = 0;
  int32_t parts = 1;
  int32_t part_shift = 0;
  int32_t second_shift = 0;
};

// This is the number of channels of an access of the finishing warps.
inline constexpr int kTilesVector = 8;

template <class W, int kColumns>
struct TilesHeadShared : TileShared<W, kColumns> {
  FoundToken tokens[kTileTokens];
};

// Says which tokens of a tile a warp has: as many at a time as it has lanes for.
struct TileWork {
  int first;  // the warp's first token of the tile
  int step;   // from there to its next ones
  int own;    // which of the tokens at a time this lane has
  int rows;   // tokens of the tile; 0 or less: none

  __device__ TileWork(const TilesHeadArgs& a, const TilePosition& tile, int warp, int warps) {
    const int at_once = 32 / a.lanes;
    first = warp * at_once, step = warps * at_once;
    own = static_cast<int>(threadIdx.x) % 32 / a.lanes;
    rows = min(tile.tokens, a.num_tokens - tile.token);
  }
};

// Returns cos and sin of a lane's token; V has none.
template <int V, class Shared>
__device__ inline UnitAngles<V> angles_of_tile(const MostStepsArgs& p, const Shared& shared, const TileWork& work, int tensor,
                                               int token, const UnitChannels& place) {
  UnitAngles<V> angles = {};
  if (tensor != 2 && p.layout.rotary_dim > 0 && token < work.rows) {
    angles = load_row<V>(p, shared.tokens[token + work.own].token.row, max(place.pair, 0));
  }
  return angles;
}

// Finishes the heads of a tile; this is warp number `warp` of `warps`. Here the steps are decided at run time.
template <class T, int kFeatures, int kAtOnce, class Shared>
requires((kFeatures & kMostSteps) != 0) __device__
    inline void finish_tile(const TilesHeadArgs& a, const MostStepsArgs& p, Shared& shared, const TilePosition& tile, int warp,
                            int warps) {
  static_assert(kAtOnce == 1);
  constexpr int V = kTilesVector;
  constexpr bool kEvery = (kFeatures & kEveryStep) != 0;
  const TileWork work(a, tile, warp, warps);
  const int lane = threadIdx.x % 32 % a.lanes;
  const LaneUnit unit = unit_of_lane<V, kFeatures>(lane, p.layout);
  const auto lanes = lanes_of_head<V, kFeatures>(WarpLanes<V>{lane, a.lanes, unit.inside}, unit.place, p.layout);
#pragma unroll 1
  for (int in_tile = 0; in_tile < a.heads_of_tile; ++in_tile) {
    const int row = tile.column * a.heads_of_tile + in_tile;
    if (row >= a.heads) break;
    const TensorHead head = head_of_row(p.tensors, row);
    Unit<T, V> data;
    UnitAngles<V> angles;
    const auto loaded_angles = [&] { return angles; };
    MostSteps<T, V, true, kEvery, decltype(loaded_angles)> steps(p, head, unit.place, data, loaded_angles);
    const LeanTensor& tensor = p.tensors[head.tensor];
    const float given_scale[1] = {
        *reinterpret_cast<const float*>(tensor.scale + static_cast<uint32_t>(head.head) * tensor.scale_head)};
    UnitAngles<V> next = angles_of_tile<V>(p, shared, work, head.tensor, work.first, unit.place);
#pragma unroll 1
    for (int i = work.first; i < work.rows; i += work.step) {
      const int of_tile = i + work.own;
      const LeanToken token = shared.tokens[of_tile].token;
      angles = next;
      invert_rotation(p, angles);  // not right after their load, which would wait for it
      next = angles_of_tile<V>(p, shared, work, head.tensor, i + work.step, unit.place);
      data = load_unit<false, T, V>(&shared.tile[of_tile][in_tile * p.layout.head_dim], unit.place);
      choose_rotation<kFeatures>(p, token, head.tensor, steps);
      choose_factor(
          p, head.tensor, [&] { return shared.tokens[of_tile].position; }, steps);
      UnitValues<V> values[1];
      finish_head<T, V>(values, steps, lanes);
      store_head_of_token<false>(p, steps, values, unit, head, token, static_cast<uint32_t>(tile.token + of_tile), data,
                                 given_scale, lanes);
    }
  }
}

// Finishes them where the steps are exactly those of kFeatures. kAtOnce neighbouring heads of one tensor use the same cos and sin of a
// token.
template <class T, int kFeatures, int kAtOnce, class Shared>
requires((kFeatures & kMostSteps) == 0 && Shared::kColumns != kColumnsInParts) __device__
    inline void finish_tile(const TilesHeadArgs& a, const MostStepsArgs& p, Shared& shared, const TilePosition& tile, int warp,
                            int warps) {
  constexpr int V = kTilesVector;
  constexpr bool kWithLayouts = (kFeatures & kLayouts) != 0;
  const TileWork work(a, tile, warp, warps);
  const int lane = threadIdx.x % 32 % a.lanes;
  const LaneUnit unit = unit_of_lane<V, kFeatures>(lane, p.layout);
  const WarpLanes<V> lanes = {lane, a.lanes, unit.inside};
#pragma unroll 1
  for (int in_tile = 0; in_tile < a.heads_of_tile; in_tile += kAtOnce) {
    const int row = tile.column * a.heads_of_tile + in_tile;
    if (row >= a.heads) break;
    const TensorHead heads = head_of_row(p.tensors, row);
    const LeanTensor& tensor = p.tensors[heads.tensor];
    const bool is_v = heads.tensor == 2;
    LeanPlan plan;
    plan_steps<kFeatures, false>(p, kFeatures, is_v, unit.place, plan);
    LeanConstants<T, V, kAtOnce> constants;
    load_constants(
        plan, tensor, p.layout.head_dim, unit.place, [&](int n) { return static_cast<uint32_t>(heads.head + n); }, constants);
    Unit<T, V> data[kAtOnce];
    UnitAngles<V> angles;
    const auto loaded_angles = [&] { return angles; };
    const LeanSteps<T, V, kAtOnce, decltype(loaded_angles)> steps(plan, tensor, data, constants, loaded_angles, is_v,
                                                                  kWithLayouts ? p.layout.style : RopeStyle::neox);
    const bool quantised = plan.loads_scale && tensor.store != DType::unset;
    const bool changed = plan.biased | plan.normed | plan.rotated;
    UnitAngles<V> next = angles_of_tile<V>(p, shared, work, heads.tensor, work.first, unit.place);
#pragma unroll 1
    for (int i = work.first; i < work.rows; i += work.step) {
      const int of_tile = i + work.own;
      const LeanToken token = shared.tokens[of_tile].token;
      angles = next;
      next = angles_of_tile<V>(p, shared, work, heads.tensor, i + work.step, unit.place);
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        data[n] = load_unit<false, T, V>(&shared.tile[of_tile][(in_tile + n) * p.layout.head_dim], unit.place);
      }
      UnitValues<V> values[kAtOnce];
      finish_head<T, V>(values, steps, lanes);
      const LeanStore store(tensor, unit, heads, token, static_cast<uint32_t>(tile.token + of_tile));
      if (store_quantised<kFeatures>(store, 0, values, quantised, false, lanes, constants.scales)) continue;
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) store.store<false, T, V>(n, changed ? narrow<T, V>(values[n]) : data[n]);
    }
  }
}

// A lane's unit of a head, or of a part of one, in a tile of kColumnsInParts.
template <class T, int V, int kFeatures>
struct PartOfTile {
  TensorHead head;
  LaneUnit unit;
  UnitChannels in_tile;
  LeanPlan plan;
  LeanConstants<T, V, 1> constants;

  __device__ PartOfTile(const TilesHeadArgs& a, const MostStepsArgs& p, const TilePosition& tile, int number, int lane) {
    const int row = tile.column * a.heads_of_tile + number, part = row % a.parts;
    head = head_of_row(p.tensors, min(row, a.heads - 1) / a.parts);
    unit = unit_of_lane<V, kFeatures>(lane + part * a.lanes, p.layout);
    unit.inside &= row < a.heads;
    in_tile = unit.place;
    const int first = number * a.columns_of_head - part * a.part_shift;
    in_tile.a += first, in_tile.b += first - a.second_shift;
    plan_steps<kFeatures, false>(p, kFeatures, head.tensor == 2, unit.place, plan);
    load_constants(
        plan, p.tensors[head.tensor], p.layout.head_dim, unit.place, [&](int) { return static_cast<uint32_t>(head.head); },
        constants);
  }
};

// Finishes tiles of three heads or parts, or a multiple of that. Three are finished at once: while one waits, the others compute.
template <class T, int kFeatures, int kAtOnce, class Shared>
requires((kFeatures & kMostSteps) == 0 && Shared::kColumns == kColumnsInParts) __device__
    inline void finish_tile(const TilesHeadArgs& a, const MostStepsArgs& p, Shared& shared, const TilePosition& tile, int warp,
                            int warps) {
  static_assert(kAtOnce == 3);
  constexpr int V = kTilesVector;
  const TileWork work(a, tile, warp, warps);
  const int lane = threadIdx.x % 32 % a.lanes;
#pragma unroll 1
  for (int first = 0; first < a.heads_of_tile; first += kAtOnce) {
    using Part = PartOfTile<T, V, kFeatures>;
    const Part parts[kAtOnce] = {Part(a, p, tile, first, lane), Part(a, p, tile, first + 1, lane),
                                 Part(a, p, tile, first + 2, lane)};
#pragma unroll 1
    for (int i = work.first; i < work.rows; i += work.step) {
      const int of_tile = i + work.own;
      const LeanToken token = shared.tokens[of_tile].token;
      UnitAngles<V> angles[kAtOnce];
      Unit<T, V> data[kAtOnce][1];
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        const Part& part = parts[n];
        angles[n] = angles_of_tile<V>(p, shared, work, part.head.tensor, i, part.unit.place);
        data[n][0] = load_unit<false, T, V>(shared.tile[of_tile], part.in_tile);
      }
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        const Part& part = parts[n];
        const LeanTensor& tensor = p.tensors[part.head.tensor];
        const WarpLanes<V> lanes = {lane, a.lanes, part.unit.inside};
        const auto loaded_angles = [&] { return angles[n]; };
        const LeanSteps<T, V, 1, decltype(loaded_angles)> steps(part.plan, tensor, data[n], part.constants, loaded_angles,
                                                                part.head.tensor == 2,
                                                                (kFeatures & kLayouts) != 0 ? p.layout.style : RopeStyle::neox);
        UnitValues<V> values[1];
        finish_head<T, V>(values, steps, lanes);
        const LeanStore store(tensor, part.unit, part.head, token, static_cast<uint32_t>(tile.token + of_tile));
        const bool quantised = part.plan.loads_scale && tensor.store != DType::unset;
        if (store_quantised<kFeatures>(store, 0, values, quantised, false, lanes, part.constants.scales)) continue;
        const bool changed = part.plan.biased | part.plan.normed | part.plan.rotated;
        store.store<false, T, V>(0, changed ? narrow<T, V>(values[0]) : data[n][0]);
      }
    }
  }
}

// If kFeatures has kMostSteps, the steps are decided at run time.
template <class W, int kColumns, int kFeatures, int kAtOnce>
__global__ void __launch_bounds__(kTileThreads, 1)
    tiles_head_kernel(const __grid_constant__ TilesHeadArgs a, const __grid_constant__ MostStepsArgs p) {
#if PROLOGUE_HOPPER
  using T = typename W::T;
  static_assert((kFeatures & (kTokenNorm | kAxes | kDerived)) == 0);  // whether positions are derived is read at run time
  auto& shared = *swizzled_dynamic_shared<TilesHeadShared<W, kColumns>>();
  run_tiles<W>(
      a, shared,
      [&](const TilePosition& tile, int thread) {
        for (int i = thread; i < tile.tokens; i += kTileFinishers) {
          shared.tokens[i] = find_token(p, a.num_tokens, tile.token + i, tile.column == 0);
        }
      },
      [&](const TilePosition& tile, int warp, int warps) {
        finish_tile<T, kFeatures, kAtOnce>(a, p, shared, tile, warp, warps);
      });
#endif
}

// ---- on the host ------------------------------------------------------------------------------------------------------------

struct TilesHeadInstance {
  int columns;        // of a tile
  int features;       // of prologue_args.h
  int heads_at_once;  // of one tensor, unless tiles have parts
  int shared_bytes;
  EncodeWeights encode;
  void (*kernel)(TilesHeadArgs, MostStepsArgs);
};

// Lists the kernels that ship, in the order in which they are chosen (tiles/instances.cuh).
std::span<const TilesHeadInstance> float16_tiles_heads();
std::span<const TilesHeadInstance> bfloat16_tiles_heads();

}  // namespace prologue::cuda
