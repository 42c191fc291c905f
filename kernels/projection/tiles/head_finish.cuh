// What the warps that finish a tile of the QKV GEMM (tiles/product.cuh) do to its heads: the steps of the prologue's lean kernels
// (lean/more_steps_schedule.cuh), and the stores.
#pragma once

#include <cstdint>

#include <prologue/kernels/attention_prologue/lean/more_steps_schedule.cuh>
#include <prologue/kernels/projection/finish/found_token.cuh>
#include <prologue/kernels/projection/tiles/product.cuh>

namespace prologue::cuda {

// Where a head of 128 channels is two parts (kColumnsInParts), everything that is said of heads is said of parts. In a tile, part 1 of a head
// is where its channels would be, less `part_shift`, and their second half less `second_shift` also.
struct QkvGemmArgs : GemmTiles {
  int32_t lanes = 32;  // of a head
  int32_t heads = 0;   // of q, k and v
  int32_t heads_of_tile = 0;
  int32_t columns_of_head = 0;
  int32_t parts = 1;
  int32_t part_shift = 0;
  int32_t second_shift = 0;
};

// Channels of an access of the finishing warps.
inline constexpr int kGemmVector = 8;

template <class T, int kColumns>
struct QkvGemmShared : TileShared<T, kColumns> {
  FoundToken tokens[kTileTokens];
};

// What a warp has of a tile: so many tokens at a time, as many as a head's lanes leave room for.
struct TileShare {
  int first;  // token of the tile
  int step;
  int own;   // this lane's, of those at a time
  int rows;  // tokens of the tile; 0 or less: none

  __device__ TileShare(const QkvGemmArgs& a, const TilePlace& tile, int warp, int warps) {
    const int at_once = 32 / a.lanes;
    first = warp * at_once, step = warps * at_once;
    own = static_cast<int>(threadIdx.x) % 32 / a.lanes;
    rows = min(tile.tokens, a.num_tokens - tile.token);
  }
};

// The angles of a lane's token; V has none.
template <int V, class Shared>
__device__ inline UnitAngles<V> angles_of_tile(const MoreArgs& p, const Shared& shared, const TileShare& share, int tensor,
                                               int token, const UnitPlace& place) {
  UnitAngles<V> angles = {};
  if (tensor != 2 && p.layout.rotary_dim > 0 && token < share.rows) {
    angles = load_row<V>(p, shared.tokens[token + share.own].token.row, max(place.pair, 0));
  }
  return angles;
}

// The heads of a tile, by `warps` warps, of which this is number `warp`.
template <class T, int kFeatures, int kAtOnce, class Shared>
requires((kFeatures & kMoreSteps) != 0) __device__
    inline void finish_tile(const QkvGemmArgs& a, const MoreArgs& p, Shared& shared, const TilePlace& tile, int warp, int warps) {
  static_assert(kAtOnce == 1);
  constexpr int V = kGemmVector;
  constexpr bool kEvery = (kFeatures & kEveryStep) != 0;
  const TileShare share(a, tile, warp, warps);
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
    MoreSteps<T, V, true, kEvery, decltype(loaded_angles)> steps(p, head, unit.place, data, loaded_angles);
    const LeanTensor& tensor = p.tensors[head.tensor];
    const float given_scale[1] = {
        *reinterpret_cast<const float*>(tensor.scale + static_cast<uint32_t>(head.head) * tensor.scale_head)};
    UnitAngles<V> next = angles_of_tile<V>(p, shared, share, head.tensor, share.first, unit.place);
#pragma unroll 1
    for (int i = share.first; i < share.rows; i += share.step) {
      const int of_tile = i + share.own;
      const LeanToken token = shared.tokens[of_tile].token;
      angles = next;
      turn_back(p, angles);  // not where they are loaded, which would wait for them
      next = angles_of_tile<V>(p, shared, share, head.tensor, i + share.step, unit.place);
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

// The same for these calls. kAtOnce neighbouring heads of one tensor share a token's angles.
template <class T, int kFeatures, int kAtOnce, class Shared>
requires((kFeatures & kMoreSteps) == 0 && Shared::kColumns != kColumnsInParts) __device__
    inline void finish_tile(const QkvGemmArgs& a, const MoreArgs& p, Shared& shared, const TilePlace& tile, int warp, int warps) {
  constexpr int V = kGemmVector;
  constexpr bool kWithLayouts = (kFeatures & kLayouts) != 0;
  const TileShare share(a, tile, warp, warps);
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
    UnitAngles<V> next = angles_of_tile<V>(p, shared, share, heads.tensor, share.first, unit.place);
#pragma unroll 1
    for (int i = share.first; i < share.rows; i += share.step) {
      const int of_tile = i + share.own;
      const LeanToken token = shared.tokens[of_tile].token;
      angles = next;
      next = angles_of_tile<V>(p, shared, share, heads.tensor, i + share.step, unit.place);
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        data[n] = load_unit<false, T, V>(&shared.tile[of_tile][(in_tile + n) * p.layout.head_dim], unit.place);
      }
      UnitValues<V> values[kAtOnce];
      finish_head<T, V>(values, steps, lanes);
      const LeanStore store(tensor, unit, heads, token, static_cast<uint32_t>(tile.token + of_tile));
      store_heads<false, kFeatures>(store, 0, values, data, plan, quantised, false, lanes, constants.scales);
    }
  }
}

// A head, or a part of one, in a tile of kColumnsInParts: a lane's unit of it.
template <class T, int V, int kFeatures>
struct PartOfTile {
  TensorHead head;
  LaneUnit unit;
  UnitPlace in_tile;
  LeanPlan plan;
  LeanConstants<T, V, 1> constants;

  __device__ PartOfTile(const QkvGemmArgs& a, const MoreArgs& p, const TilePlace& tile, int number, int lane) {
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

// The same for tiles of three heads or parts, or a multiple of that, three at once: what one waits for, the others use.
template <class T, int kFeatures, int kAtOnce, class Shared>
requires((kFeatures & kMoreSteps) == 0 && Shared::kColumns == kColumnsInParts) __device__
    inline void finish_tile(const QkvGemmArgs& a, const MoreArgs& p, Shared& shared, const TilePlace& tile, int warp, int warps) {
  static_assert(kAtOnce == 3);
  constexpr int V = kGemmVector;
  const TileShare share(a, tile, warp, warps);
  const int lane = threadIdx.x % 32 % a.lanes;
#pragma unroll 1
  for (int first = 0; first < a.heads_of_tile; first += kAtOnce) {
    using Part = PartOfTile<T, V, kFeatures>;
    const Part parts[kAtOnce] = {Part(a, p, tile, first, lane), Part(a, p, tile, first + 1, lane),
                                 Part(a, p, tile, first + 2, lane)};
#pragma unroll 1
    for (int i = share.first; i < share.rows; i += share.step) {
      const int of_tile = i + share.own;
      const LeanToken token = shared.tokens[of_tile].token;
      UnitAngles<V> angles[kAtOnce];
      Unit<T, V> data[kAtOnce][1];
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        const Part& part = parts[n];
        angles[n] = angles_of_tile<V>(p, shared, share, part.head.tensor, i, part.unit.place);
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
        store_heads<false, kFeatures>(store, 0, values, data[n], part.plan, quantised, false, lanes, part.constants.scales);
      }
    }
  }
}

}  // namespace prologue::cuda
