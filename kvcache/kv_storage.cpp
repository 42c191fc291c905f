#include <prologue/kvcache/kv_storage.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include <prologue/kernels/base/divide_up.h>
#include <prologue/kernels/base/kv_types.h>
#include <prologue/kernels/base/out_of_memory.h>

namespace prologue {

namespace {

constexpr int64_t kAlignment = 16;  // of K, V and their scales in every layer

int64_t pages_of(const KvStorageConfig& c, int64_t group) {
  return c.pages_of_group.empty() ? c.num_pages : c.pages_of_group[static_cast<size_t>(group)];
}

// Says what a page takes in one layer: of K, V, the scales of K and the scales of V.
struct PageBytes {
  int64_t k, v, k_scale, v_scale;

  explicit PageBytes(const KvStorageConfig& c) {
    const int64_t heads = c.page_size * c.num_kv_heads;
    k = heads * c.head_dim * dtype_bits(c.k_format.type) / 8;
    v = heads * c.head_dim_of_v() * dtype_bits(c.format_of_v().type) / 8;
    k_scale = heads * KvStorageConfig::scale_bytes_per_head(c.k_format, c.head_dim);
    v_scale = heads * KvStorageConfig::scale_bytes_per_head(c.format_of_v(), c.head_dim_of_v());
  }
};

// Where these arrays are in a layer.
struct LayerBytes {
  int64_t v, k_scale, v_scale, total;

  LayerBytes(const PageBytes& page, int64_t num_pages) {
    v = round_up(num_pages * page.k, kAlignment);
    k_scale = v + round_up(num_pages * page.v, kAlignment);
    v_scale = k_scale + round_up(num_pages * page.k_scale, kAlignment);
    total = v_scale + round_up(num_pages * page.v_scale, kAlignment);
  }
};

Status check_groups(const KvStorageConfig& c) {
  const auto num_entries = static_cast<int64_t>(c.group_of_layer.size());
  if (num_entries != 0 && num_entries != c.num_layers) {
    return invalid_argument("KV cache: group_of_layer has ", num_entries, " entries: there must be one for each of ",
                            c.num_layers, " layers, or none");
  }
  for (const int32_t group : c.group_of_layer) {
    if (group < 0 || group >= c.num_groups()) {
      return invalid_argument("KV cache: a layer is in group ", group, ": there are groups 0 to ", c.num_groups() - 1);
    }
  }
  for (int64_t group = 0; group < c.num_groups(); ++group) {
    if (c.layers_of(group) == 0) return invalid_argument("KV cache: group ", group, " has no layer");
  }
  return {};
}

// Checks the configuration; the bytes that it takes.
Result<int64_t> storage_bytes(const KvStorageConfig& c) {
  const std::pair<const char*, int64_t> sizes[] = {
      {"num_layers", c.num_layers}, {"page_size", c.page_size}, {"num_kv_heads", c.num_kv_heads}, {"head_dim", c.head_dim}};
  double page_bytes = 2.0 * 16.0;  // no element takes more than 4 bytes; the rest is room for scales and gaps
  for (const auto& [name, value] : sizes) {
    if (value < 1) return invalid_argument("KV cache: ", name, " is ", value, ": it must be at least 1");
    page_bytes *= static_cast<double>(value);
  }
  if (c.v_head_dim < 0) return invalid_argument("KV cache: v_head_dim is ", c.v_head_dim, ": it must be at least 0");
  if (c.v_head_dim > c.head_dim) page_bytes *= static_cast<double>(c.v_head_dim) / static_cast<double>(c.head_dim);
  double total_bytes = 0.0;
  for (int64_t group = 0; group < c.num_groups(); ++group) {
    const int64_t num_pages = pages_of(c, group);
    if (num_pages < 1) {
      const std::string of_group = c.pages_of_group.empty() ? "" : str_cat(" of group ", group);
      return invalid_argument("KV cache: num_pages", of_group, " is ", num_pages, ": it must be at least 1");
    }
    total_bytes += page_bytes * static_cast<double>(num_pages);
  }
  const struct {
    const char* name;
    KvFormat format;
    const char* head_dim_name;
    int64_t head_dim;
  } sides[] = {{"the format of K", c.k_format, "head_dim", c.head_dim},
               {"the format of V", c.format_of_v(), c.v_head_dim > 0 ? "v_head_dim" : "head_dim", c.head_dim_of_v()}};
  for (const auto& [name, format, head_dim_name, head_dim] : sides) {
    const DType type = format.type;
    const KvFormat named = kv_format_of(kv_format_name(format));
    if (named.type == DType::unset || named.type != type || named.scaling != format.scaling) {
      return unsupported("KV cache: ", name, " is ", dtype_name(type), " with scaling ", static_cast<int32_t>(format.scaling), ": supported are ",
                         kv_format_names(), ", with computed scales");
    }
    if (is_block_scaled(format) && head_dim % block_channels(format) != 0) {
      return invalid_argument("KV cache: ", head_dim_name, " is ", head_dim, ": it must be a multiple of ", block_channels(format),
                              ", the channels of a block of ", kv_format_name(format));
    }
    if (dtype_bits(type) == 4 && head_dim % 2 != 0) {
      return invalid_argument("KV cache: ", head_dim_name, " is ", head_dim, ": it must be even, two channels of ",
                              dtype_name(type), " share a byte");
    }
  }
  if (total_bytes > 0x1p60) return resource_exhausted("KV cache: ", total_bytes, " bytes are more than any memory holds");
  PROLOGUE_RETURN_IF_ERROR(check_groups(c));
  int64_t bytes = 0;
  for (int64_t group = 0; group < c.num_groups(); ++group) {
    bytes += c.layers_of(group) * LayerBytes(PageBytes(c), pages_of(c, group)).total;
  }
  return bytes;
}

// `scale` is aligned to 16 bytes.
PagedHeads side_at(const KvStorageConfig& c, const KvFormat& format, int64_t head_dim, unsigned char* data,
                   unsigned char* scale) {
  PagedHeads side;
  side.data = data;
  side.head_dim = head_dim;
  side.format = format;
  side.strides = nhd_strides(c.page_size, c.num_kv_heads, head_dim);
  if (is_block_scaled(format)) {
    side.block_scale = scale;
    side.scale_strides = nhd_strides(c.page_size, c.num_kv_heads, head_dim / block_channels(format));
  } else if (const int64_t scales = scales_of_head(format); scales > 0) {
    side.scale = reinterpret_cast<float*>(scale);
    side.scale_strides = nhd_strides(c.page_size, c.num_kv_heads, scales);
  }
  return side;
}

// Returns the pages of a group with a window that max_seqs sequences can hold. One with n new tokens has w - 1 + n tokens that follow one
// another, so at most (w + n + page_size - 3) / page_size + 1 pages, which is at most (w + page_size - 2) / page_size + 2 + (n - 1) /
// page_size; and all n together are at most max_step_tokens.
int64_t pages_in_windows(int64_t window, int64_t page_size, const KvSizing& sizing) {
  return sizing.max_seqs * ((window + page_size - 2) / page_size + 2) + sizing.max_step_tokens / page_size;
}

}  // namespace

Result<KvStorage> KvStorage::create(const KvStorageConfig& config, Device device) {
  return catch_out_of_memory([&]() -> Result<KvStorage> {
    PROLOGUE_ASSIGN_OR_RETURN(const int64_t num_bytes, storage_bytes(config));
    KvStorage storage;
    // This comes first, so that an absurd num_layers ends here. Small pages: a few tokens take a little of each layer.
    PROLOGUE_ASSIGN_OR_RETURN(storage.memory_, Buffer::allocate(device, num_bytes, HostPages::small));
    storage.config_ = config;
    storage.layer_offsets_.resize(static_cast<size_t>(config.num_layers));
    int64_t offset = 0;
    for (int64_t group = 0; group < config.num_groups(); ++group) {
      storage.group_offsets_.push_back(offset);
      const LayerBytes layer_bytes(PageBytes(config), pages_of(config, group));
      for (size_t layer = 0; layer < storage.layer_offsets_.size(); ++layer) {
        if (!config.group_of_layer.empty() && config.group_of_layer[layer] != group) continue;
        storage.layer_offsets_[layer] = offset;
        offset += layer_bytes.total;
      }
    }
    return storage;
  });
}

PagedKvView KvStorage::layer(int64_t index) const {
  if (index < 0 || index >= config_.num_layers) return {};
  PagedKvView view;
  view.num_pages = pages_of(config_, config_.group_of_layer.empty() ? 0 : config_.group_of_layer[static_cast<size_t>(index)]);
  view.page_size = config_.page_size;
  view.num_kv_heads = config_.num_kv_heads;
  const LayerBytes at(PageBytes(config_), view.num_pages);
  unsigned char* const data = memory_.as<unsigned char>() + layer_offsets_[static_cast<size_t>(index)];
  view.k = side_at(config_, config_.k_format, config_.head_dim, data, data + at.k_scale);
  view.v = side_at(config_, config_.format_of_v(), config_.head_dim_of_v(), data + at.v, data + at.v_scale);
  return view;
}

Status KvStorage::copy_pages(const std::vector<PageCopy>& copies, const Execution& execution) const {
  if (execution.device != memory_.device()) {
    return invalid_argument("KV cache: device is ", device_name(execution.device), ": the pages are on ",
                            device_name(memory_.device()));
  }
  for (const PageCopy& copy : copies) {
    if (copy.group < 0 || copy.group >= static_cast<int64_t>(group_offsets_.size())) {
      return invalid_argument("KV cache: a page of group ", copy.group, " is copied: there are ", group_offsets_.size(),
                              " groups");
    }
    const int64_t num_pages = pages_of(config_, copy.group);
    for (const int32_t page : {copy.from, copy.to}) {
      if (page < 0 || page >= num_pages) {
        return invalid_argument("KV cache: page ", page, " of group ", copy.group, " is copied: it has pages 0 to ",
                                num_pages - 1);
      }
    }
    if (copy.from == copy.to) {
      return invalid_argument("KV cache: page ", copy.from, " of group ", copy.group, " is copied onto itself");
    }
  }
  const PageBytes bytes(config_);
  for (const PageCopy& copy : copies) {
    const LayerBytes at(bytes, pages_of(config_, copy.group));
    const std::pair<int64_t, int64_t> arrays[] = {
        {0, bytes.k}, {at.v, bytes.v}, {at.k_scale, bytes.k_scale}, {at.v_scale, bytes.v_scale}};
    for (const auto& [offset, page_bytes] : arrays) {
      unsigned char* const array = memory_.as<unsigned char>() + group_offsets_[static_cast<size_t>(copy.group)] + offset;
      PROLOGUE_RETURN_IF_ERROR(copy_strided(array + copy.to * page_bytes, array + copy.from * page_bytes,
                                            config_.layers_of(copy.group), page_bytes, at.total, execution));
    }
  }
  return {};
}

Result<std::vector<int64_t>> pages_that_fit(const KvStorageConfig& config, const KvSizing& sizing, int64_t num_bytes) {
  const std::pair<const char*, int64_t> counts[] = {
      {"page_size", config.page_size}, {"max_seqs", sizing.max_seqs}, {"max_step_tokens", sizing.max_step_tokens}};
  for (const auto& [name, value] : counts) {
    if (value < 1 || value > INT32_MAX) {
      return invalid_argument("KV cache: ", name, " is ", value, ": it must be between 1 and ", INT32_MAX);
    }
  }
  for (const int64_t window : sizing.windows) {
    if (window < 0 || window > INT32_MAX) {
      return invalid_argument("KV cache: window is ", window, ": it must be between 0 and ", INT32_MAX);
    }
  }
  return catch_out_of_memory([&]() -> Result<std::vector<int64_t>> {
    const std::vector<int64_t> windows = sizing.windows.empty() ? std::vector<int64_t>{0} : sizing.windows;
    KvStorageConfig sized = config;
    const auto bytes_of = [&](int64_t num_pages) {
      sized.pages_of_group.clear();
      for (const int64_t window : windows) {
        const int64_t most = window == 0 ? num_pages : pages_in_windows(window, config.page_size, sizing);
        sized.pages_of_group.push_back(std::min(num_pages, most));
      }
      return storage_bytes(sized);
    };
    PROLOGUE_ASSIGN_OR_RETURN(const int64_t least, bytes_of(1));
    if (least > num_bytes) {
      return resource_exhausted("KV cache: num_bytes is ", num_bytes, ": one page of each group takes ", least);
    }
    int64_t fits = 1, too_many = int64_t{INT32_MAX} + 1;
    while (too_many - fits > 1) {
      const int64_t middle = fits + (too_many - fits) / 2;
      const Result<int64_t> bytes = bytes_of(middle);
      (bytes.ok() && *bytes <= num_bytes ? fits : too_many) = middle;
    }
    (void)bytes_of(fits);
    return sized.pages_of_group;
  });
}

Result<int64_t> fraction_of_free_memory(double fraction, Device device) {
  if (!(fraction > 0.0 && fraction <= 1.0)) {
    return invalid_argument("KV cache: fraction is ", fraction, ": it must be above 0 and at most 1");
  }
  PROLOGUE_ASSIGN_OR_RETURN(const int64_t available, available_bytes(device));
  return static_cast<int64_t>(fraction * static_cast<double>(available));
}

}  // namespace prologue
