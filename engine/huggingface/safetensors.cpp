#include <prologue/engine/huggingface/safetensors.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>
#include <tuple>
#include <utility>

#include <prologue/engine/base/printable.h>
#include <prologue/engine/huggingface/json.h>
#include <prologue/kernels/base/out_of_memory.h>

namespace prologue {
namespace {

static_assert(std::endian::native == std::endian::little, "values are read from little-endian files as they lie");

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeader = uint64_t{32} << 20;

// Returns the bits of an element, for the types whose size is checked, or 0 for any other.
int64_t element_bits(std::string_view dtype) {
  constexpr std::pair<std::string_view, int64_t> kBits[] = {
      {"BOOL", 8}, {"U8", 8},   {"I8", 8},   {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8},
      {"I16", 16}, {"U16", 16}, {"F16", 16}, {"BF16", 16},   {"I32", 32},    {"U32", 32},
      {"F32", 32}, {"I64", 64}, {"U64", 64}, {"F64", 64},    {"C64", 64}};
  for (const auto& [name, bits] : kBits) {
    if (name == dtype) return bits;
  }
  return 0;
}

// Reads one entry of the header; its offset is still from the beginning of the data.
Status read_tensor(const std::string& path, const JsonMember& entry, SafetensorsTensor& tensor) {
  tensor.name = entry.name;
  const std::string what = path + ": tensor " + in_quotes(entry.name);
  const Json *dtype = entry.value.find("dtype"), *shape = entry.value.find("shape"), *offsets = entry.value.find("data_offsets");
  if (dtype == nullptr || !dtype->get_if<std::string>()) return data_loss(what, " has no dtype that is a string");
  tensor.dtype = *dtype->get_if<std::string>();

  if (shape == nullptr || !shape->get_if<Json::List>()) return data_loss(what, " has no shape that is a list");
  int64_t num_elements = 1;
  for (const Json& item : *shape->get_if<Json::List>()) {
    const int64_t* dim = item.get_if<int64_t>();
    if (dim == nullptr || *dim < 0) return data_loss(what, " has a dimension that is not an integer of at least 0");
    if (__builtin_mul_overflow(num_elements, *dim, &num_elements)) {
      return data_loss(what, " has a dimension of ", *dim, ": the number of elements overflows 64 bits");
    }
    tensor.shape.push_back(*dim);
  }

  const Json::List* range = offsets == nullptr ? nullptr : offsets->get_if<Json::List>();
  const int64_t* begin = range == nullptr || range->size() != 2 ? nullptr : (*range)[0].get_if<int64_t>();
  const int64_t* end = range == nullptr || range->size() != 2 ? nullptr : (*range)[1].get_if<int64_t>();
  if (begin == nullptr || end == nullptr || *begin < 0 || *end < *begin) {
    return data_loss(what, " has no data_offsets that are two integers, 0 <= begin <= end");
  }
  tensor.offset = static_cast<uint64_t>(*begin);
  tensor.size_bytes = *end - *begin;

  const int64_t bits = element_bits(tensor.dtype);
  int64_t size = 0;
  if (bits == 0) return {};
  if (__builtin_mul_overflow(num_elements, bits / 8, &size) || size != tensor.size_bytes) {
    return data_loss(what, " has ", num_elements, " elements of type ", tensor.dtype, ", but its data has ", tensor.size_bytes,
                     " bytes");
  }
  return {};
}

}  // namespace

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  return catch_out_of_memory([&]() -> Result<SafetensorsFile> {
    PROLOGUE_ASSIGN_OR_RETURN(FileBytes bytes, FileBytes::open(path));
    return parse(std::move(bytes), printable_path(path));
  });
}

Result<SafetensorsFile> SafetensorsFile::from_bytes(std::vector<std::byte> bytes, std::string name) {
  return catch_out_of_memory([&] { return parse(FileBytes(std::move(bytes)), std::move(name)); });
}

Result<SafetensorsFile> SafetensorsFile::parse(FileBytes bytes, std::string path) {
  SafetensorsFile file;
  file.bytes_ = std::move(bytes);
  file.path_ = std::move(path);
  PROLOGUE_RETURN_IF_ERROR(file.read_header());
  return file;
}

Status SafetensorsFile::read_header() {
  if (bytes_.size() < kLengthBytes) {
    return data_loss(path_, ": the file has ", bytes_.size(),
                     " bytes: a safetensors file begins with a header's length of 8 bytes");
  }
  PROLOGUE_RETURN_IF_ERROR(bytes_.read_head(kLengthBytes));
  uint64_t length = 0;
  std::memcpy(&length, bytes_.head().data(), sizeof length);
  if (std::memcmp(bytes_.head().data(), "version ", kLengthBytes) == 0) {
    return data_loss(path_, ": this is a Git LFS pointer, not the file that it stands for: fetch that with git lfs pull");
  }
  if (length > bytes_.size() - kLengthBytes) {
    return data_loss(path_, ": the header is said to have ", length, " bytes, but only ", bytes_.size() - kLengthBytes,
                     " follow: the file is cut short, or not a safetensors file");
  }
  if (length > kMaxHeader) {
    return unsupported(path_, ": the header has ", length, " bytes: at most ", kMaxHeader, " are supported");
  }
  const uint64_t data_begin = kLengthBytes + length;
  PROLOGUE_RETURN_IF_ERROR(bytes_.read_head(data_begin));
  const std::string_view text(reinterpret_cast<const char*>(bytes_.head().data()) + kLengthBytes, static_cast<size_t>(length));
  if (!text.starts_with('{')) return data_loss(path_, ": the header does not begin with \"{\": this is not a safetensors file");
  PROLOGUE_ASSIGN_OR_RETURN(const Json header, parse_json(text, path_));

  const uint64_t data_size = bytes_.size() - data_begin;
  for (const JsonMember& entry : *header.get_if<Json::Object>()) {
    if (entry.name == "__metadata__") continue;  // free text
    SafetensorsTensor tensor;
    PROLOGUE_RETURN_IF_ERROR(read_tensor(path_, entry, tensor));
    const uint64_t end = tensor.offset + static_cast<uint64_t>(tensor.size_bytes);
    if (end > data_size) {
      return data_loss(path_, ": tensor ", in_quotes(tensor.name), " ends at byte ", end, " of the data, of which the file has ",
                       data_size, ": it is cut short");
    }
    tensor.offset += data_begin;
    tensors_.push_back(std::move(tensor));
  }
  return check_ranges(data_begin);
}

Status SafetensorsFile::check_ranges(uint64_t data_begin) const {
  std::vector<const SafetensorsTensor*> order;
  for (const SafetensorsTensor& tensor : tensors_) order.push_back(&tensor);
  std::sort(order.begin(), order.end(), [](const SafetensorsTensor* a, const SafetensorsTensor* b) {
    return std::tie(a->offset, a->size_bytes) < std::tie(b->offset, b->size_bytes);
  });
  uint64_t covered = data_begin;
  const SafetensorsTensor* previous = nullptr;
  for (const SafetensorsTensor* tensor : order) {
    if (tensor->offset < covered) {
      return data_loss(path_, ": the tensors ", in_quotes(previous->name), " and ", in_quotes(tensor->name), " overlap");
    }
    if (tensor->offset > covered) {
      return data_loss(path_, ": ", tensor->offset - covered, " bytes before the data of tensor ", in_quotes(tensor->name),
                       " belong to no tensor");
    }
    covered += static_cast<uint64_t>(tensor->size_bytes);
    previous = tensor;
  }
  if (covered == bytes_.size()) return {};
  return data_loss(path_, ": the last ", bytes_.size() - covered, " bytes of the file belong to no tensor");
}

Status SafetensorsFile::read(const SafetensorsTensor& tensor, int64_t begin, int64_t size, void* out) const {
  if (begin < 0 || size < 0 || begin > tensor.size_bytes || size > tensor.size_bytes - begin) {
    return invalid_argument("the bytes from ", begin, " on, ", size, " of them, are read of a tensor of ", tensor.size_bytes,
                            " bytes");
  }
  return catch_out_of_memory(
      [&] { return bytes_.read(tensor.offset + static_cast<uint64_t>(begin), static_cast<uint64_t>(size), out); });
}

Status SafetensorsFile::check_unchanged() const {
  return catch_out_of_memory([&] { return bytes_.check_unchanged(); });
}

}  // namespace prologue
