// The projection and the prologue of one token. A cluster = a head: its blocks share the rows of the weights (vector_product.cuh) and send
// their sums to the first of them, where a warp has asked for the token's place, cos and sin before it multiplies. That warp does to the head
// what the prologue's lean kernels do (more_steps_schedule.cuh).
#pragma once

#include <cstdint>

#include <prologue/kernels/attention_prologue/more_steps_schedule.cuh>
#include <prologue/kernels/projection/vector_product.cuh>
#include <prologue/kernels/qkv_prologue/found_token.cuh>

namespace prologue::cuda {

struct QkvVectorArgs : VectorArgs {
  int32_t log_blocks = 0;  // of a cluster, two at least
  int32_t lanes = 32;      // of a head, in what follows the projection
  int32_t head_dim = 0;
};

struct QkvVectorShared : VectorShared {
  Arrivals arrivals;  // of the arrays behind it
  float squares[kVectorWarps];
  float sums[1];  // [way, row of the head]
};

__host__ __device__ inline int64_t shared_bytes_of(const QkvVectorArgs& a) {
  return static_cast<int64_t>(sizeof(QkvVectorShared)) +
         (int64_t{a.head_dim} << a.log_ways) * static_cast<int64_t>(sizeof(float));
}

// The head as the separate projection would store it.
template <class T, int V>
__device__ inline Unit<T, V> gather_head(const QkvVectorArgs& a, const QkvVectorShared& shared, const UnitPlace& place) {
  float a_values[V] = {}, b_values[V] = {};
#pragma unroll 1
  for (int way = 0; way < 1 << a.log_ways; ++way) {
    const float* const of_way = shared.sums + way * a.head_dim;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      if (place.has_a) a_values[i] += of_way[place.a + i];
      if (place.has_b) b_values[i] += of_way[place.b + i];
    }
  }
  if (a.normed != 0) {
    const float factor = norm_of_vector(a, shared.squares);
#pragma unroll
    for (int i = 0; i < V; ++i) a_values[i] *= factor, b_values[i] *= factor;
  }
  return {pack<T, V>(a_values), pack<T, V>(b_values)};
}

// A head of q, k and v by a warp: what it finds out before there are sums, and what it does when they are there.
template <class T, int V, int kFeatures>
class VectorHead {
 public:
  // Of the heads of q, then those of k and v.
  __device__ void prepare(const QkvVectorArgs& a, const MoreArgs& p, int row) {
    const int lane = threadIdx.x % 32;
    found_ = find_token(p, 1, 0, (row | lane) == 0);
    head_ = head_of_row(p.tensors, row);
    unit_ = unit_of_lane<V, kFeatures>(lane % a.lanes, p.layout);
    unit_.inside &= lane < a.lanes;  // the others do the same once more
    if (head_.tensor != 2 && p.layout.rotary_dim > 0) {
      angles_ = load_row<V>(p, found_.token.row, max(unit_.place.pair, 0));
      turn_back(p, angles_);
    }
    if constexpr (!kDecidesSteps) {
      const bool is_v = head_.tensor == 2;
      plan_.biased = (kFeatures & kBias) != 0;
      plan_.normed = (kFeatures & kNorm) != 0 && !is_v;
      plan_.rotated = !is_v & ((kFeatures & kLayouts) != 0 ? unit_.place.pair >= 0 : p.layout.rotary_dim > 0);
      plan_.loads_scale = (kFeatures & kGivenScales) != 0;
      load_constants(
          plan_, p.tensors[head_.tensor], p.layout.head_dim, unit_.place, [&](int) { return static_cast<uint32_t>(head_.head); },
          constants_);
    }
  }
  __device__ const UnitPlace& place() const { return unit_.place; }

  __device__ void finish(const QkvVectorArgs& a, const MoreArgs& p, const Unit<T, V>& data) const {
    const WarpLanes<V> whole = {static_cast<int>(threadIdx.x) % 32 % a.lanes, a.lanes, unit_.inside};
    const LeanTensor& tensor = p.tensors[head_.tensor];
    const auto angles = [&] { return angles_; };
    UnitValues<V> values[1];
    if constexpr (kDecidesSteps) {
      MoreSteps<T, V, false, true, decltype(angles)> steps(p, head_, unit_.place, data, angles);
      const float given_scale[1] = {
          *reinterpret_cast<const float*>(tensor.scale + static_cast<uint32_t>(head_.head) * tensor.scale_head)};
      choose_rotation<kFeatures>(p, found_.token, head_.tensor, steps);
      choose_factor(
          p, head_.tensor, [&] { return found_.position; }, steps);
      const auto lanes = lanes_of_head<V, kFeatures>(whole, unit_.place, p.layout);
      finish_head<T, V>(values, steps, lanes);
      store_head_of_token<false>(p, steps, values, unit_, head_, found_.token, 0, data, given_scale, lanes);
    } else {
      const LeanSteps<T, V, 1, decltype(angles)> steps(plan_, tensor, &data, constants_, angles, head_.tensor == 2,
                                                       (kFeatures & kLayouts) != 0 ? p.layout.style : RopeStyle::neox);
      finish_head<T, V>(values, steps, whole);
      const LeanStore store(tensor, unit_, head_, found_.token, 0);
      if (plan_.loads_scale && tensor.store != DType::unset) {
        store.store_8_bits<V>(0, values, whole, false, constants_.scales);
      } else {
        store.store<false, T, V>(0, plan_.biased | plan_.normed | plan_.rotated ? narrow<T, V>(values[0]) : data);
      }
    }
  }

 private:
  static constexpr bool kDecidesSteps =
      (kFeatures & kMoreSteps) != 0;  // at run time; otherwise they are exactly those of kFeatures
  FoundToken found_ = {};
  TensorHead head_ = {};
  LaneUnit unit_ = {};
  UnitAngles<V> angles_ = {};
  LeanPlan plan_ = {};
  LeanConstants<T, V, 1> constants_ = {};
};

// kFeatures: with kMoreSteps, the steps are decided at run time.
template <class T, int V, int kFeatures>
__global__ void __launch_bounds__(kVectorThreads, 2)
    qkv_vector_kernel(const __grid_constant__ QkvVectorArgs a, const __grid_constant__ MoreArgs p) {
  static_assert((kFeatures & (kTokenNorm | kAxes | kDerived)) == 0);  // whether positions are derived is read at run time
  auto& shared = *dynamic_shared<QkvVectorShared>();
  const int head = static_cast<int>(blockIdx.x) >> a.log_blocks, rank = static_cast<int>(cluster_rank());
  const VectorShare share(a);
  const int row = rank * rows_of_block(a) + share.row;  // of the head
  VectorProduct<T> product(a, share, shared);
  product.load_weights(a, int64_t{head} * a.head_dim + row, a.rows);
  let_next_kernel_start();  // attention, whose first part is long and needs nothing that the kernel before this one writes
  if (threadIdx.x == 0) {
    const int squares = a.normed != 0 ? 1 : 0;
    shared.arrivals.open(static_cast<uint32_t>((a.head_dim + squares) << a.log_ways) * static_cast<uint32_t>(sizeof(float)));
  }
  arrive_at_cluster();
  product.copy_norm_weight(a);
  wait_for_previous_kernels();

  product.load_x(a);
  const bool finishes = rank == 0 && threadIdx.x < 32;
  VectorHead<T, V, kFeatures> finished;
  if (finishes) finished.prepare(a, p, head);
  const float squares = a.normed != 0 ? product.apply_norm(a) : 0.0f;
  product.multiply(a);
  wait_for_cluster();
  if (a.normed != 0 && threadIdx.x % 32 == 0 && row == 0) shared.arrivals.store(0, shared.squares + share.way, squares);
  const float sum = product.sum_of_row();
  if (const int own = product.row_of_lane(); own < a.rows) {
    shared.arrivals.store(0, shared.sums + share.way * a.head_dim + row + own, sum);
  }
  if (!finishes) return;
  shared.arrivals.wait();
  finished.finish(a, p, gather_head<T, V>(a, shared, finished.place()));
}

}  // namespace prologue::cuda
