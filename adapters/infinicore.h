// Takes calls of InfiniCore: infiniopCreateRoPEDescriptor, infiniopRoPE. See adapter.h and docs/coming-from.md.
#pragma once

#include <cstdint>
#include <utility>

#include <prologue/adapters/adapter.h>
#include <prologue/kernels/rotary/rotary.h>

namespace prologue::adapters::infinicore {

// The values are those of InfiniCore: static_cast<infiniStatus_t>(code) and static_cast<Dtype>(dtype) convert them.
enum class Code : int32_t {
  success = 0,
  bad_param = 3,
  null_pointer,
  device_type_not_supported,
  bad_tensor_dtype = 10,
  bad_tensor_shape,
  bad_tensor_strides
};
enum class Dtype : int32_t { i8 = 3, i16, i32, i64, u8, u16, u32, u64, f16 = 12, f32, f64, bf16 = 19 };
enum class Algo : int32_t { gpt_j = 0, gpt_neox };

// This is infiniopTensorDescriptor_t: a shape without memory.
struct TensorDescriptor {
  Dtype dtype = Dtype::f16;
  int64_t ndim = 0;
  int64_t shape[4] = {};
  int64_t strides[4] = {};  // elements
};

// This is infiniopRoPEDescriptor_t. It needs no destroy call. The workspace is 0 bytes.
struct RopeDescriptor {
  RotaryPlan plan;
};

// Makes all checks of InfiniCore, in the same order, checks the strides of y and x, and then writes *desc. If code is not null,
// *code becomes what infiniopCreateRoPEDescriptor returns for the failed check; the Status has the message.
//   y, x      [seqlen, nhead, dhead] or [batch, seqlen, nhead, dhead], one float type, channels contiguous
//   pos       [seqlen] or [batch, seqlen], any of the eight integer types, contiguous
//   sin, cos  [table_len, dhead / 2], the type of x, contiguous
inline Status create_rope_descriptor(RopeDescriptor* desc, const TensorDescriptor* y, const TensorDescriptor* x,
                                     const TensorDescriptor* pos, const TensorDescriptor* sin, const TensorDescriptor* cos,
                                     Algo algo, const Execution& execution, Code* code = nullptr) {
  const auto fail = [&](Code what, Status status) {
    if (code != nullptr) *code = what;
    return status;
  };
  const std::pair<const char*, const void*> pointers[] = {{"desc", desc}, {"y", y},     {"x", x},
                                                          {"pos", pos},   {"sin", sin}, {"cos", cos}};
  for (const auto& [name, pointer] : pointers) {
    if (pointer == nullptr) return fail(Code::null_pointer, invalid_argument("infinicore: ", name, " is null"));
  }
  if (algo != Algo::gpt_j && algo != Algo::gpt_neox) {  // InfiniCore returns NULL_POINTER here too
    return fail(Code::null_pointer, invalid_argument("infinicore: algo is ", static_cast<int32_t>(algo), ": it must be 0 or 1"));
  }
  if (execution.device != Device::cpu && !(execution.device == Device::cuda && built_with_cuda())) {
    return fail(Code::device_type_not_supported, unsupported("infinicore: device is ", static_cast<int32_t>(execution.device),
                                                             built_with_cuda() ? ": supported are 0 (cpu) and 1 (cuda)"
                                                                               : ": this library was built for 0 (cpu) only"));
  }

  const std::pair<const char*, const TensorDescriptor*> floats[] = {{"y", y}, {"x", x}, {"sin", sin}, {"cos", cos}};
  for (const auto& [name, tensor] : floats) {
    if (tensor->dtype == y->dtype) continue;
    return fail(Code::bad_tensor_dtype,
                invalid_argument("infinicore: the dtype of ", name, " is ", static_cast<int32_t>(tensor->dtype),
                                 ": it must be that of y, ", static_cast<int32_t>(y->dtype)));
  }
  DType type = DType::unset;
  switch (y->dtype) {
    case Dtype::f16: type = DType::f16; break;
    case Dtype::bf16: type = DType::bf16; break;
    case Dtype::f32: type = DType::f32; break;
    case Dtype::f64: type = DType::f64; break;
    default:
      return fail(Code::bad_tensor_dtype, unsupported("infinicore: the dtype of y is ", static_cast<int32_t>(y->dtype),
                                                      ": supported are 12 (f16), 13 (f32), 14 (f64) and 19 (bf16)"));
  }
  constexpr DType kIntTypes[] = {DType::int8,  DType::int16,  DType::int32,  DType::int64,
                                 DType::uint8, DType::uint16, DType::uint32, DType::uint64};
  if (pos->dtype < Dtype::i8 || pos->dtype > Dtype::u64) {
    return fail(Code::bad_tensor_dtype, unsupported("infinicore: the dtype of pos is ", static_cast<int32_t>(pos->dtype),
                                                    ": supported are the integers, 3 (i8) to 10 (u64)"));
  }
  const DType pos_type = kIntTypes[static_cast<int32_t>(pos->dtype) - static_cast<int32_t>(Dtype::i8)];

  const auto bad_shape = [&](auto... parts) { return fail(Code::bad_tensor_shape, invalid_argument("infinicore: ", parts...)); };
  if (y->ndim != 3 && y->ndim != 4) return bad_shape("y has ", y->ndim, " dimensions: it must have 3 or 4");
  if (x->ndim != y->ndim) return bad_shape("x has ", x->ndim, " dimensions: it must have those of y, ", y->ndim);
  if (pos->ndim != 1 && pos->ndim != 2) return bad_shape("pos has ", pos->ndim, " dimensions: it must have 1 or 2");
  if (sin->ndim != 2) return bad_shape("sin has ", sin->ndim, " dimensions: it must have 2");
  if (cos->ndim != 2) return bad_shape("cos has ", cos->ndim, " dimensions: it must have 2");
  for (int64_t i = 0; i < y->ndim; ++i) {
    if (x->shape[i] != y->shape[i]) {
      return bad_shape("x.shape[", i, "] is ", x->shape[i], ": it must be that of y, ", y->shape[i]);
    }
  }
  const int64_t first = y->ndim - 3;  // 1 with a batch dimension
  const int64_t batch = first == 1 ? y->shape[0] : 1, seqlen = y->shape[first], nhead = y->shape[first + 1],
                dhead = y->shape[first + 2];
  if (pos->ndim == 2 && pos->shape[0] != batch) {
    return bad_shape("pos has ", pos->shape[0], " rows: it must have batch, ", batch);
  }
  if (pos->shape[pos->ndim - 1] != seqlen) {
    return bad_shape("pos has ", pos->shape[pos->ndim - 1], " positions: it must have seqlen, ", seqlen);
  }
  const int64_t table_len = sin->shape[0], table_dim = sin->shape[1];
  if (cos->shape[0] != table_len || cos->shape[1] != table_dim) {
    return bad_shape("cos is [", cos->shape[0], ", ", cos->shape[1], "]: it must be as sin, [", table_len, ", ", table_dim, "]");
  }
  if (dhead < 0 || dhead % 2 != 0 || table_dim != dhead / 2) {
    return bad_shape("dhead is ", dhead, ": it must be twice the columns of sin, ", table_dim);
  }
  const Status sizes = detail::check_sizes(
      "infinicore", {{"seqlen", seqlen, detail::kTokens}, {"nhead", nhead, detail::kHeads}, {"dhead", dhead, detail::kDim}});
  if (!sizes.ok()) return fail(Code::bad_tensor_shape, sizes);

  const auto bad_strides = [&](auto... parts) {
    return fail(Code::bad_tensor_strides, invalid_argument("infinicore: ", parts...));
  };
  if (y->strides[first + 2] != 1 || x->strides[first + 2] != 1) {
    return bad_strides("the channels of ", y->strides[first + 2] != 1 ? "y" : "x", " are ",
                       y->strides[first + 2] != 1 ? y->strides[first + 2] : x->strides[first + 2],
                       " apart: they must be contiguous");
  }
  const auto contiguous = [](const TensorDescriptor& t) {
    const int64_t last = t.ndim - 1;
    if (t.shape[last] != 1 && t.strides[last] != 1) return false;
    return last == 0 || t.shape[0] == 1 || t.strides[0] == t.shape[1];
  };
  if (!contiguous(*sin)) return bad_strides("sin is not contiguous");
  if (!contiguous(*cos)) return bad_strides("cos is not contiguous");
  if (!contiguous(*pos)) return bad_strides("pos is not contiguous");

  RotaryParams params;
  params.batch = batch;
  params.seq_len = seqlen;
  params.head_dim = dhead;
  params.dtype = type;
  params.num_tensors = 1;
  params.tensors[0] = rotary_tensor(nullptr, nullptr, nhead, batch_major_strides(seqlen, nhead, dhead));
  params.rope.style = algo == Algo::gpt_j ? RopeStyle::interleaved : RopeStyle::neox;
  params.rope.rotary_dim = dhead;
  set_cos_and_sin(params.rope, nullptr, nullptr, type, table_len, table_dim, RopeWidth::half);
  params.positions.ids = {nullptr, pos_type};
  params.positions.batch_stride = pos->ndim == 2 ? seqlen : 0;
  Result<RotaryPlan> plan = RotaryPlan::create(params, execution);  // dense strides: checks the shapes
  if (!plan.ok()) return fail(Code::bad_tensor_shape, plan.status());
  const auto strides = [&](const TensorDescriptor& tensor) {
    const int64_t* s = tensor.strides + first;
    return RotaryStrides{first == 1 ? tensor.strides[0] : 0, s[0], s[1], s[2]};
  };
  params.tensors[0].x_strides = strides(*x);
  params.tensors[0].y_strides = strides(*y);
  plan = RotaryPlan::create(params, execution);
  if (!plan.ok()) return fail(Code::bad_tensor_strides, plan.status());
  desc->plan = *plan;
  if (code != nullptr) *code = Code::success;
  return {};
}

// This is infiniopRoPE. The pointers are checked here.
inline Status rope(const RopeDescriptor& desc, void* y, const void* x, const void* pos_ids, const void* sin_table,
                   const void* cos_table, FaultRecord* faults, const Execution& execution, Code* code = nullptr) {
  RotaryParams params = desc.plan.params();
  const std::pair<const char*, const void*> pointers[] = {
      {"y", y}, {"x", x}, {"pos_ids", pos_ids}, {"sin_table", sin_table}, {"cos_table", cos_table}};
  for (const auto& [name, pointer] : pointers) {
    if (pointer != nullptr) continue;
    if (code != nullptr) *code = Code::null_pointer;
    return invalid_argument("infinicore: ", name, " is null");
  }
  params.tensors[0].y = y;
  params.tensors[0].x = x;
  params.positions.ids.data = pos_ids;
  params.rope.sin.data = sin_table;
  params.rope.cos.data = cos_table;
  params.faults = faults;
  Status status = desc.plan.run(params, execution);
  if (code != nullptr) *code = status.ok() ? Code::success : Code::bad_param;
  return status;
}

}  // namespace prologue::adapters::infinicore
