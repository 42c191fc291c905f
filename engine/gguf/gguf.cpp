#include <prologue/engine/gguf/gguf.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <type_traits>
#include <utility>

#include <prologue/engine/base/printable.h>
#include <prologue/kernels/base/out_of_memory.h>

namespace prologue {
namespace {

static_assert(std::endian::native == std::endian::little, "values are read from little-endian files as they lie");

constexpr uint32_t kNumValueTypes = 13;
constexpr uint64_t kMinEntryBytes = 8 + 1 + 4 + 1;  // key length, key, type, value
constexpr uint64_t kMinTensorBytes =
    8 + 1 + 4 + 8 + 4 + 8;  // name length, name, number of dimensions, one dimension, type, offset
constexpr uint64_t kMaxDims = 4;
constexpr uint32_t kDefaultAlignment = 32;
// What takes several times its bytes in the file has a largest number. Models have less than a hundred keys.
constexpr uint64_t kMaxKeys = uint64_t{1} << 16;
constexpr uint64_t kMaxTensors = uint64_t{1} << 20;
constexpr uint64_t kMaxArray = uint64_t{1} << 22;  // of values that get() returns

template <class T>
T load(const std::byte* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

// Returns the bytes of one value, or 0 for those whose size is not fixed.
uint64_t value_size(GgufValueType type) {
  switch (type) {
    case GgufValueType::uint8:
    case GgufValueType::int8:
    case GgufValueType::boolean: return 1;
    case GgufValueType::uint16:
    case GgufValueType::int16: return 2;
    case GgufValueType::uint32:
    case GgufValueType::int32:
    case GgufValueType::float32: return 4;
    case GgufValueType::uint64:
    case GgufValueType::int64:
    case GgufValueType::float64: return 8;
    case GgufValueType::string:
    case GgufValueType::array: break;
  }
  return 0;
}

std::string shape_text(std::span<const int64_t> dims) {
  std::string text;
  for (const int64_t dim : dims) text += (text.empty() ? "[" : ", ") + std::to_string(dim);
  return text + "]";
}

bool is_informational(std::string_view key) {
  return key.starts_with("general.") || key.starts_with("tokenizer.") || key.starts_with("quantize.");
}

}  // namespace

// Reads a file from front to back. Every length is compared with the bytes that are left before it is used, and its bytes are read
// from the file (need) before they are accessed.
class GgufParser {
 public:
  explicit GgufParser(GgufFile& file) : file_(file), bytes_(file.bytes_) {}

  Status parse() {
    uint64_t num_tensors = 0, num_entries = 0;
    PROLOGUE_RETURN_IF_ERROR(parse_header(num_tensors, num_entries));
    for (uint64_t i = 0; i < num_entries; ++i) PROLOGUE_RETURN_IF_ERROR(parse_entry(i));
    PROLOGUE_RETURN_IF_ERROR(read_alignment());
    for (uint64_t i = 0; i < num_tensors; ++i) PROLOGUE_RETURN_IF_ERROR(parse_tensor(i));
    PROLOGUE_RETURN_IF_ERROR(place_tensors());
    file_.tensor_used_.assign(file_.tensors_.size(), false);
    return ok_status();
  }

 private:
  template <class... Parts>
  Status contradiction(const Parts&... parts) const {
    return data_loss(file_.path_, ": ", parts...);
  }

  uint64_t remaining() const { return bytes_.size() - position_; }
  const std::byte* here() const { return bytes_.head().data() + position_; }
  // Call before the next `size` <= remaining() bytes are accessed.
  Status need(uint64_t size) { return bytes_.read_head(position_ + size); }

  template <class T>
  Status read(T& value, const std::string& what) {
    if (remaining() < sizeof value) {
      return contradiction("the file is cut short: it ends after ", bytes_.size(), " bytes, inside ", what);
    }
    PROLOGUE_RETURN_IF_ERROR(need(sizeof value));
    value = load<T>(here());
    position_ += sizeof value;
    return ok_status();
  }

  Status read_string(std::string_view& text, const std::string& what) {
    uint64_t length = 0;
    PROLOGUE_RETURN_IF_ERROR(read(length, "the length of " + what));
    if (length > remaining()) {
      return contradiction(what, " is said to be ", length, " bytes long, but only ", remaining(), " bytes are left in the file");
    }
    PROLOGUE_RETURN_IF_ERROR(need(length));
    text = {reinterpret_cast<const char*>(here()), static_cast<size_t>(length)};
    position_ += length;
    return ok_status();
  }

  // Skips a string. It is not part of read_string because vocabularies are long: to build a name for each string would take longer than to
  // read it.
  Status skip_string(uint64_t index, const std::string& what) {
    PROLOGUE_RETURN_IF_ERROR(need(std::min(remaining(), sizeof(uint64_t))));
    const uint64_t length = remaining() < sizeof(uint64_t) ? 0 : load<uint64_t>(here());
    if (remaining() < sizeof length || length > remaining() - sizeof length) {
      return contradiction("string ", index, " of ", what, " is said to be ", length, " bytes long, but only ", remaining(),
                           " bytes are left in the file, its length included");
    }
    PROLOGUE_RETURN_IF_ERROR(need(sizeof length + length));
    position_ += sizeof length + length;
    return ok_status();
  }

  Status parse_header(uint64_t& num_tensors, uint64_t& num_entries) {
    if (remaining() == 0) return contradiction("the file is empty, but a GGUF file is expected");
    const uint64_t magic_size = std::min<uint64_t>(remaining(), 4);
    PROLOGUE_RETURN_IF_ERROR(need(magic_size));
    const std::string_view magic(reinterpret_cast<const char*>(here()), magic_size);
    if (magic != "GGUF") {
      return contradiction("this is not a GGUF file: it starts with \"", printable(magic), "\", not with \"GGUF\"");
    }
    position_ = 4;
    PROLOGUE_RETURN_IF_ERROR(read(file_.version_, "the version"));
    const uint32_t version = file_.version_;
    if ((version & 0xffffu) == 0 && version != 0) {  // a small number with its bytes swapped
      return unsupported(file_.path_, ": the file is big-endian, but only little-endian GGUF files are supported");
    }
    if (version != 2 && version != 3) {
      return unsupported(file_.path_, ": the GGUF version is ", version, ", but only 2 and 3 are supported");
    }
    PROLOGUE_RETURN_IF_ERROR(read(num_tensors, "the number of tensors"));
    PROLOGUE_RETURN_IF_ERROR(read(num_entries, "the number of metadata keys"));
    if (num_entries > remaining() / kMinEntryBytes) {
      return contradiction("the number of metadata keys is ", num_entries, ", but the remaining ", remaining(),
                           " bytes hold at most ", remaining() / kMinEntryBytes);
    }
    if (num_tensors > remaining() / kMinTensorBytes) {
      return contradiction("the number of tensors is ", num_tensors, ", but the remaining ", remaining(), " bytes hold at most ",
                           remaining() / kMinTensorBytes);
    }
    if (num_entries > kMaxKeys || num_tensors > kMaxTensors) {
      return unsupported(file_.path_, ": the file has ", num_entries, " metadata keys and ", num_tensors, " tensors: at most ",
                         kMaxKeys, " and ", kMaxTensors, " are supported");
    }
    return ok_status();
  }

  Status parse_entry(uint64_t index) {
    GgufFile::Entry entry;
    PROLOGUE_RETURN_IF_ERROR(read_string(entry.key, str_cat("metadata key ", index)));
    if (entry.key.empty()) return contradiction("metadata key ", index, " has an empty name");
    const std::string what = "key " + printable(entry.key);
    PROLOGUE_RETURN_IF_ERROR(read_value_type(entry.type, what, "type"));
    if (entry.type == GgufValueType::array) {
      entry.is_array = true;
      PROLOGUE_RETURN_IF_ERROR(read_value_type(entry.type, what, "element type"));
      if (entry.type == GgufValueType::array) {
        return unsupported(file_.path_, ": ", what,
                           " is an array of arrays: arrays of numbers, booleans and strings are supported");
      }
      PROLOGUE_RETURN_IF_ERROR(read(entry.count, "the length of " + what));
    }
    entry.payload = here();  // the head keeps its address while it grows
    PROLOGUE_RETURN_IF_ERROR(skip_values(entry, what));
    if (!file_.key_index_.emplace(entry.key, file_.entries_.size()).second) return contradiction(what, " occurs twice");
    file_.entries_.push_back(entry);
    return ok_status();
  }

  Status read_value_type(GgufValueType& type, const std::string& what, const char* role) {
    uint32_t number = 0;
    PROLOGUE_RETURN_IF_ERROR(read(number, str_cat("the ", role, " of ", what)));
    if (number >= kNumValueTypes) {
      return contradiction("the ", role, " of ", what, " is ", number, ", but types are 0 to ", kNumValueTypes - 1);
    }
    type = static_cast<GgufValueType>(number);
    return ok_status();
  }

  Status skip_values(const GgufFile::Entry& entry, const std::string& what) {
    const bool is_string = entry.type == GgufValueType::string;
    const uint64_t min_size = is_string ? sizeof(uint64_t) : value_size(entry.type);
    if (entry.count > remaining() / min_size) {
      return contradiction(
          what,
          entry.is_array ? str_cat(" is said to hold ", entry.count, " values of at least ") : std::string(" needs at least "),
          min_size, " bytes, but only ", remaining(), " bytes are left in the file");
    }
    if (is_string) {
      for (uint64_t i = 0; i < entry.count; ++i) PROLOGUE_RETURN_IF_ERROR(skip_string(i, what));
      return ok_status();
    }
    PROLOGUE_RETURN_IF_ERROR(need(entry.count * min_size));
    if (entry.type == GgufValueType::boolean) {
      for (uint64_t i = 0; i < entry.count; ++i) {
        if (const auto value = load<uint8_t>(here() + i); value > 1) {
          return contradiction(what, " holds ", int{value}, " as a boolean: must be 0 or 1");
        }
      }
    }
    position_ += entry.count * min_size;
    return ok_status();
  }

  Status read_alignment() {
    const GgufFile::Entry* entry = file_.find("general.alignment");
    if (entry == nullptr) return ok_status();
    PROLOGUE_ASSIGN_OR_RETURN(alignment_, file_.get<uint32_t>("general.alignment"));
    if (alignment_ < 8 || !std::has_single_bit(alignment_)) {
      return contradiction("general.alignment is ", alignment_, ": must be a power of two of at least 8");
    }
    return ok_status();
  }

  Status parse_tensor(uint64_t index) {
    GgufTensor tensor;
    PROLOGUE_RETURN_IF_ERROR(read_string(tensor.name, str_cat("the name of tensor ", index)));
    if (tensor.name.empty()) return contradiction("tensor ", index, " has an empty name");
    const std::string what = "tensor " + printable(tensor.name);

    uint32_t num_dims = 0;
    PROLOGUE_RETURN_IF_ERROR(read(num_dims, "the number of dimensions of " + what));
    if (num_dims < 1 || num_dims > kMaxDims) {
      return contradiction(what, " has ", num_dims, " dimensions: must be 1 to ", kMaxDims);
    }
    int64_t num_elements = 1;
    for (uint32_t d = 0; d < num_dims; ++d) {
      uint64_t dim = 0;
      PROLOGUE_RETURN_IF_ERROR(read(dim, "the dimensions of " + what));
      if (dim == 0) return contradiction("dimension ", d, " of ", what, " is 0: must be at least 1");
      if (!std::in_range<int64_t>(dim) || __builtin_mul_overflow(num_elements, static_cast<int64_t>(dim), &num_elements)) {
        return contradiction("dimension ", d, " of ", what, " is ", dim, ": the number of elements overflows 64 bits");
      }
      tensor.dims.push_back(static_cast<int64_t>(dim));
    }

    uint32_t type = 0;
    PROLOGUE_RETURN_IF_ERROR(read(type, "the type of " + what));
    tensor.type = static_cast<GgmlType>(type);
    const GgmlTypeInfo* info = ggml_type_info(tensor.type);
    if (info == nullptr || !is_type_of_gguf(tensor.type)) {
      return unsupported(file_.path_, ": ", what, " has type ", ggml_type_name(tensor.type), ": supported are ",
                         supported_ggml_types());
    }
    if (tensor.row_elements() % info->block_elements != 0) {
      return contradiction(what, " has rows of ", tensor.row_elements(), " elements: type ", info->name, " needs a multiple of ",
                           info->block_elements);
    }
    if (__builtin_mul_overflow(num_elements / info->block_elements, info->block_bytes, &tensor.size_bytes)) {
      return contradiction(what, " has shape ", shape_text(tensor.dims), ": its size in bytes overflows 64 bits");
    }

    uint64_t offset = 0;
    PROLOGUE_RETURN_IF_ERROR(read(offset, "the offset of " + what));
    if (offset % alignment_ != 0) {
      return contradiction(what, " lies at offset ", offset, ": must be a multiple of the alignment, ", alignment_);
    }
    if (!file_.tensor_index_.emplace(tensor.name, file_.tensors_.size()).second) return contradiction(what, " occurs twice");
    file_.tensors_.push_back(std::move(tensor));
    offsets_.push_back(offset);
    return ok_status();
  }

  // Converts tensor offsets to positions in the file. Tensors may be in any order and with gaps, but must be within the file and must
  // not overlap.
  Status place_tensors() {
    if (file_.tensors_.empty()) return ok_status();
    const uint64_t padding = (alignment_ - position_ % alignment_) % alignment_;
    if (padding > remaining()) {
      return contradiction("the file is cut short: it ends after ", bytes_.size(), " bytes, before the tensor data");
    }
    position_ += padding;
    for (size_t i = 0; i < offsets_.size(); ++i) {
      GgufTensor& tensor = file_.tensors_[i];
      const uint64_t size = static_cast<uint64_t>(tensor.size_bytes);
      if (offsets_[i] > remaining() || size > remaining() - offsets_[i]) {
        return contradiction("tensor ", printable(tensor.name), " of ", size, " bytes at offset ", offsets_[i],
                             " lies outside the tensor data, of which the file has ", remaining(), " bytes");
      }
      tensor.offset = position_ + offsets_[i];
    }
    std::vector<const GgufTensor*> in_order;
    in_order.reserve(file_.tensors_.size());
    for (const GgufTensor& tensor : file_.tensors_) in_order.push_back(&tensor);
    std::sort(in_order.begin(), in_order.end(), [](const GgufTensor* a, const GgufTensor* b) { return a->offset < b->offset; });
    for (size_t i = 1; i < in_order.size(); ++i) {
      const GgufTensor& before = *in_order[i - 1];
      if (before.offset + static_cast<uint64_t>(before.size_bytes) > in_order[i]->offset) {
        return contradiction("tensors ", printable(before.name), " and ", printable(in_order[i]->name), " overlap in the file");
      }
    }
    return ok_status();
  }

  GgufFile& file_;
  FileBytes& bytes_;
  uint64_t position_ = 0;
  uint32_t alignment_ = kDefaultAlignment;
  std::vector<uint64_t> offsets_;
};

const char* gguf_value_type_name(GgufValueType type) {
  constexpr const char* kTypes[kNumValueTypes] = {"uint8",   "int8",   "uint16", "int16",  "uint32", "int32",  "float32",
                                                  "boolean", "string", "array",  "uint64", "int64",  "float64"};
  const uint32_t number = static_cast<uint32_t>(type);
  return number < kNumValueTypes ? kTypes[number] : "unknown";
}

int64_t GgufTensor::num_rows() const {
  return std::accumulate(dims.begin() + 1, dims.end(), int64_t{1}, [](int64_t a, int64_t b) { return a * b; });
}

Result<GgufFile> GgufFile::open(const std::string& path) {
  return catch_out_of_memory([&]() -> Result<GgufFile> {
    PROLOGUE_ASSIGN_OR_RETURN(FileBytes bytes, FileBytes::open(path));
    return parse(std::move(bytes), path);
  });
}

Result<GgufFile> GgufFile::from_bytes(std::vector<std::byte> bytes, std::string name) {
  return catch_out_of_memory([&] { return parse(FileBytes(std::move(bytes)), name); });
}

Result<GgufFile> GgufFile::parse(FileBytes bytes, const std::string& path) {
  GgufFile file;
  file.path_ = printable_path(path);
  file.bytes_ = std::move(bytes);
  PROLOGUE_RETURN_IF_ERROR(GgufParser(file).parse());
  return file;
}

// ---- Metadata ----

namespace {

template <class T>
struct IsVector : std::false_type {};
template <class T>
struct IsVector<std::vector<T>> : std::true_type {};

template <class T>
const char* expected_name() {
  if constexpr (std::is_same_v<T, bool>) {
    return "boolean";
  } else if constexpr (std::is_floating_point_v<T>) {
    return "float";
  } else if constexpr (std::is_integral_v<T>) {
    return "integer";
  } else {
    return "string";
  }
}

template <class T>
bool accepts(GgufValueType type) {
  const bool is_float = type == GgufValueType::float32 || type == GgufValueType::float64;
  if constexpr (std::is_same_v<T, bool>) {
    return type == GgufValueType::boolean;
  } else if constexpr (std::is_floating_point_v<T>) {
    return is_float;
  } else if constexpr (std::is_integral_v<T>) {
    return !is_float && type != GgufValueType::boolean && type != GgufValueType::string && type != GgufValueType::array;
  } else {
    return type == GgufValueType::string;
  }
}

// Reads one value of an accepted type and moves past it. Returns false, with the value in `problem`, if it does not fit into T.
template <class T>
bool read_value(GgufValueType type, const std::byte*& bytes, T& value, std::string& problem) {
  if constexpr (std::is_same_v<T, std::string>) {
    const auto length = static_cast<size_t>(load<uint64_t>(bytes));
    value.assign(reinterpret_cast<const char*>(bytes) + sizeof(uint64_t), length);
    bytes += sizeof(uint64_t) + length;
    return true;
  } else {
    const std::byte* here = bytes;
    bytes += value_size(type);
    if constexpr (std::is_same_v<T, bool>) {
      value = load<uint8_t>(here) != 0;
      return true;
    } else if constexpr (std::is_floating_point_v<T>) {
      const double number = type == GgufValueType::float32 ? load<float>(here) : load<double>(here);
      if (std::isfinite(number) && std::abs(number) > std::numeric_limits<T>::max()) {
        problem = str_cat(number);
        return false;
      }
      value = static_cast<T>(number);
      return true;
    } else {
      const auto convert = [&](auto number) {
        value = static_cast<T>(number);
        if (std::in_range<T>(number)) return true;
        problem = std::to_string(number);
        return false;
      };
      switch (type) {
        case GgufValueType::uint8: return convert(load<uint8_t>(here));
        case GgufValueType::int8: return convert(load<int8_t>(here));
        case GgufValueType::uint16: return convert(load<uint16_t>(here));
        case GgufValueType::int16: return convert(load<int16_t>(here));
        case GgufValueType::uint32: return convert(load<uint32_t>(here));
        case GgufValueType::int32: return convert(load<int32_t>(here));
        case GgufValueType::uint64: return convert(load<uint64_t>(here));
        default: return convert(load<int64_t>(here));
      }
    }
  }
}

template <class T>
std::string range_text() {
  if constexpr (std::is_arithmetic_v<T>) {
    return str_cat(+std::numeric_limits<T>::lowest(), " to ", +std::numeric_limits<T>::max());
  } else {
    return {};
  }
}

}  // namespace

const GgufFile::Entry* GgufFile::find(std::string_view key) const {
  const auto found = key_index_.find(key);
  return found == key_index_.end() ? nullptr : &entries_[found->second];
}

std::string GgufFile::type_description(const Entry& entry) const {
  return entry.is_array ? str_cat("array of ", gguf_value_type_name(entry.type)) : gguf_value_type_name(entry.type);
}

template <class T>
Result<T> GgufFile::get(std::string_view key) const {
  return catch_out_of_memory([&] { return get_value<T>(key); });
}

template <class T>
Result<T> GgufFile::get_value(std::string_view key) const {
  const Entry* entry = find(key);
  if (entry == nullptr) return not_found(path_, ": the metadata key ", printable(key), " is missing");
  const std::byte* bytes = entry->payload;
  std::string problem;
  if constexpr (IsVector<T>::value) {
    using Element = typename T::value_type;
    if (!entry->is_array || !accepts<Element>(entry->type)) {
      return data_loss(path_, ": key ", printable(key), " has type ", type_description(*entry), ": array of ",
                       expected_name<Element>(), " is expected");
    }
    if (entry->count > kMaxArray) {
      return unsupported(path_, ": key ", printable(key), " is an array of ", entry->count, " values: at most ", kMaxArray,
                         " are read");
    }
    T values;
    values.reserve(static_cast<size_t>(entry->count));
    for (uint64_t i = 0; i < entry->count; ++i) {
      Element value{};
      if (!read_value(entry->type, bytes, value, problem)) {
        return data_loss(path_, ": key ", printable(key), " holds ", problem, " at index ", i, ": must be ",
                         range_text<Element>());
      }
      values.push_back(std::move(value));
    }
    entry->used = true;
    return values;
  } else {
    if (entry->is_array || !accepts<T>(entry->type)) {
      return data_loss(path_, ": key ", printable(key), " has type ", type_description(*entry), ": ", expected_name<T>(),
                       " is expected");
    }
    T value{};
    if (!read_value(entry->type, bytes, value, problem)) {
      return data_loss(path_, ": key ", printable(key), " is ", problem, ": must be ", range_text<T>());
    }
    entry->used = true;
    return value;
  }
}

template Result<bool> GgufFile::get(std::string_view) const;
template Result<int32_t> GgufFile::get(std::string_view) const;
template Result<uint32_t> GgufFile::get(std::string_view) const;
template Result<int64_t> GgufFile::get(std::string_view) const;
template Result<uint64_t> GgufFile::get(std::string_view) const;
template Result<float> GgufFile::get(std::string_view) const;
template Result<double> GgufFile::get(std::string_view) const;
template Result<std::string> GgufFile::get(std::string_view) const;
template Result<std::vector<bool>> GgufFile::get(std::string_view) const;
template Result<std::vector<int32_t>> GgufFile::get(std::string_view) const;
template Result<std::vector<uint32_t>> GgufFile::get(std::string_view) const;
template Result<std::vector<int64_t>> GgufFile::get(std::string_view) const;
template Result<std::vector<float>> GgufFile::get(std::string_view) const;
template Result<std::vector<double>> GgufFile::get(std::string_view) const;
template Result<std::vector<std::string>> GgufFile::get(std::string_view) const;

std::vector<std::string> GgufFile::keys() const {
  std::vector<std::string> names;
  for (const Entry& entry : entries_) names.emplace_back(entry.key);
  return names;
}

std::vector<std::string> GgufFile::unused_keys(std::string_view prefix) const {
  std::vector<std::string> names;
  for (const Entry& entry : entries_) {
    if (!entry.used && entry.key.starts_with(prefix) && !is_informational(entry.key)) names.emplace_back(entry.key);
  }
  return names;
}

// ---- Tensors ----

Result<const GgufTensor*> GgufFile::tensor(std::string_view name) const {
  return catch_out_of_memory([&]() -> Result<const GgufTensor*> {
    const auto found = tensor_index_.find(name);
    if (found == tensor_index_.end()) return not_found(path_, ": the tensor ", printable(name), " is missing");
    tensor_used_[found->second] = true;
    return &tensors_[found->second];
  });
}

Result<const GgufTensor*> GgufFile::tensor(std::string_view name, std::span<const int64_t> dims) const {
  return catch_out_of_memory([&] { return tensor_of(name, dims); });
}

Result<const GgufTensor*> GgufFile::tensor_of(std::string_view name, std::span<const int64_t> dims) const {
  if (const auto found = tensor_index_.find(name); found != tensor_index_.end()) {
    const GgufTensor& there = tensors_[found->second];
    if (!std::equal(there.dims.begin(), there.dims.end(), dims.begin(), dims.end())) {
      return data_loss(path_, ": tensor ", printable(name), " has shape ", shape_text(there.dims), ": ", shape_text(dims),
                       " is expected");
    }
  }
  return tensor(name);
}

Status GgufFile::read(const GgufTensor& tensor, int64_t begin, int64_t size, void* out) const {
  if (begin < 0 || size < 0 || begin > tensor.size_bytes || size > tensor.size_bytes - begin) {
    return invalid_argument("the bytes from ", begin, " on, ", size, " of them, are read of a tensor of ", tensor.size_bytes,
                            " bytes");
  }
  return catch_out_of_memory(
      [&] { return bytes_.read(tensor.offset + static_cast<uint64_t>(begin), static_cast<uint64_t>(size), out); });
}

Status GgufFile::check_unchanged() const {
  return catch_out_of_memory([&] { return bytes_.check_unchanged(); });
}

std::vector<std::string> GgufFile::unused_tensors() const {
  std::vector<std::string> names;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (!tensor_used_[i]) names.emplace_back(tensors_[i].name);
  }
  return names;
}

}  // namespace prologue
