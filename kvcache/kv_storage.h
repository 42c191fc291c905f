// Owns the memory of a paged KV cache: for every layer one K and one V tensor [num_pages, page_size, num_kv_heads, head_dim] (NHD) of K's
// and V's type; V may have a head_dim of its own. Quantised types also have computed scales for each token and head: [num_pages, page_size,
// num_kv_heads, scales_of_head] float32 for each of K and V; block-scaled formats have a byte for each block instead: [num_pages, page_size,
// num_kv_heads, head_dim / block_channels]. num_pages is that of the layer's group.
#pragma once

#include <cstdint>
#include <vector>

#include <prologue/kernels/base/memory.h>
#include <prologue/kernels/base/views.h>
#include <prologue/kvcache/kv_cache.h>

namespace prologue {

struct KvStorageConfig {
  int64_t num_layers = 0;
  int64_t num_pages = 0;  // of the only group; unused if pages_of_group is set
  int64_t page_size = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  KvFormat k_format = {DType::f32};  // its scaling is none, token_head, mx or nv (with a tensor scale of 1)
  KvFormat v_format = {};            // unset: that of K
  // The layer groups are as in KvCacheConfig. If this is empty, all layers are in group 0.
  std::vector<int32_t> group_of_layer = {};  // [num_layers]
  std::vector<int64_t> pages_of_group = {};  // [number of groups]; empty: one group of num_pages
  int64_t v_head_dim = 0;                    // 0: head_dim

  KvFormat format_of_v() const { return v_format.type == DType::unset ? k_format : v_format; }
  int64_t head_dim_of_v() const { return v_head_dim > 0 ? v_head_dim : head_dim; }
  int64_t num_groups() const { return pages_of_group.empty() ? 1 : static_cast<int64_t>(pages_of_group.size()); }
  // Returns the bytes that one page of a group takes in all its layers, with its scales.
  int64_t bytes_per_page(int64_t group = 0) const {
    return layers_of(group) * page_size * num_kv_heads *
           (bytes_per_head(k_format, head_dim) + bytes_per_head(format_of_v(), head_dim_of_v()));
  }
  int64_t layers_of(int64_t group) const {
    int64_t count = group == 0 && group_of_layer.empty() ? num_layers : 0;
    for (const int32_t of_layer : group_of_layer) count += of_layer == group ? 1 : 0;
    return count;
  }

  // Returns the bytes of one token's head, with its scales, and those of the scales.
  static int64_t bytes_per_head(const KvFormat& format, int64_t head_dim) {
    return head_dim * dtype_bits(format.type) / 8 + scale_bytes_per_head(format, head_dim);
  }
  static int64_t scale_bytes_per_head(const KvFormat& format, int64_t head_dim) {
    return is_block_scaled(format) ? head_dim / block_channels(format) : scales_of_head(format) * 4;
  }
};

class PROLOGUE_API KvStorage {
 public:
  KvStorage() = default;
  // The memory is not cleared; pages must be written before they are read. invalid_argument: a size is below 1 (v_head_dim:
  // below 0), head_dim or v_head_dim is odd for a type of 4 bits or no multiple of the channels of a block, group_of_layer does
  // not have one entry for each layer, an entry is no group, or a group has no layer. unsupported: a type or scaling that a cache
  // cannot have, or scales that are given. resource_exhausted: not enough memory.
  static Result<KvStorage> create(const KvStorageConfig& config, Device device);

  const KvStorageConfig& config() const { return config_; }
  const Buffer& memory() const { return memory_; }
  // Returns the cache of layer `index`. Outside 0 .. num_layers - 1 the view is empty; every operation returns an error for it.
  PagedKvView layer(int64_t index) const;

  // Copies pages in every layer of their group, K, V and the scales of both, in order and in stream order. It does not wait.
  // invalid_argument, before anything is copied: a group or a page does not exist, a page would be copied onto itself, or the
  // execution is for another device than the memory.
  Status copy_pages(const std::vector<PageCopy>& copies, const Execution& execution) const;

 private:
  KvStorageConfig config_;
  std::vector<int64_t> layer_offsets_;  // bytes; the layers of a group follow one another
  std::vector<int64_t> group_offsets_;
  Buffer memory_;
};

// Says what a KvStorage must hold.
struct KvSizing {
  std::vector<int64_t> windows;  // of each group, 0 = all; empty: one group that sees all
  int64_t max_seqs = 0;          // sequences that run at the same time
  int64_t max_step_tokens = 0;   // tokens of a step, of all sequences together
};

// Returns the pages of each group whose storage takes at most num_bytes: pages_of_group for `config`, whose num_pages and pages_of_group
// are not read. Groups that see all get the same number P, the largest that fits. A group with a window gets min(P, what max_seqs sequences
// with max_step_tokens new tokens can hold in it at most), provided that pages are given back after each step
// (KvCache::release_out_of_window). If all groups have windows, P is not larger than they need. invalid_argument: as KvStorage::create,
// windows do not have one entry for each group or are negative, max_seqs or max_step_tokens is below 1, or one of these is above 2^31 - 1.
// resource_exhausted: not one page of each group fits; the message says how many bytes that would take.
PROLOGUE_API Result<std::vector<int64_t>> pages_that_fit(const KvStorageConfig& config, const KvSizing& sizing,
                                                         int64_t num_bytes);
// Returns that fraction of what can still be allocated on the device (available_bytes). invalid_argument: it is not above 0 and at most 1.
PROLOGUE_API Result<int64_t> fraction_of_free_memory(double fraction, Device device);

}  // namespace prologue
