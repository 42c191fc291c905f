// The memory of a paged KV cache: for every layer one K and one V tensor [num_pages, page_size, num_kv_heads, head_dim] (NHD) of
// the cache's type. Quantised types also have a scale for each token and head: [num_pages, page_size, num_kv_heads] float32 for
// each of K and V.
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
  DType type = DType::f32;

  bool has_scales() const { return !dtype_is_activation(type); }
  // Bytes of one head of one token, of K or of V, with its scale.
  int64_t bytes_per_head() const { return head_dim * dtype_bits(type) / 8 + (has_scales() ? 4 : 0); }
  int64_t bytes_per_page() const { return 2 * num_layers * page_size * num_kv_heads * bytes_per_head(); }
};

class PROLOGUE_API KvStorage {
 public:
  KvStorage() = default;
  // The memory is not cleared; pages must be written before they are read. invalid_argument: a size is below 1, or head_dim is
  // odd for int4. resource_exhausted: not enough memory.
  static Result<KvStorage> create(const KvStorageConfig& config, Device device);

  const KvStorageConfig& config() const { return config_; }
  // The cache of layer `index`. Outside 0 .. num_layers - 1 the view is empty; every operation returns an error for it.
  PagedKvView layer(int64_t index) const;

 private:
  KvStorageConfig config_;
  Buffer memory_;
};

}  // namespace prologue
