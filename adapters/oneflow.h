// Takes a call of OneFlow: fused_apply_rotary_emb. See adapter.h and docs/coming-from.md.
#pragma once

#include <cstdint>
#include <string_view>

#include <prologue/adapters/adapter.h>
#include <prologue/kernels/rotary/rotary.h>

namespace prologue::adapters::oneflow {

struct FusedApplyRotaryEmb {
  const void* x = nullptr;
  void* out = nullptr;
  DType dtype = DType::f16;
  int64_t b = 0;
  int64_t m = 0;  // sequence
  int64_t h = 0;
  int64_t k = 0;                            // k_size
  std::string_view x_layout = "BHMK";       // BMHK BHMK MBHK BM(HK) MB(HK) BM(H2K) MB(H2K) BM(H3K) MB(H3K)
  std::string_view output_layout = "BHMK";  // BMHK BHMK MBHK BM(HK) MB(HK)
  int64_t tensor_index = 0;                 // the number of the packed tensor; H2K: 1 or 2, H3K: 0, 1 or 2
  const void* cos = nullptr;                // [rows, rotary_size / rotary_emb_dim], in dtype; null = cos and sin are computed
  const void* sin = nullptr;
  int64_t rows = 0;
  IndexView position_ids = {};      // [b, rotary_emb_dim, m]; null = 0, 1, 2, ...
  int64_t rotary_emb_dim = 1;       // position_ids.shape[1]
  std::string_view mode = "plane";  // "plane" or "interval"
  double base = 10000.0;            // the parameter theta of OneFlow's kernel is 1 / base
  int64_t rotary_size = 0;
};

inline Status fused_apply_rotary_emb(const FusedApplyRotaryEmb& call, FaultRecord* faults, const Execution& execution) {
  const auto packed = [](std::string_view layout) -> int64_t {  // adjacent tensors in a head; 0: unknown layout
    if (layout == "BM(H2K)" || layout == "MB(H2K)") return 2;
    if (layout == "BM(H3K)" || layout == "MB(H3K)") return 3;
    return layout == "BMHK" || layout == "BHMK" || layout == "MBHK" || layout == "BM(HK)" || layout == "MB(HK)" ? 1 : 0;
  };
  const int64_t of_x = packed(call.x_layout), first = of_x == 2 ? 1 : 0;
  if (of_x == 0) {
    return unsupported("oneflow: x_layout is '", call.x_layout.substr(0, 16),
                       "': supported are BMHK, BHMK, MBHK, BM(HK), MB(HK), BM(H2K), MB(H2K), BM(H3K) and MB(H3K)");
  }
  if (packed(call.output_layout) != 1) {
    return unsupported("oneflow: output_layout is '", call.output_layout.substr(0, 16),
                       "': supported are BMHK, BHMK, MBHK, BM(HK) and MB(HK)");
  }
  if (call.tensor_index < first || call.tensor_index >= first + of_x) {
    return invalid_argument("oneflow: tensor_index is ", call.tensor_index, ": for ", call.x_layout, " it must lie in ", first,
                            "..", first + of_x - 1);
  }
  if (call.mode != "plane" && call.mode != "interval") {
    return unsupported("oneflow: mode is '", call.mode.substr(0, 16), "': supported are plane and interval");
  }
  if (call.rotary_emb_dim < 1 || call.rotary_emb_dim > 4) {
    return invalid_argument("oneflow: rotary_emb_dim is ", call.rotary_emb_dim, ": it must lie in 1..4");
  }
  PROLOGUE_RETURN_IF_ERROR(detail::check_sizes("oneflow", {{"b", call.b, detail::kTokens},
                                                           {"m", call.m, detail::kTokens},
                                                           {"h", call.h, detail::kHeads},
                                                           {"k", call.k, detail::kDim}}));
  if (!dtype_is_float(call.dtype))
    return unsupported("oneflow: dtype is ", dtype_name(call.dtype), ": supported are float32, float16, bfloat16 and float64");
  if ((call.cos == nullptr) != (call.sin == nullptr)) {
    return invalid_argument("oneflow: ", call.sin == nullptr ? "cos is given, but sin" : "sin is given, but cos",
                            " is null: give both, or none");
  }
  const auto strides = [&](std::string_view layout) {
    if (layout == "BHMK") return head_major_strides(call.m, call.h, call.k);
    const int64_t row = packed(layout) * call.k;
    return layout.substr(0, 2) == "BM" ? batch_major_strides(call.m, call.h, row) : sequence_major_strides(call.b, call.h, row);
  };
  RotaryParams params;
  params.batch = call.b;
  params.seq_len = call.m;
  params.head_dim = call.k;
  params.dtype = call.dtype;
  params.num_tensors = 1;
  const auto* x = static_cast<const char*>(call.x);
  const int64_t offset = (call.tensor_index - first) * call.k * dtype_size(call.dtype);
  params.tensors[0] = {x == nullptr ? nullptr : x + offset, call.out, call.h, strides(call.x_layout),
                       strides(call.output_layout)};
  params.rope.style = call.mode == "plane" ? RopeStyle::neox : RopeStyle::interleaved;
  params.rope.rotary_dim = call.rotary_size;
  params.rope.num_blocks = call.rotary_emb_dim;
  if (call.cos != nullptr) {
    set_cos_and_sin(params.rope, call.cos, call.sin, call.dtype, call.rows, call.rotary_size / call.rotary_emb_dim,
                    RopeWidth::full);
  } else {
    params.rope.source = RopeSource::theta;
    params.rope.width = RopeWidth::half;
    params.rope.theta = call.base;
  }
  params.positions.ids = call.position_ids;
  params.rope.num_axes = call.rotary_emb_dim;
  params.positions.axis_stride = call.m;
  params.positions.batch_stride = call.rotary_emb_dim * call.m;
  params.faults = faults;
  return rotary(params, execution);
}

}  // namespace prologue::adapters::oneflow
