#include <prologue/kvcache/kv_storage.h>

#include <prologue/kernels/base/host/view_checks.h>

namespace prologue {

namespace {

constexpr int64_t kAlignment = 16;  // of K, V and their scales in every layer

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

int64_t num_heads(const KvStorageConfig& c) { return c.num_pages * c.page_size * c.num_kv_heads; }

int64_t data_bytes(const KvStorageConfig& c, const KvFormat& format) {
  return aligned(num_heads(c) * c.head_dim * dtype_bits(format.type) / 8);
}

int64_t scale_bytes(const KvStorageConfig& c, const KvFormat& format) {
  return aligned(num_heads(c) * scales_of_head(format) * 4);
}

// K, V, the scales of K, the scales of V.
int64_t layer_bytes(const KvStorageConfig& c) {
  const KvFormat k = c.k_format(), v = c.v_format();
  return data_bytes(c, k) + data_bytes(c, v) + scale_bytes(c, k) + scale_bytes(c, v);
}

// `scale`: at 16 bytes.
PagedHeads side_at(const KvStorageConfig& c, const KvFormat& format, unsigned char* data, unsigned char* scale) {
  PagedHeads side;
  side.data = data;
  side.head_dim = c.head_dim;
  side.format = format;
  side.strides = nhd_strides(c.page_size, c.num_kv_heads, c.head_dim);
  if (const int64_t scales = scales_of_head(format); scales > 0) {
    side.scale = reinterpret_cast<float*>(scale);
    side.scale_strides = nhd_strides(c.page_size, c.num_kv_heads, scales);
  }
  return side;
}

}  // namespace

Result<KvStorage> KvStorage::create(const KvStorageConfig& config, Device device) {
  const struct {
    const char* name;
    int64_t value;
  } sizes[] = {{"num_layers", config.num_layers},
               {"num_pages", config.num_pages},
               {"page_size", config.page_size},
               {"num_kv_heads", config.num_kv_heads},
               {"head_dim", config.head_dim}};
  double total_bytes = 2.0 * 16.0;  // no element takes more than 4 bytes; the rest is room for scales and gaps
  for (const auto& [name, value] : sizes) {
    if (value < 1) return invalid_argument("KV cache: ", name, " is ", value, ": it must be at least 1");
    total_bytes *= static_cast<double>(value);
  }
  const std::pair<const char*, DType> types[] = {{"the type of K", config.k_format().type},
                                                 {"the type of V", config.v_format().type}};
  for (const auto& [name, type] : types) {
    if (!dtype_is_kv(type)) return unsupported("KV cache: ", name, " is ", dtype_name(type), ": supported are ", kv_type_names());
    if (dtype_bits(type) == 4 && config.head_dim % 2 != 0) {
      return invalid_argument("KV cache: head_dim is ", config.head_dim, ": it must be even, two channels of ", dtype_name(type),
                              " share a byte");
    }
  }
  if (total_bytes > 0x1p60) return resource_exhausted("KV cache: ", total_bytes, " bytes are more than any memory holds");
  KvStorage storage;
  storage.config_ = config;
  PROLOGUE_ASSIGN_OR_RETURN(storage.memory_, Buffer::allocate(device, config.num_layers * layer_bytes(config)));
  return storage;
}

PagedKvView KvStorage::layer(int64_t index) const {
  if (index < 0 || index >= config_.num_layers) return {};
  const KvFormat k = config_.k_format(), v = config_.v_format();
  unsigned char* const k_data = memory_.as<unsigned char>() + index * layer_bytes(config_);
  unsigned char* const v_data = k_data + data_bytes(config_, k);
  unsigned char* const k_scale = v_data + data_bytes(config_, v);
  PagedKvView view;
  view.num_pages = config_.num_pages;
  view.page_size = config_.page_size;
  view.num_kv_heads = config_.num_kv_heads;
  view.k = side_at(config_, k, k_data, k_scale);
  view.v = side_at(config_, v, v_data, k_scale + scale_bytes(config_, k));
  return view;
}

}  // namespace prologue
