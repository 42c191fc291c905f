// The lanes of a head are the threads that hold its units (head_unit.cuh). This file has what they compute together: the sum, in the order
// of head_sum.h, and the largest magnitude over a head.
//
// A group of lanes has these functions, which all of them must call:
//   sum(x, term, then, results)    results[n] = then(the sum over head n)
//   largest(x, then, results)      results[n] = then(the largest |v|, as bits: NaN is the largest)
//   butterflies(x, distance)       (x[c], x[c + distance]) = (x[c] + x[c + distance], x[c] - x[c + distance])
#pragma once

#include <cstdint>

#include <prologue/kernels/base/shared/head_sum.h>
#include <prologue/kernels/base/device/head_unit.cuh>

namespace prologue::cuda {

inline constexpr uint32_t kWholeWarp = 0xffffffffu;

// These are `count` neighbouring lanes, a power of two, of one warp. A mask that the compiler knows makes a step one instruction.
struct HeadLanes {
  uint32_t mask;
  int count;
};

template <class T, class F>
__device__ inline T reduce(const HeadLanes& lanes, T x, const F& combine) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    if (step < lanes.count) x = combine(x, __shfl_xor_sync(lanes.mask, x, step));
  }
  return x;
}

// Reduces several values of each lane over the lanes, of which there are kCount at least: each step halves the values that a lane still
// works on. Returns, reduced, value number (lane % kCount).
template <int kCount, class T, class F>
__device__ inline T reduce_several(const HeadLanes& lanes, uint32_t lane, T (&values)[kCount], const F& combine) {
#pragma unroll
  for (int step = 1; step < kCount; step *= 2) {
    const bool odd = (lane & static_cast<uint32_t>(step)) != 0;
#pragma unroll
    for (int i = 0; i < kCount / (2 * step); ++i) {
      const T kept = odd ? values[2 * i + 1] : values[2 * i], given = odd ? values[2 * i] : values[2 * i + 1];
      values[i] = combine(kept, __shfl_xor_sync(lanes.mask, given, step));
    }
  }
  T value = values[0];
#pragma unroll
  for (int step = kCount; step < 32; step *= 2) {
    if (step < lanes.count) value = combine(value, __shfl_xor_sync(lanes.mask, value, step));
  }
  return value;
}

struct Add {
  __device__ float operator()(float x, float y) const { return add_rounded(x, y); }
};
struct Larger {
  __device__ uint32_t operator()(uint32_t x, uint32_t y) const { return max(x, y); }
};

// The terms of neighbours among V channels, added as a tree.
template <int V, class Term>
__device__ inline float sum_vector(const float* x, const Term& term) {
  static_assert(V >= 2 && V <= kSumPiece);
  if constexpr (V == 2) {
    return term.pair(x[0], x[1]);
  } else {
    return add_rounded(sum_vector<V / 2>(x, term), sum_vector<V / 2>(x + V / 2, term));
  }
}

// `low` and `high` are the sums of lane i's vectors number i of the first and of the second half. If V = 1, neighbours both have the sum of
// the two.
template <int V>
__device__ inline float sum_halves(const HeadLanes& lanes, float low, float high) {
#pragma unroll
  for (int step = V == 1 ? 2 : 1; step * V < kSumPiece; step *= 2) {
    if (step < lanes.count) {
      low = add_rounded(low, __shfl_xor_sync(lanes.mask, low, step));
      high = add_rounded(high, __shfl_xor_sync(lanes.mask, high, step));
    }
  }
  float sum = add_rounded(low, high);
#pragma unroll
  for (int step = kSumPiece / V; step < 32; step *= 2) {
    if (step < lanes.count) sum = add_rounded(sum, __shfl_xor_sync(lanes.mask, sum, step));
  }
  return sum;
}

// Sets (x[c], x[c + distance]) = (x[c] + x[c + distance], x[c] - x[c + distance]) within each of a unit's vectors, for the channels c
// without the bit `distance`, which is below V.
template <int V>
__device__ inline void butterflies(UnitValues<V>& x, int distance) {
#pragma unroll
  for (int i = 0; i < 2 * V; ++i) {
    if ((i & distance) != 0) continue;
    const float low = x.x[i], high = x.x[i + distance];
    x.x[i] = add_rounded(low, high);
    x.x[i + distance] = add_rounded(low, -high);
  }
}

// Holds the smallest and the largest of a unit's values in the order of ordered_bits(), the former inverted: then both are maxima.
struct OrderedRange {
  uint32_t inverted_smallest = 0;
  uint32_t largest = 0;
};

template <int V>
__device__ inline OrderedRange ordered_range(const UnitValues<V>& x, const UnitChannels& place) {
  OrderedRange range;
#pragma unroll
  for (int i = 0; i < 2 * V; ++i) {
    if (!(i < V ? place.has_a : place.has_b)) continue;
    const uint32_t bits = ordered_bits(x.x[i]);
    range.largest = max(range.largest, bits);
    range.inverted_smallest = max(range.inverted_smallest, ~bits);
  }
  return range;
}

__device__ inline AsymmetricScale scale_of_range(const OrderedRange& range) {
  return asymmetric_scale(from_ordered_bits(~range.inverted_smallest), from_ordered_bits(range.largest));
}

// Sets the channels that a unit lacks to zero.
template <int V>
__device__ inline void clear_absent(UnitValues<V>& x, const UnitChannels& place) {
#pragma unroll
  for (int i = 0; i < 2 * V; ++i) {
    if (!(i < V ? place.has_a : place.has_b)) x.x[i] = 0.0f;
  }
}

// ---- one warp, or a part of one ---------------------------------------------------------------------------------------------

// If vectors are in other lanes than the order of sum_halves() needs, they are moved first. a and b are the sums of the lane's vectors,
// zero where there are none.
template <int V, class Layout>
__device__ inline float sum_of_layout(const HeadLanes& lanes, int lane, float a, float b, const Layout& layout) {
  const int half = layout.head_dim / 2 / V, at = V == 1 ? lane & ~1 : lane;
  const bool inside = at < half;
  const VectorOwner low = owner_of<V>(inside ? at * V : 0, layout);
  const VectorOwner high = owner_of<V>(inside ? (at + half) * V : 0, layout);
  const float low_a = __shfl_sync(lanes.mask, a, low.unit, lanes.count);
  const float low_b = __shfl_sync(lanes.mask, b, low.unit, lanes.count);
  const float high_a = __shfl_sync(lanes.mask, a, high.unit, lanes.count);
  const float high_b = __shfl_sync(lanes.mask, b, high.unit, lanes.count);
  return sum_halves<V>(lanes, inside ? (low.is_b ? low_b : low_a) : 0.0f, inside ? (high.is_b ? high_b : high_a) : 0.0f);
}

// The channels of these heads are in their natural order, and there are one or several heads at once: then each value is finished by one
// lane, which gives it to the others. All threads of a warp must be here.
template <int V>
struct WarpLanes {
  int lane;
  int count;
  bool inside;  // otherwise idle: it holds what lane 0 does

  // Lanes of heads of 128 channels are worth code of their own, without a branch at each step.
  template <class F>
  __device__ auto with_lanes(const F& f) const {
    constexpr int kUsual = 64 / V;
    return count == kUsual ? f(HeadLanes{kWholeWarp, kUsual}) : f(HeadLanes{kWholeWarp, count});
  }
  __device__ float from(int source, float x) const { return __shfl_sync(kWholeWarp, x, source, count); }
  __device__ HeadScale from(int source, const HeadScale& x) const { return {from(source, x.scale), from(source, x.reciprocal)}; }
  __device__ AsymmetricScale from(int source, const AsymmetricScale& x) const {
    return {from(source, static_cast<const HeadScale&>(x)), from(source, x.zero_point)};
  }

  template <int kHeads, class Term, class Then>
  __device__ void sum(const UnitValues<V> (&x)[kHeads], const Term& term, const Then& then, float (&results)[kHeads]) const {
    static_assert(kHeads == 1 || V == kSumPiece);
    const uint32_t mask = inside ? 0xffffffffu : 0;  // a selection that the compiler does not make a branch of
    float low[kHeads], high[kHeads];
#pragma unroll
    for (int n = 0; n < kHeads; ++n) {
      low[n] = __uint_as_float(__float_as_uint(sum_vector<V>(x[n].x, term)) & mask);
      high[n] = __uint_as_float(__float_as_uint(sum_vector<V>(x[n].x + V, term)) & mask);
    }
    const float result = then(with_lanes([&](const HeadLanes& lanes) {
      if constexpr (kHeads == 1) {
        return sum_halves<V>(lanes, low[0], high[0]);
      } else {
        float sums[kHeads];
#pragma unroll
        for (int n = 0; n < kHeads; ++n) sums[n] = add_rounded(low[n], high[n]);
        return reduce_several(lanes, static_cast<uint32_t>(lane), sums, Add{});
      }
    }));
#pragma unroll
    for (int n = 0; n < kHeads; ++n) results[n] = kHeads == 1 ? result : from(n, result);
  }

  template <int kHeads, class Then, class Result>
  __device__ void largest(const UnitValues<V> (&x)[kHeads], const Then& then, Result (&results)[kHeads]) const {
    uint32_t magnitudes[kHeads];
#pragma unroll
    for (int n = 0; n < kHeads; ++n) magnitudes[n] = largest_magnitude<V>(x[n]);
    const Result result = then(largest(magnitudes));
#pragma unroll
    for (int n = 0; n < kHeads; ++n) results[n] = kHeads == 1 ? result : from(n, result);
  }

  // Works between vectors: `distance` is V or more, and divides half of the head, or is half of it.
  __device__ void butterflies(UnitValues<V>& x, int distance) const {
    const int apart = distance / V, as = inside ? lane : 0;  // idle lanes go on doing what lane 0 does
    const bool in_unit = apart >= count, high = (as & apart) != 0;
    const int other = in_unit ? as : as ^ apart;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const float a = x.x[i], b = x.x[V + i], of_a = from(other, a), of_b = from(other, b);
      x.x[i] = in_unit ? add_rounded(a, b) : add_rounded(of_a, high ? -a : a);
      x.x[V + i] = in_unit ? add_rounded(a, -b) : add_rounded(of_b, high ? -b : b);
    }
  }

  // Computes the scale and zero point of each head.
  template <int kHeads>
  __device__ void asymmetric_scales(const UnitValues<V> (&x)[kHeads], const UnitChannels& place,
                                    AsymmetricScale (&results)[kHeads]) const {
    uint32_t inverted[kHeads], values[kHeads];
#pragma unroll
    for (int n = 0; n < kHeads; ++n) {
      const OrderedRange range = ordered_range<V>(x[n], place);
      inverted[n] = range.inverted_smallest, values[n] = range.largest;
    }
    const AsymmetricScale result = scale_of_range({largest(inverted), largest(values)});
#pragma unroll
    for (int n = 0; n < kHeads; ++n) results[n] = kHeads == 1 ? result : from(n, result);
  }

  // Each lane has one number per head; the result is that of head (lane % kHeads).
  template <int kHeads>
  __device__ uint32_t largest(uint32_t (&of_lane)[kHeads]) const {
    return with_lanes(
        [&](const HeadLanes& lanes) { return reduce_several(lanes, static_cast<uint32_t>(lane), of_lane, Larger{}); });
  }
};

// Does the same for one head in any layout, of which some lanes may have no channels.
template <int V, class Layout = HeadLayout>
struct LayoutLanes : WarpLanes<V> {
  UnitChannels place;
  Layout layout;

  template <class Term, class Then>
  __device__ void sum(const UnitValues<V> (&x)[1], const Term& term, const Then& then, float (&results)[1]) const {
    float a, b;
    if constexpr (V == 1) {
      const int half = layout.head_dim / 2;
      a = sum_neighbours(x[0], term, place.a, place.has_a, half, x[0].x[0]);
      b = sum_neighbours(x[0], term, place.b, place.has_b, half, x[0].x[1]);
    } else {
      a = place.has_a ? sum_vector<V>(x[0].x, term) : 0.0f;
      b = place.has_b ? sum_vector<V>(x[0].x + V, term) : 0.0f;
    }
    results[0] = then(sum_of_layout<V>({kWholeWarp, this->count}, this->lane, a, b, layout));
  }

  __device__ void butterflies(UnitValues<V>& x, int distance) const {
    const auto owner = [&](int channel, bool present) {
      return present ? owner_of<V>(channel ^ distance, layout) : VectorOwner{this->lane, false};
    };
    const VectorOwner of_a = owner(place.a, place.has_a), of_b = owner(place.b, place.has_b);
    const bool high_a = (place.a & distance) != 0, high_b = (place.b & distance) != 0;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const float a = x.x[i], b = x.x[V + i];
      const float a_of_a = this->from(of_a.unit, a), b_of_a = this->from(of_a.unit, b);
      const float a_of_b = this->from(of_b.unit, a), b_of_b = this->from(of_b.unit, b);
      x.x[i] = add_rounded(of_a.is_b ? b_of_a : a_of_a, high_a ? -a : a);
      x.x[V + i] = add_rounded(of_b.is_b ? b_of_b : a_of_b, high_b ? -b : b);
    }
  }

  template <class Then, class Result>
  __device__ void largest(const UnitValues<V> (&x)[1], const Then& then, Result (&results)[1]) const {
    UnitValues<V> present[1] = {x[0]};
    clear_absent<V>(present[0], place);
    WarpLanes<V>::largest(present, then, results);
  }

 private:
  // If V = 1, returns the term of a channel added to that of its neighbour in the same half of the head, the even one first.
  template <class Term>
  __device__ float sum_neighbours(const UnitValues<V>& x, const Term& term, int channel, bool is_there, int half,
                                  float own) const {
    const int begin = channel < half ? 0 : half, at = channel - begin, other = at ^ 1;
    const bool has_neighbour = is_there && other < half;
    const VectorOwner owner = has_neighbour ? owner_of<V>(begin + other, layout) : VectorOwner{this->lane, false};
    const float a = this->from(owner.unit, x.x[0]), b = this->from(owner.unit, x.x[1]);
    const float neighbour = has_neighbour ? (owner.is_b ? b : a) : 0.0f, mine = is_there ? own : 0.0f;
    return at % 2 == 0 ? term.pair(mine, neighbour) : term.pair(neighbour, mine);
  }
};

// ---- a part of a warp, or several warps -------------------------------------------------------------------------------------

inline constexpr int kMaxLanes = 512;
static_assert(2 * kMaxLanes >= kMaxHeadDim, "units of two channels at least");

// Has units in any layout, one head at a time. A head of more than 32 lanes has the block to itself; all threads of the block must be here.
template <int V>
struct BlockLanes {
  HeadLanes warp;  // of the head, or a warp of its own if it has several
  int lane;
  int count;   // a power of two
  int thread;  // of the block
  float (&shared)[2][kMaxLanes];
  UnitChannels place;
  BlockLayout layout;

  __device__ bool wide() const { return count > 32; }

  template <class Term, class Then>
  __device__ void sum(const UnitValues<V> (&x)[1], const Term& term, const Then& then, float (&results)[1]) const {
    const UnitValues<V> values = present(x[0]);
    float a, b;
    if constexpr (V == 1) {
      sum_neighbours(values, term, a, b);
    } else {
      a = sum_vector<V>(values.x, term), b = sum_vector<V>(values.x + V, term);
    }
    results[0] = then(wide() ? sum_of_block(a, b) : sum_of_warp(a, b));
  }

  template <class Then, class Result>
  __device__ void largest(const UnitValues<V> (&x)[1], const Then& then, Result (&results)[1]) const {
    results[0] = then(largest(largest_magnitude<V>(present(x[0]))));
  }

  // Each lane has one number.
  __device__ uint32_t largest(uint32_t of_lane) const {
    uint32_t result = reduce(warp, of_lane, Larger{});
    if (wide()) {
      uint32_t* of_warps = reinterpret_cast<uint32_t*>(shared[0]);
      __syncthreads();
      if (lane % 32 == 0) of_warps[lane / 32] = result;
      __syncthreads();
      for (int i = 0; i < count / 32; ++i) result = max(result, of_warps[i]);
      __syncthreads();
    }
    return result;
  }

  // Works between vectors: `distance` is V or more. The lanes write their values where the others read them, one of each vector at a time.
  __device__ void butterflies(UnitValues<V>& x, int distance) const {
    const auto partner = [&](int channel, bool present) {
      const VectorOwner owner = present ? owner_of<V>(channel ^ distance, layout) : VectorOwner{lane, false};
      return &shared[owner.is_b ? 1 : 0][thread - lane + owner.unit];
    };
    const float *const of_a = partner(place.a, place.has_a), *const of_b = partner(place.b, place.has_b);
    const bool high_a = (place.a & distance) != 0, high_b = (place.b & distance) != 0;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      wait();
      shared[0][thread] = x.x[i], shared[1][thread] = x.x[V + i];
      wait();
      x.x[i] = add_rounded(*of_a, high_a ? -x.x[i] : x.x[i]);
      x.x[V + i] = add_rounded(*of_b, high_b ? -x.x[V + i] : x.x[V + i]);
    }
  }

 private:
  // Waits for the lanes of the head.
  __device__ void wait() const {
    if (wide()) {
      __syncthreads();
    } else {
      __syncwarp(warp.mask);
    }
  }

  __device__ int half() const { return layout.head_dim / 2 / V; }  // vectors of half a head

  __device__ UnitValues<V> present(UnitValues<V> x) const {
    clear_absent<V>(x, place);
    return x;
  }

  // If V = 1, adds the terms of a unit's channels to those of their neighbours in the same half of the head, the even one first.
  template <class Term>
  __device__ void sum_neighbours(const UnitValues<V>& x, const Term& term, float& a, float& b) const {
    wait();
    shared[0][thread] = x.x[0], shared[1][thread] = x.x[1];
    wait();
    const auto pair = [&](int channel, bool is_there, float own) {
      const int begin = channel < half() ? 0 : half(), at = channel - begin, other = at ^ 1;
      float neighbour = 0.0f;
      if (is_there && other < half()) {
        const VectorOwner owner = owner_of<V>(begin + other, layout);
        neighbour = shared[owner.is_b ? 1 : 0][thread - lane + owner.unit];
      }
      return at % 2 == 0 ? term.pair(own, neighbour) : term.pair(neighbour, own);
    };
    a = pair(place.a, place.has_a, x.x[0]);
    b = pair(place.b, place.has_b, x.x[1]);
    wait();
  }

  __device__ float sum_of_warp(float a, float b) const {
    const bool natural = layout.rotary_dim == layout.head_dim && layout.style == RopeStyle::neox && layout.num_blocks == 1;
    return natural && V > 1 ? sum_halves<V>(warp, a, b) : sum_of_layout<V>(warp, lane, a, b, layout);
  }

  __device__ float sum_of_block(float a, float b) const {
    __syncthreads();
    if (lane >= half()) shared[0][lane] = shared[1][lane] = 0.0f;
    if (place.has_a) shared[place.a / V / half()][place.a / V % half()] = a;
    if (place.has_b) shared[place.b / V / half()][place.b / V % half()] = b;
    __syncthreads();
    constexpr HeadLanes kWarp = {kWholeWarp, 32};
    const int at = V == 1 ? lane & ~1 : lane;
    const float of_warp = sum_halves<V>(kWarp, shared[0][at], shared[1][at]);
    __syncthreads();
    if (lane % 32 == 0) shared[0][lane / 32] = of_warp;
    __syncthreads();
    const int warps = count / 32;
    const float total = reduce({kWholeWarp, warps}, shared[0][lane % 32 % warps], Add{});
    __syncthreads();
    return total;
  }
};

template <int V>
__device__ inline BlockLanes<V> block_lanes(int lane, int count, int thread, float (&shared)[2][kMaxLanes],
                                            const UnitChannels& place, const BlockLayout& layout) {
  const uint32_t all = count >= 32 ? kWholeWarp : (1u << count) - 1u;
  const int first = count >= 32 ? 0 : thread % 32 / count * count;
  return {{all << first, count > 32 ? 32 : count}, lane, count, thread, shared, place, layout};
}

}  // namespace prologue::cuda
