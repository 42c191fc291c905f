// Reads JSON files of unknown origin as values. The reader is strict: one value, no comments, no NaN or Infinity, valid UTF-8, no name
// twice in an object, nesting, size and number of values limited. An error is data_loss, and says where; too many values are unsupported.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <prologue/kernels/base/status.h>

namespace prologue {

struct JsonMember;

struct Json {
  using List = std::vector<Json>;
  using Object = std::vector<JsonMember>;  // sorted by name

  // An integer that does not fit in int64 is a double. monostate is null.
  std::variant<std::monostate, bool, int64_t, double, std::string, List, Object> value;

  template <class T>
  const T* get_if() const {
    return std::get_if<T>(&value);
  }
  // Returns null if this is no object, or has no such member.
  const Json* find(std::string_view name) const;
  // Returns "a string", "an object", for messages.
  const char* kind() const;
};

struct JsonMember {
  std::string name;
  Json value;
};

inline constexpr int kMaxJsonDepth = 64;
// A value takes twenty times the memory of its text "0,". The tokenizer.json of a vocabulary of 262144 tokens has less than two million.
inline constexpr int64_t kMaxJsonValues = int64_t{1} << 22;

// `source` is the path for messages.
Result<Json> parse_json(std::string_view text, const std::string& source);
// Returns also the errors of FileBytes::open. unsupported: the file has more than max_bytes.
Result<Json> read_json_file(const std::string& path, uint64_t max_bytes);

}  // namespace prologue
