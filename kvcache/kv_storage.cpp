#include <prologue/kvcache/kv_storage.h>

namespace prologue {

Result<KvStorage> KvStorage::create(const KvStorageConfig& config, Device device) {
  const struct {
    const char* name;
    int64_t value;
  } sizes[] = {{"num_layers", config.num_layers},     {"num_pages", config.num_pages}, {"page_size", config.page_size},
               {"num_kv_heads", config.num_kv_heads}, {"head_dim", config.head_dim}};
  double total_bytes = 2.0 * static_cast<double>(dtype_size(config.dtype));
  for (const auto& [name, value] : sizes) {
    if (value < 1) return invalid_argument("KV cache: ", name, " is ", value, ": it must be at least 1");
    total_bytes *= static_cast<double>(value);
  }
  if (total_bytes > 0x1p60) return resource_exhausted("KV cache: ", total_bytes, " bytes are more than any memory holds");
  KvStorage storage;
  storage.config_ = config;
  PROLOGUE_ASSIGN_OR_RETURN(storage.memory_, Buffer::allocate(device, config.bytes_per_page() * config.num_pages));
  return storage;
}

PagedKvView KvStorage::layer(int64_t index) const {
  const PageStrides strides = nhd_strides(config_.page_size, config_.num_kv_heads, config_.head_dim);
  const int64_t tensor_bytes = config_.num_pages * strides.page * dtype_size(config_.dtype);
  PagedKvView view;
  view.k = memory_.as<unsigned char>() + 2 * index * tensor_bytes;
  view.v = memory_.as<unsigned char>() + (2 * index + 1) * tensor_bytes;
  view.type = kv_type_of(config_.dtype);
  view.num_pages = config_.num_pages;
  view.page_size = config_.page_size;
  view.num_kv_heads = config_.num_kv_heads;
  view.head_dim = config_.head_dim;
  view.k_strides = strides;
  view.v_strides = strides;
  return view;
}

}  // namespace prologue
