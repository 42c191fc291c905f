// The fields of a body that are not read: those that are refused, those that change nothing, and those that nobody knows.
#pragma once

#include <cstddef>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>

namespace serve {

// Fields that the server does not know. One that changes the answer must not be ignored without a word: a strict server refuses them all,
// others name each once in the log.
class UnknownFields {
 public:
  explicit UnknownFields(bool strict) : strict_(strict) {}

  // `hint`: " (did you mean ...?)", or nothing. Throws ApiError if it is strict.
  void meet(const std::string& name, const std::string& hint);

 private:
  static constexpr size_t kMost = 64;  // names in the log: strangers can think of many

  const bool strict_;
  std::mutex mutex_;
  std::set<std::string> named_;
};

// Looks at each field of a body (`chat`: of a chat) that the server does not read. Throws ApiError for one that asks for something that it
// cannot do. A value that changes nothing is as good as none, and so is null.
void check_other_fields(const nlohmann::json& body, bool chat, UnknownFields& unknown);

}  // namespace serve
