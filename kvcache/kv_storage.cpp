#include <prologue/kvcache/kv_storage.h>

namespace prologue {

namespace {

constexpr int64_t kScaleAlignment = 16;

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
  double total_bytes = 2.0 * 4.0;  // no element takes more than 4 bytes, nor does its share of a scale
  for (const auto& [name, value] : sizes) {
    if (value < 1) return invalid_argument("KV cache: ", name, " is ", value, ": it must be at least 1");
    total_bytes *= static_cast<double>(value);
  }
  if (!dtype_is_kv(config.type)) {
    return unsupported("KV cache: type is ", dtype_name(config.type),
                       ": supported are float32, float16, bfloat16, fp8_e4m3, fp8_e5m2, int8 and int4");
  }
  if (config.type == DType::int4 && config.head_dim % 2 != 0) {
    return invalid_argument("KV cache: head_dim is ", config.head_dim, ": it must be even, two channels of int4 share a byte");
  }
  if (total_bytes > 0x1p60) return resource_exhausted("KV cache: ", total_bytes, " bytes are more than any memory holds");
  KvStorage storage;
  storage.config_ = config;
  PROLOGUE_ASSIGN_OR_RETURN(storage.memory_,
                            Buffer::allocate(device, config.bytes_per_page() * config.num_pages + kScaleAlignment));
  return storage;
}

PagedKvView KvStorage::layer(int64_t index) const {
  if (index < 0 || index >= config_.num_layers) return {};
  const PageStrides strides = nhd_strides(config_.page_size, config_.num_kv_heads, config_.head_dim);
  const int64_t tensor_bytes = config_.num_pages * strides.page * dtype_bits(config_.type) / 8;
  PagedKvView view;
  view.num_pages = config_.num_pages;
  view.page_size = config_.page_size;
  view.num_kv_heads = config_.num_kv_heads;
  view.k.head_dim = view.v.head_dim = config_.head_dim;
  view.k.format.type = view.v.format.type = config_.type;
  view.k.strides = view.v.strides = strides;
  view.k.data = memory_.as<unsigned char>() + 2 * index * tensor_bytes;
  view.v.data = memory_.as<unsigned char>() + (2 * index + 1) * tensor_bytes;
  if (config_.has_scales()) {  // the scales are after the data of all layers
    const int64_t data_bytes = 2 * config_.num_layers * tensor_bytes;
    auto* scales = memory_.as<float>() + (data_bytes + kScaleAlignment - 1) / kScaleAlignment * kScaleAlignment / 4;
    const int64_t scales_of_tensor = config_.num_pages * config_.page_size * config_.num_kv_heads;
    view.k.format.scaling = view.v.format.scaling = KvScaling::token_head;
    view.k.scale = scales + 2 * index * scales_of_tensor;
    view.v.scale = scales + (2 * index + 1) * scales_of_tensor;
    view.k.scale_strides = view.v.scale_strides = nhd_strides(config_.page_size, config_.num_kv_heads, 1);
  }
  return view;
}

}  // namespace prologue
