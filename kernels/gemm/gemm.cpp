#include <prologue/kernels/base/host/dispatch.h>
#include <prologue/kernels/base/host/packed_weight.h>
#include <prologue/kernels/base/host/view_checks.h>
#include <prologue/kernels/base/out_of_memory.h>
#include <prologue/kernels/gemm/backends.h>
#include <prologue/kernels/gemm/quantized_cpu.h>

namespace prologue {

namespace {

// Describes a matrix as a range of bytes. Size 0 is empty, whatever the pointer is.
struct ByteRange {
  const char* name;
  const void* data;
  DType dtype;
  int64_t size = 0;
};

bool overlap(const ByteRange& a, const ByteRange& b) {
  const auto a_begin = reinterpret_cast<uintptr_t>(a.data), b_begin = reinterpret_cast<uintptr_t>(b.data);
  return a.size > 0 && b.size > 0 && a_begin < b_begin + static_cast<uintptr_t>(b.size) &&
         b_begin < a_begin + static_cast<uintptr_t>(a.size);
}

// The limit is that of the arrays of all other operations.
constexpr int64_t kMaxBytes = int64_t{1} << 60;

static_assert(kMaxPackedK <= cpu::kMaxQuantizedK, "the CPU's scratch has room for a quantised row of x");

// Returns the bytes from the first element of a matrix to the end of its last row.
Result<int64_t> span_bytes(const char* name, int64_t rows, int64_t columns, int64_t stride, DType dtype) {
  if (rows == 0 || columns == 0) return int64_t{0};
  int64_t size = 0;
  if (__builtin_mul_overflow(rows - 1, stride, &size) || __builtin_add_overflow(size, columns, &size) ||
      __builtin_mul_overflow(size, dtype_size(dtype), &size) || size > kMaxBytes) {
    return invalid_argument("gemm: ", name, " is ", rows, " x ", columns, " with a row stride of ", stride,
                            ": it must not reach further than 2^60 bytes");
  }
  return size;
}

Status check_quantize_x(const GemmParams& p, Device device) {
  if (p.quantize_x == DType::unset) return {};
  if (p.quantize_x != DType::fp8_e4m3) {
    return invalid_argument("gemm: quantize_x is ", dtype_text(p.quantize_x), ": it must be unset or fp8_e4m3");
  }
  if (p.packed.num_segments == 0) {
    return invalid_argument("gemm: quantize_x is fp8_e4m3: the weights must be packed, all in f8_e4m3, but they are dense");
  }
  for (int32_t s = 0; s < p.packed.num_segments; ++s) {
    if (p.packed.segments[s].format == WeightFormat::f8_e4m3) continue;
    return invalid_argument("gemm: quantize_x is fp8_e4m3: all segments must be in f8_e4m3, but packed.segments[", s,
                            "].format is ", weight_format_name(p.packed.segments[s].format));
  }
  if (device == Device::cuda && p.batch_invariant) {
    return unsupported("gemm: quantize_x is fp8_e4m3: with batch_invariant, on CUDA, it must be unset");
  }
  return {};
}

Status check_apart(const ByteRange& y, const ByteRange& input) {
  if (!overlap(y, input)) return {};
  return invalid_argument("gemm: y (", y.size, " bytes at ", y.data, ") overlaps ", input.name, " (", input.size, " bytes at ",
                          input.data, "): the output must not overlap any input");
}

}  // namespace

Status validate(const GemmParams& p, const GemmContext& context, const Execution& execution) {
  if (context.device() != execution.device) {
    return invalid_argument("gemm: the context was made for ", device_name(context.device()), ", but the execution's device is ",
                            device_name(execution.device));
  }
  if (execution.device == Device::cuda && !context.has_workspace()) {
    return invalid_argument("gemm: the context has no workspace: call set_workspace first");
  }
  if (execution.device == Device::cpu && execution.num_threads < 1) {
    return invalid_argument("gemm: num_threads is ", execution.num_threads, ": it must be at least 1");
  }
  if (!dtype_is_activation(p.dtype)) {
    return invalid_argument("gemm: dtype is ", dtype_text(p.dtype), ": it must be float32, float16 or bfloat16");
  }
  if (p.y_dtype != DType::f32 && p.y_dtype != p.dtype) {
    return invalid_argument("gemm: y_dtype is ", dtype_text(p.y_dtype), ": it must be float32 or dtype, which is ",
                            dtype_name(p.dtype));
  }
  if (p.m < 0 || p.n < 0 || p.k < 0) {
    return invalid_argument("gemm: m, n, k are ", p.m, ", ", p.n, ", ", p.k, ": none may be negative");
  }
  if (p.x_stride < p.k) return invalid_argument("gemm: x_stride is ", p.x_stride, ": it must be at least k, which is ", p.k);
  if (p.y_stride < p.n) return invalid_argument("gemm: y_stride is ", p.y_stride, ": it must be at least n, which is ", p.n);
  PROLOGUE_RETURN_IF_ERROR(check_packed_weight("gemm", p.packed, p.weight, p.n, p.k, execution.device));
  PROLOGUE_RETURN_IF_ERROR(check_quantize_x(p, execution.device));
  ByteRange x{"x", p.x, p.dtype}, weight{"weight", p.weight, p.dtype}, bias{"bias", p.bias, p.dtype}, y{"y", p.y, p.y_dtype};
  PROLOGUE_ASSIGN_OR_RETURN(x.size, span_bytes("x", p.m, p.k, p.x_stride, p.dtype));
  if (p.packed.num_segments == 0) {
    PROLOGUE_ASSIGN_OR_RETURN(weight.size, span_bytes("weight", p.n, p.k, p.k, p.dtype));
  }
  PROLOGUE_ASSIGN_OR_RETURN(y.size, span_bytes("y", p.m, p.n, p.y_stride, p.y_dtype));
  if (p.bias != nullptr) {
    PROLOGUE_ASSIGN_OR_RETURN(bias.size, span_bytes("bias", 1, p.n, p.n, p.dtype));
  }
  if (y.size == 0) return {};  // nothing to do: pointers may be anything
  for (const ByteRange* array : {&x, &weight, &bias, &y}) {
    if (array->size == 0) continue;
    if (array->data == nullptr) {
      return invalid_argument("gemm: ", array->name, " is null, but m, n, k are ", p.m, ", ", p.n, ", ", p.k);
    }
    if (reinterpret_cast<uintptr_t>(array->data) % static_cast<uintptr_t>(dtype_size(array->dtype)) != 0) {
      return invalid_argument("gemm: ", array->name, " is at ", array->data, ": ", dtype_name(array->dtype),
                              " must be aligned to ", dtype_size(array->dtype), " bytes");
    }
  }
  for (const ByteRange* input : {&x, &weight, &bias}) PROLOGUE_RETURN_IF_ERROR(check_apart(y, *input));
  for (int32_t s = 0; s < p.packed.num_segments; ++s) {
    const PackedRows& rows = p.packed.segments[s];
    const ByteRange segment{"a segment", rows.data, DType::uint8, packed_weight_bytes(rows.format, rows.rows, p.k)};
    if (segment.size > 0 && rows.data == nullptr) return invalid_argument("gemm: packed.segments[", s, "].data is null");
    PROLOGUE_RETURN_IF_ERROR(check_apart(y, segment));
  }
  return {};
}

Result<std::unique_ptr<GemmContext>> GemmContext::create(Device device) {
  return catch_out_of_memory([&]() -> Result<std::unique_ptr<GemmContext>> {
    PROLOGUE_RETURN_IF_ERROR(check_device("gemm context", device));
    return device == Device::cpu ? cpu::create_gemm_context() : cuda::create_gemm_context(true);
  });
}

Result<std::unique_ptr<GemmContext>> GemmContext::create_without_workspace(Device device) {
  return catch_out_of_memory([&]() -> Result<std::unique_ptr<GemmContext>> {
    PROLOGUE_RETURN_IF_ERROR(check_device("gemm context", device));
    return device == Device::cpu ? cpu::create_gemm_context() : cuda::create_gemm_context(false);
  });
}

Status run_validated(const GemmParams& params, GemmContext& context, const Execution& execution) {
  if (params.m == 0 || params.n == 0) return {};
  // CUDA's remembers the algorithms it has chosen.
  return catch_out_of_memory([&] { return dispatch(execution, cpu::gemm, cuda::gemm, params, context); });
}

Status check_float8_gemm(Device device) {
  return catch_out_of_memory([&] { return device == Device::cpu ? Status() : cuda::check_float8_gemm(); });
}

Status gemm(const GemmParams& params, GemmContext& context, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(validate(params, context, execution));
  return run_validated(params, context, execution);
}

}  // namespace prologue
