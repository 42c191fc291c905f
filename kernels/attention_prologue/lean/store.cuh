// This is how the lean schedules with steps, and the kernels of projections with heads, store a head: as it is, or in 8 or 4 bits with a
// scale that is given or computed.
#pragma once

#include <cstdint>

#include <prologue/kernels/attention_prologue/lean/steps.cuh>
#include <prologue/kernels/attention_prologue/lean/token.cuh>

namespace prologue::cuda {

// A thread stores its unit of the heads of one tensor in the token's row of q or in its slot of the cache.
struct LeanStore {
  const LeanTensor& tensor;
  const UnitChannels& place;
  int first_head;
  bool is_q;
  bool writes;
  bool zero;
  uint32_t page;
  uint32_t offset;
  char* out;

  __device__ LeanStore(const LeanTensor& of, const LaneUnit& unit, const TensorHead& heads, const LeanToken& token, uint32_t t)
      : tensor(of),
        place(unit.place),
        first_head(heads.head),
        is_q(heads.tensor == 0),
        writes(unit.inside & !token.padding & (is_q | token.reaches_cache)),
        zero(token.zero),
        page(is_q ? 0 : token.page),
        offset(is_q ? t : token.offset),
        out(tensor.out + wide_product(tensor.out_page, page) + wide_product(tensor.out_token, offset)) {}

  __device__ bool stores(int n) const { return writes & (first_head + n < tensor.heads); }
  __device__ char* row(int n) const { return out + static_cast<uint32_t>(first_head + n) * tensor.out_head; }

  // `kEvictFirst` applies to q only.
  template <bool kEvictFirst, class T, int V>
  __device__ void store(int n, Unit<T, V> unit) const {
    if (zero) unit = Unit<T, V>();
    if (!stores(n)) return;
    if (kEvictFirst && is_q) {
      store_unit<true, T, V>(row(n), place, unit);
    } else {
      store_unit<false, T, V>(row(n), place, unit);
    }
  }

  // Finds the scales of kAtOnce heads from head `first` on: `given`, computed in 8 or 4 bits, or 1.
  template <int V, int kAtOnce, class Lanes>
  __device__ void find_scales(int first, const UnitValues<V> (&values)[kAtOnce], const Lanes& lanes, bool computes,
                              const float (&given)[kAtOnce], HeadScale (&scales)[kAtOnce]) const {
    if (computes) {
      const DType type = tensor.store;
      lanes.largest(
          values, [&](uint32_t largest) { return computed_scale(largest, kv_largest(type)); }, scales);
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        if (stores(first + n) & (lanes.lane == 0)) *scale_of(first + n) = zero ? 0.0f : scales[n].scale;
      }
    } else {
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        if (tensor.scale_from == ScaleFrom::given) scales[n] = {given[n], __frcp_rn(given[n])};
      }
    }
#pragma unroll
    for (HeadScale& scale : scales) scale.reciprocal = zero ? 0.0f : scale.reciprocal;
  }

  // Stores kAtOnce heads from head `first` on in 8 bits.
  template <int V, int kAtOnce, class Lanes>
  __device__ void store_8_bits(int first, const UnitValues<V> (&values)[kAtOnce], const Lanes& lanes, bool computes,
                               const float (&given)[kAtOnce]) const {
    HeadScale scales[kAtOnce];
    find_scales<V>(first, values, lanes, computes, given, scales);
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      const UnitBytes<V> bytes = quantise<V>(values[n], scales[n].reciprocal, tensor.store);
      if (stores(first + n)) store_unit_8<V>(row(first + n), place, bytes);
    }
  }

  // Stores them in 4 bits.
  template <int V, int kAtOnce, class Lanes>
  __device__ void store_4_bits(int first, const UnitValues<V> (&values)[kAtOnce], const Lanes& lanes, bool computes,
                               const float (&given)[kAtOnce]) const {
    AsymmetricScale scales[kAtOnce];
    if (uniform(tensor.store == DType::uint4)) {
      lanes.asymmetric_scales(values, place, scales);
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        if (zero) scales[n].scale = scales[n].reciprocal = scales[n].zero_point = 0.0f;
        if (stores(first + n) & (lanes.lane == 0)) {
          float* const stored = scale_of(first + n);  // of any stride: not one vector
          stored[0] = scales[n].scale;
          stored[1] = scales[n].zero_point;
        }
      }
    } else {
      HeadScale symmetric[kAtOnce];
      find_scales<V>(first, values, lanes, computes, given, symmetric);
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) static_cast<HeadScale&>(scales[n]) = symmetric[n];
    }
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      if (stores(first + n)) store_unit_4<V>(row(first + n), place, values[n], scales[n], tensor.store);
    }
  }

 private:
  __device__ float* scale_of(int n) const {
    return reinterpret_cast<float*>(tensor.scale + wide_product(tensor.scale_page, page) +
                                    wide_product(tensor.scale_token, offset) +
                                    static_cast<uint32_t>(first_head + n) * tensor.scale_head);
  }
};

// Stores the finished heads of a thread from head `first` on in 8 or 4 bits, if they are quantised; otherwise nothing, and
// LeanStore::store() has to. It is for instances whose steps are known at compile time. Of these, only those with these features may decide
// differently in other warps.
template <int kFeatures, int V, int kAtOnce, class Lanes>
__device__ inline bool store_quantised(const LeanStore& store, int first, const UnitValues<V> (&values)[kAtOnce], bool quantised,
                                       bool computes_scale, const Lanes& lanes, const float (&given)[kAtOnce]) {
  constexpr bool kWarpDecides = (kFeatures & (kComputedScales | kCommonSteps | kFourBits)) != 0;
  if (!(kWarpDecides ? uniform(quantised) : quantised)) return false;
  if ((kFeatures & kFourBits) != 0 && uniform(is_packed(store.tensor.store))) {
    store.store_4_bits<V>(first, values, lanes, computes_scale, given);
  } else {
    store.store_8_bits<V>(first, values, lanes, computes_scale, given);
  }
  return true;
}

}  // namespace prologue::cuda
