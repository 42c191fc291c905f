// The memory of a paged KV cache: for every layer one K and one V tensor [num_pages, page_size, num_kv_heads, head_dim] (NHD) of
// K's and V's type. Quantised types also have computed scales for each token and head: [num_pages, page_size, num_kv_heads,
// scales_of_head] float32 for each of K and V.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/memory.h>
#include <prologue/kernels/base/views.h>

namespace prologue {

struct KvStorageConfig {
  int64_t num_layers = 0;
  int64_t num_pages = 0;
  int64_t page_size = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  DType k_type = DType::f32;
  DType v_type = DType::unset;  // unset: that of K

  KvFormat k_format() const { return format_of(k_type); }
  KvFormat v_format() const { return format_of(resolve_dtype(v_type, k_type)); }
  int64_t bytes_per_page() const {
    return num_layers * page_size * num_kv_heads * (bytes_per_head(k_format()) + bytes_per_head(v_format()));
  }

  static KvFormat format_of(DType type) { return {type, dtype_is_quantized(type) ? KvScaling::token_head : KvScaling::none}; }
  // Of one token, with its scales.
  int64_t bytes_per_head(const KvFormat& format) const {
    return head_dim * dtype_bits(format.type) / 8 + scales_of_head(format) * 4;
  }
};

class PROLOGUE_API KvStorage {
 public:
  KvStorage() = default;
  // The memory is not cleared; pages must be written before they are read. invalid_argument: a size is below 1, or head_dim is
  // odd for a type of 4 bits. resource_exhausted: not enough memory.
  static Result<KvStorage> create(const KvStorageConfig& config, Device device);

  const KvStorageConfig& config() const { return config_; }
  const Buffer& memory() const { return memory_; }
  // The cache of layer `index`. Outside 0 .. num_layers - 1 the view is empty; every operation returns an error for it.
  PagedKvView layer(int64_t index) const;

 private:
  KvStorageConfig config_;
  Buffer memory_;
};

}  // namespace prologue
