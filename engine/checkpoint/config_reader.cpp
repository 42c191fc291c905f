#include <prologue/engine/checkpoint/config_reader.h>

#include <cmath>

#include <prologue/engine/base/printable.h>

namespace prologue {

template <class T>
T ConfigReader::take(const Result<T>& value, T otherwise) {
  if (value.ok()) return *value;
  fail(value.status());
  return otherwise;
}

std::string ConfigReader::name(std::string_view key) const {
  return checkpoint_.path() + ": " + printable(prefix_ + std::string(key));
}

int64_t ConfigReader::size(std::string_view key, std::optional<int64_t> fallback) {
  constexpr int64_t kLargest = (int64_t{1} << 31) - 1;
  const int64_t otherwise = fallback.value_or(1);
  if (!status_.ok() || (fallback && !has(key))) return otherwise;
  const int64_t value = take(checkpoint_.integer(prefix_ + std::string(key)), otherwise);
  if (!status_.ok() || (value >= 1 && value <= kLargest)) return value;
  fail(data_loss(name(key), " is ", value, ": it must be between 1 and ", kLargest));
  return otherwise;
}

int64_t ConfigReader::integer(std::string_view key, std::optional<int64_t> fallback) {
  const int64_t otherwise = fallback.value_or(1);
  if (!status_.ok() || (fallback && !has(key))) return otherwise;
  return take(checkpoint_.integer(prefix_ + std::string(key)), otherwise);
}

double ConfigReader::number(std::string_view key, std::optional<double> fallback) {
  const double otherwise = fallback.value_or(1.0);
  if (!status_.ok() || (fallback && !has(key))) return otherwise;
  const double value = take(checkpoint_.number(prefix_ + std::string(key)), otherwise);
  if (!status_.ok() || std::isfinite(value)) return value;
  fail(data_loss(name(key), " is ", value, ": it must be a finite number"));
  return otherwise;
}

bool ConfigReader::flag(std::string_view key, std::optional<bool> fallback) {
  const bool otherwise = fallback.value_or(false);
  if (!status_.ok() || (fallback && !has(key))) return otherwise;
  return take(checkpoint_.flag(prefix_ + std::string(key)), otherwise);
}

std::string ConfigReader::text(std::string_view key, std::optional<std::string> fallback) {
  const std::string otherwise = fallback.value_or("");
  if (!status_.ok() || (fallback && !has(key))) return otherwise;
  return take(checkpoint_.text(prefix_ + std::string(key)), otherwise);
}

std::vector<int64_t> ConfigReader::integers(std::string_view key) {
  if (!status_.ok()) return {};
  return take(checkpoint_.integers(prefix_ + std::string(key)), {});
}

std::vector<double> ConfigReader::numbers(std::string_view key) {
  if (!status_.ok()) return {};
  return take(checkpoint_.numbers(prefix_ + std::string(key)), {});
}

std::vector<std::string> ConfigReader::texts(std::string_view key) {
  if (!status_.ok()) return {};
  return take(checkpoint_.texts(prefix_ + std::string(key)), {});
}

void ConfigReader::only(std::string_view key, bool value) {
  if (flag(key, value) == value) return;
  fail(unsupported(name(key), " is ", value ? "false" : "true", ": only ", value ? "true" : "false", " is supported"));
}

void ConfigReader::only(std::string_view key, int64_t value) {
  const int64_t found = integer(key, value);
  if (found != value) fail(unsupported(name(key), " is ", found, ": only ", value, " is supported"));
}

void ConfigReader::only(std::string_view key, const char* value) {
  const std::string found = text(key, value);
  if (found != value) fail(unsupported(name(key), " is ", in_quotes(found), ": only ", in_quotes(value), " is supported"));
}

}  // namespace prologue
