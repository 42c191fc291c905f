// Reads configuration values one after another and keeps the first error, so that a family's reader is a list of lines. After an error every
// function returns its fallback, or a small valid value: 1 for a number, false, or nothing.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <prologue/engine/checkpoint/checkpoint.h>

namespace prologue {

class ConfigReader {
 public:
  // `prefix` stands before every key: "llama." or "text_config.".
  ConfigReader(const Checkpoint& checkpoint, std::string prefix) : checkpoint_(checkpoint), prefix_(std::move(prefix)) {}

  bool has(std::string_view key) const { return checkpoint_.has(str_cat(prefix_, key)); }
  // Returns a size: 1 to 2^31 - 1. Without a fallback the key must be there.
  int64_t size(std::string_view key, std::optional<int64_t> fallback = std::nullopt);
  int64_t integer(std::string_view key, std::optional<int64_t> fallback = std::nullopt);
  double number(std::string_view key, std::optional<double> fallback = std::nullopt);  // finite
  bool flag(std::string_view key, std::optional<bool> fallback = std::nullopt);
  std::string text(std::string_view key, std::optional<std::string> fallback = std::nullopt);
  std::vector<int64_t> integers(std::string_view key);
  std::vector<double> numbers(std::string_view key);
  std::vector<std::string> texts(std::string_view key);

  // Says what this library supports of a key: the value that the model must have, if it has one.
  void only(std::string_view key, bool value);
  void only(std::string_view key, int64_t value);
  void only(std::string_view key, int value) { only(key, int64_t{value}); }
  void only(std::string_view key, const char* value);  // (a std::string_view would lose against bool)

  // Returns "PATH: KEY" for messages of other rules.
  std::string name(std::string_view key) const;
  void fail(const Status& status) {
    if (status_.ok()) status_ = status;
  }
  const Status& status() const { return status_; }
  const Checkpoint& checkpoint() const { return checkpoint_; }

 private:
  template <class T>
  T take(const Result<T>& value, T otherwise);

  const Checkpoint& checkpoint_;
  std::string prefix_;
  Status status_;
};

}  // namespace prologue
