// This file has the names of a request's fields: those that the server reads, those of other servers that it refuses or may leave out, and
// all others.
#pragma once

#include <initializer_list>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <string_view>

namespace serve {

using FieldNames = std::initializer_list<std::string_view>;

// Says what becomes of fields that the server does not know. Strict: a request with one is refused. Otherwise it is ignored, and the log
// names it once.
class UnknownFields {
 public:
  explicit UnknownFields(bool strict) : strict_(strict) {}

  // `prefix` is the object's name and a dot, or nothing. `read` is what may have been meant. Throws ApiError if strict. May be called in
  // any thread.
  void found(const std::string& prefix, const std::string& name, FieldNames read);

 private:
  const bool strict_;
  std::mutex mutex_;
  std::set<std::string> named_;
};

// Checks the names of an object. `read`: what the server reads of it. `parent`: its own name, for example "messages[2]"; empty: the body. Throws
// ApiError for a field that changes the answer and is not read, unless it has a value with which it changes nothing. A field that is null is
// as good as absent.
void check_names(const nlohmann::json& object, FieldNames read, const std::string& parent, UnknownFields& unknown);

}  // namespace serve
