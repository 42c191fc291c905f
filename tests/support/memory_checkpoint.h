// A checkpoint whose tensors are in memory, of any type, for tests of what is made of them. It has no keys.
#pragma once

#include <cstddef>
#include <cstring>
#include <deque>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <prologue/engine/checkpoint/checkpoint.h>

namespace prologue::test {

class MemoryCheckpoint : public Checkpoint {
 public:
  MemoryCheckpoint() = default;

  void add(const std::string& name, GgmlType type, std::vector<int64_t> shape, std::vector<std::byte> bytes,
           WeightScaling scaling = WeightScaling::blocks) {
    names_.push_back(name);
    bytes_.push_back(std::move(bytes));
    const GgmlTypeInfo* const info = ggml_type_info(type);
    tensors_.push_back({names_.back(), type, info != nullptr ? info->name : "unreadable", std::move(shape),
                        static_cast<int64_t>(bytes_.back().size()), scaling});
  }
  template <class T>
  void add(const std::string& name, GgmlType type, std::vector<int64_t> shape, const std::vector<T>& values,
           WeightScaling scaling = WeightScaling::blocks) {
    std::vector<std::byte> bytes(values.size() * sizeof(T));
    std::memcpy(bytes.data(), values.data(), bytes.size());
    add(name, type, std::move(shape), std::move(bytes), scaling);
  }

  Format format() const override { return Format::huggingface; }
  const std::string& path() const override { return path_; }
  Result<std::string> architecture() const override { return std::string("memory"); }
  bool has(std::string_view) const override { return false; }
  Result<int64_t> integer(std::string_view key) const override { return none(key); }
  Result<double> number(std::string_view key) const override { return none(key); }
  Result<bool> flag(std::string_view key) const override { return none(key); }
  Result<std::string> text(std::string_view key) const override { return none(key); }
  Result<std::vector<int64_t>> integers(std::string_view key) const override { return none(key); }
  Result<std::vector<double>> numbers(std::string_view key) const override { return none(key); }
  Result<std::vector<std::string>> texts(std::string_view key) const override { return none(key); }
  std::vector<std::string> unused_keys(std::string_view) const override { return {}; }

  std::span<const TensorInfo> tensors() const override { return tensors_; }
  bool has_tensor(std::string_view name) const override { return index_of(name) < tensors_.size(); }
  const TensorInfo* tensor(std::string_view name) const override {
    const size_t index = index_of(name);
    if (index == tensors_.size()) return nullptr;
    used_.insert(std::string(name));
    return &tensors_[index];
  }
  std::vector<std::string> unused_tensors() const override {
    std::vector<std::string> unused;
    for (const TensorInfo& each : tensors_) {
      if (used_.count(std::string(each.name)) == 0) unused.emplace_back(each.name);
    }
    return unused;
  }
  Status read(const TensorInfo& tensor, int64_t begin, int64_t size, void* out) const override {
    const std::vector<std::byte>& bytes = bytes_[static_cast<size_t>(&tensor - tensors_.data())];
    const auto stored = static_cast<int64_t>(bytes.size());
    if (begin < 0 || size < 0 || begin > stored - size) return invalid_argument(tensor.name, ": bytes are not within the tensor");
    std::memcpy(out, bytes.data() + begin, static_cast<size_t>(size));
    return {};
  }
  Status check_unchanged() const override { return {}; }

 private:
  static Status none(std::string_view key) { return not_found("there is no ", key); }
  size_t index_of(std::string_view name) const {
    size_t index = 0;
    while (index < tensors_.size() && tensors_[index].name != name) ++index;
    return index;
  }

  std::string path_ = "memory";
  std::deque<std::string> names_;
  std::deque<std::vector<std::byte>> bytes_;
  std::vector<TensorInfo> tensors_;
  mutable std::set<std::string> used_;
};

}  // namespace prologue::test
