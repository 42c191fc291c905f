// The memory of a paged KV cache: for every layer one K and one V tensor [num_pages, page_size, num_kv_heads, head_dim] (NHD).
#pragma once

#include <cstdint>

#include <prologue/kernels/base/dtype.h>
#include <prologue/kernels/base/memory.h>
#include <prologue/kernels/base/views.h>

namespace prologue {

struct KvStorageConfig {
  int64_t num_layers = 0;
  int64_t num_pages = 0;
  int64_t page_size = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  DType dtype = DType::f32;

  int64_t bytes_per_page() const { return 2 * num_layers * page_size * num_kv_heads * head_dim * dtype_size(dtype); }
};

class PROLOGUE_API KvStorage {
 public:
  KvStorage() = default;
  // The memory is not cleared: a page is written before it is read.
  static Result<KvStorage> create(const KvStorageConfig& config, Device device);

  const KvStorageConfig& config() const { return config_; }
  PagedKvView layer(int64_t index) const;

 private:
  KvStorageConfig config_;
  Buffer memory_;
};

}  // namespace prologue
