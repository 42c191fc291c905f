#include <algorithm>
#include <initializer_list>

#include <prologue/kernels/attention_prologue/token_args.h>
#include <prologue/kernels/base/divide_up.h>
#include <prologue/kernels/mla_prologue/backends.h>
#include <prologue/kernels/base/device/cuda_launch.cuh>
#include <prologue/kernels/mla_prologue/mla_prologue_kernel.cuh>

namespace prologue::cuda {

namespace {

constexpr const char* kName = "mla_prologue";
constexpr int64_t kMaxGrid = 65535;  // of y

bool aligned_to(const void* data, std::initializer_list<int64_t> strides, int64_t size, int64_t bytes) {
  if (reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(bytes) != 0) return false;
  return data == nullptr ||
         std::all_of(strides.begin(), strides.end(), [&](int64_t stride) { return stride * size % bytes == 0; });
}

// Every 8 channels are moved with as few instructions as there can be.
bool aligned(const MlaPrologueParams& p) {
  const int64_t size = dtype_size(p.dtype), table = dtype_size(p.rope.type);
  const auto rows = [&](const void* data, std::initializer_list<int64_t> strides) { return aligned_to(data, strides, size, 16); };
  const auto part = [&](const MlaCachePart& of) {
    const int64_t element = dtype_size(of.format.type);
    return aligned_to(of.data, {of.page_stride, of.token_stride}, element, std::min<int64_t>(kPiece * element, 16));
  };
  const bool by_row = p.rope.rotary_dim > 0 && rope_rows_are_given(p.rope.source);
  return rows(p.kv_c, {p.kv_c_stride}) && rows(p.kv_c_out, {p.kv_c_out_stride}) && rows(p.k_pe, {p.k_pe_stride}) &&
         rows(p.k_pe_out, {p.k_pe_out_stride}) && rows(p.kv_c_norm.weight, {}) && rows(p.k_pe_norm.weight, {}) &&
         (p.num_q_heads == 0 || (rows(p.q_pe.data, {p.q_pe.token_stride, p.q_pe.head_stride}) &&
                                 rows(p.q_pe_out.data, {p.q_pe_out.token_stride, p.q_pe_out.head_stride}))) &&
         (!caches_latent(p) || part(p.cache.latent)) && (!caches_rope(p) || part(p.cache.rope)) &&
         (!by_row || (aligned_to(p.rope.cos.data, {p.rope.cos.row_stride}, table, 16) &&
                      aligned_to(p.rope.sin.data, {p.rope.sin.row_stride}, table, 16)));
}

uint32_t step_of(const IndexView& view) { return view.type == DType::int64 ? 8 : 4; }

MlaPartArgs part_args(const MlaCachePart& part) {
  const int64_t size = dtype_size(part.format.type);
  return {static_cast<char*>(part.data), part.page_stride * size, part.token_stride * size, part.format,
          part.format.scaling == KvScaling::tensor ? part.scale : nullptr};
}

MlaArgs mla_args(const MlaPrologueParams& p) {
  MlaArgs args;
  const int64_t size = dtype_size(p.dtype), units = p.qk_rope_head_dim / (2 * kPiece);
  args.positions = static_cast<const char*>(p.positions.data);
  args.position_step = step_of(p.positions);
  args.token = mla_token_args(p);
  if (args.token.num_slots > 0) args.slots = static_cast<const char*>(p.slot_mapping.data);
  args.slot_step = step_of(p.slot_mapping);
  args.num_slots_given = slots_given(p.slot_mapping_len, p.num_tokens);
  args.dtype = p.dtype;
  args.kv_lora_rank = static_cast<int32_t>(p.kv_lora_rank);
  args.rope_dim = static_cast<int32_t>(p.qk_rope_head_dim);
  if (p.kv_c != nullptr) {
    args.latent_warps = 1;
    args.latent = {static_cast<const char*>(p.kv_c), static_cast<char*>(p.kv_c_out), p.kv_c_stride * size,
                   p.kv_c_out_stride * size};
    if (caches_latent(p)) args.latent_part = part_args(p.cache.latent);
  }
  if (p.k_pe != nullptr) {
    args.k_units = static_cast<uint32_t>(units);
    args.k = {static_cast<const char*>(p.k_pe), static_cast<char*>(p.k_pe_out), p.k_pe_stride * size, p.k_pe_out_stride * size};
    if (caches_rope(p)) args.rope_part = part_args(p.cache.rope);
    args.k_norm = p.k_pe_norm;
    args.inverse_rope_dim = 1.0f / static_cast<float>(p.qk_rope_head_dim);
  }
  args.num_units = args.k_units;
  if (p.num_q_heads > 0) {
    args.num_units += static_cast<uint32_t>(p.num_q_heads * units);
    args.units_of_head = page_divider(units);
    args.q = {static_cast<const char*>(p.q_pe.data), static_cast<char*>(p.q_pe_out.data), p.q_pe.token_stride * size,
              p.q_pe_out.token_stride * size,        p.q_pe.head_stride * size,           p.q_pe_out.head_stride * size};
  }
  args.rope = p.rope;
  args.norm = p.kv_c_norm;
  args.inverse_rank = 1.0f / static_cast<float>(p.kv_lora_rank);
  args.faults = p.faults;
  args.token_faults = p.token_faults;
  return args;
}

template <class T>
auto kernel_of(bool wide, bool is_aligned) {
  if (wide) return is_aligned ? mla_prologue_kernel<T, 2, true> : mla_prologue_kernel<T, 2, false>;
  return is_aligned ? mla_prologue_kernel<T, 1, true> : mla_prologue_kernel<T, 1, false>;
}

}  // namespace

Status mla_prologue(const MlaPrologueParams& p, const Execution& execution) {
  MlaArgs args = mla_args(p);
  const bool wide = args.latent_warps > 0 && p.kv_lora_rank > 2 * 32 * kPiece, is_aligned = aligned(p);
  const auto kernel = with_device_type(p.dtype, [&]<class T>(T) { return kernel_of<T>(wide, is_aligned); });
  constexpr int64_t kWarps = kMlaThreads / 32;
  const int64_t warps = args.latent_warps + divide_up(args.num_units, 32);
  LaunchAttributes attributes(1, p.overlaps);
  for (int64_t first = 0; first < p.num_tokens; first += kMaxGrid) {
    args.first_token = first;
    const dim3 grid(grid_extent(divide_up(warps, kWarps)), grid_extent(std::min(p.num_tokens - first, kMaxGrid)));
    PROLOGUE_RETURN_IF_ERROR(launch(kName, kernel, {grid, dim3(kMlaThreads), 0, attributes.span()}, execution.stream, args));
  }
  return {};
}

}  // namespace prologue::cuda
