// Errors as values. Nothing in the library throws, prints or aborts on input: an operation returns a Status, something
// that makes a value returns a Result<T>. An error is a code and one full sentence that names the value and the rule.
#pragma once

#include <cstdint>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <variant>

#include <prologue/kernels/base/export.h>

namespace prologue {

enum class StatusCode : int32_t {
  ok = 0,
  invalid_argument,    // the caller's value breaks a rule of the contract
  unsupported,         // valid, but nothing here does it
  not_found,           // a file, tensor or key that must be there is not
  data_loss,           // a file contradicts itself or is cut short
  resource_exhausted,  // out of pages, out of memory
  device_error,        // the GPU, its driver or a vendor library failed
};

PROLOGUE_API const char* status_code_name(StatusCode code);

// An empty Status is success; it costs one null pointer.
class [[nodiscard]] PROLOGUE_API Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : error_(std::make_shared<const Error>(Error{code, std::move(message)})) {}

  bool ok() const { return error_ == nullptr; }
  explicit operator bool() const { return ok(); }
  StatusCode code() const { return ok() ? StatusCode::ok : error_->code; }
  const std::string& message() const;

 private:
  struct Error {
    StatusCode code;
    std::string message;
  };
  std::shared_ptr<const Error> error_;
};

inline Status ok_status() { return {}; }

// A value or the reason why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}          // NOLINT(google-explicit-constructor)
  Result(Status status) : state_(std::move(status)) {}   // NOLINT(google-explicit-constructor)

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  Status status() const { return ok() ? Status() : std::get<1>(state_); }

  T& value() & { return std::get<0>(state_); }
  const T& value() const& { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  std::variant<T, Status> state_;
};

// str_cat("head_dim is ", 7, ": ...") without a format string.
template <class... Parts>
std::string str_cat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return std::move(out).str();
}

template <class... Parts>
Status invalid_argument(const Parts&... parts) {
  return Status(StatusCode::invalid_argument, str_cat(parts...));
}
template <class... Parts>
Status unsupported(const Parts&... parts) {
  return Status(StatusCode::unsupported, str_cat(parts...));
}
template <class... Parts>
Status not_found(const Parts&... parts) {
  return Status(StatusCode::not_found, str_cat(parts...));
}
template <class... Parts>
Status data_loss(const Parts&... parts) {
  return Status(StatusCode::data_loss, str_cat(parts...));
}
template <class... Parts>
Status resource_exhausted(const Parts&... parts) {
  return Status(StatusCode::resource_exhausted, str_cat(parts...));
}
template <class... Parts>
Status device_error(const Parts&... parts) {
  return Status(StatusCode::device_error, str_cat(parts...));
}

}  // namespace prologue

#define PROLOGUE_CONCAT_INNER(a, b) a##b
#define PROLOGUE_CONCAT(a, b) PROLOGUE_CONCAT_INNER(a, b)

// Returns the error of `expression` (a Status) from the enclosing function, or goes on.
#define PROLOGUE_RETURN_IF_ERROR(expression)                          \
  do {                                                                \
    if (::prologue::Status prologue_status_ = (expression); !prologue_status_.ok()) return prologue_status_; \
  } while (false)

// PROLOGUE_ASSIGN_OR_RETURN(auto file, GgufFile::open(path));
#define PROLOGUE_ASSIGN_OR_RETURN(target, expression) \
  PROLOGUE_ASSIGN_OR_RETURN_INNER(PROLOGUE_CONCAT(prologue_result_, __LINE__), target, expression)
#define PROLOGUE_ASSIGN_OR_RETURN_INNER(result, target, expression) \
  auto result = (expression);                                       \
  if (!result.ok()) return result.status();                         \
  target = std::move(result).value()
